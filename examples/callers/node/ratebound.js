// Express middleware that asks the Ratebound service before each request. It needs nothing from npm.
//
//   app.use(ratebound({ url: "http://127.0.0.1:4290", token: process.env.RATEBOUND_TOKEN }));
//
// url       where the service listens
// token     its bearer token, if it needs one
// timeout   milliseconds until an answer counts as missing
// whenAway  what to do without an answer: "open" lets requests pass, "closed" answers 503, and { limit: 20, window: 1000 }
//           lets each client make 20 requests in 1000 ms, counted in this process
// pause     milliseconds for which the service is not asked again after a failure
// headers   request headers that the policy needs; no others leave this process
// user      a function of the request that returns the id of the authenticated user
// log       is called with a message when the service gives no decision

import { setTimeout as sleep } from "node:timers/promises";

const MAX_CLIENTS = 10_000; // that are counted in this process
const REFUSED = [400, 413, 422]; // the request cannot be decided, and the service is well: its other clients stay limited

export function ratebound({
  url,
  token,
  timeout = 100,
  whenAway = "open",
  pause = 1000,
  headers = [],
  user = (req) => req.user?.id,
  log = console.warn,
}) {
  const endpoint = new URL("/v1/decide", url);
  const sent = { "content-type": "application/json", ...(token && { authorization: `Bearer ${token}` }) };
  const isAllowedHere = typeof whenAway === "object" ? localShare(whenAway) : () => whenAway === "open";
  let awayUntil = 0;

  // fetch keeps connections open and uses them again.
  async function decide(req) {
    const target = req.originalUrl.replace(/^[a-z]+:\/\/[^/?#]*/i, ""); // a target may name scheme and host
    const [path, query = ""] = target.split(/\?(.*)/s);
    const id = user(req);
    const response = await fetch(endpoint, {
      method: "POST",
      headers: sent,
      signal: AbortSignal.timeout(timeout),
      body: JSON.stringify({
        method: req.method,
        path: path || "/",
        query,
        host: req.headers.host ?? "",
        scheme: req.protocol,
        address: req.ip, // behind a proxy, set Express's "trust proxy"
        ...(id != null && { user: String(id) }),
        headers: Object.fromEntries(headers.map((name) => [name, req.get(name)]).filter(([, value]) => value)),
      }),
    });
    if (REFUSED.includes(response.status)) {
      log(`Ratebound refuses a request: ${await response.text()}`);
      return { allowed: false, status: 400, headers: { "Content-Type": "text/plain" }, body: "Bad request.\n" };
    }
    if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
    return response.json();
  }

  return async function askRatebound(req, res, next) {
    let answer;
    if (Date.now() >= awayUntil) {
      try {
        answer = await decide(req);
      } catch (error) {
        awayUntil = Date.now() + pause;
        log(`Ratebound gave no decision: ${error.cause?.message || error.message}`); // fetch hides its reason in the cause
      }
    }
    if (!answer) {
      if (isAllowedHere(req.ip)) return next();
      return res.status(503).set("Retry-After", "1").type("text").send("Try again in a second.\n");
    }
    res.set(answer.headers);
    if (!answer.allowed) return res.status(answer.status).end(answer.body);
    if (answer.decision?.delay) await sleep(answer.decision.delay * 1000);
    next();
  };
}

// Returns a function that says whether a client may make one more request in the present window.
function localShare({ limit, window }) {
  let counts = new Map();
  let ends = 0;
  return (client) => {
    const now = Date.now();
    if (now >= ends || counts.size >= MAX_CLIENTS) {
      counts = new Map();
      ends = now + window;
    }
    const count = (counts.get(client) ?? 0) + 1;
    counts.set(client, count);
    return count <= limit;
  };
}
