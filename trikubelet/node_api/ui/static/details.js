// The chosen pod: why it waits, its containers and probes, what happened, its tree of scopes, a container's log.

import { address, ask, clock, duration, element } from "./dom.js";
import { exit } from "./timeline.js";

const REFRESH = 2000; // milliseconds between two looks at what has no news of its own
const SOON = 150; // after an entry: more of them may follow
const LONGEST_LOG = 200_000; // characters

export class Details {
  constructor(aside, now, close) {
    this.aside = aside;
    this.now = now;
    this.life = null;
    this.due = Infinity;
    this.busy = false;
    this.shown = new Map(); // section: what it shows, as text
    this.log = new Log();
    this.title = element("h2");
    const leave = element("button", { type: "button", className: "close", title: "Close" }, "×");
    leave.addEventListener("click", close);
    this.sections = Object.fromEntries(
      ["why", "containers", "events", "scopes"].map((name) => [name, element("div", { id: name })]),
    );
    this.aside.append(
      element("header", {}, this.title, leave),
      ...headed("Why", this.sections.why),
      ...headed("Containers", this.sections.containers),
      ...headed("Log", this.log.element),
      ...headed("What happened", this.sections.events),
      ...headed("Scopes now", this.sections.scopes),
    );
  }

  /** Show this pod; null: none. */
  show(life) {
    const other = life?.uid !== this.life?.uid;
    this.life = life;
    this.aside.hidden = life === null;
    if (life === null) {
      this.log.close();
      return;
    }
    if (other) {
      this.shown.clear();
      Object.values(this.sections).forEach((section) => section.replaceChildren());
      this.title.textContent = life.pod;
      this.log.open(life.pod);
    }
    this.due = 0;
    this.tick();
  }

  /** Nobody looks. */
  rest() {
    this.log.close();
  }

  goOn() {
    if (this.life === null) return;
    this.due = 0;
    this.log.read();
  }

  /** An entry has come. */
  heard(life, entry) {
    if (life !== this.life) return;
    this.due = Math.min(this.due, performance.now() + SOON);
    if (entry.kind === "container" && entry.what === "Started") this.log.started(entry.container);
  }

  tick() {
    if (this.life !== null && !this.busy && performance.now() >= this.due) this.refresh();
  }

  async refresh() {
    const { life } = this;
    this.busy = true;
    this.due = performance.now() + REFRESH;
    this.put("events", life.entries, events);
    const place = ["pods", ...split(life.pod)];
    const answers = await Promise.allSettled([ask(...place, "why"), ask(...place), ask("tasks", life.uid)]);
    this.busy = false;
    if (life !== this.life) {
      this.due = 0;
      return;
    }
    const [why, pod, tasks] = answers;
    // A pod of the same name may have come in the place of this one.
    this.put("why", of(why, (answer) => answer.uid === life.uid), (answer) => causes(answer, this.now()));
    this.put("containers", of(pod, (answer) => answer.metadata.uid === life.uid), containers);
    this.put("scopes", of(tasks), (task) => element("ul", { className: "tree" }, scope(task)));
    if (pod.status === "fulfilled") this.log.offer(names(pod.value));
  }

  /** Draw a section if it is to show something else than before: what one has marked or scrolled to stays. */
  put(name, value, draw) {
    const text = JSON.stringify(value) + (name === "why" ? Math.floor(this.now() / 1000) : "");
    if (this.shown.get(name) === text) return;
    this.shown.set(name, text);
    const drawn = value?.problem === undefined ? draw(value) : element("p", { className: "nothing" }, value.problem);
    this.sections[name].replaceChildren(drawn);
  }
}

function headed(text, section) {
  return [element("h3", {}, text), section];
}

function of(answer, isWanted = () => true) {
  if (answer.status === "rejected") return { problem: answer.reason.message };
  return isWanted(answer.value) ? answer.value : { problem: "another pod has this name now" };
}

function split(pod) {
  const slash = pod.indexOf("/");
  return [pod.slice(0, slash), pod.slice(slash + 1)];
}

// --- Why -------------------------------------------------------------------------------------------------------------

function causes(answer, now) {
  const [first = {}, ...others] = answer.waits;
  const lines = others.map((wait) => element("li", {}, wait.text, ...times(wait, now)));
  const cause = element("p", { className: "cause" }, answer.cause, ...times(first, now));
  return element("div", {}, cause, element("ul", {}, ...lines));
}

function times({ since, until }, now) {
  const parts = [];
  if (since) parts.push(`since ${clock(Date.parse(since))}`);
  if (until) parts.push(`${duration((Date.parse(until) - now) / 1000)} left`);
  return parts.length ? [element("small", {}, ` (${parts.join(", ")})`)] : [];
}

// --- Containers ------------------------------------------------------------------------------------------------------

function names(pod) {
  const spec = pod.spec ?? {};
  return [...(spec.containers ?? []), ...(spec.initContainers ?? []), ...(spec.ephemeralContainers ?? [])].map(
    (container) => container.name,
  );
}

function containers(pod) {
  const { status = {}, spec = {} } = pod;
  const statuses = new Map(
    [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? [])].map((one) => [one.name, one]),
  );
  const of = [...(spec.initContainers ?? []), ...(spec.containers ?? [])];
  const conditions = (status.conditions ?? []).map((one) =>
    element("li", { className: one.status === "True" ? "yes" : "no" }, [one.type, one.reason].filter(Boolean).join(": ")),
  );
  return element(
    "div",
    {},
    ...of.map((container) => containerOf(container, statuses.get(container.name))),
    element("ul", { className: "conditions" }, ...conditions),
  );
}

function containerOf(container, status) {
  const probes = [
    ["startup", container.startupProbe, status?.started],
    ["readiness", container.readinessProbe, status?.ready],
    ["liveness", container.livenessProbe, undefined],
  ].filter(([, probe]) => probe);
  return element(
    "div",
    { className: "container" },
    element("strong", {}, container.name),
    ` ${stateOf(status)}`,
    element("br"),
    element("small", {}, container.image ?? ""),
    element("ul", {}, ...probes.map(([kind, probe, passes]) => probeOf(kind, probe, passes))),
  );
}

function stateOf(status) {
  const { running, terminated, waiting } = status?.state ?? {};
  const restarts = status?.restartCount ? `, ${status.restartCount} restarts` : "";
  if (running) return `runs since ${clock(Date.parse(running.startedAt))}${status.ready ? ", ready" : ""}${restarts}`;
  if (terminated) return `ended: ${exit(terminated.exitCode)} ${terminated.reason ?? ""}${restarts}`;
  return `waits${waiting?.reason ? `: ${waiting.reason}` : ""}${waiting?.message ? `: ${waiting.message}` : ""}${restarts}`;
}

function probeOf(kind, probe, passes) {
  const how = ["exec", "httpGet", "tcpSocket", "grpc"].find((name) => probe[name]) ?? "";
  const verdict = passes === undefined ? "" : passes ? ": passes" : ": has not passed";
  const text = `${kind} probe${verdict} (${how}, every ${probe.periodSeconds ?? 10} s, ${probe.failureThreshold ?? 3} failures)`;
  return element("li", { className: passes === undefined ? "" : passes ? "yes" : "no" }, text);
}

// --- What happened ---------------------------------------------------------------------------------------------------

function events(entries) {
  return element("ol", {}, ...entries.toReversed().map((entry) => element("li", { className: `told-${entry.kind}` }, ...told(entry))));
}

function told(entry) {
  const about = entry.container ? `${entry.container}: ` : "";
  const facts = [];
  if (entry.askedBy) facts.push(`asked by: ${entry.askedBy.join(", then ")}`);
  if (entry.grace !== undefined) facts.push(`${entry.grace} s of grace`);
  if (entry.exitCode !== undefined) facts.push(exit(entry.exitCode));
  if (entry.reason) facts.push(entry.reason);
  if (entry.message) facts.push(entry.message);
  if (entry.count > 1) facts.push(`${entry.count} times`);
  const warns = entry.eventType === "Warning" ? "warning" : "";
  return [
    element("time", {}, clock(Date.parse(entry.at))),
    element("strong", { className: warns }, `${about}${entry.what}`),
    facts.length ? ` ${facts.join("; ")}` : null,
  ];
}

// --- Scopes ----------------------------------------------------------------------------------------------------------

function scope(task) {
  const waits = [task.waits_in, task.waits_at].filter((at, index, all) => at && all.indexOf(at) === index);
  const inner = (task.nurseries ?? []).flatMap((nursery) => {
    const facts = [];
    if (nursery.cancelled) facts.push("cancelled");
    if (nursery.deadline_in !== undefined) facts.push(`${nursery.deadline_in} s left`);
    const told = facts.length ? [element("li", { className: "facts" }, facts.join(", "))] : [];
    return [...told, ...nursery.tasks.map(scope)];
  });
  return element(
    "li",
    {},
    element("span", { title: waits.join("\n") }, task.name),
    waits.length ? element("small", {}, ` ${waits.at(-1)}`) : null,
    inner.length ? element("ul", {}, ...inner) : null,
  );
}

// --- A log -----------------------------------------------------------------------------------------------------------

class Log {
  constructor() {
    this.pod = "";
    this.reading = null; // an AbortController
    this.choice = element("select", { ariaLabel: "Container" });
    this.choice.addEventListener("change", () => this.read());
    this.text = element("pre", { tabIndex: 0 });
    this.element = element("div", { id: "log" }, this.choice, this.text);
  }

  open(pod) {
    this.close();
    this.pod = pod;
    this.choice.replaceChildren();
    this.text.textContent = "";
  }

  close() {
    this.reading?.abort();
    this.reading = null;
  }

  /** These are the pod's containers. */
  offer(containers) {
    if (containers.join() === [...this.choice.options].map((option) => option.value).join()) return;
    const chosen = this.choice.value;
    this.choice.replaceChildren(...containers.map((name) => element("option", { value: name }, name)));
    if (containers.includes(chosen)) this.choice.value = chosen;
    else this.read();
  }

  started(container) {
    if (container === this.choice.value) this.read();
  }

  async read() {
    this.close();
    if (!this.choice.value || document.hidden) return;
    const reading = (this.reading = new AbortController());
    this.text.textContent = "";
    try {
      const answer = await fetch(address("logs", ...split(this.pod), this.choice.value), { signal: reading.signal });
      if (!answer.ok) throw new Error((await answer.text()).trim());
      const pieces = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let piece = await pieces.read(); !piece.done; piece = await pieces.read()) this.append(piece.value);
    } catch (error) {
      if (!reading.signal.aborted) this.append(`(${error.message})\n`);
    }
  }

  append(piece) {
    const { text } = this;
    const follows = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
    text.append(piece);
    if (text.textContent.length > LONGEST_LOG) text.textContent = text.textContent.slice(-LONGEST_LOG / 2);
    if (follows) text.scrollTop = text.scrollHeight;
  }
}
