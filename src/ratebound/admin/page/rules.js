// The table of rules: how much each one allows and denies, and the switches of operators.

import { Sparkline } from "./chart.js";
import {
  Bar,
  Table,
  byId,
  fillOnce,
  fillText,
  fullTime,
  make,
  percent,
  rate,
  setShown,
  setText,
  until,
} from "./elements.js";
import { call, query } from "./server.js";

const STATES = [
  ["on", "On", "enforce its limits"],
  ["shadow", "Shadow", "count and report, deny nothing"],
  ["off", "Off", "ask nothing"],
];
const SORT_EVERY = 5_000; // milliseconds: rows that jump under the pointer cannot be clicked

/** Limits by tier as one line: "100/minute", or "100/minute, premium: 500/minute". */
export function limitsText(limits) {
  if (limits === null || limits === undefined) return "";
  if (typeof limits === "string") return limits;
  const { default: common, ...tiers } = limits;
  const texts = Object.entries(tiers).map(([tier, text]) => `${tier}: ${text}`);
  return [common, ...texts].filter(Boolean).join(", ");
}

export const share = (one) => (one.allowed + one.denied > 0 ? one.denied / (one.allowed + one.denied) : 0);

export class RulesPanel {
  /** `page` has canWrite, act(button, work, words, undo) and confirm(title, words, yes). */
  constructor(page) {
    this.page = page;
    this.forAll = { state: "on", switch: null }; // until the first answer
    this.order = [];
    this.sortedAt = -Infinity;
    this.all = new Switches(
      "All rules",
      (state) => this.switchAll(state),
      () => this.undo(null),
    );
    this.duration = make(
      "select",
      { "aria-label": "How long switches last", "data-needs": "write" },
      ...[
        ["", "until undone"],
        ["10 minutes", "for 10 minutes"],
        ["1 hour", "for 1 hour"],
        ["1 day", "for 1 day"],
      ].map(([value, words]) => make("option", { value }, words)),
    );
    const label = make("span", { class: "muted", "aria-hidden": "true" }, "All rules");
    byId("all-rules").replaceChildren(label, ...this.all.nodes, this.duration);
    this.table = new Table(byId("rules"), {
      label: "Rules",
      keyOf: (rule) => rule.name,
      rowClass: (rule) => (rule.state === "off" ? "is-off" : ""),
      empty: "No rules and no decisions yet. Add rules to the policy, or limits to endpoints. They show here.",
      columns: [
        { heading: "Rule", kind: "name", fill: (cell, rule) => this.fillName(cell, rule) },
        {
          heading: "Denied, last hour",
          kind: "spark-cell",
          fill: (cell, rule) =>
            fillOnce(
              cell,
              rule,
              () => new Sparkline(),
              (line) => line.set(rule.series),
            ),
        },
        { heading: "Allowed/s", kind: "number", fill: (cell, rule) => fillText(cell, rate(rule.live.allowed)) },
        { heading: "Denied/s", kind: "number", fill: (cell, rule) => fillText(cell, rate(rule.live.denied)) },
        {
          heading: "Denied",
          hint: "The share of this rule's decisions that deny.",
          kind: "bar",
          fill: (cell, rule) =>
            fillOnce(
              cell,
              rule,
              () => new Bar("denied"),
              (bar) => bar.set(share(rule.live), percent(share(rule.live))),
            ),
        },
        {
          heading: "Used",
          hint: "How much of its limits clients use, on average.",
          kind: "bar",
          fill: (cell, rule) =>
            fillOnce(
              cell,
              rule,
              () => new Bar("used"),
              (bar) => bar.set(rule.live.used, rule.live.used === null ? "–" : percent(rule.live.used)),
            ),
        },
        {
          heading: "Trial against live",
          hint: "What candidate limits, or a rule in shadow, would deny, beside what is denied. Promote enforces them.",
          kind: "trial",
          fill: (cell, rule) => this.fillTrial(cell, rule),
        },
        { heading: "State", kind: "action", fill: (cell, rule) => this.fillState(cell, rule) },
      ],
    });
  }

  show({ rules, forAll, view, history }) {
    this.forAll = forAll;
    const figures = new Map((view?.rules ?? []).map((rule) => [rule.rule, rule]));
    const reports = new Map((view?.shadow_report ?? []).map((report) => [report.rule, report]));
    const known = new Map(rules.map((rule) => [rule.name, rule]));
    for (const name of figures.keys()) if (!known.has(name)) known.set(name, { name, isGone: true });
    const shown = [...known.values()].map((rule) => ({
      ...rule,
      live: figures.get(rule.name) ?? { allowed: 0, denied: 0, used: null, shadow: null, candidate: null },
      report: reports.get(rule.name),
      series: history.rules.get(rule.name),
    }));
    this.sort(shown, Boolean(view));
    const byName = new Map(shown.map((rule) => [rule.name, rule]));
    this.table.show(this.order.map((name) => byName.get(name)));
    this.all.show(forAll.state, forAll.switch, this.page.canWrite);
    setShown(byId("all-rules"), this.page.canWrite || forAll.state !== "on");
    setShown(this.duration, this.page.canWrite);
  }

  /** Most denied first. The order stays while somebody points into the table or has the focus there. */
  sort(rules, hasFigures) {
    const names = new Set(rules.map((rule) => rule.name));
    const isSame = names.size === this.order.length && this.order.every((name) => names.has(name));
    const isUsed = byId("rules").matches(":hover, :focus-within");
    if (isSame && hasFigures === this.hadFigures && (isUsed || performance.now() - this.sortedAt < SORT_EVERY)) return;
    this.sortedAt = performance.now();
    this.hadFigures = hasFigures;
    const weight = (rule) => rule.live.denied * 1e6 + rule.live.allowed;
    this.order = rules
      .toSorted((one, other) => weight(other) - weight(one) || one.name.localeCompare(other.name))
      .map((rule) => rule.name);
  }

  fillName(cell, rule) {
    fillOnce(
      cell,
      rule,
      () => {
        const parts = {
          name: make("span", { class: "rule-name" }),
          tag: make("span", { class: "tag" }),
          limits: make("span", { class: "detail" }),
        };
        return { ...parts, nodes: [make("span", { class: "name-line" }, parts.name, parts.tag), parts.limits] };
      },
      ({ name, tag, limits }) => {
        setText(name, rule.name);
        const words = rule.isGone ? "not in the policy" : rule.mode === "shadow" ? "shadow in the policy" : "";
        setText(tag, words);
        setShown(tag, words !== "");
        setText(
          limits,
          [limitsText(rule.limits), rule.by?.length && `by ${rule.by.join(", ")}`].filter(Boolean).join(" · "),
        );
      },
    );
  }

  fillTrial(cell, rule) {
    fillOnce(
      cell,
      rule,
      () => {
        const parts = {
          words: make("span", { class: "detail" }),
          live: make("span", { class: "figure" }),
          button: make(
            "button",
            { type: "button", class: "small", onclick: () => this.promote(cell.rule, parts.button) },
            "Promote",
          ),
          none: make("span", { class: "muted" }, "–"),
        };
        parts.box = make(
          "div",
          { class: "trial-box" },
          make("div", { class: "trial-words" }, parts.words, parts.live),
          parts.button,
        );
        return { ...parts, nodes: [parts.box, parts.none] };
      },
      ({ words, live, button, box, none }) => {
        cell.rule = rule;
        const report = rule.report;
        const isCandidate = report ? report.candidate : Boolean(rule.candidate);
        const isTried = Boolean(
          rule.state !== "candidate" && (report || rule.live.shadow || rule.live.candidate || rule.candidate),
        );
        setShown(box, isTried);
        setShown(none, !isTried);
        if (!isTried) return;
        const trial = report ?? rule.live.candidate ?? rule.live.shadow;
        setText(words, isCandidate ? `Candidate ${limitsText(rule.candidate)}` : "In shadow");
        const would = trial && trial.allowed + trial.denied > 0 ? percent(share(trial)) : "no figures yet";
        const now = report
          ? percent(share({ allowed: report.live_allowed, denied: report.live_denied }))
          : percent(share(rule.live));
        setText(live, isCandidate ? `would deny ${would}, live denies ${now}` : `would deny ${would}`);
        setShown(button, this.page.canWrite && (Boolean(rule.candidate) || rule.mode === "shadow"));
        button.setAttribute("aria-label", `Promote ${isCandidate ? "the candidate of " : ""}${rule.name}`);
      },
    );
  }

  fillState(cell, rule) {
    fillOnce(
      cell,
      rule,
      () =>
        new Switches(
          rule.name,
          (state, button) => this.switchOne(cell.rule, state, button),
          (button) => this.undo(cell.rule.name, button),
        ),
      (switches) => {
        cell.rule = rule;
        switches.show(rule.state ?? "on", rule.switch, this.page.canWrite && !rule.isGone);
      },
    );
  }

  async promote(rule, button) {
    const isCandidate = Boolean(rule.candidate);
    const words = isCandidate ? `The candidate of ${rule.name} is enforced.` : `${rule.name} is enforced.`;
    const body = this.withDuration({ rule: rule.name });
    await this.page.act(
      button,
      () => call("POST", "api/promotions", body),
      words,
      () => this.remove(rule.name),
    );
  }

  async switchOne(rule, state, button) {
    if (state === rule.state) return;
    // The state that the policy gives is reached by removing the switch, so that a later policy can change it.
    const ofPolicy = rule.mode === "shadow" ? "shadow" : "on";
    const words = `${rule.name} is ${state === "shadow" ? "in shadow" : state}.`;
    if (state === ofPolicy && rule.switch && !this.forAll.switch) {
      const before = rule.switch.state;
      await this.page.act(
        button,
        () => this.remove(rule.name),
        words,
        () => this.put(rule.name, before),
      );
    } else {
      const before = rule.switch?.state;
      const undo = before && before !== "candidate" ? () => this.put(rule.name, before) : () => this.remove(rule.name);
      await this.page.act(button, () => this.put(rule.name, state), words, undo);
    }
  }

  async switchAll(state, button) {
    if (state === this.forAll.state) return;
    if (state === "off") {
      const words = "Every request is allowed until you switch them on again, also those of blocked clients.";
      if (!(await this.page.confirm("Switch all rules off?", words, "Switch all off"))) return;
    }
    const words = {
      on: "All rules follow the policy and their own switches.",
      off: "All rules are off. Blocks have no effect, either.",
      shadow: "All rules are in shadow. Blocks have no effect, either.",
    };
    const work = () => (state === "on" ? this.remove(null) : this.put(null, state));
    await this.page.act(button, work, words[state], state === "on" ? null : () => this.remove(null));
  }

  async undo(rule, button) {
    const words = rule === null ? "All rules follow the policy and their own switches." : `${rule} follows the policy.`;
    await this.page.act(button, () => this.remove(rule), words);
  }

  put(rule, state) {
    return call("PUT", "api/switches", this.withDuration({ rule, state }));
  }

  remove(rule) {
    return call("DELETE", rule === null ? "api/switches" : query("api/switches", { rule }));
  }

  withDuration(body) {
    return this.duration.value ? { ...body, for: this.duration.value } : body;
  }
}

/** On, Shadow, Off as buttons, and below them who has set the switch and until when. */
class Switches {
  constructor(name, choose, undo) {
    this.buttons = STATES.map(([state, words, title]) =>
      make(
        "button",
        { type: "button", title: `${words}: ${title}`, onclick: (event) => choose(state, event.currentTarget) },
        words,
      ),
    );
    this.group = make(
      "div",
      { class: "segments small", role: "group", "aria-label": `State of ${name}` },
      ...this.buttons,
    );
    this.state = make("span", { class: "tag" });
    this.by = make("span", { class: "detail" });
    const undoButton = make(
      "button",
      { type: "button", class: "link", onclick: (event) => undo(event.currentTarget) },
      "Undo",
    );
    undoButton.setAttribute("aria-label", `Undo the switch of ${name}`);
    this.undo = undoButton;
    this.note = make("span", { class: "switch-note" }, this.by, this.undo);
    this.nodes = [this.group, this.state, this.note];
  }

  show(state, by, canWrite) {
    this.buttons.forEach((button, i) => {
      const isOn = String(STATES[i][0] === state || (state === "candidate" && STATES[i][0] === "on"));
      if (button.getAttribute("aria-pressed") !== isOn) button.setAttribute("aria-pressed", isOn);
    });
    setShown(this.group, canWrite);
    const words = { on: "On", off: "Off", shadow: "Shadow", candidate: "Candidate enforced" }[state] ?? state;
    setText(this.state, words);
    setShown(this.state, !canWrite || state === "candidate");
    setShown(this.note, Boolean(by));
    if (!by) return;
    const parts = [
      by.by && `by ${by.by}`,
      by.until && `ends ${until(by.until)}`,
      by.reason,
      by.stale && "no effect: the policy has changed",
    ];
    setText(this.by, parts.filter(Boolean).join(", ") || "switched by hand");
    this.by.title = fullTime(by.since);
    setShown(this.undo, canWrite);
  }
}
