// What the entries of the agent's journal say of a pod: which state it was in, from when to when. No DOM here.

export const STATES = {
  waiting: "waits for its turn",
  starting: "is being started",
  pulling: "pulls an image",
  running: "runs, not ready",
  ready: "ready",
  backoff: "backs off",
  ending: "is being ended",
  ended: "has ended",
  gone: "gone",
};

const ENDING = new Set(["TerminationRequested", "Terminating"]);
const ENDED = new Set(["Terminated", "Finished"]);
const PULL_ENDS = new Set(["Pulled", "Failed", "BackOff", "ErrImageNeverPull"]);
const TRIED_AGAIN = new Set(["BackOff", "Failed", "InspectFailed", "FailedCreatePodSandBox", "FailedMount"]);
const MOST_ENTRIES = 100;

/** One pod, told by its entries in order. */
export class Life {
  constructor(uid, pod) {
    this.uid = uid;
    this.pod = pod;
    this.segments = []; // {state, from, to}: milliseconds; the last one has no `to`
    this.marks = []; // {at, text}: ends of containers
    this.entries = []; // as they came, the newest last
    this.grace = null; // {seconds, until, askedBy} of a pod that is being ended
    this.restarts = 0;
    this.phase = "";
    this.isReady = false;
    this.restartsOf = new Map();
    this.pulling = new Set();
    this.running = new Set();
    this.backsOff = false;
  }

  get state() {
    return this.segments.at(-1)?.state ?? "waiting";
  }

  get since() {
    return this.segments.at(-1)?.from ?? 0;
  }

  add(entry) {
    const at = Date.parse(entry.at);
    this.entries.push(entry);
    if (this.entries.length > MOST_ENTRIES) this.entries.shift();
    this.take(entry, at);
    const state = this.judge();
    const last = this.segments.at(-1);
    if (last?.state === state) return;
    // An entry may be dated before one that came earlier: that a container started long ago may be seen just now.
    const from = Math.max(at, last?.from ?? at);
    if (last) last.to = from;
    this.segments.push({ state, from });
  }

  /** Forget what was over before that moment. */
  forget(before) {
    this.segments = this.segments.filter((segment) => segment.to === undefined || segment.to >= before);
    this.marks = this.marks.filter((mark) => mark.at >= before);
  }

  take(entry, at) {
    switch (entry.kind) {
      case "phase":
        this.phase = entry.what;
        this.grace = ENDING.has(entry.what)
          ? { seconds: entry.grace, until: Date.parse(entry.until), askedBy: entry.askedBy ?? [] }
          : null;
        break;
      case "event":
        if (entry.what === "Pulling") this.pulling.add(entry.container ?? "");
        else if (PULL_ENDS.has(entry.what)) this.pulling.delete(entry.container ?? "");
        this.backsOff = TRIED_AGAIN.has(entry.what) || (this.backsOff && entry.what !== "Started");
        break;
      case "container":
        this.takeContainer(entry, at);
        break;
      case "ready":
        if (!entry.container) this.isReady = entry.what === "Ready";
        break;
    }
  }

  takeContainer(entry, at) {
    this.restartsOf.set(entry.container, entry.restarts);
    this.restarts = [...this.restartsOf.values()].reduce((sum, count) => sum + count, 0);
    if (entry.what === "Started") {
      this.running.add(entry.id);
      this.backsOff = false;
    } else {
      this.running.delete(entry.id);
      this.marks.push({ at, failed: entry.exitCode !== 0, text: `${entry.container}: ${exit(entry.exitCode)}` });
    }
  }

  judge() {
    if (this.phase === "Gone") return "gone";
    if (ENDED.has(this.phase)) return "ended";
    if (ENDING.has(this.phase)) return "ending";
    if (this.isReady) return "ready";
    if (this.pulling.size) return "pulling";
    if (this.running.size) return "running";
    if (this.backsOff) return "backoff";
    return this.phase === "Syncing" ? "starting" : "waiting";
  }
}

/** An exit code for people. */
export function exit(code) {
  return code > 128 && code < 160 ? `signal ${code - 128} (exit code ${code})` : `exit code ${code}`;
}
