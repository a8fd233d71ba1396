// The page: who has signed in, what is shown, and how an action is carried out.

import { BlocksPanel, LookUp, OverridesPanel, TopClients } from "./clients.js";
import { Chart } from "./chart.js";
import { byId, duration, make, plural, setShown, setText } from "./elements.js";
import { HealthPanels, Tiles, healthOf, isOut } from "./health.js";
import { History } from "./history.js";
import { LedgerPanel } from "./ledger.js";
import { Live } from "./live.js";
import { ChangesPanel, PolicyPanel } from "./records.js";
import { RulesPanel } from "./rules.js";
import { call, session, signIn, signOut } from "./server.js";

const NOTICE = 6_000; // milliseconds, as below
const NOTICE_OF_PROBLEM = 15_000;
const READ_AGAIN = 3_000; // between two attempts to read what could not be read

class Page {
  constructor() {
    this.operator = null;
    this.attempts = 0; // to sign in
    this.isChosen = false; // the range of the chart, by a click
    this.readAt = -Infinity; // when the documents were read
    this.forget();
    this.chart = new Chart(byId("chart"), byId("readout"));
    this.tiles = new Tiles();
    this.top = new TopClients(this);
    this.rules = new RulesPanel(this);
    this.blocks = new BlocksPanel(this);
    this.overrides = new OverridesPanel(this);
    this.health = new HealthPanels();
    this.lookUp = new LookUp(this);
    this.changes = new ChangesPanel();
    this.policy = new PolicyPanel(this);
    this.past = new LedgerPanel(this);
    this.live = new Live({
      history: (history) => {
        this.state.history.take(history);
        if (!this.isChosen) this.range = this.state.history.isLong ? "hour" : "recent";
        this.drawChart();
      },
      figures: (view) => this.takeFigures(view),
      changed: () => this.refresh(),
      problem: (words) => {
        this.state.problem = words;
        this.drawHealth();
      },
      silent: (silence) => this.takeSilence(silence),
      signedOut: (error) => this.leave(error),
    });
    byId("show-recent").addEventListener("click", () => this.choose("recent"));
    byId("show-hour").addEventListener("click", () => this.choose("hour"));
    byId("sign-in").addEventListener("submit", (event) => this.submitToken(event));
    byId("sign-out").addEventListener("click", (event) =>
      this.act(event.currentTarget, () => signOut().then(() => this.leave(null))),
    );
    byId("retry").addEventListener("click", () => this.enter());
    setInterval(() => this.operator && !document.hidden && this.drawDocuments(), 10_000); // times such as "in 12 min"
  }

  /** Drop everything that was shown: the next operator may be another one. */
  forget() {
    this.state = {
      view: null,
      history: new History(),
      rules: [],
      forAll: { state: "on", switch: null },
      blocks: null, // not read yet
      overrides: [],
      changes: [],
      policy: null,
      silence: 0,
      problem: "", // why there are no new figures
      outageSince: null,
      unread: new Set(), // what could not be read
    };
    this.range = this.range ?? "recent";
  }

  get canWrite() {
    return this.operator?.role === "write";
  }

  // Signing in

  async start() {
    addEventListener("hashchange", () => this.takeLink()); // a link that is pasted into the tab of the page
    if (!(await this.takeLink())) await this.enter();
  }

  /** Sign in with the token of a link, and return false if there is none. An old link does not end a session. */
  async takeLink() {
    const token = new URLSearchParams(location.hash.slice(1)).get("token");
    if (token === null) return false;
    history.replaceState(null, "", location.pathname + location.search);
    const again = (refused) => session().catch(() => Promise.reject(refused));
    await this.attempt(() => signIn(token).catch(again), true);
    return true;
  }

  enter() {
    return this.attempt(session, false);
  }

  async submitToken(event) {
    event.preventDefault();
    const token = byId("token").value.trim();
    event.submitter?.setAttribute("aria-busy", "true");
    setShown(byId("sign-in-problem"), false); // it was about an earlier token
    await this.attempt(() => signIn(token), true);
    event.submitter?.removeAttribute("aria-busy");
  }

  /** Try to sign in by `ask`. Only the latest attempt counts: a late answer to an earlier token changes nothing. */
  async attempt(ask, wasTried) {
    const attempt = ++this.attempts;
    const show = await ask().then(
      (found) => () => this.welcome(found),
      (error) => () => this.leave(error, wasTried),
    );
    if (attempt === this.attempts) show();
  }

  welcome(found) {
    this.operator = found;
    this.forget();
    byId("token").value = "";
    setShown(byId("sign-in-problem"), false);
    for (const id of ["sign-in", "refused"]) setShown(byId(id), false);
    for (const id of ["dashboard", "health", "operator", "sections"]) setShown(byId(id), true);
    setShown(byId("sign-out"), found.signs_in);
    setText(byId("operator"), found.name ? `${found.name} (${found.role})` : `role ${found.role}`);
    for (const element of document.querySelectorAll("[data-needs=write]")) setShown(element, this.canWrite);
    this.drawHealth();
    this.live.start(found.live);
    this.past.open(found.ledger);
    this.refresh();
  }

  /** Show the sign-in, or why there is none. `error` is null after a sign-out. */
  leave(error, wasTried = false) {
    const wasIn = this.operator !== null;
    this.operator = null;
    this.live.stop();
    this.forget();
    this.top.hideNames();
    this.lookUp.clear();
    this.policy.clear();
    this.past.close();
    for (const id of ["dashboard", "health", "operator", "sections", "processes", "sign-out"])
      setShown(byId(id), false);
    const takesTokens = error === null || (error.status !== 0 && (wasTried || error.takesTokens));
    setShown(byId("sign-in"), takesTokens);
    setShown(byId("refused"), !takesTokens);
    if (takesTokens) {
      const words = wasTried ? error.message : wasIn && error !== null ? "Your session has ended. Sign in again." : "";
      setText(byId("sign-in-problem"), words);
      setShown(byId("sign-in-problem"), words !== "");
      byId("token").focus();
      byId("token").select();
    } else setText(byId("refused-words"), error.message);
  }

  // What is shown

  takeFigures(view) {
    const state = this.state;
    state.view = view;
    state.problem = "";
    state.history.add(view);
    if (!isOut(view)) state.outageSince = null;
    else state.outageSince ??= view.at;
    if (state.unread.size && performance.now() - this.readAt > READ_AGAIN) this.refresh();
    this.draw();
  }

  takeSilence(silence) {
    if (this.state.silence === 0 && silence === 0) return;
    this.state.silence = silence;
    byId("dashboard").classList.toggle("is-old", silence > 0);
    setShown(byId("old"), silence > 0);
    if (silence > 0)
      setText(
        byId("old"),
        `No answer for ${duration(silence / 1000)}. The figures below are old; the page tries again by itself.`,
      );
    this.drawHealth();
  }

  choose(range) {
    this.range = range;
    this.isChosen = true;
    this.drawChart();
  }

  draw() {
    const { view } = this.state;
    if (view === null) return;
    this.tiles.show(this.state);
    this.drawChart();
    this.top.show(view.top);
    this.rules.show(this.state);
    this.blocks.show(this.state.blocks ?? [], view.penalized, this.state.forAll.state);
    this.health.show(view);
    setText(byId("processes"), plural(view.processes.length, "process", "processes"));
    setShown(byId("processes"), true);
    this.drawHealth();
  }

  drawDocuments() {
    const { view, blocks, overrides, changes, policy, rules, forAll } = this.state;
    this.rules.show(this.state);
    this.blocks.show(blocks ?? [], view?.penalized ?? [], forAll.state);
    this.overrides.show(overrides);
    this.changes.show(changes);
    this.policy.show(policy, rules);
    this.drawHealth();
  }

  drawChart() {
    byId("show-recent").setAttribute("aria-pressed", String(this.range === "recent"));
    byId("show-hour").setAttribute("aria-pressed", String(this.range === "hour"));
    this.chart.show(this.state.history[this.range]);
  }

  drawHealth() {
    const { level, words } = healthOf(this.state);
    const element = byId("health");
    if (element.dataset.level !== level) element.dataset.level = level;
    setText(byId("health-words"), words);
    document.title = level === "good" ? "Ratebound" : `${words} · Ratebound`;
  }

  /** Read the operators' documents, the rules and the policy again. Requests that come meanwhile are one more round. */
  async refresh() {
    if (this.refreshing) {
      this.mustRefresh = true;
      return this.refreshing;
    }
    this.refreshing = this.readDocuments();
    await this.refreshing;
    this.refreshing = null;
    if (this.mustRefresh) {
      this.mustRefresh = false;
      await this.refresh();
    }
  }

  async readDocuments() {
    const operator = this.operator;
    this.readAt = performance.now();
    const wanted = {
      rules: ["api/rules", (found) => [...found.rules, ...found.descriptors]],
      blocks: ["api/blocks", (found) => found.blocks],
      overrides: ["api/overrides", (found) => found.overrides],
      changes: ["api/changes", (found) => found.changes],
      policy: ["api/policy", (found) => found],
    };
    await Promise.all(
      Object.entries(wanted).map(async ([name, [path, read]]) => {
        try {
          const found = await call("GET", path);
          if (operator !== this.operator) return;
          this.state[name] = read(found);
          this.showUnread(name, "");
          if (name === "rules") this.state.forAll = { state: found.state, switch: found.switch };
        } catch (error) {
          if (operator !== this.operator) return;
          if (error.status === 401) this.leave(error);
          else this.showUnread(name, error.message); // what was read before stays
        }
      }),
    );
    if (operator === this.operator && operator !== null) this.drawDocuments();
  }

  showUnread(name, words) {
    this.state.unread[words ? "add" : "delete"](name);
    const box = byId(name);
    const line = box.parentElement.querySelector(".unread") ?? make("p", { class: "problem unread" });
    setText(line, words);
    box.classList.toggle("is-unread", words !== "");
    if (words === "") line.remove();
    else box.before(line);
  }

  // What operators do

  /** Carry out `work` for a click on `button`, say so, offer to undo it, and show the result. Return true if done. */
  async act(button, work, words = "", undo = null) {
    if (button?.getAttribute("aria-busy") === "true") return false;
    button?.setAttribute("aria-busy", "true"); // not disabled: a disabled button loses the focus
    try {
      await work();
      const text = typeof words === "function" ? words() : words;
      if (text) this.notice(text, undo);
      if (text && this.operator) await this.refresh();
      return true;
    } catch (error) {
      if (error.status === 401) this.leave(error);
      else if (error.status === undefined) throw error;
      else this.notice(error.message, null, true);
      return false;
    } finally {
      button?.removeAttribute("aria-busy");
    }
  }

  notice(words, undo = null, isProblem = false) {
    const box = make("div", { class: isProblem ? "notice problem" : "notice" }, make("p", {}, words));
    const close = () => box.remove();
    if (undo) {
      const button = make("button", { type: "button", class: "link" }, "Undo");
      button.addEventListener("click", async () => {
        if (await this.act(button, undo, "Undone.")) close();
      });
      box.append(button);
    }
    box.append(
      make("button", { type: "button", class: "link", "aria-label": "Close this message", onclick: close }, "✕"),
    );
    const list = byId("notices");
    list.append(box);
    while (list.children.length > 3) list.firstElementChild.remove();
    const end = () => (box.matches(":hover, :focus-within") ? setTimeout(end, 2_000) : close());
    setTimeout(end, isProblem ? NOTICE_OF_PROBLEM : NOTICE);
  }

  confirm(title, words, yes) {
    const dialog = byId("confirm");
    setText(byId("confirm-title"), title);
    setText(byId("confirm-words"), words);
    setText(byId("confirm-yes"), yes);
    dialog.returnValue = "no";
    dialog.showModal();
    return new Promise((resolve) =>
      dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }),
    );
  }
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape") byId("notices").lastElementChild?.remove();
});

new Page().start();
