// A search of stored messages: lines of JSON are shown as they come, until the end, or until somebody stops it.
import { card, said, size } from "./message_card.js";

const form = document.querySelector("form[data-search]");
if (form) {
  const stop = form.querySelector("[data-stop]"), bar = form.querySelector("[data-progress]");
  const state = form.querySelector("[data-state]"), found = document.querySelector("[data-found]");
  let leaving = null;

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    leaving?.abort();
    const own = leaving = new AbortController();
    const asked = new URLSearchParams([...new FormData(form)].filter(([, value]) => value.trim()));
    const address = new URLSearchParams(asked);      // the page's own says what it shows, to be sent to somebody
    address.set("place", new URLSearchParams(location.search).get("place"));
    history.replaceState(null, "", `${location.pathname}?${address}`);
    found.replaceChildren();
    stop.hidden = bar.hidden = false;
    bar.removeAttribute("value");
    state.value = said("searching");
    let count = 0, told = "failed", line = "";
    try {
      const answer = await fetch(`${form.dataset.search}?${asked}`, { signal: own.signal });
      if (!answer.ok) {
        const text = await answer.text();
        let reason = text || answer.statusText;
        try { reason = JSON.parse(text).reason ?? reason; } catch { /* it is a text */ }
        state.value = said("failed", { reason });
        return;
      }
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const lines = (line + value).split("\n");
        line = lines.pop();
        const cards = document.createDocumentFragment();
        for (const said_ of lines.filter(Boolean).map((text) => JSON.parse(text))) {
          if (said_.row) {
            count += 1;
            cards.append(card(said_.row, form.dataset.search.split("/").length === 6));
          }
          if (said_.complaint) cards.append(hint(said_.complaint));
          if (said_.of !== undefined) {
            bar.max = said_.of || 1;
            bar.value = said_.searched;
            state.value = said("searched", { searched: size(said_.searched), of: size(said_.of), count });
          }
          if (said_.end) told = said_.end;
          if (said_.wrong) cards.append(hint(said_.wrong));
        }
        found.append(cards);
      }
      const isNarrow = ["key", "property", "grep", "since", "until"].some((name) => asked.has(name));
      state.value = said(`ended_${told !== "all" || count ? told : isNarrow ? "none" : "empty"}`, { count });
    } catch (error) {
      if (leaving !== own) return;      // another search has begun, and says how it goes
      state.value = error.name === "AbortError" ? said("stopped", { count }) : said("ended_failed", { count });
    } finally {
      if (leaving === own) stop.hidden = bar.hidden = true;
    }
  });

  stop.addEventListener("click", () => leaving?.abort());
  if ("starts" in form.dataset) form.requestSubmit();
}

function hint(text) {
  const made = document.createElement("p");
  made.className = "hint";
  made.textContent = text;
  return made;
}
