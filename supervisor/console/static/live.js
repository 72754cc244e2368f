// Takes the updates of this page from the broker, and puts them in place without disturbing who reads or types.
import { word } from "./asking.js";

const address = document.querySelector("meta[name=geminga-live]")?.content;
const lost = document.querySelector("[data-lost]");
let source = null;

export function follow() {
  if (!address) return;
  open();
  // A page in the background costs the broker nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else release();
  });
  addEventListener("pagehide", close);
}

// While an action is carried out the page takes no updates: they may tell that what it shows is gone.
export { close as hold };

export function release() {
  if (address && source === null) open();
}

function close() {
  source?.close();
  source = null;
}

function open() {
  source = new EventSource("/console/live?page=" + encodeURIComponent(address));
  source.addEventListener("open", () => { lost.hidden = true; });
  source.addEventListener("parts", (event) => {
    for (const [name, html] of Object.entries(JSON.parse(event.data))) put(name, html);
  });
  source.addEventListener("sample", (event) => {
    document.dispatchEvent(new CustomEvent("geminga-sample", { detail: JSON.parse(event.data) }));
  });
  source.addEventListener("ended", () => {
    close();
    lost.textContent = word("ended");
    lost.hidden = false;
    location.reload();
  });
  source.addEventListener("error", () => {
    lost.hidden = false;
    // The browser gives up when an answer is no stream: the broker starts, or the session is over.
    if (source?.readyState === EventSource.CLOSED) {
      close();
      setTimeout(reopen, 1000);
    }
  });
}

async function reopen() {
  if (document.hidden || source !== null) return;
  try {
    const answer = await fetch(address, { redirect: "manual" });
    if (answer.type === "opaqueredirect" || answer.status === 404 || answer.status === 403) {
      location.reload();
      return;
    }
    if (answer.ok) {
      open();
      return;
    }
  } catch { /* the broker is away */ }
  setTimeout(reopen, 1000);
}

function put(name, html) {
  const place = document.querySelector(`[data-live="${CSS.escape(name)}"]`);
  if (!place) return;
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  merge(place, fresh.content);
  document.dispatchEvent(new CustomEvent("geminga-part", { detail: place }));
}

// Makes the children of `old` those of `fresh`, and changes only what differs: focus, selection and scrolling stay.
export function merge(old, fresh) {
  const had = [...old.childNodes];
  const has = [...fresh.childNodes];
  has.forEach((node, at) => {
    const before = had[at];
    if (before === undefined) old.append(node);
    else if (before.nodeType !== node.nodeType || before.nodeName !== node.nodeName) before.replaceWith(node);
    else if (node.nodeType !== Node.ELEMENT_NODE) {
      if (before.nodeValue !== node.nodeValue) before.nodeValue = node.nodeValue;
    } else if (!before.isEqualNode(node)) {
      if (before.matches("input, select, textarea") && before === document.activeElement) return;
      for (const { name } of [...before.attributes]) {
        if (!node.hasAttribute(name) && !(before.nodeName === "DETAILS" && name === "open")) before.removeAttribute(name);
      }
      for (const { name, value } of node.attributes) if (before.getAttribute(name) !== value) before.setAttribute(name, value);
      merge(before, node);
    }
  });
  had.slice(has.length).forEach((node) => node.remove());
}
