// Where the figures come from: server-sent events, or requests every two seconds where events do not get through.

import { call } from "./server.js";

const POLL_EVERY = 2_000; // milliseconds, as all here
const TRY_EVENTS_AGAIN = 30_000;
const SILENCE = 8_000; // of a stream that counts as open: it is opened again
const OLD_AFTER = 5_000;

/** Feeds a page with history, figures and the word that a document has changed.
 *
 * `told` has the functions history(value), figures(value), changed(), problem(text), silent(milliseconds or 0) and
 * signedOut(error).
 * Nothing runs while the tab is hidden.
 */
export class Live {
  constructor(told) {
    this.told = told;
    this.source = null;
    this.poll = null;
    this.isRunning = false;
    this.lastAnswer = 0;
    this.eventsFailedAt = -Infinity;
    this.round = 0; // answers to requests of an earlier round are dropped
    this.pollsSinceHistory = 0;
    this.revision = null; // of the documents, in the figures that were polled last
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.resume()));
    addEventListener("online", () => this.resume(true));
    setInterval(() => this.watch(), 1_000);
  }

  /** Begin. `hasEvents` is false if the server cannot send any, so that asking is the only way. */
  start(hasEvents) {
    this.hasEvents = hasEvents;
    this.isRunning = true;
    this.lastAnswer = performance.now();
    this.resume(true);
  }

  stop() {
    this.isRunning = false;
    this.pause();
  }

  pause() {
    this.round += 1;
    this.source?.close();
    this.source = null;
    clearTimeout(this.poll);
    this.poll = null;
  }

  resume(anew = false) {
    if (!this.isRunning || document.hidden) return;
    if (anew || (this.source === null && this.poll === null)) {
      this.pause();
      this.lastAnswer = performance.now();
      if (this.isTimeForEvents) this.openEvents();
      else this.ask();
    }
  }

  get isTimeForEvents() {
    return this.hasEvents && performance.now() - this.eventsFailedAt > TRY_EVENTS_AGAIN;
  }

  openEvents() {
    const source = new EventSource("api/live");
    const round = this.round;
    this.source = source;
    const hear = (name, take) =>
      source.addEventListener(name, (event) => {
        if (round !== this.round) return;
        this.heard();
        this.eventsFailedAt = -Infinity;
        take(event.data ? JSON.parse(event.data) : null);
      });
    hear("history", (value) => this.told.history(value));
    hear("figures", (value) => this.told.figures(value));
    hear("changed", () => this.told.changed());
    hear("problem", (value) => this.told.problem(value.detail));
    source.addEventListener("error", () => {
      if (round !== this.round) return;
      this.eventsFailedAt = performance.now();
      this.pause();
      this.ask();
    });
  }

  /** Ask once, and again in two seconds; in between it is tried whether events get through again. */
  async ask() {
    const round = this.round;
    this.poll = -1;
    let wasAnswered = false;
    try {
      if (this.pollsSinceHistory % 30 === 0) {
        const history = await call("GET", "api/history");
        if (round !== this.round) return;
        this.told.history(history);
      }
      const figures = await call("GET", "api/figures");
      if (round !== this.round) return;
      wasAnswered = true;
      this.heard();
      this.told.figures(figures);
      if (figures.revision !== this.revision) this.told.changed();
      this.revision = figures.revision;
      this.pollsSinceHistory += 1;
    } catch (error) {
      if (round !== this.round) return;
      this.pollsSinceHistory = 0;
      if (error.status >= 500) this.told.problem(error.message);
      if (error.status === 401 || error.status === 403) return this.told.signedOut(error);
    }
    // After an outage the stream is tried at once: it is the same service that has come back.
    if (wasAnswered && this.wasSilent) this.eventsFailedAt = -Infinity;
    this.wasSilent = !wasAnswered;
    const mustOpen = wasAnswered && this.isTimeForEvents;
    this.poll = setTimeout(
      () => {
        if (mustOpen) this.resume(true);
        else this.ask();
      },
      mustOpen ? 0 : POLL_EVERY,
    );
  }

  heard() {
    this.lastAnswer = performance.now();
    this.told.silent(0);
  }

  watch() {
    if (!this.isRunning || document.hidden) return;
    const silence = performance.now() - this.lastAnswer;
    if (silence >= OLD_AFTER) this.told.silent(silence);
    if (this.source !== null && silence > SILENCE) {
      this.eventsFailedAt = performance.now();
      this.pause();
      this.ask();
    }
  }
}
