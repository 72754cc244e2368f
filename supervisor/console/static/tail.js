// The live tail of a topic: the newest messages come first.  It ends when the page is left.
import { card, said } from "./message_card.js";

const SHOWN_MAX = 200;       // older ones are taken off the page
const form = document.querySelector("form[data-tail]");
if (form) {
  const stop = form.querySelector("[data-stop]"), state = form.querySelector("[data-state]");
  const came = document.querySelector("[data-came]");
  let source = null, shown = 0, passed = 0, since = "";

  const close = (text) => {
    source?.close();
    source = null;
    stop.hidden = true;
    state.value = text;
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    source?.close();
    came.replaceChildren();
    shown = passed = 0;
    since = new Date().toLocaleTimeString();
    const asked = new URLSearchParams([...new FormData(form)].filter(([, value]) => value.trim()));
    source = new EventSource(`/console/tail?${asked}`);
    stop.hidden = false;
    source.addEventListener("rows", ({ data }) => {
      const news = JSON.parse(data);
      shown += news.rows.length;
      passed += news.passed;
      came.prepend(...news.rows.reverse().map((row) => card(row, false)));
      while (came.children.length > SHOWN_MAX) came.lastChild.remove();
      state.value = said("following", { time: since, count: shown.toLocaleString("en"), passed: passed.toLocaleString("en") });
    });
    source.addEventListener("ended", ({ data }) => close(said("failed", { reason: JSON.parse(data).reason })));
    source.addEventListener("error", () => {
      if (source?.readyState === EventSource.CLOSED) close(said("tail_stopped"));
      else if (source) state.value = said("tail_lost");
    });
  });

  stop.addEventListener("click", () => close(said("tail_stopped")));
  addEventListener("pagehide", () => source?.close());
}
