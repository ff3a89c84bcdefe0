"""A node of a cluster whose pods come and go while everything around them dies or misbehaves, at random moments.

Mostly the agent is killed; sometimes containerd, sometimes the API server is away, the disk is full, or the wall clock
jumps by an hour. Whatever it was, each container of a pod that is wanted was started once and runs, and of pods that
were deleted nothing is left. At night that is a thousand blows on each runtime, or KILL_ROUNDS. What a blow hits is a
matter of luck: a mistake that shows in one moment alone may need many nights. By day there are two blows of one and the
same seed, the first of which is the agent's death while there is a pod.

Two exceptions are containerd's own, and its log or its death has to prove them. When its client dies during
StartContainer it gives up and kills what it has just started: that container starts once more. When containerd dies
between taking an ended task down and writing how it ended, that is lost, and the container counts as failed (exit code
255, `Unknown`): an init container runs once more.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.agent.conftest import RUNTIMES, node_on
from tests.agent.real_node import NODE_NAME, NODES_NETWORK
from tests.agent.test_embedded_kill_campaign import campaign_seed, check, runs_of
from tests.agent.untouched_kernel import CLOCK_AHEAD
from tests.examples import IS_NIGHT
from tests.volumes.real.joined_node import UNTIL_TERM, JoinedNode
from tests.volumes.real.served_cluster import ServedCluster, served_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROUNDS: Final = int(os.environ.get("KILL_ROUNDS", 1000 if IS_NIGHT else 2))
LOOK_EVERY: Final = 10
MOST_PODS: Final = 4
DISK: Final = "96m"
HOUR: Final = 3600
MADE_SANDBOX: Final = re.compile(r'RunPodSandbox for &PodSandboxMetadata{Name:([^,]+),.* returns sandbox id "(\w+)"')
MADE_CONTAINER: Final = re.compile(
    r'CreateContainer within sandbox "(\w+)" for &ContainerMetadata{Name:([^,]+),.* returns container id "(\w+)"'
)
GAVE_UP: Final = re.compile(r'StartContainer for "(\w+)" failed.*context canceled')
"""In containerd's log."""
CONTAINERS: Final = ("init", "sidecar", "main")
SCRIPT: Final = """
    echo "{container}" >> /shared/{pod}
    {work}
    """


@pytest.fixture(params=RUNTIMES)
def joined(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JoinedNode]:
    """Not started. Its root folder is a small disk of its own."""
    node = node_on(request, tmp_path)
    node.root.mkdir()
    (node.folder / CLOCK_AHEAD).write_text("0")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(node.root)], check=True)
    with served_cluster() as cluster:
        try:
            yield JoinedNode(node, cluster)
        finally:
            node.clean()


def test_whatever_happens_pods_are_started_once_and_end(joined: JoinedNode) -> None:
    seed = campaign_seed()
    print(f"seed {seed}", flush=True)
    campaign = Campaign(joined, random.Random(seed))
    campaign.start()
    campaign.fight()
    (joined.node.folder / CLOCK_AHEAD).write_text(str(-HOUR))  # what has just ended is of the future then
    assert joined.node.stop() == 0, joined.node.told()
    subprocess.run(["umount", "-R", str(joined.root)], check=True)
    joined.node.until(lambda: not joined.leftovers(), f"nothing is left of {joined.leftovers()}")


class Campaign:
    """Pods come, pods go, then a blow."""

    def __init__(self, joined: JoinedNode, rng: random.Random) -> None:
        self._joined = joined
        self._node = joined.node
        self._rng = rng
        self._wanted: list[str] = []
        self._made = 0
        self._given_up = GivenUpStarts(
            None if self._node.containerd is None else self._node.containerd.root / "containerd.log"
        )
        self._may_be_forgotten: Counter[str] = Counter()
        """How often containerd died before the pod was ready, by its name."""

    @property
    def _cluster(self) -> ServedCluster:
        return self._joined.cluster

    def start(self) -> None:
        kubeconfig = self._node.folder / "kubeconfig"
        if not kubeconfig.exists():
            kubeconfig.touch(mode=0o600)
            kubeconfig.write_text(self._cluster.kubeconfig(NODE_NAME))
            self._cluster.create("ConfigMap", "site", data={"a": "1"})
            self._cluster.create("Secret", "site", data={"a": "MQ=="})
        self._node.start(f"--kubeconfig={kubeconfig}", "--drain-on-exit", "--host-image", NODES_NETWORK)

    def fight(self) -> None:
        blows = [self._kill_agent] * 6 + [self._lose_api_server, self._fill_disk, self._move_clock]
        if self._joined.is_containerd:
            blows += [self._kill_containerd] * 2
        self._come()
        for number in range(ROUNDS):
            for _ in range(self._rng.randrange(1, 4)):
                self._rng.choice((self._come, self._come, self._go))()
            time.sleep(self._rng.random() ** 2 * 2)
            (self._kill_agent if number == 0 else self._rng.choice(blows))()
            if (number + 1) % LOOK_EVERY == 0:
                self._look()
                print(f"after {number + 1} blows all is as it should be", flush=True)
        self._look()
        for name in [*self._wanted]:
            self._go(name)
        self._look()

    # Pods.

    def _come(self) -> None:
        if len(self._wanted) == MOST_PODS:
            return
        self._made += 1
        name = f"pod-{self._made}"
        self._wanted.append(name)
        probe: dict[str, Any] = {"exec": {"command": ["true"]}, "periodSeconds": 1, "failureThreshold": 30}
        sidecar = self._container(name, "sidecar", UNTIL_TERM, startupProbe=probe)
        hook = {"preStop": {"exec": {"command": ["sh", "-c", f"echo hook >> /shared/{name}"]}}}
        main = self._container(
            name, "main", UNTIL_TERM, lifecycle=hook, readinessProbe=probe, livenessProbe={**probe, "timeoutSeconds": 9}
        )
        volumes = [
            {"name": "shared", "hostPath": {"path": str(self._node.shared)}},
            {"name": "site", "emptyDir": self._rng.choice(({}, {"medium": "Memory"}))},
            {"name": "map", "configMap": {"name": "site"}},
            {"name": "secret", "secret": {"secretName": "site"}},
        ]
        first = self._container(name, "init", "test -f /map/a && test -f /secret/a && touch /site/made")
        self._joined.start(
            name, main, initContainers=[first, {**sidecar, "restartPolicy": "Always"}], volumes=volumes
        )  # fmt: skip

    def _container(self, pod: str, name: str, work: str, **fields: Any) -> dict[str, Any]:
        paths = [{"name": volume, "mountPath": f"/{volume}"} for volume in ("site", "map", "secret")]
        script = SCRIPT.format(container=name, pod=pod, work=work)
        made = self._node.container(script, name, volumeMounts=paths, **fields)
        made["command"][2] = f": {self._node.marker(f'{pod}-{name}')};\n{script}"
        return made

    def _go(self, name: str = "") -> None:
        if self._wanted:
            name = name or self._rng.choice(self._wanted)
            self._wanted.remove(name)
            self._cluster.delete("pods", name)

    # Blows.

    def _kill_agent(self) -> None:
        self._node.stop(signal.SIGKILL)
        time.sleep(self._rng.random())
        self.start()

    def _kill_containerd(self) -> None:
        assert self._node.containerd is not None
        ready = self._running()
        self._node.containerd.kill()
        self._may_be_forgotten.update(name for name in self._wanted if name not in ready)
        time.sleep(self._rng.random())
        self._node.containerd.start()

    def _lose_api_server(self) -> None:
        self._cluster.do(lambda server: server.faults.unreachable())
        time.sleep(self._rng.random() * 2)
        if self._rng.random() < 0.5:
            self._node.stop(signal.SIGKILL)
            self._cluster.do(lambda server: server.faults.back())
            self.start()
        else:
            self._cluster.do(lambda server: server.faults.back())

    def _fill_disk(self) -> None:
        filler = self._joined.root / "filler"
        with (
            filler.open("wb", buffering=0) as file,
            suppress(OSError),
        ):  # the agent writes too, and may be the one who fills it
            while True:
                file.write(bytes(2**16))
        self._come()
        time.sleep(self._rng.random() * 2)
        if self._rng.random() < 0.5:
            self._node.stop(signal.SIGKILL)
            filler.unlink()
            self.start()
        else:
            filler.unlink()

    def _move_clock(self) -> None:
        """The wall clock is corrected, by an hour ahead or back."""
        clock = self._node.folder / CLOCK_AHEAD
        clock.write_text(str(self._rng.choice((0, HOUR, -HOUR))))

    # What has to be.

    def _look(self) -> None:
        """Everything comes to what is wanted."""
        self._until(lambda: self._running() == sorted(self._wanted), "these pods run and are ready")
        self._until(lambda: self._known() == sorted(self._wanted), "only these pods are known")
        markers = [self._node.marker(f"{name}-{container}") for name in self._wanted for container in CONTAINERS[1:]]
        self._until(lambda: runs_of(markers) == [1] * len(markers), "each container runs once")
        self._given_up.read()
        for name in self._wanted:
            story = (self._node.shared / name).read_text().split()
            started = Counter(story)
            more = {each: self._given_up.starts[name, each] for each in CONTAINERS}
            more["init"] += self._may_be_forgotten[name]
            check(
                all(1 <= started[each] <= 1 + more[each] for each in CONTAINERS)
                and story == sorted(story, key=CONTAINERS.index),
                f"{name} was started once (or more often by {more}), not {story}",
            )
            document = self._joined.pod(name) or {}
            most = sum(more.values())
            check(_restarts(document) <= most, f"{name} has at most {most} restarts: {document.get('status')}")

    def _running(self) -> list[str]:
        pods = self._cluster.do(lambda server: server.admin.list("pods"))
        return sorted(pod["metadata"]["name"] for pod in pods if _is_ready(pod))

    def _known(self) -> list[str]:
        return sorted(pod.metadata.name for pod in self._node.pods())

    def _until(self, condition: Any, what: str) -> None:
        self._joined.until(condition, f"{what}: {self._wanted}", within=120)


class GivenUpStarts:
    """What containerd's log says of starts that it gave up since its client was gone."""

    def __init__(self, log: Path | None) -> None:
        self.starts: Counter[tuple[str, str]] = Counter()
        """By the names of pod and container."""
        self._log = log
        self._read_until = 0
        self._pods: dict[str, str] = {}
        """By sandbox id."""
        self._containers: dict[str, tuple[str, str]] = {}

    def read(self) -> None:
        """What has been written since the last time."""
        if self._log is None:
            return
        with self._log.open(errors="replace") as file:
            file.seek(self._read_until)
            for line in file:
                self._note(line.replace("\\", ""))
            self._read_until = file.tell()

    def _note(self, line: str) -> None:
        if found := MADE_SANDBOX.search(line):
            self._pods[found[2]] = found[1]
        elif found := MADE_CONTAINER.search(line):
            self._containers[found[3]] = self._pods.get(found[1], ""), found[2]
        elif found := GAVE_UP.search(line):
            self.starts[self._containers.get(found[1], ("", ""))] += 1


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _restarts(pod: dict[str, Any]) -> int:
    status = pod.get("status", {})
    found = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    return sum(one["restartCount"] for one in found)
