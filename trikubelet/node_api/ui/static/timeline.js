// What the agent's journal says of a pod: which state it was in, from when to when. No DOM here.
// The agent makes these states (its stages): it saw all of them, while the entries are only the newest, and of an event that
// came again the last time only. So a page that is opened late shows the same as one that was there.

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

const OF_STAGES = { down: "backoff", releasing: "ended" }; // the others have their own names
const ENDING = new Set(["TerminationRequested", "Terminating"]);
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
    this.restartsOf = new Map();
  }

  get state() {
    return this.segments.at(-1)?.state ?? "waiting";
  }

  get since() {
    return this.segments.at(-1)?.from ?? 0;
  }

  /** The next stage. */
  begin({ what, at }) {
    const state = OF_STAGES[what] ?? what;
    const from = Date.parse(at);
    const last = this.segments.at(-1);
    if (last?.state === state || !(state in STATES)) return;
    if (last) last.to = from;
    this.segments.push({ state, from });
  }

  /** The next entry, with the stage that began with it. */
  add(entry) {
    this.keep(entry);
    if (entry.stage) this.begin(entry.stage);
  }

  /** An entry whose stage is known. */
  keep(entry) {
    this.entries.push(entry);
    if (this.entries.length > MOST_ENTRIES) this.entries.shift();
    const at = Date.parse(entry.at);
    if (entry.kind === "container") this.takeContainer(entry, at);
    if (entry.kind !== "phase") return;
    this.grace = ENDING.has(entry.what)
      ? { seconds: entry.grace, until: Date.parse(entry.until), askedBy: entry.askedBy ?? [] }
      : null;
  }

  /** Forget what was over before that moment. */
  forget(before) {
    this.segments = this.segments.filter((segment) => segment.to === undefined || segment.to >= before);
    this.marks = this.marks.filter((mark) => mark.at >= before);
  }

  takeContainer(entry, at) {
    this.restartsOf.set(entry.container, entry.restarts);
    this.restarts = [...this.restartsOf.values()].reduce((sum, count) => sum + count, 0);
    if (entry.what === "Started") return;
    this.marks.push({ at, failed: entry.exitCode !== 0, text: `${entry.container}: ${exit(entry.exitCode)}` });
  }
}

/** An exit code for people. */
export function exit(code) {
  return code > 128 && code < 160 ? `signal ${code - 128} (exit code ${code})` : `exit code ${code}`;
}
