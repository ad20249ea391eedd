// Requests to the server. If the connection is lost, the page retries until the server answers.

const listeners = { lost: () => {}, back: () => {} };
const PATIENCE = 30_000, PULSE = 5_000; // milliseconds
let lost = false;

export function onConnection(on) { Object.assign(listeners, on); }

export class Told extends Error {} // with an error message for the user

async function answer(url, options) {
  let response;
  try {
    response = await fetch(url, { ...options, signal: AbortSignal.timeout(PATIENCE) });
  } catch {
    if (!lost) { lost = true; listeners.lost(); wait(); }
    throw new Told("The server does not answer.");
  }
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Told(content.error ?? "The server refused the request.");
  return content;
}

async function wait() {
  while (lost) {
    await new Promise((resolve) => setTimeout(resolve, 1500));
    try {
      await fetch("/models", { signal: AbortSignal.timeout(PATIENCE) });
      lost = false;
      listeners.back();
    } catch { /* not yet */ }
  }
}

// Detects a lost connection even while there are no requests.
setInterval(() => { if (!lost && !document.hidden) answer("/models").catch(() => {}); }, PULSE);

export const models = () => answer("/models");

export function ask(what, content) {
  const headers = { "content-type": "application/json" };
  return answer(`/${what}`, { method: "POST", headers, body: JSON.stringify(content) });
}
