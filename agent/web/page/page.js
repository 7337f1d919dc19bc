"use strict";
// Puts what has changed into the page, by server-sent events. Without it the page is whole,
// and stands still.
(() => {
  const edition = document.body.dataset.edition;
  const lost = document.getElementById("lost");
  const live = document.getElementById("live");
  const asof = document.getElementById("asof");
  const silence = 15000; // three times as long as the agent is ever silent
  let source, timer;

  // Times in the reader's own zone, and the other one for whoever points at them.
  const times = (root) => {
    for (const t of root.querySelectorAll("time")) {
      const at = new Date(t.dateTime);
      t.title = t.dateTime;
      t.textContent = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    }
  };

  // A section is replaced whole; what the reader has opened stays open.
  const put = (id, html) => {
    const section = document.getElementById(id);
    if (!section) return;
    const open = [...section.querySelectorAll("details[open]")].map((d) => d.id);
    section.innerHTML = html;
    for (const name of open) {
      const details = document.getElementById(name);
      if (details) details.open = true;
    }
    times(section);
  };

  // A guest under the pointer is shown wherever it is.
  const point = (instance) => {
    for (const e of document.querySelectorAll("[data-instance]")) {
      e.classList.toggle("pointed", instance !== "" && e.dataset.instance === instance);
    }
  };
  document.addEventListener("pointerover", (e) => {
    const at = e.target.closest("[data-instance]");
    point(at ? at.dataset.instance : "");
  });

  const heard = () => {
    lost.hidden = true;
    live.hidden = false;
    clearTimeout(timer);
    timer = setTimeout(gone, silence);
  };
  const gone = () => {
    lost.hidden = false;
    live.hidden = true;
    clearTimeout(timer);
    source.close();
    timer = setTimeout(watch, 2000);
  };
  const watch = () => {
    source = new EventSource("events");
    source.onerror = gone;
    source.onmessage = (e) => {
      const update = JSON.parse(e.data);
      if (update.edition !== edition) {
        location.reload(); // another agent: this page is an older one's
        return;
      }
      for (const [id, html] of Object.entries(update.sections)) put(id, html);
      document.title = update.title;
      asof.dateTime = update.at;
      times(asof.parentElement);
      heard();
    };
    timer = setTimeout(gone, silence);
  };

  times(document);
  watch();
})();
