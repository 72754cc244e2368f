// What is new since this browser last looked at the overview.
import { fragment } from "./asking.js";

const KEY = "geminga-looked";
const place = document.querySelector("[data-news]");
const before = JSON.parse(localStorage.getItem(KEY) ?? "null");
const html = before ? await fragment("/console/news?" + new URLSearchParams(before)) : null;
if (html) {
  place.innerHTML = html;
  place.hidden = false;
}
const looked = () => localStorage.setItem(KEY, JSON.stringify({ since: Date.now(), topics: place.dataset.topics }));
addEventListener("pagehide", looked);
if (!before) looked();
