// Requests to the broker, and the words that scripts show.
const words = JSON.parse(document.getElementById("words")?.textContent ?? "{}");
const secret = document.querySelector("meta[name=geminga-secret]")?.content;

export function word(name, values = {}) {
  return (words[name] ?? name).replace(/\{(\w+)\}/g, (_, key) => values[key] ?? "");
}

// Returns {ok, status, value, reason}; a broker that does not answer has status 0.
export function ask(method, path, body) {
  return send(method, path, body === undefined ? undefined : JSON.stringify(body));
}

// Sends a body that is JSON already: numbers of 64 bits would not survive being read here.
export async function send(method, path, body) {
  const headers = { Accept: "application/json" };
  if (secret) headers["X-Geminga-Csrf"] = secret;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body });
  } catch {
    return { ok: false, status: 0, value: null, reason: word("lost") };
  }
  const text = await answer.text();
  let value = text;
  try { value = JSON.parse(text); } catch { /* an answer that is no JSON is a text */ }
  return { ok: answer.ok, status: answer.status, value, reason: value?.reason ?? (text || answer.statusText) };
}

// Returns the HTML of a part of a page, null if the broker refuses it.
export async function fragment(path) {
  try {
    const answer = await fetch(path, { headers: { Accept: "text/html" } });
    return answer.ok && !answer.redirected ? await answer.text() : null;
  } catch {
    return null;
  }
}

export function fill(element, text) {
  element.textContent = text;
}
