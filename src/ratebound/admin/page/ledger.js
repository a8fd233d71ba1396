// History beyond the last hour, from the usage ledger: a chart of bars, the top clients, and denial rates by rule.

import { axisNumber, niceCeiling } from "./chart.js";
import {
  Bar,
  Table,
  byId,
  count,
  fillOnce,
  fillText,
  make,
  makeSvg,
  percent,
  setShown,
  setText,
} from "./elements.js";
import { call, query } from "./server.js";

const EDGE = { top: 12, right: 4, bottom: 24, left: 46 };
const READ_EVERY = 60_000; // milliseconds: the ledger is written every few seconds, and its bars are hours or longer
const RANGES = {
  day: { by: "hour", since: (now) => back(now, 0, 0, 23) },
  month: { by: "day", since: (now) => back(now, 0, 29, 0) },
  year: { by: "month", since: (now) => back(now, 11, 0, 0) },
};
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

/** The beginning of the first bar: of an hour, a day or a month in the time zone of this browser. */
function back(now, months, days, hours) {
  const [year, month] = [now.getFullYear(), now.getMonth() - months];
  if (months) return new Date(year, month, 1);
  if (days) return new Date(year, month, now.getDate() - days);
  return new Date(Math.floor(now.getTime() / 3_600_000) * 3_600_000 - hours * 3_600_000);
}

export class LedgerPanel {
  constructor(page) {
    this.page = page;
    this.range = "day";
    this.measure = "units";
    this.names = new Map(); // by digest, as far as they were asked for
    this.reading = 0; // the number of the newest question
    this.chart = new BarChart(byId("past-chart"), byId("past-readout"));
    for (const range of Object.keys(RANGES))
      byId(`past-${range}`).addEventListener("click", () => this.choose({ range }));
    byId("past-measure").addEventListener("change", (event) => this.choose({ measure: event.target.value }));
    byId("past-names").addEventListener("click", (event) => this.showNames(event.currentTarget));
    this.top = new Table(byId("past-top"), {
      label: "Top clients of this time",
      keyOf: ({ client, rule }) => JSON.stringify([client, rule]),
      empty: "No client in this time.",
      columns: [
        {
          heading: "Client",
          kind: "client",
          fill: (cell, one) => fillText(cell, one.name ?? one.client, one.name ? one.client : ""),
        },
        { heading: "Rule", fill: (cell, one) => fillText(cell, one.rule || "–") },
        { heading: "Units", kind: "number", fill: (cell, one) => fillText(cell, count(one.units)) },
        { heading: "Denied", kind: "number", fill: (cell, one) => fillText(cell, count(one.denied)) },
        { heading: "Overage", kind: "number", fill: (cell, one) => fillText(cell, count(one.overage)) },
      ],
    });
    this.denials = new Table(byId("past-denials"), {
      label: "Denial rates of this time",
      keyOf: (rule) => rule.rule,
      empty: "No rule has decided in this time.",
      columns: [
        { heading: "Rule", kind: "name", fill: (cell, one) => fillText(cell, one.rule || "–") },
        {
          heading: "Denial rate",
          kind: "bar",
          fill: (cell, one) =>
            fillOnce(
              cell,
              one,
              () => new Bar("denied"),
              (bar) => bar.set(one.rate, percent(one.rate)),
            ),
        },
        { heading: "Denied", kind: "number", fill: (cell, one) => fillText(cell, count(one.denied)) },
        { heading: "Allowed", kind: "number", fill: (cell, one) => fillText(cell, count(one.allowed)) },
      ],
    });
    setInterval(() => this.isOpen && !document.hidden && this.read(), READ_EVERY);
  }

  /** Show the card if there is a ledger, and read it. */
  open(hasLedger) {
    this.isOpen = hasLedger;
    for (const id of ["past", "past-link"]) setShown(byId(id), hasLedger);
    if (hasLedger) this.read();
  }

  /** Forget what was shown: the next operator may be another one. */
  close() {
    this.isOpen = false;
    this.names.clear();
    this.reading += 1;
    this.chart.show([], "hour");
    this.top.show([]);
    this.denials.show([]);
    setShown(byId("past-problem"), false);
  }

  choose(chosen) {
    Object.assign(this, chosen);
    this.read();
  }

  async showNames(button) {
    await this.page.act(button, () => this.read({ names: "yes" }));
  }

  async read(names = {}) {
    const number = (this.reading += 1);
    const { by, since } = RANGES[this.range];
    const now = new Date();
    // The end of this minute, so that all open pages ask the same, and the server can answer them at once
    const until = new Date(Math.ceil(now.getTime() / 60_000) * 60_000);
    const time = { since: since(now).toISOString(), until: until.toISOString() };
    for (const range of Object.keys(RANGES))
      byId(`past-${range}`).setAttribute("aria-pressed", String(range === this.range));
    // Each by itself: the top clients of a year may take a large ledger longer than the server waits
    const parts = [
      [query("api/ledger/totals", { ...time, by, zone: ZONE }), (found) => this.chart.show(found.totals, by)],
      [
        query("api/ledger/top", { ...time, by: this.measure, most: 10, ...names }),
        (found) => this.showTop(found.top),
      ],
      [query("api/ledger/denials", time), (found) => this.denials.show(found.denials)],
    ];
    const failures = [];
    await Promise.all(
      parts.map(async ([path, show]) => {
        try {
          const found = await call("GET", path);
          if (number === this.reading) show(found);
        } catch (error) {
          if (error.status === undefined) throw error;
          failures.push(error);
        }
      }),
    );
    if (number !== this.reading) return;
    const signedOut = failures.find((error) => error.status === 401);
    if (signedOut) return this.page.leave(signedOut);
    setText(byId("past-problem"), [...new Set(failures.map((error) => error.message))].join("\n"));
    setShown(byId("past-problem"), failures.length > 0); // what was read before stays
  }

  showTop(top) {
    for (const one of top) if (one.name) this.names.set(one.client, one.name);
    this.top.show(top.map((one) => ({ ...one, name: this.names.get(one.client) })));
  }
}

/** Allowed and denied decisions of each hour, day or month, stacked. A pointer or the arrow keys read one bar. */
class BarChart {
  constructor(parent, readout) {
    this.parent = parent;
    this.readout = readout;
    this.bars = [];
    this.by = "hour";
    this.chosen = null;
    this.marks = makeSvg("g");
    this.grid = makeSvg("g", { class: "grid" });
    this.svg = makeSvg(
      "svg",
      {
        role: "slider",
        tabindex: "0",
        "aria-label": "Bar of the history, use the arrow keys",
        "aria-describedby": readout.id,
        "aria-orientation": "horizontal",
        "aria-valuemin": 0,
      },
      makeSvg(
        "defs",
        {},
        makeSvg(
          "pattern",
          { id: "past-hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
          makeSvg("line", { class: "hatch-line", x1: 0, y1: 0, x2: 0, y2: 6 }),
        ),
      ),
      this.grid,
      this.marks,
    );
    this.waiting = make("p", { class: "empty" }, "Nothing was counted in this time.");
    parent.replaceChildren(this.svg, this.waiting);
    for (const name of ["pointermove", "pointerdown"]) this.svg.addEventListener(name, (event) => this.point(event));
    for (const name of ["pointerleave", "blur"]) this.svg.addEventListener(name, () => this.choose(null));
    this.svg.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.draw()).observe(parent);
  }

  show(bars, by) {
    this.bars = bars;
    this.by = by;
    if (this.chosen !== null && this.chosen >= bars.length) this.chosen = null;
    this.draw();
  }

  draw() {
    const [width, height] = [this.parent.clientWidth, this.parent.clientHeight];
    const highest = Math.max(0, ...this.bars.map((bar) => bar.allowed + bar.denied));
    this.svg.classList.toggle("is-empty", highest === 0);
    this.waiting.hidden = highest > 0;
    this.read();
    if (width === 0 || highest === 0) return;
    const top = niceCeiling(highest);
    const inner = { width: width - EDGE.left - EDGE.right, height: height - EDGE.top - EDGE.bottom };
    const floor = height - EDGE.bottom;
    this.step = inner.width / this.bars.length;
    const wide = Math.min(40, this.step * 0.74);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const tall = (value) => (inner.height * Math.max(0, value)) / top;
    const part = (name, x, y, size, fill = null) =>
      makeSvg("rect", { class: name, x: x.toFixed(1), y: y.toFixed(1), width: wide.toFixed(1), height: size, fill });
    const marks = [];
    this.bars.forEach((bar, index) => {
      const x = EDGE.left + this.step * (index + 0.5) - wide / 2;
      const [low, high] = [tall(bar.allowed), tall(bar.denied)];
      const upper = floor - low - high;
      const group = makeSvg("g", { class: index === this.chosen ? "bar is-chosen" : "bar" });
      if (low > 0) group.append(part("allowed-bar", x, floor - low, low.toFixed(1)));
      if (high > 0)
        group.append(
          part("denied-bar", x, upper, Math.max(1, high).toFixed(1)),
          part("hatch-bar", x, upper, Math.max(1, high).toFixed(1), "url(#past-hatch)"),
        );
      marks.push(group);
    });
    this.marks.replaceChildren(...marks);
    this.drawGrid(top, tall, floor, width, height);
  }

  drawGrid(top, tall, floor, width, height) {
    const marks = [];
    for (const share of [0, 0.5, 1]) {
      const y = floor - tall(top * share);
      const label = makeSvg("text", { x: EDGE.left - 8, y: y + 4, "text-anchor": "end" });
      label.textContent = axisNumber(top * share);
      marks.push(makeSvg("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y, y2: y }), label);
    }
    const every = Math.max(1, Math.ceil(56 / this.step));
    this.bars.forEach((bar, index) => {
      if (index % every) return;
      const x = EDGE.left + this.step * (index + 0.5);
      const label = makeSvg("text", { x, y: height - 6, "text-anchor": "middle" });
      label.textContent = shortTime(bar.at, this.by);
      marks.push(label);
    });
    this.grid.replaceChildren(...marks);
  }

  point(event) {
    if (!this.bars.length || this.step === undefined) return;
    const box = this.svg.getBoundingClientRect();
    this.choose(Math.floor((event.clientX - box.left - EDGE.left) / this.step));
  }

  press(event) {
    const last = this.bars.length - 1;
    const at = this.chosen ?? last + 1;
    const moves = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, Home: 0, End: last };
    if (event.key === "Escape") this.choose(null);
    else if (event.key in moves) this.choose(moves[event.key]);
    else return;
    event.preventDefault();
  }

  choose(index) {
    const last = this.bars.length - 1;
    this.chosen = index === null || last < 0 ? null : Math.max(0, Math.min(last, index));
    [...this.marks.children].forEach((bar, number) => bar.classList.toggle("is-chosen", number === this.chosen));
    this.read();
  }

  read() {
    const words = this.chosen === null ? this.wordsOfAll() : this.words(this.bars[this.chosen]);
    this.svg.setAttribute("aria-valuemax", Math.max(0, this.bars.length - 1));
    this.svg.setAttribute("aria-valuenow", this.chosen ?? Math.max(0, this.bars.length - 1));
    this.svg.setAttribute("aria-valuetext", words);
    setText(this.readout, words);
  }

  words(bar) {
    return `${longTime(bar.at, this.by)}: ${numbers(bar)}`;
  }

  wordsOfAll() {
    const sum = { units: 0, allowed: 0, denied: 0, overage: 0 };
    for (const bar of this.bars) for (const name of Object.keys(sum)) sum[name] += bar[name];
    return `In all: ${numbers(sum)}`;
  }
}

function numbers({ units, allowed, denied, overage }) {
  const share = allowed + denied > 0 ? ` (${percent(denied / (allowed + denied))})` : "";
  const parts = [`allowed ${count(allowed)}`, `denied ${count(denied)}${share}`, `units ${count(units)}`];
  if (overage) parts.push(`overage ${count(overage)}`);
  return parts.join(", ");
}

const SHORT = {
  hour: { hour: "2-digit", minute: "2-digit" },
  day: { day: "numeric", month: "short" },
  month: { month: "short" },
};
const LONG = {
  hour: { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" },
  day: { weekday: "short", day: "numeric", month: "short", year: "numeric" },
  month: { month: "long", year: "numeric" },
};
const shortTime = (at, by) => new Date(at).toLocaleString("en-GB", SHORT[by]);
const longTime = (at, by) => new Date(at).toLocaleString("en-GB", LONG[by]);
