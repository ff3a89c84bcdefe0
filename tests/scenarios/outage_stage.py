"""What may be said of a cluster after everything that can happen to it: the end of each pod, and how it came to that.

`Chronicle` remembers what the API server's pods went through. `outcome` tells the state of the cluster without what two
runs of one story never have in common: times, ids, addresses. So a story that was disturbed can be compared with the
same story undisturbed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from tests.apiserver.errors import ApiFailure
from tests.apiserver.resources import PODS
from tests.scenarios.stage import NODE, Stage
from trikubelet.sim import Life, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tests.apiserver.documents import Document
    from tests.apiserver.requests import Call
    from tests.apiserver.server import ApiServer
    from tests.apiserver.store import Change
    from tests.apiserver.users import User
    from trikubelet.http.messages import AnyResponse, Request

MIRROR: Final = "kubernetes.io/config.mirror"
_PHASES: Final = {"": 0, "Pending": 0, "Running": 1, "Succeeded": 2, "Failed": 2}
_STEP: Final = 0.25


@attrs.frozen
class Kind:
    """How the containers of one sort of pod live, and what has become of them when nothing changes any more."""

    lives: tuple[Life, ...]
    runs: int
    """Of the main container, in its whole life."""
    phase: str
    spec: dict[str, Any] = attrs.field(factory=dict)
    init: Life | None = None

    def install(self, stage: Stage, name: str) -> None:
        stage.sim.program(Program(self.lives), image=f"test/{name}:1")
        stage.sim.program(Program(self.lives), image=f"test/{name}:2")
        if self.init is not None:
            stage.sim.program(Program((self.init,)), image=f"test/{name}-init:1")

    def pod(self, name: str, version: int = 1) -> dict[str, Any]:
        """The spec of a pod of this kind, whose name is `name`."""
        spec = {"containers": [{"name": "main", "image": f"test/{name}:{version}"}], "dnsPolicy": "Default"}
        if self.init is not None:
            spec["initContainers"] = [{"name": "init", "image": f"test/{name}-init:1"}]
        return {**spec, **self.spec}


class Chronicle:
    """What happened to pods in the API server. `complaints` holds what must never happen."""

    def __init__(self, server: ApiServer) -> None:
        self.created: Counter[str] = Counter()
        """Objects that were created, by name."""
        self.complaints: list[str] = []
        self.forced: set[str] = set()
        """Names of pods that somebody else removes without waiting for their end."""
        self.edited: set[str] = set()
        """Names of mirror pods that may show, for a moment before they go, how the pod of the new manifest is."""
        server.store.subscribe(PODS, self, None)

    def deliver(self, change: Change) -> None:
        """Implements the store's `Watcher`."""
        old, new = change.old, change.new
        name = new["metadata"]["name"]
        if old is None:
            self.created[name] += 1
            return
        before, after = old.get("status", {}), new.get("status", {})
        if name not in self.edited and _PHASES[before.get("phase", "")] > _PHASES[after.get("phase", "")]:
            self.complaints.append(f"{name} went back from {before.get('phase')} to {after.get('phase')}")
        for then, now in zip(_containers(before), _containers(after), strict=False):
            if then["restartCount"] > now["restartCount"]:
                self.complaints.append(f"{name} has fewer restarts than before")
        if change.type == "DELETED" and not _is_mirror(new) and name not in self.forced:
            states = [next(iter(one["state"]), "none") for one in _containers(after)]
            if "running" in states or after.get("phase") not in ("Succeeded", "Failed"):  # one may wait for ever
                self.complaints.append(f"{name} was removed before its end was told: {after.get('phase')} {states}")

    def check(self) -> None:
        assert not self.complaints, self.complaints


def _containers(status: Document) -> list[Document]:
    return [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]


def _is_mirror(pod: Document) -> bool:
    return MIRROR in pod["metadata"].get("annotations", {})


def outcome(stage: Stage) -> dict[str, Any]:
    """How every pod ended up: what the API server shows of it, by name, and how its containers ran."""
    shown = {pod["metadata"]["name"]: essence(pod) for pod in stage.admin.list("pods")}
    return {"pods": shown, "runs": runs_of(stage, shown), "running": running(stage)}


def runs_of(stage: Stage, names: Collection[str]) -> dict[str, list[tuple[str, int, int | None]]]:
    """Container, attempt and exit code of every run there was of these pods, in order of container and time."""
    found: dict[str, list[tuple[str, int, int | None]]] = {name: [] for name in names}
    for run in sorted(stage.sim.runs(), key=lambda run: run.container_name):
        if run.pod_name in found:
            found[run.pod_name].append((run.container_name, run.attempt, run.exit_code))
    return found


def running(stage: Stage) -> list[str]:
    """Pod and container of everything that runs."""
    return sorted(f"{one.sandbox.config.metadata.name}/{one.name}" for one in stage.sim.running_containers())


def told(stage: Stage, names: Collection[str]) -> dict[tuple[str, str], int]:
    """How often each reason was told of each of these pods. Of waiting, only that it was told."""
    counts: Counter[tuple[str, str]] = Counter()
    for event in stage.admin.list("events"):
        about, reason = event["involvedObject"]["name"], event["reason"]
        if about in names:
            counts[about, reason] += 0 if reason == "BackOff" else event["count"]
    return dict(counts)


def essence(pod: Document) -> Document:
    """What the API server shows of a pod, without times, ids and addresses."""
    status = pod["status"]
    return {
        "mirror": _is_mirror(pod),
        "image": pod["spec"]["containers"][0]["image"],
        "leaving": "deletionTimestamp" in pod["metadata"],
        **{name: status.get(name) for name in ("phase", "reason", "message", "qosClass", "observedGeneration")},
        "ip": bool(status.get("podIP")),
        "started": bool(status.get("startTime")),
        "conditions": {
            one["type"]: (one["status"], one.get("reason"), one.get("message")) for one in status.get("conditions", ())
        },
        "containers": {
            one["name"]: (one["restartCount"], one["ready"], _end(one["state"]), _end(one.get("lastState", {})))
            for one in _containers(status)
        },
    }


def _end(state: Document) -> tuple[str, Any, Any]:
    kind = next(iter(state), "")
    detail = state.get(kind, {})
    return kind, detail.get("reason"), detail.get("exitCode")


async def until_same(found: Callable[[], Any], wanted: Any, within: float) -> float:
    """Wait until `found()` equals `wanted`; the seconds that it took. Fails with the differences after `within`."""
    began = trio.current_time()
    while found() != wanted:
        if trio.current_time() >= began + within:
            raise AssertionError(f"after {within} s: " + "; ".join(differences(found(), wanted)))
        await trio.sleep(_STEP)
    return trio.current_time() - began


def differences(found: Any, wanted: Any, path: str = "") -> list[str]:
    """Where two values differ, as deep as both have keys."""
    if found == wanted:
        return []
    if not isinstance(found, dict) or not isinstance(wanted, dict):
        return [f"{path}: {found!r}, undisturbed {wanted!r}"]
    keys = sorted({*found, *wanted}, key=str)
    return [line for key in keys for line in differences(found.get(key), wanted.get(key), f"{path}/{key}")]


# --- What goes wrong -------------------------------------------------------------------------------------------------


class Answers:
    """Stands behind a server's answers: what is asked has been done, and the answer is not on its way yet."""

    def __init__(self, server: ApiServer) -> None:
        self.delay = 0.0
        """Seconds that each answer takes."""
        self.on_done: Callable[[Call], bool] = lambda _call: False
        """Called with each call that was done; a call for which it is true is never answered."""
        self._answer = server.handling.answer
        setattr(server.handling, "answer", self._late)  # noqa: B010 - a method

    async def _late(self, request: Request, call: Call, user: User) -> AnyResponse:
        try:
            response = await self._answer(request, call, user)
        except ApiFailure:
            await trio.sleep(self.delay)
            raise
        if self.on_done(call):
            await trio.sleep_forever()
        await trio.sleep(self.delay)
        return response


def lose_node(stage: Stage) -> None:
    """What the node controller does when a node has not been heard of for 40 seconds."""
    node = stage.admin.get("nodes", NODE)
    for condition in node["status"]["conditions"]:
        condition |= {
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
            "lastTransitionTime": stage.server.registry.now(),
        }
    body = {"status": {"conditions": node["status"]["conditions"]}}
    stage.admin.patch("nodes", NODE, body=body, subresource="status")
    for pod in stage.admin.list("pods"):
        conditions = pod["status"].get("conditions", [])
        for condition in conditions:
            if condition["type"] == "Ready" and condition["status"] == "True":
                condition |= {"status": "False", "lastTransitionTime": stage.server.registry.now()}
        metadata, body = pod["metadata"], {"status": {"conditions": conditions}}
        stage.admin.patch("pods", metadata["name"], metadata["namespace"], body=body, subresource="status")
