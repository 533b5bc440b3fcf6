// Keeps a page up to date by server-sent events, and moves about it by keys. The server makes all HTML and has
// escaped it; here it is only put in place.
"use strict";

const content = document.getElementById("content");
const status = document.getElementById("status");
const banner = document.getElementById("banner");

// ── live pages ──────────────────────────────────────────────────────────────────────────────────
function parsed(html) {
  return new DOMParser().parseFromString(`<body>${html}</body>`, "text/html").body;
}

function alike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.id || "") === (other.id || "");
}

// Makes the children of `old` those of `fresh` with few changes, so that focus, scrolling and entries remain.
function patch(old, fresh) {
  let here = old.firstChild;
  for (let next = fresh.firstChild; next !== null;) {
    const following = next.nextSibling;
    let found = here;
    while (found !== null && !alike(found, next)) found = found.nextSibling;
    if (found === null) {
      old.insertBefore(next, here);
    } else {
      while (here !== found) {
        const gone = here;
        here = here.nextSibling;
        gone.remove();
      }
      patchNode(found, next);
      here = found.nextSibling;
    }
    next = following;
  }
  while (here !== null) {
    const gone = here;
    here = here.nextSibling;
    gone.remove();
  }
}

function patchNode(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if (old === document.activeElement && old.matches("input, select, textarea")) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  patch(old, fresh);
}

function show(text, kind) {
  status.textContent = text;
  status.className = `status ${kind}`;
}

function fail(text) {
  banner.textContent = text;
  banner.hidden = false;
  content.classList.add("stale");
  show("not up to date", "stale");
}

function succeed() {
  if (!banner.hidden) banner.hidden = true;
  content.classList.remove("stale");
  show("live", "live");
}

function follow(address) {
  const source = new EventSource(address);
  source.addEventListener("update", (event) => {
    patch(content, parsed(JSON.parse(event.data)));
    content.dataset.updates = String(Number(content.dataset.updates || 0) + 1);
    succeed();
  });
  source.addEventListener("tick", succeed);
  source.addEventListener("failure", (event) => fail(JSON.parse(event.data)));
  source.addEventListener("error", () => fail("The console does not respond. Is it still running?"));
  return source;
}

let live = null;
function resume() {
  if (live === null && content.hasAttribute("data-live") && !document.hidden) {
    live = follow(location.pathname + location.search);
  }
}
function pause() {
  if (live !== null) live.close();
  live = null;
}
document.addEventListener("visibilitychange", () => (document.hidden ? pause() : resume()));
addEventListener("pagehide", pause);
addEventListener("pageshow", resume);

// ── the tail of a topic ─────────────────────────────────────────────────────────────────────────
const button = document.getElementById("tail");
let tail = null;

function addRecords(html) {
  const records = document.getElementById("records");
  const rows = new DOMParser().parseFromString(`<table><tbody>${html}</tbody></table>`, "text/html");
  records.prepend(...rows.querySelectorAll("tbody > tr"));
  while (records.rows.length > Number(records.dataset.limit)) records.deleteRow(-1);
}

function startTail() {
  document.getElementById("records").replaceChildren();
  document.getElementById("found").textContent = "The newest records, as they are appended.";
  tail = new EventSource(button.dataset.tail);
  tail.addEventListener("records", (event) => {
    addRecords(JSON.parse(event.data));
    succeed();
  });
  tail.addEventListener("skipped", (event) => {
    document.getElementById("found").textContent = `${JSON.parse(event.data)} records were skipped: they arrive faster than they are shown.`;
  });
  tail.addEventListener("tick", succeed);
  tail.addEventListener("failure", (event) => fail(JSON.parse(event.data)));
  tail.addEventListener("error", () => fail("The console does not respond. Is it still running?"));
}

function stopTail() {
  if (tail !== null) tail.close();
  tail = null;
  show("", "");
}

if (button !== null) {
  button.addEventListener("click", () => {
    const starts = tail === null;
    button.setAttribute("aria-pressed", String(starts));
    if (starts) startTail();
    else stopTail();
  });
  addEventListener("pagehide", stopTail);
}

// ── keys ────────────────────────────────────────────────────────────────────────────────────────
const places = { o: "/", b: "/brokers", t: "/topics", g: "/groups" };
let isGoing = false;

function rowLinks() {
  return [...content.querySelectorAll("tbody th a")];
}

function step(by) {
  const links = rowLinks();
  if (links.length === 0) return;
  const at = links.indexOf(document.activeElement);
  links[Math.min(Math.max(at + by, 0), links.length - 1)].focus();
}

function click(selector) {
  const found = content.querySelector(selector);
  if (found !== null) found.click();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  if (isGoing) {
    isGoing = false;
    if (event.key in places) location.assign(places[event.key]);
    return;
  }
  switch (event.key) {
    case "g": isGoing = true; return;
    case "j": step(1); return;
    case "k": step(-1); return;
    case "[": click("[rel=prev]"); return;
    case "]": click("[rel=next]"); return;
    case "u": click("[data-up]"); return;
    case "?": document.getElementById("keys").showModal(); return;
    case "/": {
      const search = document.getElementById("q");
      if (search === null) return;
      event.preventDefault();
      search.focus();
      search.select();
    }
  }
});

resume();
