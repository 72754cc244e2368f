// Dialogs of actions: what an action does, once confirmed, is a request to REST's own route.
import { fragment, send, word } from "./asking.js";
import { hold, release } from "./live.js";

const dialog = document.getElementById("action");

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-action]");
  if (!button) return;
  const values = JSON.parse(button.dataset.values || "{}");
  await show(button.dataset.action, values);
});

function address(name, values) {
  return `/console/actions/${encodeURIComponent(name)}?` + new URLSearchParams(values);
}

async function show(name, values) {
  const html = await fragment(address(name, values));
  if (html === null) {
    dialog.textContent = word("lost");
  } else {
    dialog.innerHTML = html;
  }
  dialog.dataset.name = name;
  if (!dialog.open) dialog.showModal();
  (dialog.querySelector("[autofocus]") ?? dialog.querySelector("input, select, textarea, button"))?.focus();
}

// Fields change what an action does, so the sentence, the command and the request are made again.
let timer = 0, serial = 0;
dialog.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(refresh, 250);
});

async function refresh() {
  const form = dialog.querySelector("form");
  if (!form) return true;
  const turn = ++serial;
  const html = await fragment(address(dialog.dataset.name, new FormData(form)));
  if (html === null) return false;
  if (turn !== serial) return true;
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  for (const part of ["[data-effect]", "[data-same]", "[data-confirm]"]) {
    const place = dialog.querySelector(part), made = fresh.content.querySelector(part);
    if (!place || !made) continue;
    const details = made.querySelector("details");
    if (details) details.open = place.querySelector("details")?.open ?? false;
    place.replaceWith(made);
  }
  return true;
}

dialog.addEventListener("submit", async (event) => {
  const button = event.submitter;
  if (!button || !("confirm" in button.dataset)) return;
  event.preventDefault();
  clearTimeout(timer);
  // What was shown before may not be what the fields say now: without a fresh plan nothing is done.
  if (!await refresh()) return fail(word("lost"));
  const sure = dialog.querySelector("[data-confirm]");
  if (sure.disabled) return;
  sure.disabled = true;
  const { method, path, body, next } = sure.dataset;
  hold();
  const answer = await send(method, path, body || undefined);
  if (answer.ok) {
    dialog.close();
    if (next && next !== location.pathname) location.assign(next);
    else location.reload();
    return;
  }
  release();
  sure.disabled = false;
  fail(word("failed", { reason: answer.reason }));
});

function fail(text) {
  const failure = dialog.querySelector("[data-failure]");
  failure.textContent = text;
  failure.hidden = false;
}
