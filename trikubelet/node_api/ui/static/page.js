// The page: one stream of the agent's journal, and a row for each pod with its timeline.

import { Details } from "./details.js";
import { duration, element } from "./dom.js";
import { Life, STATES } from "./timeline.js";

const FORGET_GONE = 120_000; // milliseconds, as long as the agent's journal keeps them
const RECONNECT = 1000;
const ENDLESS = 100_000; // pixels of a segment that goes on; what is beyond now is cut off

const byId = (id) => document.getElementById(id);
const board = byId("board");
const rows = new Map(); // by UID
let chosen = decodeURIComponent(location.hash.slice(1)); // a UID, also of a pod that an agent which starts has yet to find
const origin = Date.now(); // where the tapes begin, on this machine's clock
let skew = 0; // the agent's clock less this machine's, in milliseconds
let seconds = Number(byId("window").value);
let trackWidth = 1;

const now = () => Date.now() + skew;
const perMillisecond = () => trackWidth / (seconds * 1000);
const position = (moment) => (moment - skew - origin) * perMillisecond();

class Row {
  constructor(life) {
    this.life = life;
    this.name = element("button", { type: "button", className: "name", title: life.pod }, life.pod);
    this.state = element("span", { className: "state" });
    this.restarts = element("span", { className: "number" });
    this.tape = element("div", { className: "tape" });
    const track = element("div", { className: "track" }, this.tape);
    this.element = element("div", { className: "row pod" }, this.name, this.state, this.restarts, track);
    this.element.dataset.uid = life.uid;
    this.name.addEventListener("click", () => choose(life.uid));
    this.draw();
  }

  /** After an entry, or when the scale is another one. */
  draw() {
    const { life } = this;
    life.forget(now() - 3_600_000);
    this.element.dataset.state = life.state;
    this.restarts.textContent = life.restarts ? String(life.restarts) : "";
    this.tape.replaceChildren(...life.segments.map((segment) => this.segment(segment)), ...life.marks.map(drawMark));
    this.tick();
  }

  segment({ state, from, to }) {
    const made = element("i", { className: `segment ${state}`, title: STATES[state] });
    made.style.left = `${position(from)}px`;
    made.style.width = `${to === undefined ? ENDLESS : Math.max(1, position(to) - position(from))}px`;
    return made;
  }

  /** What changes with time alone. */
  tick() {
    const { grace, state } = this.life;
    let text = STATES[state];
    if (grace) {
      const left = (grace.until - now()) / 1000;
      text = left >= 0 ? `ending: ${Math.ceil(left)} s of ${grace.seconds} s left` : `ending: ${duration(-left)} over its grace`;
      this.state.classList.toggle("late", left < 0);
    }
    if (this.state.textContent !== text) this.state.textContent = text;
  }
}

function drawMark({ at, failed, text }) {
  const made = element("b", { className: failed ? "mark failed" : "mark", title: text });
  made.style.left = `${position(at)}px`;
  return made;
}

// --- The stream ----------------------------------------------------------------------------------------------------

let stream = null;
let manifests = null;

function connect() {
  if (document.hidden) return;
  stream?.close();
  stream = new EventSource("api/journal");
  stream.onopen = () => tellConnection("live", "live");
  stream.onmessage = ({ data }) => receive(JSON.parse(data));
  stream.onerror = () => {
    tellConnection("lost", "the agent does not answer; trying again …");
    // A browser goes on by itself after a break, but not after an answer that is an error.
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, RECONNECT);
  };
  connectManifests();
}

function connectManifests() {
  if (document.hidden) return;
  manifests?.close();
  const opened = new EventSource("api/manifests");
  manifests = opened;
  opened.onmessage = ({ data }) => tellManifests(JSON.parse(data));
  opened.onerror = () => {
    if (opened.readyState === EventSource.CLOSED) setTimeout(() => opened === manifests && connectManifests(), RECONNECT);
  };
}

// A page that nobody sees asks for nothing: it costs the agent no work, and other tabs none of the few connections that a
// browser opens to one host. What it has missed is in the snapshot with which a stream begins.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    stream?.close();
    manifests?.close();
    details.rest();
  } else {
    connect();
    details.goOn();
  }
});

function tellConnection(state, text) {
  byId("connection").className = state;
  byId("connection").textContent = text;
}

/** The files that the agent cannot take as they are, below the pods. */
function tellManifests(files) {
  const block = byId("manifests");
  block.hidden = files.length === 0;
  block.replaceChildren(element("h2", {}, "Manifests with problems"), ...files.map(drawManifest));
}

function drawManifest({ file, pods, problems, broken }) {
  const runs = broken && pods.length ? element("p", {}, `Of its last good version ${pods.join(", ")} runs on.`) : null;
  const lines = problems.map(({ line, field, message }) =>
    element("li", {}, [line === null ? "" : `line ${line}`, field, message].filter(Boolean).join(": ")),
  );
  return element("article", {}, element("h3", {}, file), runs, element("ul", {}, ...lines));
}

function receive(message) {
  if (message.type === "SNAPSHOT") {
    skew = Date.parse(message.now) - Date.now();
    rows.clear();
    for (const pod of message.pods) {
      const life = new Life(pod.uid, pod.pod);
      pod.stages.forEach((stage) => life.begin(stage));
      pod.entries.forEach((entry) => life.keep(entry));
      rows.set(pod.uid, new Row(life));
    }
    arrange();
    choose(chosen);
    return;
  }
  let row = rows.get(message.uid);
  if (row === undefined) {
    row = new Row(new Life(message.uid, message.pod));
    rows.set(message.uid, row);
    arrange();
    if (message.uid === chosen) choose(chosen);
  }
  row.life.add(message);
  row.draw();
  count();
  details.heard(row.life, message);
}

function arrange() {
  const sorted = [...rows.values()].sort((one, other) => compare(one.life.pod, other.life.pod));
  byId("rows").replaceChildren(...sorted.map((row) => row.element));
  byId("empty").hidden = rows.size > 0;
  filter();
  count();
}

const compare = (one, other) => (one < other ? -1 : one > other ? 1 : 0);

function count() {
  const there = [...rows.values()].filter((row) => row.life.state !== "gone");
  const ready = there.filter((row) => row.life.state === "ready").length;
  byId("count").textContent = `${ready} of ${there.length} ready`;
}

// --- What one chooses ------------------------------------------------------------------------------------------------

const details = new Details(byId("details"), now, () => choose(""));

function choose(uid) {
  chosen = uid;
  for (const row of rows.values()) row.element.classList.toggle("chosen", row.life.uid === uid);
  history.replaceState(null, "", uid ? `#${encodeURIComponent(uid)}` : location.pathname);
  details.show(rows.get(uid)?.life ?? null);
  measure();
}

function filter() {
  const text = byId("filter").value.trim().toLowerCase();
  for (const row of rows.values()) row.element.hidden = !row.life.pod.toLowerCase().includes(text);
}

function measure() {
  trackWidth = document.querySelector(".scale").clientWidth || 1;
  byId("oldest").textContent = `${duration(seconds)} ago`;
  for (const row of rows.values()) row.draw();
}

byId("filter").addEventListener("input", filter);
byId("window").addEventListener("change", () => {
  seconds = Number(byId("window").value);
  measure();
});
new ResizeObserver(measure).observe(document.querySelector(".scale"));
byId("legend").append(
  ...Object.entries(STATES).map(([state, text]) => element("li", {}, element("i", { className: state }), text)),
);

// --- Time ------------------------------------------------------------------------------------------------------------

let shifted = NaN;

/** The tapes move with one property of the board, in steps of half a pixel. A hidden page draws no frames. */
function frame() {
  const shift = Math.round(2 * (trackWidth - position(now()))) / 2;
  if (shift !== shifted) {
    shifted = shift;
    board.style.setProperty("--shift", `${shift}px`);
  }
  requestAnimationFrame(frame);
}

setInterval(() => {
  if (document.hidden) return;
  let forgotten = false;
  for (const [uid, row] of rows) {
    if (row.life.state === "gone" && now() - row.life.since > FORGET_GONE) forgotten = rows.delete(uid);
    else if (row.life.grace) row.tick();
  }
  if (forgotten) arrange();
  details.tick();
}, 250);

measure();
requestAnimationFrame(frame);
connect();
