// Requests to `kubectl ovsdn dashboard`, which reads the API with the user's rights.

const tokenKey = "ovsdn-dashboard-token";

// takeToken moves the token from the URL to this tab's storage: a copied URL and the history do not have it.
export function takeToken() {
  const match = /^#token=([A-Za-z0-9]+)$/.exec(location.hash);
  if (match) {
    sessionStorage.setItem(tokenKey, match[1]);
    history.replaceState(null, "", "/#nodes");
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

// poll calls read repeatedly, with a pause of at least four times its duration, so that the page takes a fifth of the answers of one client at most. It calls
// report with null or with the error and the time of the next attempt, which is later after each failure. Nothing is read while the tab is hidden.
export function poll(read, interval, report) {
  const longest = 30_000;
  let timer, failures = 0, running = false;
  const run = async () => {
    if (running || document.hidden) return;
    clearTimeout(timer);
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
    timer = setTimeout(run, delay);
  };
  document.addEventListener("visibilitychange", run);
  run();
  return run;
}
