// Requests to `kubectl ovsdn dashboard`, which reads the API with the user's rights.

const tokenKey = "ovsdn-dashboard-token";

// takeToken moves the token from the URL to this tab's storage: a copied URL and the tab's back button do not have it. The browser's history may have it; it is
// valid until the dashboard ends.
export function takeToken() {
  const match = /^#token=([A-Za-z0-9]+)$/.exec(location.hash);
  if (match) {
    sessionStorage.setItem(tokenKey, match[1]);
    history.replaceState(null, "", "#nodes");
  }
}

// RequestError has the HTTP status, 0 if there was no answer.
export class RequestError extends Error {
  constructor(message, code) {
    super(message);
    this.code = code;
  }

  // isOutage reports that the same request may succeed later.
  get isOutage() {
    return [0, 429, 500, 502, 503, 504].includes(this.code);
  }
}

export function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

// request returns the answer of a path below /api. A body makes it a POST. It retries what was refused as too many requests.
export async function request(path, { query = {}, body, signal } = {}) {
  const url = new URL(`/api/${path}?${new URLSearchParams(query)}`, location.origin);
  const timeout = AbortSignal.timeout(100_000);
  const options = {
    headers: { Authorization: `Bearer ${sessionStorage.getItem(tokenKey) ?? ""}` },
    signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
    cache: "no-store",
    redirect: "error",
  };
  if (body) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let answer;
  for (let attempt = 1; ; attempt++) {
    try {
      answer = await fetch(url, options);
    } catch (error) {
      signal?.throwIfAborted();
      throw new RequestError("kubectl ovsdn dashboard does not answer; check that it runs", 0);
    }
    if (answer.status !== 429 || attempt === 5) break;
    await pause(1000 * attempt, signal);
  }
  try {
    const content = await answer.json();
    if (answer.ok) return content;
    throw new RequestError(content.message ?? answer.statusText, answer.status);
  } catch (error) {
    signal?.throwIfAborted();
    if (error instanceof RequestError) throw error;
    throw new RequestError("the answer is incomplete", answer.ok ? 0 : answer.status);
  }
}

// list returns the items of all pages, at most the given number.
export async function list(path, { most = 100_000, signal } = {}) {
  const items = [];
  const seen = new Set();
  for (let next = ""; ;) {
    const page = await request(path, { query: next ? { continue: next } : {}, signal });
    for (const item of page.items ?? []) items.push(item);
    next = page.continue ?? page.metadata?.continue ?? "";
    if (!next || seen.has(next) || items.length >= most) return items;
    seen.add(next);
  }
}

// poll calls read repeatedly. The pause is at least four times the duration of the last read, so that the page occupies one of the controller's list slots at
// most a fifth of the time. It calls report with null, or with the error and the delay in milliseconds until the next attempt; the delay grows with each failure.
// It does not read while the tab is hidden, or while isShown returns false; resume must be called when that changes. now reads without a pause, once it may.
export function poll(read, interval, report, isShown = () => true) {
  const longest = 30_000;
  let timer, due = 0, failures = 0, running = false;
  const resume = () => {
    clearTimeout(timer);
    if (!running && !document.hidden && isShown()) timer = setTimeout(run, Math.max(0, due - performance.now()));
  };
  const run = async () => {
    running = true;
    const began = performance.now();
    let delay;
    try {
      await read();
      failures = 0;
      delay = Math.max(interval, 4 * (performance.now() - began));
      report(null);
    } catch (error) {
      failures++;
      delay = error.isOutage ? Math.min(longest, 1000 * 2 ** Math.min(failures, 10)) * (0.75 + Math.random() / 2) : longest;
      report(error, delay);
    }
    running = false;
    due = performance.now() + delay;
    resume();
  };
  const now = () => {
    due = 0;
    resume();
  };
  document.addEventListener("visibilitychange", resume);
  resume();
  return { now, resume };
}
