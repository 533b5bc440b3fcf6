// Keeps a page up to date by server-sent events, and moves about it by keys. The server makes all HTML and has
// escaped it; here it is only put in place.
"use strict";

const content = document.getElementById("content");
const status = document.getElementById("status");
const banner = document.getElementById("banner");

const REOPEN_MS = 5000;

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
  source.addEventListener("error", () =>
    onLost(source, () => {
      pause();
      resume();
    }),
  );
  return source;
}

// A browser connects again by itself, unless the response had an error status: the session may have ended.
async function onLost(source, reopen) {
  fail("The console does not respond. Is it still running?");
  if (source.readyState !== EventSource.CLOSED) return;
  if (document.body.hasAttribute("data-user") && (await isLoggedOut())) {
    location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    return;
  }
  setTimeout(reopen, REOPEN_MS);
}

async function isLoggedOut() {
  try {
    return !(await (await fetch("/session")).json()).user;
  } catch {
    return false;
  }
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

// ── a search in a topic ─────────────────────────────────────────────────────────────────────────
// A search by key or value reads many records: what it finds is shown meanwhile, and it can be stopped.
const search = document.getElementById("search");
const stopButton = document.getElementById("stop");
let searching = null;

function endSearch() {
  if (searching !== null) searching.close();
  searching = null;
  stopButton.hidden = true;
}

function openSearch(address) {
  endSearch();
  if (tail.isOn) button.click();
  history.pushState(null, "", address);
  stopButton.hidden = false;
  const results = document.getElementById("results");
  const source = new EventSource(address);
  searching = source;
  const put = (event) => patch(results, parsed(JSON.parse(event.data)));
  source.addEventListener("found", put);
  source.addEventListener("done", (event) => {
    endSearch();
    put(event);
    succeed();
    show("", "");
  });
  source.addEventListener("failure", (event) => {
    endSearch();
    fail(JSON.parse(event.data));
  });
  source.addEventListener("error", () => {
    if (searching === source) location.reload();  // the page says what is wrong
  });
}

if (search !== null && stopButton !== null) {
  search.addEventListener("submit", (event) => {
    const given = new FormData(search);
    if (given.get("key") === "" && given.get("value") === "") return;
    event.preventDefault();
    openSearch(`${search.getAttribute("action")}?${new URLSearchParams(given)}`);
  });
  stopButton.addEventListener("click", () => {
    endSearch();
    describeTail("The search was stopped: these records were found until then.");
  });
  addEventListener("popstate", () => location.reload());
  addEventListener("pagehide", endSearch);
}

// ── the tail of a topic ─────────────────────────────────────────────────────────────────────────
// `mark` says how far records were received: a tail that continues, after a hidden tab or a lost connection, goes
// on there, and the server says what it passes over.
const button = document.getElementById("tail");
const tail = { isOn: false, source: null, mark: "", skipped: 0, wasInterrupted: false };

function addRecords(html) {
  const records = document.getElementById("records");
  const rows = new DOMParser().parseFromString(`<table><tbody>${html}</tbody></table>`, "text/html");
  records.prepend(...rows.querySelectorAll("tbody > tr"));
  while (records.rows.length > Number(records.dataset.limit)) records.deleteRow(-1);
}

function describeTail(text) {
  document.getElementById("found").textContent = text;
}

function onReceived(event) {
  if (event.lastEventId !== "") tail.mark = event.lastEventId;
  succeed();
}

function openTail() {
  if (!tail.isOn || tail.source !== null || document.hidden) return;
  const after = tail.mark === "" ? "" : `&after=${encodeURIComponent(tail.mark)}`;
  const source = new EventSource(button.dataset.tail + after);
  tail.source = source;
  source.addEventListener("open", () => {
    if (tail.wasInterrupted && tail.mark === "") {
      describeTail("The tail was interrupted: records that arrived in the meantime are not shown.");
    }
    tail.wasInterrupted = false;
  });
  source.addEventListener("records", (event) => {
    addRecords(JSON.parse(event.data));
    onReceived(event);
  });
  source.addEventListener("tick", onReceived);
  source.addEventListener("skipped", (event) => {
    tail.skipped += Number(JSON.parse(event.data));
    const count = tail.skipped.toLocaleString("en-US");
    describeTail(`${count} records were skipped: they arrived faster than they are shown, or during an interruption.`);
  });
  source.addEventListener("failure", (event) => fail(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    tail.wasInterrupted = true;
    onLost(source, () => {
      closeTail();
      openTail();
    });
  });
}

function closeTail() {
  if (tail.source === null) return;
  tail.source.close();
  tail.source = null;
  tail.wasInterrupted = true;
}

function startTail() {
  document.getElementById("records").replaceChildren();
  describeTail("The newest records, as they are appended.");
  Object.assign(tail, { isOn: true, mark: "", skipped: 0, wasInterrupted: false });
  openTail();
}

function stopTail() {
  tail.isOn = false;
  closeTail();
  show("", "");
}

if (button !== null) {
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(!tail.isOn));
    if (tail.isOn) stopTail();
    else startTail();
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? closeTail() : openTail()));
  addEventListener("pagehide", closeTail);
  addEventListener("pageshow", openTail);
}

// ── keys ────────────────────────────────────────────────────────────────────────────────────────
const places = { o: "/", b: "/brokers", t: "/topics", g: "/groups", x: "/transactions", s: "/security/acls", r: "/replay" };
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

// Times are shown in UTC; pointed at, they say the reader's own.
document.addEventListener("pointerover", (event) => {
  const time = event.target.closest("time[datetime]");
  const at = time === null ? NaN : Date.parse(time.dateTime);
  if (!Number.isNaN(at)) time.title = `${new Date(at).toLocaleString()}, your time`;
});

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
