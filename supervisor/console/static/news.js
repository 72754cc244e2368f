// What is new since this browser last looked at the overview.
import { fragment } from "./asking.js";

const KEY = "geminga-looked";
const place = document.querySelector("[data-news]");
const before = localStorage.getItem(KEY);
const html = before ? await fragment(`/console/news?since=${encodeURIComponent(before)}`) : null;
if (html) {
  place.innerHTML = html;
  place.hidden = false;
}
const looked = () => localStorage.setItem(KEY, String(Date.now()));
addEventListener("pagehide", looked);
if (!before) looked();
