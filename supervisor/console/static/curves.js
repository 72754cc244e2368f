// Moving curves of the last 15 minutes.  A figure names its series, the page brings their history, updates their newest points.
const SPAN_MS = 900_000;
const BOTTOM = 18, LEFT = 70;
const GAP_MS = 15_000;      // between two samples, where a line is broken: nobody looked
const keeps = document.querySelector("[data-keeps]") && `geminga-curves:${location.pathname}`;
const history = JSON.parse((keeps ? sessionStorage.getItem(keeps) : document.getElementById("history")?.textContent) ?? '{"at":[]}');
const figures = [...document.querySelectorAll("[data-curve]")];

const UNITS = {
  count: (value) => value >= 100 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3)),
  size: (value) => {
    let unit = 0;
    while (value >= 1024 && unit < 4) { value /= 1024; unit += 1; }
    return `${value >= 100 || !unit ? Math.round(value) : value.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
  },
};

function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// The largest value of a scale: 1, 2 or 5 times a power of the base, and so much that half of it has a text of its own.
function ceiling(value, base) {
  value = Math.max(value, 2);
  const power = base === 10 ? 10 ** Math.floor(Math.log10(value)) : 1024 ** Math.floor(Math.log(value) / Math.log(1024));
  for (const step of base === 10 ? [1, 2, 5, 10] : [1, 2, 5, 10, 20, 50, 100, 200, 500, 1024]) if (step * power >= value) return step * power;
  return value;
}

function line(number, points) {
  return element("polyline", { class: `line ${number ? "second" : "first"}`, points: points.join(" ") });
}

function draw(figure) {
  const names = figure.dataset.curve.split(" "), unit = UNITS[figure.dataset.unit];
  const svg = figure.querySelector("svg");
  const width = svg.clientWidth || 600, height = svg.clientHeight || 140;
  const end = history.at.at(-1) ?? Date.now();
  const top = ceiling(Math.max(0, ...names.flatMap((name) => history[name] ?? [])), figure.dataset.unit === "size" ? 1024 : 10);
  const x = (at) => (LEFT + (width - LEFT) * (1 - (end - at) / SPAN_MS)).toFixed(1);
  const y = (value) => (height - BOTTOM - (height - BOTTOM - 8) * value / top).toFixed(1);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const parts = [0, top / 2, top].flatMap((value) => [
    element("line", { class: "grid", x1: LEFT, x2: width, y1: y(value), y2: y(value) }),
    element("text", { class: "scale", x: LEFT - 6, y: +y(value) + 4, "text-anchor": "end" }, unit(value)),
  ]);
  for (const minutes of [15, 10, 5, 0]) {
    parts.push(element("text", { class: "scale", x: x(end - minutes * 60_000), y: height - 3,
                                 "text-anchor": minutes === 15 ? "start" : minutes ? "middle" : "end" }, minutes ? `−${minutes} min` : "now"));
  }
  names.forEach((name, number) => {
    const values = history[name] ?? [];
    let points = [];
    values.forEach((value, at) => {
      if (at && history.at[at] - history.at[at - 1] > GAP_MS) {
        parts.push(line(number, points));
        points = [];
      }
      points.push(`${x(history.at[at])},${y(value)}`);
    });
    parts.push(line(number, points));
    const last = figure.querySelector(`[data-last="${name}"]`);
    if (last && values.length) last.textContent = unit(values.at(-1)) + ("level" in figure.dataset ? "" : "/s");
  });
  svg.replaceChildren(...parts);
  svg.setAttribute("aria-label", figure.querySelector("figcaption").textContent.replace(/\s+/g, " ").trim());
}

function drawAll() {
  for (const figure of figures) draw(figure);
}

// Pages of which the broker has no history bring their samples with their updates, and keep them as long as the tab.
function sampled(place) {
  const sample = place?.querySelector("[data-sample]")?.dataset.sample;
  if (sample) document.dispatchEvent(new CustomEvent("geminga-sample", { detail: JSON.parse(sample) }));
}
document.addEventListener("geminga-part", ({ detail }) => sampled(detail));

document.addEventListener("geminga-sample", ({ detail }) => {
  if (detail.at <= history.at.at(-1)) return;
  for (const [name, value] of Object.entries(detail)) (history[name] ??= []).push(value);
  const first = history.at.findIndex((at) => at >= detail.at - SPAN_MS);
  if (first > 0) for (const values of Object.values(history)) values.splice(0, first);
  if (keeps) sessionStorage.setItem(keeps, JSON.stringify(history));
  drawAll();
});
drawAll();
sampled(document.querySelector("[data-keeps]") && document);
addEventListener("resize", drawAll);
