// A table of many rows: windows of rows come as HTML when somebody scrolls to them; those in sight come again and again.
import { merge } from "./live.js";

const AGAIN_MS = 2_000, TYPED_MS = 150, MARGIN = 30;      // MARGIN: rows beyond those in sight that are there, too
const box = document.querySelector("[data-rows]"), table = box.querySelector("table");
const form = document.querySelector("[data-narrows]"), lost = document.querySelector("[data-lost]");
const step = Number(box.dataset.step), head = table.tHead;
const windows = new Map();            // number -> its tbody
const coming = new Set();
let total = 0, height = 31, turn = 0, current = 0;      // current: the row that the Tab key reaches

const above = spacer(), gap = spacer(), below = spacer();
adopt(table.tBodies[0]);
table.append(above, below);
render();

function spacer() {
  const body = document.createElement("tbody");
  body.setAttribute("aria-hidden", "true");
  body.className = "spacer";
  body.append(document.createElement("tr"));
  body.firstChild.append(document.createElement("td"));
  return body;
}

function stretch(body, rows) {
  body.firstChild.firstChild.style.height = `${rows * height}px`;
  body.hidden = rows === 0;
}

// Takes a window that has come.
function adopt(body) {
  const number = Number(body.dataset.window), before = windows.get(number);
  total = Number(body.dataset.total);
  table.setAttribute("aria-rowcount", total + 1);
  const found = document.querySelector("p.found [data-found]");
  if (found && found.textContent !== body.dataset.found) found.textContent = body.dataset.found;
  if (before?.isConnected) merge(before, body);
  else windows.set(number, body);
  if (body.rows.length && body.isConnected) height = body.rows[0].getBoundingClientRect().height || height;
}

function inSight() {
  const first = Math.max(0, Math.floor(box.scrollTop / height) - MARGIN);
  const last = Math.min(total - 1, Math.ceil((box.scrollTop + box.clientHeight) / height) + MARGIN);
  const numbers = [];
  for (let number = Math.floor(first / step); number * step <= Math.max(0, last); number += 1) numbers.push(number);
  return numbers;
}

// Puts the windows in sight between empty bodies, which stand for all other rows.  A window that has the focus stays,
// and may be far from them: the table keeps its height, and so its place, by a third empty body between.
function render() {
  const wanted = inSight();
  gap.remove();      // else it would be a neighbour below, and bodies, moved away from it, would lose the focus
  for (const body of [...table.tBodies]) {
    if (body === above || body === below) continue;
    if (body.dataset.window === undefined || !wanted.includes(Number(body.dataset.window))) {
      if (!body.contains(document.activeElement)) body.remove();
    }
  }
  const there = wanted.filter((number) => windows.has(number));
  for (const number of wanted) {
    const body = windows.get(number) ?? hole(number);
    const next = [...table.tBodies].find((one) => one === below || Number(one.dataset.window ?? -1) > number);
    if (body.nextElementSibling !== next) table.insertBefore(body, next);
  }
  const shown = [...table.tBodies].filter((body) => body.dataset.window !== undefined);
  if (shown.length) {
    const numbers = shown.map((body) => Number(body.dataset.window));
    const behind = numbers.findIndex((number, at) => at > 0 && number > numbers[at - 1] + 1);
    table.insertBefore(above, shown[0]);
    stretch(above, numbers[0] * step);
    if (behind > 0) {
      stretch(gap, (numbers[behind] - numbers[behind - 1] - 1) * step);
      table.insertBefore(gap, shown[behind]);
    }
    stretch(below, Math.max(0, total - (numbers.at(-1) + 1) * step));
  }
  rove();
  for (const number of wanted) if (!there.includes(number)) bring(number);
}

// Stands for a window that is on its way.
const holes = new Map();
function hole(number) {
  if (!holes.has(number)) holes.set(number, spacer());
  const body = holes.get(number);
  body.dataset.window = number;
  stretch(body, Math.min(step, total - number * step));
  return body;
}

async function bring(number) {
  const key = `${turn}/${number}`;
  if (coming.has(key)) return;
  coming.add(key);
  const mine = turn;
  const html = await load(`${box.dataset.rows}?${query({ offset: number * step })}`);
  coming.delete(key);
  if (html === null || mine !== turn) return;
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  const had = total;
  adopt(fresh.content.querySelector("tbody"));
  holes.get(number)?.remove();
  if (had !== total) for (const known of windows.keys()) if (known * step >= total && known) windows.delete(known);
  render();
}

// Returns HTML, null if there is none; a session that is over, or a right that has gone, loads the page again.
async function load(address) {
  try {
    const answer = await fetch(address, { headers: { Accept: "text/html" } });
    lost.hidden = answer.status < 500;
    if (answer.redirected || answer.status === 401 || answer.status === 403) location.reload();
    return answer.ok ? await answer.text() : null;
  } catch {
    lost.hidden = false;
    return null;
  }
}

function query(more = {}) {
  const values = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(more)) values.set(name, value);
  return values;
}

// -- other rows, another order

async function show(values) {
  const address = `${location.pathname}?${values}`;
  const mine = turn += 1;
  const html = await load(address);
  if (html === null || mine !== turn) return;
  turn += 1;      // windows that were asked for meanwhile are of the former order
  const page = new DOMParser().parseFromString(html, "text/html");
  history.replaceState(null, "", address);
  for (const part of page.querySelectorAll("[data-part]")) {
    const place = document.querySelector(`[data-part="${part.dataset.part}"]`);
    if (place && !place.isEqualNode(part)) merge(place, document.adoptNode(part));
  }
  const body = document.adoptNode(page.querySelector("[data-rows] tbody"));
  windows.forEach((old) => old.remove());
  windows.clear();
  holes.forEach((old) => old.remove());
  box.scrollTop = 0;
  current = 0;
  adopt(body);
  render();
}

head.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-sorts]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  show(new URLSearchParams(new URL(link.href).search));
});

let timer = 0;
function narrow() {
  const values = query();
  for (const name of ["match", "subscription", "tenant", "namespace", "state"]) {
    const value = form.elements[name]?.disabled ? "" : form.elements[name]?.value ?? "";
    if (value) values.set(name, value);
    else values.delete(name);
  }
  if (values.toString() !== query().toString()) show(values);
}
form.addEventListener("input", ({ target }) => {
  if (target.name === "tenant") form.elements.namespace.value = "";
  clearTimeout(timer);
  timer = setTimeout(narrow, TYPED_MS);
});
form.addEventListener("change", ({ target }) => {
  if (target.name === "tenant") form.elements.namespace.value = "";
  clearTimeout(timer);
  narrow();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(timer);
  narrow();
});

// -- keys: the Tab key reaches one row, arrows go from row to row, also to those that are not there yet

function rowAt(index) {
  return windows.get(Math.floor(index / step))?.rows[index % step];
}

function rove() {
  for (const control of table.querySelectorAll("tbody a, tbody button")) control.tabIndex = -1;
  if (!rowAt(current)?.isConnected) current = Math.min(total - 1, Math.max(0, Math.ceil(box.scrollTop / height)));
  for (const control of rowAt(current)?.querySelectorAll("a, button") ?? []) control.tabIndex = 0;
}

async function go(index, column) {
  index = Math.max(0, Math.min(total - 1, index));
  const top = index * height, seen = box.clientHeight - head.offsetHeight;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + height > box.scrollTop + seen) box.scrollTop = top + height - seen;
  render();
  while (!rowAt(index)?.isConnected) {
    if (!inSight().includes(Math.floor(index / step))) return;      // somebody has scrolled away since
    await new Promise((resolve) => requestAnimationFrame(resolve));
  }
  current = index;
  rove();
  const controls = [...rowAt(index).querySelectorAll("a, button")];
  controls[Math.min(column, controls.length - 1)]?.focus({ preventScroll: true });
}

table.addEventListener("keydown", (event) => {
  const row = event.target.closest("tbody tr");
  if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = Number(row.getAttribute("aria-rowindex")) - 2, page = Math.floor(box.clientHeight / height) - 2;
  const column = [...row.querySelectorAll("a, button")].indexOf(event.target);
  const moves = { ArrowDown: [at + 1, column], ArrowUp: [at - 1, column], PageDown: [at + page, column],
                  PageUp: [at - page, column], Home: [0, column], End: [total - 1, column],
                  ArrowRight: [at, column + 1], ArrowLeft: [at, Math.max(0, column - 1)] };
  if (!(event.key in moves)) return;
  event.preventDefault();
  go(...moves[event.key]);
});

table.addEventListener("focusin", (event) => {
  const row = event.target.closest("tbody tr");
  if (row) current = Number(row.getAttribute("aria-rowindex")) - 2;
});

// -- scrolling, and what changes

let frame = 0;
box.addEventListener("scroll", () => {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(render);
}, { passive: true });
addEventListener("resize", render);

// Rows in sight come again and again: seldom, if they take the broker long.
async function refresh() {
  const began = performance.now();
  if (!document.hidden) {
    const seen = inSight();
    for (const number of windows.keys()) if (!seen.includes(number) && !windows.get(number).isConnected) windows.delete(number);
    await Promise.all(seen.map(bring));
  }
  setTimeout(refresh, Math.max(AGAIN_MS, 20 * (performance.now() - began)));
}
setTimeout(refresh, AGAIN_MS);

// The way back from a topic ends where it began.
const place = `geminga-place:${location.href}`;
addEventListener("pagehide", () => sessionStorage.setItem(`geminga-place:${location.href}`, box.scrollTop));
if (sessionStorage.getItem(place)) box.scrollTop = Number(sessionStorage.getItem(place));
document.documentElement.dataset.rowsReady = "";
