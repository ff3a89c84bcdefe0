"""`kubectl patch --subresource resize`: a process that looks at its limits meanwhile, on each runtime.

One pod lives through all of it: its first container is never restarted, its second one at each change of its memory.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.apiserver.documents import dig, items
from tests.kubectl.one_node import UNTIL_TERM
from trikubelet.allocation.store import ACTUATED_FILE, ALLOCATED_FILE
from trikubelet.cgroups.settings import cpu_weight, shares_of_weight
from trikubelet.linux.checkpoint import read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apiserver.documents import Document
    from tests.kubectl.one_node import OneNode

pytestmark = pytest.mark.kubectl

POD: Final = "grows"
MI: Final = 2**20
POD_LEVEL: Final = "InPlacePodLevelResourcesVerticalScaling"
LOOKS: Final = """
own() { echo "/cgroup/$1$(grep ":$1:" /proc/self/cgroup | cut -d: -f3)"; }
if [ -e /cgroup/cgroup.controllers ]; then  # its own group is the root of what it sees
  memory=/sys/fs/cgroup/memory.max; cpu=/sys/fs/cgroup/cpu.max
else
  memory=$(own memory)/memory.limit_in_bytes; cpu=$(own cpu)/cpu.cfs_quota_us
fi
trap 'exit 0' TERM
while :; do
  read bytes < $memory; read quota period < $cpu; [ "$quota" != max ] || quota=-1
  echo $bytes $quota > /shared/.NAME; mv /shared/.NAME /shared/NAME
  sleep 0.05
done
"""
"""Writes the limits of the memory and of the processors that the process itself finds."""


def resources(cpu: str, memory: str, limit: str = "") -> Document:
    """With a limit of the processors if one is given; of memory always."""
    return {
        "requests": {"cpu": cpu, "memory": memory},
        "limits": {"memory": memory, **({"cpu": limit} if limit else {})},
    }


class Grows:
    """The pod, and what is seen of it."""

    def __init__(self, node: OneNode) -> None:
        self.node = node

    def resize(self, name: str = "stays", **wanted: Any) -> None:
        patch = {"spec": {"containers": [{"name": name, "resources": resources(**wanted)}]}}
        self.node.kubectl("patch", "pod", POD, "--subresource", "resize", "-p", json.dumps(patch))

    def sees(self, name: str = "stays") -> tuple[int, int]:
        """Bytes, and microseconds of 100 ms, that the container's process finds to be its own."""
        memory, quota = (self.node.node.shared / name).read_text().split()
        return int(memory), int(quota)

    def until_sees(self, memory: int, quota: int, name: str = "stays") -> None:
        self.node.until(lambda: self.sees(name) == (memory, quota), f"{name} sees {memory} and {quota}")

    def has(self, memory: int, shares: int) -> bool:
        """The same of the pod's cgroup; the second container has no limit of the processors, so the pod has none."""
        if self.node.cgroups.hierarchies.version == 2:
            shares = shares_of_weight(cpu_weight(shares))
        return self.group() == (memory, shares)

    def group(self) -> tuple[int | None, int | None]:
        uid = self.node.pod(POD)["metadata"]["uid"]
        found = self.node.cgroups.read(f"kubepods/burstable/pod{uid}")
        return found.memory_limit, found.cpu_shares

    def conditions(self, field: str = "reason") -> dict[str, str]:
        """A field of those about a resize, by type."""
        listed = items(self.node.pod(POD), "status", "conditions")
        return {one["type"]: one.get(field, "") for one in listed if one["type"].startswith("PodResize")}

    def until_done(self, **amounts: str) -> None:
        """Wait until the status says that the first container has this."""

        def done() -> bool:
            status = self.node.status(POD, "stays")
            return not self.conditions() and status["resources"]["requests"] == amounts == status["allocatedResources"]

        self.node.until(done, f"the resize to {amounts} is done")

    def life(self, name: str = "stays") -> tuple[str, int]:
        status = self.node.status(POD, name)
        return status["containerID"], status["restartCount"]

    def until_told(self, *reasons: str) -> None:
        """Wait until the last events about resizes have these reasons. What failed may have failed more than once."""

        def is_about_resize(reason: str) -> bool:
            return reason.startswith("Resize")

        def told() -> list[str]:
            found = (message.partition(":")[0] for message in self.node.cluster.messages(POD))
            return [reason for reason, _ in itertools.groupby(filter(is_about_resize, found))]

        self.node.until(lambda: told()[-len(reasons) :] == [*reasons], f"{reasons} are told")


@pytest.fixture
def grows(node: OneNode) -> Iterator[Grows]:
    see = [{"name": "cgroup", "mountPath": "/cgroup", "readOnly": True}]
    restarts = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    node.start(
        POD,
        node.container(
            "stays", LOOKS.replace("NAME", "stays"), resources=resources("100m", "64Mi", "500m"), volumeMounts=see
        ),
        node.container(
            "restarts",
            LOOKS.replace("NAME", "restarts"),
            resources=resources("100m", "64Mi"),
            resizePolicy=restarts,
            volumeMounts=see,
        ),
        volumes=[
            {"name": "shared", "hostPath": {"path": str(node.node.shared)}},
            {"name": "cgroup", "hostPath": {"path": "/sys/fs/cgroup"}},
        ],
    )
    node.until((node.node.shared / "restarts").exists, "both processes have looked")
    node.until((node.node.shared / "stays").exists, "both processes have looked")
    yield Grows(node)
    node.cluster.delete("pods", POD)
    node.until(lambda: not node.pod(POD), "the pod is gone")


def test_a_pod_is_resized_while_it_runs(grows: Grows) -> None:
    node, before = grows.node, grows.life()
    assert grows.sees() == (64 * MI, 50_000)
    assert grows.has(128 * MI, 204)

    grows.resize(cpu="200m", memory="128Mi", limit="1")
    grows.until_sees(128 * MI, 100_000)
    grows.until_done(cpu="200m", memory="128Mi")
    grows.until_told("ResizeStarted", "ResizeCompleted")
    assert grows.has(192 * MI, 307)
    needs_more_memory_than_it_shall_have(grows)
    assert grows.has(96 * MI, 153)

    others = grows.life("restarts")
    grows.resize("restarts", cpu="100m", memory="96Mi")
    node.until(lambda: grows.life("restarts")[1] == 1, "the container was restarted")
    grows.until_sees(96 * MI, -1, "restarts")
    assert grows.life("restarts")[0] != others[0]

    waits_for_another_pod_to_end(grows)
    try:
        is_finished_by_the_next_agent(grows, featureGates={POD_LEVEL: False})
        is_infeasible_on_a_node_without_the_feature(node)
    finally:
        another_agent(node, featureGates={})
    is_feasible_with_it(node)
    assert grows.life() == before, "neither restarted nor made anew"


def needs_more_memory_than_it_shall_have(grows: Grows) -> None:
    """The processors do not shrink either, until the container uses less memory than it is to have."""
    node, before = grows.node, grows.group()
    node.kubectl("exec", POD, "-c", "stays", "--", "sh", "-c", f"head -c {48 * MI} /dev/zero > /dev/shm/held")
    grows.resize(cpu="50m", memory="32Mi", limit="250m")
    node.until(lambda: grows.conditions() == {"PodResizeInProgress": "Error"}, "the resize is refused")
    grows.until_told("ResizeStarted", "ResizeError")
    message = grows.conditions("message")["PodResizeInProgress"]
    problem = f'attempting to set container "stays" memory limit ({32 * MI}) below current usage'
    refused = re.fullmatch(rf"cannot decrease memory limits: {re.escape(problem)} \((\d+)\)", message)
    assert refused is not None, message
    assert int(refused[1]) >= 48 * MI
    assert grows.sees() == (128 * MI, 100_000)
    assert grows.group() == before
    status = node.status(POD, "stays")
    assert status["resources"] == resources("200m", "128Mi", "1")
    assert status["allocatedResources"] == {"cpu": "50m", "memory": "32Mi"}

    node.kubectl("exec", POD, "-c", "stays", "--", "rm", "/dev/shm/held")
    node.kubectl("label", "pod", POD, "uses=less")  # any change of the pod is quicker than the retry after ten seconds
    grows.until_sees(32 * MI, 25_000)
    grows.until_done(cpu="50m", memory="32Mi")
    grows.until_told("ResizeStarted", "ResizeError", "ResizeCompleted")


def waits_for_another_pod_to_end(grows: Grows) -> None:
    node = grows.node
    status = dig(node.cluster.find("nodes", "node-1"), "status", "allocatable", "cpu")
    free = int(status) * 1000 - 150
    most = {"requests": {"cpu": f"{free - 100}m"}}
    node.start("holds", node.container("holds", UNTIL_TERM, resources=most))
    grows.resize(cpu="500m", memory="32Mi", limit="600m")
    node.until(lambda: grows.conditions() == {"PodResizePending": "Deferred"}, "the resize is deferred")
    assert grows.sees() == (32 * MI, 25_000)
    node.cluster.delete("pods", "holds", grace=1)
    grows.until_sees(32 * MI, 60_000)
    grows.until_done(cpu="500m", memory="32Mi")
    grows.until_told("ResizeDeferred", "ResizeStarted", "ResizeCompleted")


def is_finished_by_the_next_agent(grows: Grows, **configuration: Any) -> None:
    """Its predecessor is killed while the runtime does not answer. `configuration`: what else is new then."""
    node = grows.node
    node.node.configure(**configuration)

    def kept(file: str) -> str:
        return read_checkpoint(node.node.root / file) or ""

    os.kill(node.node.runtime_pid, signal.SIGSTOP)
    try:
        grows.resize(cpu="300m", memory="160Mi", limit="700m")
        node.until(lambda: "160Mi" in kept(ALLOCATED_FILE), "the resize is granted")
        node.until(lambda: "PodResizeInProgress" in grows.conditions(), "the resize is in progress")
        assert "160Mi" not in kept(ACTUATED_FILE)
        node.node.send(signal.SIGKILL)
        assert node.node.ended() == -signal.SIGKILL
    finally:
        os.kill(node.node.runtime_pid, signal.SIGCONT)
    node.start_agent()
    grows.until_sees(160 * MI, 70_000)
    grows.until_done(cpu="300m", memory="160Mi")
    assert "160Mi" in kept(ACTUATED_FILE)


def is_infeasible_on_a_node_without_the_feature(node: OneNode) -> None:
    node.start("whole", node.container("whole", UNTIL_TERM), resources={"requests": {"cpu": "10m"}})
    patch = {"spec": {"resources": {"requests": {"cpu": "20m"}}}}
    node.kubectl("patch", "pod", "whole", "--subresource", "resize", "-p", json.dumps(patch))

    def pending() -> list[tuple[str, str, int]]:
        listed = items(node.pod("whole"), "status", "conditions")
        found = [one for one in listed if one["type"] == "PodResizePending"]
        return [(one["reason"], one["message"], one["observedGeneration"]) for one in found]

    infeasible = [("Infeasible", f"{POD_LEVEL} is disabled", 2)]
    node.until(lambda: pending() == infeasible, "the resize is infeasible")
    node.until(
        lambda: any(message.startswith("ResizeInfeasible: ") for message in node.cluster.messages("whole")),
        "it is told",
    )


def is_feasible_with_it(node: OneNode) -> None:
    def has() -> tuple[Any, bool]:
        status = dig(node.pod("whole"), "status")
        pending = any(one["type"].startswith("PodResize") for one in items(status, "conditions"))
        return dig(status, "resources", "requests", "cpu"), pending

    node.until(lambda: has() == ("20m", False), f"the pod is resized: {has()}")
    node.cluster.delete("pods", "whole", grace=1)


def another_agent(node: OneNode, **configuration: Any) -> None:
    """Pods go on running. The tests that follow have the same node."""
    node.node.configure(**configuration)
    if node.node.agent is not None:
        node.node.send(signal.SIGKILL)
        assert node.node.ended() == -signal.SIGKILL
    node.start_agent()
