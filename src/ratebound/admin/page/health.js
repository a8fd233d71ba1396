// Is the limiter healthy? One sentence in the header, and the figures behind it.

import {
  Bar,
  Table,
  byId,
  count,
  countWith,
  fillOnce,
  fillText,
  make,
  milliseconds,
  percent,
  rate,
  setShown,
  setText,
  duration,
  keepInStep,
  plural,
} from "./elements.js";

/** Return {level: "good" | "warn" | "bad", words} for what is known now. */
export function healthOf({ view, policy, silence, problem, outageSince, forAll }) {
  if (silence > 0) return { level: "bad", words: `No answer for ${steps(silence / 1000)}` };
  if (problem) return { level: "bad", words: problem };
  if (!view) return { level: "warn", words: "Waiting for figures" };
  if (outageSince !== null) {
    // "since" in whole seconds up to ten and then in steps: a screen reader must not speak every second.
    const seconds = view.at - outageSince;
    return { level: "bad", words: `Storage out of reach for ${steps(seconds)}: each process decides alone` };
  }
  if (view.problem) return { level: "bad", words: view.problem };
  if (policy?.error) {
    const what = /^https?:/.test(policy.source) ? "Policy cannot be fetched or used" : "Policy file cannot be used";
    return { level: "bad", words: `${what}: the last good one is in force` };
  }
  if (forAll.state !== "on") {
    return { level: "warn", words: forAll.state === "off" ? "All rules are switched off" : "All rules are in shadow" };
  }
  const lowest = Math.min(1, ...Object.values(view.factors ?? {}));
  if (lowest < 1) return { level: "warn", words: `Overload: limits are lowered to ${percent(lowest)}` };
  return { level: "good", words: "Healthy" };
}

function steps(seconds) {
  if (seconds < 10) return "some seconds";
  return seconds < 60 ? `${Math.floor(seconds / 10) * 10} s` : duration(Math.floor(seconds / 60) * 60);
}

/** Return True if decisions are made without the storage now. */
export const isOut = (view) => view.storage.nodes.some((node) => node.is_open) || view.total.degraded > 0;

const TILES = {
  "Decisions/s": "Requests that were allowed or denied, per second.",
  Denied: "The share of decisions that denied a request.",
  "Latency, p99": "The time of a decision: 99 of 100 took less than p99, and half of them less than p50.",
  "Blocked clients": "By hand: operators have blocked them. By penalty: the policy has, for a time.",
  "Limits in force": "The lowest share of their counts that adaptive limits have now. Less than 100 % means overload.",
  "Slots held": "Requests that run now under limits such as 3 concurrent.",
};

export class Tiles {
  constructor() {
    this.tiles = Object.entries(TILES).map(([title, hint]) => {
      const value = make("dd", { class: "value" });
      const note = make("dd", { class: "note" });
      return { value, note, box: make("div", { class: "tile", title: hint }, make("dt", {}, title), value, note) };
    });
    byId("tiles").replaceChildren(...this.tiles.map((tile) => tile.box));
  }

  show({ view, blocks }) {
    const { allowed, denied, degraded, shed } = view.total;
    const all = allowed + denied;
    const lowest = Math.min(1, ...Object.values(view.factors ?? {}));
    const held = view.slots.reduce((sum, slot) => sum + slot.held, 0);
    const penalized = view.penalized.length;
    const isAdaptive = Object.keys(view.factors ?? {}).length > 0;
    const inForce = lowest < 1 ? "lowered: overload" : isAdaptive ? "not lowered" : "no rule is adaptive";
    const notes = [degraded && `${rate(degraded)}/s without storage`, shed && `${rate(shed)}/s shed`].filter(Boolean);
    const values = [
      [rate(all), notes.join(", ") || `${rate(allowed)}/s allowed`, degraded > 0 && "warn"],
      [percent(all ? denied / all : 0), `${rate(denied)}/s`, ""],
      [
        milliseconds(view.latency?.p99),
        view.latency ? `p50 ${milliseconds(view.latency.p50)}` : "no decisions lately",
        "",
      ],
      [
        countWith(penalized, (blocks?.length ?? 0) + penalized),
        `${blocks === null ? "not known" : count(blocks.length)} by hand, ${countWith(penalized, penalized)} by penalty`,
        "",
      ],
      [percent(lowest), inForce, lowest < 1 && "warn"],
      [count(held), view.slots.length ? `of ${plural(view.slots.length, "limit")}` : "no slot is held", ""],
    ];
    values.forEach(([value, note, level], i) => {
      setText(this.tiles[i].value, value);
      setText(this.tiles[i].note, note);
      this.tiles[i].box.classList.toggle("warn", level === "warn");
    });
  }
}

export class HealthPanels {
  constructor() {
    this.keys = new Bar("used");
    this.keysLine = make("p", { class: "keys" }, make("span", {}, "Keys"), ...this.keys.nodes);
    this.processes = make("ul", { class: "processes" });
    const nodes = make("div", { class: "scroll" });
    byId("storage").replaceChildren(nodes, this.keysLine, make("h3", {}, "Processes"), this.processes);
    this.nodes = new Table(nodes, {
      label: "Nodes of the storage",
      keyOf: (node) => node.node,
      empty: "States are in the memory of each process: there is no server that could fail.",
      columns: [
        { heading: "Node", kind: "client", fill: (cell, node) => fillText(cell, node.node || "storage") },
        {
          heading: "Breaker",
          kind: "whole",
          fill: (cell, node) =>
            fillOnce(
              cell,
              node,
              () => make("span", { class: "state" }),
              (state) => {
                setText(state, node.is_open ? "open: not asked" : "closed: answers");
                state.className = `state ${node.is_open ? "bad" : "good"}`;
              },
            ),
        },
        { heading: "Calls/s", kind: "number", fill: (cell, node) => fillText(cell, rate(node.calls)) },
        { heading: "Errors/s", kind: "number", fill: (cell, node) => fillText(cell, rate(node.errors)) },
        { heading: "p99", kind: "number", fill: (cell, node) => fillText(cell, milliseconds(node.p99)) },
      ],
    });
    this.factors = new Table(byId("factors"), {
      label: "Adaptive limits",
      keyOf: ([priority]) => priority,
      empty: [
        "No rule is adaptive. Set ",
        make("code", {}, "adaptive"),
        " in the policy to lower limits while the service is too busy.",
      ],
      columns: [
        { heading: "Priority", kind: "name", fill: (cell, [priority]) => fillText(cell, priority) },
        {
          heading: "Factor",
          kind: "bar",
          fill: (cell, [, factor]) =>
            fillOnce(
              cell,
              factor,
              () => new Bar("factor"),
              (bar) => bar.set(factor, percent(factor)),
            ),
        },
      ],
    });
    this.slots = new Table(byId("slots"), {
      label: "Slots held",
      keyOf: (slot) => slot.limit,
      empty: ["No slot is held. Limits such as ", make("code", {}, "3 concurrent"), " show here while requests run."],
      columns: [
        { heading: "Limit", kind: "name", fill: (cell, slot) => fillText(cell, slot.limit) },
        { heading: "Held", kind: "number", fill: (cell, slot) => fillText(cell, count(slot.held)) },
      ],
    });
  }

  show(view) {
    const { nodes, keys, max_keys: most } = view.storage;
    this.nodes.show(nodes);
    setShown(this.keysLine, keys !== null && keys !== undefined);
    if (keys !== null && keys !== undefined) {
      this.keys.set(most ? keys / most : null, most ? `${count(keys)} of ${count(most)}` : count(keys));
    }
    keepInStep(
      this.processes,
      view.processes,
      (process) => process.name,
      () => make("li", {}, make("code"), make("span", { class: "detail" })),
      (line, process) => {
        setText(line.firstChild, process.name);
        const words = [process.is_local && "here", process.age >= 3 && `last heard ${duration(process.age)} ago`];
        setText(line.lastChild, words.filter(Boolean).join(", "));
      },
    );
    this.factors.show(Object.entries(view.factors ?? {}));
    this.slots.show(view.slots);
  }
}
