// Elements and words. Everything that a server sends becomes text here, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** Make an element: `make("p", {class: "muted", onclick: act}, "text", child)`. Strings become text nodes. */
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function makeSvg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  const wanted = children.filter((child) => child !== null && child !== undefined);
  element.append(...wanted.map((child) => (child instanceof Node ? child : visible(String(child)))));
  return element;
}

// Controls, marks that turn or hide the text around them, characters without a width, and halves of surrogate pairs: a
// name must not be able to look like another one. Lines and tabs stay.
const INVISIBLE = /(?![\t\n])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;

/** Return a text with every invisible character written as its number. */
export function visible(text) {
  return text.replace(INVISIBLE, (mark) => {
    const number = mark.codePointAt(0).toString(16);
    return number.length > 4 ? `\\u{${number}}` : `\\u${number.padStart(4, "0")}`;
  });
}

/** Set a text only if it differs: a screen reader and a selection are left alone. */
export function setText(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

export function setShown(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

/** Show `items` as children of `parent`, and keep the element of an item, with its focus, by its key.
 *
 * If the element that had the focus goes, `parent` gets an event "lostfocus" whose detail is its place.
 */
export function keepInStep(parent, items, keyOf, create, update) {
  const wanted = new Set(items.map(keyOf));
  const known = new Map();
  let lost = null;
  [...parent.children].forEach((child, place) => {
    if (wanted.has(child.itemKey)) return known.set(child.itemKey, child);
    if (child.contains(document.activeElement)) lost = place;
    return child.remove();
  });
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = known.get(key);
    if (child === undefined) {
      child = create(item);
      child.itemKey = key;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
  if (lost !== null) parent.dispatchEvent(new CustomEvent("lostfocus", { detail: lost }));
}

/** A table whose cells carry the heading of their column, so that each row can be a card on a phone.
 *
 * Roles are written out: a browser forgets that it is a table when styles make cards of its rows.
 */
export class Table {
  /** `columns`: {heading, hint, kind: "" | "number" | "action", fill(cell, item), unseen: true for a heading only
   * heard}. */
  constructor(parent, { label, columns, keyOf, empty, rowClass = () => "" }) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.rowClass = rowClass;
    const headings = columns.map(({ heading, hint = false, kind = "", unseen = false }) =>
      make(
        "th",
        { scope: "col", role: "columnheader", class: kind || false, title: hint },
        make("span", { class: unseen && "unseen" }, heading),
      ),
    );
    this.body = make("tbody", { role: "rowgroup" });
    const head = make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...headings));
    this.table = make("table", { role: "table", "aria-label": label }, head, this.body);
    this.empty = make("p", { class: "empty" }, ...(Array.isArray(empty) ? empty : [empty]));
    parent.replaceChildren(this.table, this.empty);
    this.body.addEventListener("lostfocus", ({ detail }) => this.keepFocus(detail));
  }

  /** Move the focus of a row that has gone to the next one, or to the heading of the card. */
  keepFocus(place) {
    const rows = this.body.children;
    const button = rows[Math.min(place, rows.length - 1)]?.querySelector("button:not([hidden])");
    const heading = this.table.closest("section")?.querySelector("h2");
    if (button) return button.focus();
    heading?.setAttribute("tabindex", "-1");
    return heading?.focus();
  }

  show(items) {
    setShown(this.table, items.length > 0);
    setShown(this.empty, items.length === 0);
    keepInStep(
      this.body,
      items,
      this.keyOf,
      () => this.newRow(),
      (row, item) => {
        const name = this.rowClass(item);
        if (row.className !== name) row.className = name;
        row.fields.forEach((cell, i) => this.columns[i].fill(cell, item));
      },
    );
  }

  newRow() {
    const cells = this.columns.map(({ heading, kind = "" }) =>
      make("td", { role: "cell", "data-heading": heading, class: kind || false }),
    );
    const row = make("tr", { role: "row" }, ...cells);
    row.fields = cells;
    return row;
  }
}

/** Fill a cell with a text, and with a title if the text is shortened or relative. */
export function fillText(cell, text, title = "") {
  setText(cell, text);
  if (cell.title !== title) cell.title = title;
}

/** Make the content of a cell once; `update` runs each time with what `create` returned. */
export function fillOnce(cell, item, create, update = () => {}) {
  if (cell.made === undefined) {
    cell.made = create(cell);
    cell.append(...(cell.made instanceof Node ? [cell.made] : cell.made.nodes));
  }
  update(cell.made, item);
}

/** A bar with its number beside it: the colour is never the only sign. */
export class Bar {
  constructor(kind) {
    this.fill = make("span", { class: `fill ${kind}` });
    this.words = make("span", { class: "figure" });
    this.track = make("span", { class: "bar-track", "aria-hidden": "true" }, this.fill);
    this.nodes = [this.track, this.words];
  }

  /** `share` is null if it is not known. */
  set(share, words) {
    this.track.classList.toggle("is-unknown", share === null);
    this.fill.style.width = `${Math.max(0, Math.min(1, share ?? 0)) * 100}%`;
    setText(this.words, words);
  }
}

// Numbers and times

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const count = (value) => whole.format(value);

const MOST_PENALIZED = 50; // clients whom a penalty blocks, in figures: there may be more

/** A number of clients of whom so many are blocked by a penalty: "7", or "50+" if figures do not have all. */
export const countWith = (penalized, value) => `${count(value)}${penalized >= MOST_PENALIZED ? "+" : ""}`;

export function rate(value) {
  if (value === 0) return "0";
  if (value < 0.05) return "< 0.1";
  return value < 99.95 ? tenths.format(value) : whole.format(value);
}

export function percent(share) {
  const value = share * 100;
  if (value === 0) return "0\u00a0%";
  if (value < 0.1) return "<\u00a00.1\u00a0%";
  if (value > 99.9 && value < 100) return ">\u00a099.9\u00a0%";
  return `${value < 9.95 ? tenths.format(value) : whole.format(value)}\u00a0%`;
}

export function milliseconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const value = seconds * 1000;
  if (value < 0.0995) return `${whole.format(value * 1000)}\u00a0µs`;
  if (value < 9.95) return `${value.toFixed(value < 0.995 ? 2 : 1)}\u00a0ms`;
  return value < 9999.5 ? `${whole.format(value)}\u00a0ms` : `${tenths.format(seconds)}\u00a0s`;
}

/** "45 s", "12 min", "3 h", "5 days". */
export function duration(seconds) {
  const value = Math.max(0, seconds);
  if (value < 99.5) return `${Math.round(value)}\u00a0s`;
  if (value < 99.5 * 60) return `${Math.round(value / 60)}\u00a0min`;
  if (value < 48 * 3600) return `${Math.round(value / 3600)}\u00a0h`;
  return `${count(value / 86400)}\u00a0days`;
}

/** Seconds since the epoch of what the server sent: a number, or a text such as 2026-01-31T12:00:00Z. */
export function instant(value) {
  if (value === null || value === undefined || value === "") return null;
  const seconds = typeof value === "number" ? value : Date.parse(value) / 1000;
  return Number.isFinite(seconds) ? seconds : null;
}

const now = () => Date.now() / 1000;

export function until(value) {
  const seconds = instant(value);
  if (seconds === null) return "no end";
  return seconds <= now() ? "ended" : `in ${duration(seconds - now())}`;
}

export function ago(value) {
  const seconds = instant(value);
  if (seconds === null) return "";
  return now() - seconds < 2 ? "now" : `${duration(now() - seconds)} ago`;
}

export function fullTime(value) {
  const seconds = instant(value);
  return seconds === null ? "" : new Date(seconds * 1000).toLocaleString("en-GB");
}

export const clockTime = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
