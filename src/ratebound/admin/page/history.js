// The last two minutes and the last hour, for the chart and the small lines of the rules.

/** A series of points at a fixed step. A point is a list of numbers, or null where nothing is known. */
class Series {
  constructor(step, size) {
    this.step = step;
    this.size = size;
    this.end = null; // the number of the newest step
    this.points = [];
    this.sum = null; // of the step that is not over yet
  }

  take({ step, end, points }) {
    this.step = step;
    this.size = Math.max(points.length, 2);
    this.end = Math.floor(end / step);
    this.points = points.slice();
    this.sum = null;
  }

  add(at, values) {
    const number = Math.floor(at / this.step);
    if (this.end === null) this.end = number - 1;
    if (number > this.end) {
      // A second may fall between two answers: its neighbour stands for it. A longer gap stays a gap.
      const gap = number - this.end - 1;
      const filler = gap * this.step <= 3 ? values : null;
      for (let i = 0; i < Math.min(gap, this.size); i += 1) this.points.push(filler);
      this.points.push(values);
      this.end = number;
      this.sum = { total: values.map((value) => value ?? 0), count: 1, last: values };
    } else if (number === this.end) {
      const sum = (this.sum ??= { total: values.map(() => 0), count: 0, last: values });
      sum.total = sum.total.map((total, i) => total + (values[i] ?? 0));
      sum.count += 1;
      this.points[this.points.length - 1] = sum.total.map((total, i) =>
        values[i] === null ? null : total / sum.count,
      );
    }
    this.points.splice(0, this.points.length - this.size);
  }

  timeOf(index) {
    return (this.end - (this.points.length - 1 - index)) * this.step;
  }
}

const RULES = 50;

export class History {
  constructor() {
    this.recent = new Series(1, 120);
    this.hour = new Series(10, 360);
    this.rules = new Map(); // rule -> Series of [allowed, denied]
  }

  /** True if there are figures of five minutes: less is not worth a chart of an hour. */
  get isLong() {
    return this.hour.points.filter(Boolean).length * this.hour.step >= 300;
  }

  take(history) {
    this.recent.take(history.recent);
    this.hour.take(history.hour);
    const { step, end } = history.hour;
    this.rules.clear();
    for (const [rule, points] of Object.entries(history.rules ?? {})) {
      const series = new Series(step, points.length);
      series.take({ step, end, points });
      this.rules.set(rule, series);
    }
  }

  add(view) {
    const { allowed, denied, degraded, shed } = view.total;
    const values = [allowed, denied, degraded, shed, view.latency?.p99 ?? null];
    this.recent.add(view.at, values);
    this.hour.add(view.at, values);
    for (const rule of view.rules) {
      let series = this.rules.get(rule.rule);
      if (series === undefined && this.rules.size < RULES) {
        series = new Series(this.hour.step, this.hour.size);
        this.rules.set(rule.rule, series);
      }
      series?.add(view.at, [rule.allowed, rule.denied]);
    }
  }
}
