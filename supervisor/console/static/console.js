// What all pages share: updates, dialogs of actions, sign-in, copying, colours.
import { follow } from "./live.js";
import { ask, fill, word } from "./asking.js";
import "./actions.js";

follow();
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

for (const choice of document.querySelectorAll("[data-theme-choice]")) {
  choice.value = localStorage.getItem("geminga-theme") ?? "auto";
  choice.addEventListener("change", () => {
    localStorage.setItem("geminga-theme", choice.value);
    if (choice.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice.value;
  });
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if ("opens" in button.dataset) document.getElementById(button.dataset.opens).showModal();
  if ("copy" in button.dataset) {
    await copy(button.previousElementSibling.textContent);
    button.textContent = word("copied");
  }
  if ("signOut" in button.dataset) {
    await ask("POST", "/console/sign-out");
    location.href = "/console/sign-in";
  }
});

async function copy(text) {
  // Browsers have a clipboard over HTTPS and on localhost only.
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

for (const form of document.querySelectorAll("[data-sign-in]")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const refused = document.querySelector("[data-refused]");
    const button = form.querySelector("button");
    button.disabled = true;
    const answer = await ask("POST", "/console/sign-in", Object.fromEntries(new FormData(form)));
    button.disabled = false;
    if (answer.ok) location.assign(form.dataset.next);
    else {
      fill(refused, answer.status === 401 ? refused.textContent : answer.reason);
      refused.hidden = false;
      form.querySelector("input, textarea").focus();
    }
  });
}
