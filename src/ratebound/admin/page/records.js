// The audit log and the policy.

import { Table, ago, byId, count, fillText, fullTime, make, plural, setShown, setText } from "./elements.js";
import { call } from "./server.js";

const FIRST = 12;

export class ChangesPanel {
  constructor() {
    this.isWhole = false;
    const box = make("div", { class: "scroll tall" });
    this.more = make("button", { type: "button", class: "small", onclick: () => this.toggle() });
    byId("changes").replaceChildren(box, this.more);
    this.table = new Table(box, {
      label: "Audit log",
      keyOf: (change) => change.key,
      empty: "Nobody has changed anything yet. Every block, override, switch and reload is recorded here.",
      columns: [
        { heading: "When", kind: "when", fill: (cell, change) => fillText(cell, ago(change.at), fullTime(change.at)) },
        { heading: "Who", fill: (cell, change) => fillText(cell, change.by || "–") },
        { heading: "Did", fill: (cell, change) => fillText(cell, change.action) },
        {
          heading: "What",
          kind: "client",
          fill: (cell, change) =>
            fillText(cell, change.target || (change.action.endsWith("switch") ? "all rules" : "–")),
        },
        { heading: "Detail", kind: "long", fill: (cell, change) => fillText(cell, change.detail || "–") },
      ],
    });
  }

  show(changes) {
    const seen = new Map();
    this.changes = changes.map((change) => {
      const name = JSON.stringify([change.at, change.by, change.action, change.target]);
      seen.set(name, (seen.get(name) ?? 0) + 1);
      return { ...change, key: `${name}${seen.get(name)}` };
    });
    this.draw();
  }

  draw() {
    this.table.show(this.isWhole ? this.changes : this.changes.slice(0, FIRST));
    setShown(this.more, this.changes.length > FIRST);
    setText(this.more, this.isWhole ? "Show fewer" : `Show all ${count(this.changes.length)}`);
  }

  toggle() {
    this.isWhole = !this.isWhole;
    this.draw();
  }
}

export class PolicyPanel {
  constructor(page) {
    this.page = page;
    const check = byId("check-policy");
    check.addEventListener("click", () => this.check(check));
    const reload = byId("reload-policy");
    reload.addEventListener("click", () => this.reload(reload));
    const fact = (title) => {
      const value = make("dd");
      return { value, box: make("div", {}, make("dt", {}, title), value) };
    };
    this.facts = { source: fact("Source"), format: fact("Format"), rules: fact("Rules"), storage: fact("Storage") };
    this.problem = make("p", { class: "problem" });
    byId("policy").replaceChildren(
      make("dl", { class: "facts" }, ...Object.values(this.facts).map((one) => one.box)),
      this.problem,
    );
  }

  show(policy, rules) {
    const { source = "", format = "", storage = "", error = "", can_reload: canReload = false } = policy ?? {};
    const facts = { source, format, rules: count(rules.length), storage };
    for (const [name, text] of Object.entries(facts)) {
      setText(this.facts[name].value, text);
      setShown(this.facts[name].box, text !== "");
    }
    setText(this.problem, error);
    setShown(this.problem, error !== "");
    setShown(byId("check-policy"), canReload);
    setShown(byId("reload-policy"), canReload && this.page.canWrite);
  }

  async check(button) {
    await this.page.act(button, async () => this.report(await call("POST", "api/policy/check", {})));
  }

  async reload(button) {
    let found = null;
    await this.page.act(
      button,
      async () => (found = await call("POST", "api/policy/reload", {})),
      () => (found.valid ? "The policy is loaded." : ""),
    );
    if (found?.valid) this.clear();
    else if (found !== null) {
      this.report(found);
      this.page.notice("The policy was not loaded: the one before it stays in force.", null, true);
      await this.page.refresh();
    }
  }

  /** Say what a reload would change. */
  report(found) {
    const problems = found.problems.map(({ where, message, line }) =>
      [line !== null && `line ${line}`, where, message].filter(Boolean).join(": "),
    );
    const lines = found.changes.map(
      ({ where, what, detail }) => `${where}${what === "changed" ? "" : ` ${what}`}: ${detail}`,
    );
    const list = (texts, name) => make("ul", { class: name }, ...texts.map((text) => make("li", {}, text)));
    const parts = [];
    if (problems.length)
      parts.push(make("p", { class: "problem" }, "The new policy cannot be used:"), list(problems, "report bad"));
    else if (lines.length)
      parts.push(make("p", {}, `A reload makes ${plural(lines.length, "change")}:`), list(lines, "report"));
    else parts.push(make("p", { class: "muted" }, "Nothing would change: the policy in force is the newest one."));
    byId("policy-check").replaceChildren(...parts);
  }

  clear() {
    byId("policy-check").replaceChildren();
  }
}
