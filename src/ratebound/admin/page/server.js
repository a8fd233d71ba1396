// Calls to the administration API. All paths are relative, so that the page works below any prefix.

/** An answer that is not a success. `status` is 0 if there was no answer at all.
 *
 * `takesTokens` is true if a token signs in here; else the application around the page signs its operators in.
 */
export class CallFailed extends Error {
  constructor(status, words, takesTokens = false) {
    super(words);
    this.status = status;
    this.takesTokens = takesTokens;
  }
}

const TIMEOUT = 10_000; // milliseconds
const ELSEWHERE = "Your session has ended. Reload the page to sign in again.";
let csrf = "";

export async function call(method, path, body = undefined) {
  const headers = { Accept: "application/json" };
  if (csrf) headers["X-Ratebound-CSRF"] = csrf; // with reads, too: names are only told to the page itself
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const options = { method, headers, credentials: "same-origin", cache: "no-store", redirect: "manual" };
  let answer, text;
  try {
    const signal = AbortSignal.timeout(TIMEOUT);
    answer = await fetch(path, { ...options, signal, body: body === undefined ? undefined : JSON.stringify(body) });
    text = await answer.text();
  } catch {
    throw new CallFailed(0, "The service does not answer.");
  }
  // An application sends operators whom it does not know to its own sign-in, which is no answer for a script
  if (answer.type === "opaqueredirect") throw new CallFailed(401, ELSEWHERE);
  const found = parsed(text);
  if (!answer.ok)
    throw new CallFailed(answer.status, words(answer, found, text), answer.headers.has("WWW-Authenticate"));
  return found;
}

export function query(path, parameters) {
  const pairs = Object.entries(parameters).flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
  return `${path}?${new URLSearchParams(pairs)}`;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function words(answer, found, text) {
  const detail = found?.detail ?? "";
  const errors = (found?.errors ?? []).map((error) => `${error.field}: ${error.detail}`);
  if (errors.length) return errors.join("\n"); // the detail has the same words in one line
  if (detail) return detail;
  const plain = text.trim();
  return plain && plain.length < 300 && !plain.startsWith("<") ? plain : `The answer was ${answer.status}.`;
}

/** Return the session {name, role, csrf, live, signs_in}; raise CallFailed with 401 if nobody has signed in. */
export async function session() {
  return remember(await call("GET", "api/session"));
}

export async function signIn(token) {
  return remember(await call("POST", "api/session", { token }));
}

function remember(found) {
  csrf = found.csrf;
  return found;
}

export async function signOut() {
  await call("DELETE", "api/session");
  csrf = "";
}
