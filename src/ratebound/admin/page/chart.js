// The chart of decisions and the small lines in the table of rules: SVG, drawn by hand.

import { clockTime, make, makeSvg, milliseconds, percent, rate, setText } from "./elements.js";

const TICKS = [15, 30, 60, 300, 600, 900, 1200, 1800]; // seconds between two times below the chart
const EDGE = { top: 12, right: 4, bottom: 24, left: 46 };

/** Allowed and denied decisions, stacked. A pointer or the arrow keys read one moment. */
export class Chart {
  constructor(parent, readout) {
    this.parent = parent;
    this.readout = readout;
    this.series = null;
    this.chosen = null; // how many steps before the newest
    this.grid = makeSvg("g", { class: "grid" });
    this.allowed = makeSvg("path", { class: "allowed-area" });
    this.allowedLine = makeSvg("path", { class: "allowed-line" });
    this.denied = makeSvg("path", { class: "denied-area" });
    this.deniedHatch = makeSvg("path", { fill: "url(#hatch)" });
    this.deniedLine = makeSvg("path", { class: "denied-line" });
    this.cursor = makeSvg("line", { class: "cursor", visibility: "hidden" });
    this.svg = makeSvg(
      "svg",
      {
        role: "slider",
        tabindex: "0",
        "aria-label": "Moment of the chart, use the arrow keys",
        "aria-describedby": "readout",
        "aria-orientation": "horizontal",
      },
      makeSvg(
        "defs",
        {},
        makeSvg(
          "pattern",
          { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
          makeSvg("line", { class: "hatch-line", x1: 0, y1: 0, x2: 0, y2: 6 }),
        ),
      ),
      this.grid,
      this.allowed,
      this.denied,
      this.deniedHatch,
      this.allowedLine,
      this.deniedLine,
      this.cursor,
    );
    this.waiting = make("p", { class: "empty" }, "No decisions yet. The chart begins with the first request.");
    parent.replaceChildren(this.svg, this.waiting);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.choose(null));
    this.svg.addEventListener("blur", () => this.choose(null));
    this.svg.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.draw()).observe(parent);
  }

  show(series) {
    this.series = series;
    this.draw();
  }

  draw() {
    const width = this.parent.clientWidth;
    if (this.series === null || width === 0) return;
    const { points, size } = this.series;
    this.height = this.parent.clientHeight;
    const highest = Math.max(0, ...points.map((point) => (point ? point[0] + point[1] : 0)));
    this.svg.classList.toggle("is-empty", highest === 0);
    this.waiting.hidden = highest > 0;
    const top = niceCeiling(highest);
    const inner = { width: width - EDGE.left - EDGE.right, height: this.height - EDGE.top - EDGE.bottom };
    this.x = (index) => EDGE.left + (inner.width * (index + size - points.length)) / Math.max(1, size - 1);
    const y = (value) => EDGE.top + inner.height * (1 - value / top);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.drawGrid(top, y, width);
    const zero = () => 0;
    const allowed = (point) => point[0];
    const both = (point) => point[0] + point[1];
    const runs = unbroken(points);
    this.allowed.setAttribute("d", area(runs, this.x, y, allowed, zero));
    this.allowedLine.setAttribute("d", line(runs, this.x, y, allowed));
    const denied = area(runs, this.x, y, both, allowed);
    this.denied.setAttribute("d", denied);
    this.deniedHatch.setAttribute("d", denied);
    const deniedRuns = runs.filter((run) => run.some(([, point]) => point[1] > 0));
    this.deniedLine.setAttribute("d", line(deniedRuns, this.x, y, both));
    this.read();
  }

  drawGrid(top, y, width) {
    const marks = [];
    for (const share of [0, 0.5, 1]) {
      const at = y(top * share);
      const label = makeSvg("text", { x: EDGE.left - 8, y: at + 4, "text-anchor": "end" });
      label.textContent = axisNumber(top * share);
      marks.push(makeSvg("line", { x1: EDGE.left, x2: width - EDGE.right, y1: at, y2: at }), label);
    }
    const { end, step, size } = this.series;
    const [last, seconds] = [end * step, step * (size - 1)];
    const inner = width - EDGE.left - EDGE.right;
    const every = TICKS.find((tick) => (inner * tick) / seconds >= 90) ?? TICKS.at(-1);
    for (let time = Math.ceil((last - seconds) / every) * every; time <= last; time += every) {
      const x = EDGE.left + inner * (1 - (last - time) / seconds);
      if (x < EDGE.left + 18 || x > width - EDGE.right - 26) continue;
      const label = makeSvg("text", { x, y: this.height - 6, "text-anchor": "middle" });
      label.textContent = clockTime(time).slice(0, every < 60 ? 8 : 5);
      const foot = this.height - EDGE.bottom;
      marks.push(makeSvg("line", { x1: x, x2: x, y1: foot, y2: foot + 4 }), label);
    }
    this.grid.replaceChildren(...marks);
  }

  point(event) {
    if (this.series === null || this.x === undefined) return;
    const box = this.svg.getBoundingClientRect();
    const { size, points } = this.series;
    const inner = box.width - EDGE.left - EDGE.right;
    const share = (event.clientX - box.left - EDGE.left) / inner;
    this.choose(Math.round((1 - share) * (size - 1)), points);
  }

  press(event) {
    const far = this.series ? Math.round(this.series.size / 12) : 1;
    const moves = { ArrowLeft: 1, ArrowDown: 1, ArrowRight: -1, ArrowUp: -1, PageDown: far, PageUp: -far };
    if (event.key === "Escape") this.choose(null);
    else if (event.key === "Home") this.choose(Infinity);
    else if (event.key === "End") this.choose(0);
    else if (event.key in moves) this.choose((this.chosen ?? (moves[event.key] > 0 ? -1 : 0)) + moves[event.key]);
    else return;
    event.preventDefault();
  }

  choose(back) {
    const last = this.series ? this.series.points.length - 1 : 0;
    this.chosen = back === null || last < 0 ? null : Math.max(0, Math.min(last, back));
    this.read();
  }

  read() {
    if (this.series === null || this.x === undefined) return;
    const { points } = this.series;
    const index = points.length - 1 - (this.chosen ?? 0);
    this.svg.setAttribute("aria-valuemin", 0);
    this.svg.setAttribute("aria-valuemax", Math.max(0, points.length - 1));
    this.svg.setAttribute("aria-valuenow", Math.max(0, index));
    const words = index < 0 ? "" : this.words(index);
    this.svg.setAttribute("aria-valuetext", words);
    setText(this.readout, words);
    this.cursor.setAttribute("visibility", this.chosen === null ? "hidden" : "visible");
    if (this.chosen !== null) {
      const x = this.x(index);
      for (const [name, value] of Object.entries({ x1: x, x2: x, y1: EDGE.top, y2: this.height - EDGE.bottom })) {
        this.cursor.setAttribute(name, value);
      }
    }
  }

  words(index) {
    const point = this.series.points[index];
    const time = this.chosen === null ? "Now" : clockTime(this.series.timeOf(index));
    if (!point) return `${time}: no figures`;
    const [allowed, denied, degraded, shed, p99] = point;
    const share = allowed + denied > 0 ? ` (${percent(denied / (allowed + denied))})` : "";
    const parts = [`allowed ${rate(allowed)}/s`, `denied ${rate(denied)}/s${share}`];
    if (degraded) parts.push(`without the storage ${rate(degraded)}/s`);
    if (shed) parts.push(`shed ${rate(shed)}/s`);
    if (p99 !== null && p99 !== undefined) parts.push(`p99 ${milliseconds(p99)}`);
    return `${time}: ${parts.join(", ")}`;
  }
}

/** The share of denials of a rule in the last hour, as a small line. It is a decoration: numbers stand beside it. */
export class Sparkline {
  constructor() {
    this.path = makeSvg("path", { class: "spark-line" });
    this.area = makeSvg("path", { class: "spark-area" });
    const attributes = { class: "spark", viewBox: "0 0 90 22", preserveAspectRatio: "none", "aria-hidden": "true" };
    this.svg = makeSvg("svg", attributes, this.area, this.path);
    this.nodes = [this.svg];
  }

  set(series) {
    if (series?.points === this.points && series?.end === this.end) return;
    this.points = series?.points;
    this.end = series?.end;
    const points = coarse(series?.points ?? [], 60);
    const highest = Math.max(0, ...points.map((point) => (point ? point[1] : 0)));
    const x = (index) => (90 * index) / Math.max(1, points.length - 1);
    const y = (value) => 20.5 - 18 * (highest ? value / highest : 0);
    const runs = highest ? unbroken(points) : [];
    this.path.setAttribute(
      "d",
      line(runs, x, y, (point) => point[1]),
    );
    this.area.setAttribute(
      "d",
      area(
        runs,
        x,
        y,
        (point) => point[1],
        () => 0,
      ),
    );
  }
}

function coarse(points, size) {
  const width = Math.ceil(points.length / size);
  if (width <= 1) return points;
  const found = [];
  for (let i = 0; i < points.length; i += width) {
    const some = points.slice(i, i + width).filter(Boolean);
    found.push(some.length ? [0, 1].map((j) => some.reduce((sum, point) => sum + point[j], 0) / some.length) : null);
  }
  return found;
}

/** Runs of [index, point] without a gap. */
function unbroken(points) {
  const runs = [];
  let run = null;
  points.forEach((point, index) => {
    if (!point) run = null;
    else if (run === null) runs.push((run = [[index, point]]));
    else run.push([index, point]);
  });
  return runs;
}

const at = (x, y) => `${x.toFixed(1)},${y.toFixed(1)}`;

function line(runs, x, y, value) {
  return runs.map((run) => `M${run.map(([index, point]) => at(x(index), y(value(point)))).join("L")}`).join("");
}

function area(runs, x, y, upper, lower) {
  return runs
    .map((run) => {
      const there = run.map(([index, point]) => at(x(index), y(upper(point))));
      const back = run.toReversed().map(([index, point]) => at(x(index), y(lower(point))));
      return `M${[...there, ...back].join("L")}Z`;
    })
    .join("");
}

export function niceCeiling(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value);
}

export function axisNumber(value) {
  if (value >= 1_000_000) return `${+(value / 1_000_000).toPrecision(3)} M`;
  if (value >= 10_000) return `${+(value / 1000).toPrecision(3)} k`;
  return `${+value.toPrecision(3)}`;
}
