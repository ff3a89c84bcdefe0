"""What a person at the terminal is told of pods: one line for each change that matters, made of the journal's entries.

    hello              ready                     0.1 s
    crash              main exited with code 3   after 0.2 s
    crash              main started again        restart 2
    pulled             cannot pull 127.0.0.1:9/x: connection refused
    stubborn           ending: manifest removed, up to 10 s of grace
    stubborn           gone                      10.0 s

Pure: entries in, lines out. A failure is one line: what only follows from it (a waiting reason, the back-off, the next
attempt that fails in the same way) is left out until the container runs, or something else goes wrong. A line that may
be cut at the edge of the terminal has what matters first.
"""

from __future__ import annotations

import re
import signal
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.formats.values import define
from trikubelet.pods.phases import AGENT_ENDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULT_NAMESPACE: Final = "default/"
NAME_WIDTH: Final = 18
WHAT_WIDTH: Final = 24
_FOLLOWS_A_FAILURE: Final = frozenset({"BackOff", "FailedSync", "Failed"})
_ENDED: Final = ("Succeeded", "Failed")
_PULL_FAILED: Final = re.compile(r'Failed to pull image "(?P<image>[^"]*)": (?:failed to pull image \S+: )?(?P<why>.*)')
_READY_AT_ONCE: Final = 1.0
"""Seconds after a restart. That a container with no probe of its readiness is ready then is no news."""
_LONG_ENOUGH: Final = 0.05
"""Seconds: what is shorter is shown without a time."""


@define
class _Pod:
    """What was told of one pod."""

    began: datetime
    """When it was first heard of, or a container of it was restarted last."""
    restarted: bool = False
    asked_to_end: datetime | None = None
    ended: bool = False
    ready: bool = False
    down: set[str] = attrs.field(factory=set)
    """Containers that have ended, which was told."""
    failing: dict[str, str] = attrs.field(factory=dict)
    """The failure that was told last, by container; that of the whole pod by an empty name."""


class PodLines:
    """Keeps in mind what was told, so that nothing is told twice."""

    def __init__(self, node_name: str = "", *, ends_since: datetime | None = None) -> None:
        """`node_name`: static pods have it behind their own name, where it says nothing.

        Containers that ended before `ends_since` are not told of: whoever watched them knows.
        """
        self._node_name = node_name
        self._ends_since = ends_since
        self._pods: dict[str, _Pod] = {}

    def snapshot(self, snapshot: Mapping[str, Any]) -> Iterator[str]:
        """Lines for what is not known yet of a whole journal; see `pods.journal`."""
        for pod in snapshot["pods"]:
            for entry in pod["entries"]:
                yield from self.entry(entry)

    def entry(self, entry: Mapping[str, Any]) -> Iterator[str]:
        """The lines that an entry is worth, mostly none or one."""
        uid, at = entry["uid"], datetime.fromisoformat(entry["at"])
        pod = self._pods.setdefault(uid, _Pod(at))
        told = self._told(pod, entry, at)
        if entry["kind"] == "phase" and entry["what"] == "Gone":
            del self._pods[uid]
        if told is not None:
            what, more = told
            yield f"{name_for_people(entry['pod'], self._node_name):<{NAME_WIDTH}} {what:<{WHAT_WIDTH}} {more}".rstrip()

    def _told(self, pod: _Pod, entry: Mapping[str, Any], at: datetime) -> tuple[str, str] | None:
        what: str = entry["what"]
        container: str = entry.get("container", "")
        match entry["kind"]:
            case "phase":
                return _phase(pod, entry, at)
            case "ready" if not container:
                return _readiness(pod, is_ready=what == "Ready", at=at)
            case "container" if what == "Started":
                pod.down.discard(container)
                pod.failing.pop(container, None)
                pod.failing.pop("", None)
                restarts = entry.get("restarts", 0)
                if not restarts:
                    return None
                pod.began, pod.restarted = at, True
                return f"{container} started again", f"restart {restarts}"
            case "container":
                pod.down.add(container)
                return None if self._ends_since is not None and at < self._ends_since else _end(entry, at)
            case "status" if what in _ENDED:
                pod.ended = True
                reason = ": ".join(filter(None, (entry.get("reason"), entry.get("message"))))
                return (f"{what.lower()}: {reason}", "") if reason else (what.lower(), _seconds(pod.began, at))
            case "event":
                return _event(pod, what, container, entry)
            case _:
                return None


def _phase(pod: _Pod, entry: Mapping[str, Any], at: datetime) -> tuple[str, str] | None:
    match entry["what"]:
        case "TerminationRequested" | "Terminating" if pod.asked_to_end is None:
            pod.asked_to_end = at
            if pod.ended:
                return None
            if entry.get("askedBy") == [AGENT_ENDS]:
                return None  # whoever ended the agent knows
            grace = f"up to {entry.get('grace', 0)} s of grace"
            return f"ending: {', '.join([*entry.get('askedBy', ()), grace])}", ""
        case "Finished" if pod.asked_to_end is not None and not pod.ended:
            pod.ended = True
            return "gone", _seconds(pod.asked_to_end, at)
        case _:
            return None


def _readiness(pod: _Pod, *, is_ready: bool, at: datetime) -> tuple[str, str] | None:
    if is_ready is pod.ready:
        return None
    pod.ready = is_ready
    if is_ready:
        at_once = pod.restarted and (at - pod.began).total_seconds() < _READY_AT_ONCE
        return None if at_once else ("ready", _seconds(pod.began, at))
    return None if pod.asked_to_end is not None or pod.ended or pod.down else ("not ready", "")


def _end(entry: Mapping[str, Any], at: datetime) -> tuple[str, str]:
    code, reason = entry.get("exitCode", 0), entry.get("reason", "")
    if reason == "OOMKilled":
        how = "was out of memory"
    elif code > 128 and code - 128 in signal.valid_signals():
        number = code - 128
        known = number in set(signal.Signals)
        how = f"ended by {signal.Signals(number).name if known else f'signal {number}'}"
    else:
        how = f"exited with code {code}" if code else "exited"
    ran = _seconds(datetime.fromisoformat(entry["startedAt"]), at) if "startedAt" in entry else ""
    return f"{entry['container']} {how}", f"after {ran}" if ran.endswith("s") else ran


def _event(pod: _Pod, reason: str, container: str, entry: Mapping[str, Any]) -> tuple[str, str] | None:
    message = " ".join(entry.get("message", "").split())
    if entry.get("eventType") != "Warning":
        if reason == "Pulling" and container not in pod.failing:
            return "pulling", message.removeprefix("Pulling image ").strip('"')
        return None
    if reason in _FOLLOWS_A_FAILURE and (container in pod.failing or "" in pod.failing):
        return None
    if pod.failing.get(container) == message:
        return None
    if reason == "BackOff" or (reason == "Unhealthy" and not pod.ready and not message.startswith("Liveness")):
        return None  # its container has ended, which was told; or is not ready yet, which is no change
    pod.failing[container] = message
    if (pull := _PULL_FAILED.fullmatch(message)) is not None:
        return f"cannot pull {pull['image']}: {pull['why']}", ""
    where = f"{container}: " if container else ""
    return f"{where}{reason}: {message}", ""


def name_for_people(pod: str, node_name: str) -> str:
    """Of `namespace/name`: a static pod has the node's name behind its own."""
    return pod.removeprefix(DEFAULT_NAMESPACE).removesuffix(f"-{node_name}")


def _seconds(since: datetime, until: datetime) -> str:
    seconds = (until - since).total_seconds()
    return f"{max(seconds, 0.0):.1f} s" if seconds >= _LONG_ENOUGH else "at once"
