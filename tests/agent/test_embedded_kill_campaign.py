"""Pods with networks, volumes and pulled images come and go while agent and keeper are killed at random moments.

The embedded runtime on a machine of its own, as far as networks and mounts go. Whatever is killed, at the end each pod
that is wanted runs once, and of the others nothing is left. At night that is a thousand rounds, or KILL_ROUNDS. What a
kill interrupts is a matter of luck: a mistake that shows in one moment alone may need many nights. By day there are two
rounds of one and the same seed, in which agent and keeper are killed once each.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests import leftovers
from tests.agent.real_node import RealNode
from tests.examples import IS_NIGHT
from tests.oci_image import OciImage, make_root_folder
from tests.own_machine import run_there
from tests.patience import PATIENCE
from tests.registry_node import RegistryNode, needs_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

pytestmark = [pytest.mark.root, needs_registry]

ROUNDS: Final = int(os.environ.get("KILL_ROUNDS", 1000 if IS_NIGHT else 2))
LOOK_EVERY: Final = 25
MOST_PODS: Final = 4
PORTS: Final = range(18000, 18000 + MOST_PODS)
SERVE: Final = "httpd -f -p 8080 -h /site; exit 1"


async def test_whatever_is_killed_nothing_is_left_and_nothing_doubled(tmp_path: Path) -> None:
    await run_there(campaign, tmp_path, within=PATIENCE * (4 + ROUNDS))


def campaign_seed() -> int:
    """KILL_SEED; without it another one each night, and the same each day."""
    return int(os.environ.get("KILL_SEED", random.randrange(2**32) if IS_NIGHT else 1))


def campaign(folder: Path) -> None:
    seed = campaign_seed()
    print(f"seed {seed}", flush=True)
    registry = RegistryNode(folder / "registry", protected=False)
    registry.start()
    image = registry.push("web:1", OciImage.from_folder(make_root_folder(folder / "rootfs"), {"Cmd": ["sh"]}))
    node = RealNode(folder / "node", image)
    for name in leftovers.forwarding():  # on some machines it is on for new namespaces
        Path("/proc/sys/net", name).write_text("0")
    before = leftovers.forwarding()
    try:
        node.start()
        rounds = Campaign(node, random.Random(seed))
        rounds.begin()
        check(leftovers.tables(), "there is no table, so this machine is not where the pods' networks are")
        check(leftovers.forwarding() != before, "nothing is forwarded here")
        rounds.fight()
        node.stop()
        check(not leftovers.tables(), f"tables are left: {leftovers.tables()}")
        check(leftovers.forwarding() == before, f"forwarding was {before}, is {leftovers.forwarding()}")
        check(links() == ["lo"], f"links are left: {links()}")
        check(namespaces() == [], f"network namespaces are left: {namespaces()}")
        until(node, lambda: not node.leftovers(), f"nothing is left of {node.leftovers()}")
        check(not any_files(node), f"files are left: {any_files(node)}")
    finally:
        node.clean()
        registry.stop()


class Campaign:
    """One after the other: pods come, pods go, something is killed."""

    def __init__(self, node: RealNode, rng: random.Random) -> None:
        self._node = node
        self._rng = rng
        self._wanted: dict[str, int] = {}
        """Host ports by pod."""
        self._made = 0

    def begin(self) -> None:
        """So that there is something to lose, however few rounds there are."""
        self._come()
        self._look()

    def fight(self) -> None:
        # By day, when there are few, each of them is killed.
        first = (self._kill_agent, self._kill_keeper)
        blows = (self._kill_agent, self._kill_agent, self._kill_keeper)
        for number in range(ROUNDS):
            for _ in range(self._rng.randrange(1, 4)):
                self._rng.choice((self._come, self._go))()
            time.sleep(self._rng.random() ** 2)
            blow = first[number] if number < len(first) else self._rng.choice(blows)
            blow()
            if (number + 1) % LOOK_EVERY == 0:
                self._look()
        self._look()
        for name in [*self._wanted]:
            self._go(name)
        self._look()

    def _come(self) -> None:
        if len(self._wanted) == MOST_PODS:
            return
        self._made += 1
        name = f"pod-{self._made}"
        port = self._rng.choice([port for port in PORTS if port not in self._wanted.values()])
        self._wanted[name] = port
        site = [{"name": "site", "mountPath": "/site"}]
        write = self._container(f"echo {name} > /site/index.html", f"{name}-writer", volumeMounts=site)
        serve = self._container(
            SERVE,
            f"{name}-server",
            volumeMounts=site,
            ports=[{"containerPort": 8080, "hostPort": port}],
            readinessProbe={"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        )
        medium: dict[str, Any] = self._rng.choice(({}, {"medium": "Memory"}))
        self._node.run(
            name, serve, initContainers=[write], volumes=[{"name": "site", "emptyDir": medium}],
            terminationGracePeriodSeconds=1,
        )  # fmt: skip

    def _container(self, script: str, name: str, **fields: Any) -> dict[str, Any]:
        policy = self._rng.choice(("Always", "IfNotPresent"))
        return {**self._node.container(script, name, **fields), "imagePullPolicy": policy}

    def _go(self, name: str = "") -> None:
        if self._wanted:
            name = name or self._rng.choice([*self._wanted])
            del self._wanted[name]
            self._node.delete(name)

    def _kill_agent(self) -> None:
        self._node.stop(signal.SIGKILL)
        self._node.start()

    def _kill_keeper(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.kill(self._node.runtime_pid, signal.SIGKILL)

    def _look(self) -> None:
        """Everything comes to what is wanted."""
        until(
            self._node, lambda: sorted(served(self._wanted.values())) == sorted(self._wanted), "each pod serves its own"
        )
        pods = {f"{name}-node-1" for name in self._wanted}
        until(self._node, lambda: {pod.metadata.name for pod in self._node.pods()} == pods, "only these pods are known")
        veths = len(self._wanted)
        until(self._node, lambda: sum(name.startswith("tv") for name in links()) == veths, "one link a pod")
        markers = [self._node.marker(f"{name}-server") for name in self._wanted]
        until(self._node, lambda: runs_of(markers) == [1] * len(markers), "each runs once")


def served(ports: Iterable[int]) -> list[str]:
    """What the servers behind these host ports say."""
    said = []
    for port in ports:
        connection = HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/index.html")
            said.append(connection.getresponse().read().decode().strip())
        except (OSError, HTTPException):
            said.append("")
        finally:
            connection.close()
    return said


def runs_of(markers: Sequence[str]) -> list[int]:
    """How many processes have each of these in their command line. The keeper may have been killed just now."""
    words = commands()
    return [sum(marker in each for each in words) for marker in markers]


def links() -> list[str]:
    """Of this network namespace, which sysfs here does not show."""
    return sorted(name for _, name in socket.if_nameindex())


def namespaces() -> list[str]:
    folder = Path("/run/netns")
    return [path.name for path in folder.glob("cni-trikubelet*")] if folder.exists() else []


def commands() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def any_files(node: RealNode) -> list[str]:
    """Folders of sandboxes and containers, and what was staged for images.

    What was set aside to be deleted (`removing`) may be finished by the next start.
    """
    runtime = node.root / "runtime"
    return [
        str(path) for pattern in ("sandboxes/*", "containers/*", "images/staging/*") for path in runtime.glob(pattern)
    ]


def until(node: RealNode, condition: Callable[[], object], what: str) -> None:
    node.until(condition, what, within=120)


def check(condition: object, what: str) -> None:
    if not condition:
        raise AssertionError(what)
