// Steps through a recording. The server makes the HTML of each moment; here it is asked for and put in place.
// One moment is asked for at a time: while the slider moves, those between are left out.
"use strict";

const scrub = document.getElementById("scrub");
const at = document.getElementById("at");
const play = document.getElementById("play");
const moment = document.getElementById("moment");
const form = document.getElementById("replay");
const partition = document.getElementById("partition");

let isAsking = false;
let wanted = null;
let timer = null;

function query(index) {
  const chosen = partition === null ? "" : partition.value;
  return `?at=${index}${chosen === "" ? "" : `&partition=${encodeURIComponent(chosen)}`}`;
}

function put(html) {
  patch(moment, parsed(html));
  const index = document.getElementById("now").dataset.index;
  scrub.value = index;
  at.value = index;
  moment.dataset.moments = String(Number(moment.dataset.moments || 0) + 1);
  history.replaceState(null, "", location.pathname + query(index));
}

// Shows the moment after the event with this index, unless another one is wanted before the server answers.
async function go(index) {
  wanted = index;
  if (isAsking) return;
  isAsking = true;
  try {
    while (wanted !== null) {
      const asked = wanted;
      wanted = null;
      const answer = await fetch(form.dataset.moment + query(asked));
      const text = await answer.text();
      if (!answer.ok) throw new Error(text.trim());
      put(text);
    }
    succeed();
    show("", "");
  } catch (error) {
    stop();
    wanted = null;
    fail(error instanceof TypeError ? "The console does not respond. Is it still running?" : error.message);
  } finally {
    isAsking = false;
  }
}

function target(selector) {
  const link = moment.querySelector(selector);
  return link === null ? null : Number(link.dataset.at);
}

function goTo(selector) {
  const index = target(selector);
  if (index === null) return false;
  go(index);
  return true;
}

async function tick() {
  const index = target("[rel=next]");
  if (index === null) {
    stop();
    return;
  }
  await go(index);
  if (timer !== null) timer = setTimeout(tick, 1000 / Number(document.getElementById("speed").value));
}

function stop() {
  if (timer !== null) clearTimeout(timer);
  timer = null;
  play.textContent = "Play";
  play.setAttribute("aria-pressed", "false");
}

function toggle() {
  if (timer !== null) {
    stop();
    return;
  }
  play.textContent = "Pause";
  play.setAttribute("aria-pressed", "true");
  timer = setTimeout(tick, 0);
}

// The recording may have no event: then there is nothing to step through.
if (form !== null) {
  scrub.addEventListener("input", () => go(Number(scrub.value)));
  play.addEventListener("click", toggle);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go(Number(at.value));
  });
  if (partition !== null) partition.addEventListener("change", () => go(Number(scrub.value)));
  moment.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-at]");
    if (link === null || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(Number(link.dataset.at));
  });
  addEventListener("pagehide", stop);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target !== scrub && event.target.matches("input, select, textarea")) return;
    const isOnControl = event.target.matches("a, button");
    switch (event.key) {
      case "ArrowLeft": goTo("[rel=prev]"); break;
      case "ArrowRight": goTo("[rel=next]"); break;
      case "n": case "p": goTo(`[data-key=${event.key}]`); return;
      case "Home": go(0); break;
      case "End": go(Number(scrub.max)); break;
      case " ":
        if (isOnControl) return;
        toggle();
        break;
      default: return;
    }
    event.preventDefault();
  });
}
