"""A real agent on a machine that shuts down: logind is played, on a message bus of the test's own."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.agent.real_node import REPOSITORY
from tests.node.shutdown.login1 import Login1Client
from tests.private_bus import PrivateBus, bus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.real_node import RealNode

__all__ = ["bus"]

CRITICAL = 2_000_000_000


WITHOUT_TIME_AND_SLICES = """
import sys
from pathlib import Path
from types import SimpleNamespace

import trikubelet.agent.agent, trikubelet.agent.run
from trikubelet.agent.options import AgentOptions
from trikubelet.agent.resources import _driver
from trikubelet.agent.shutdown import node_shutdown
from trikubelet.cgroups.hierarchy import Hierarchies
from trikubelet.config.kubelet_configuration import KubeletConfiguration

options = AgentOptions(configuration=KubeletConfiguration(), root_dir=Path("/nowhere"), node_name="n")
assert node_shutdown(options, None, None, logind=None, on_machine=True) is None
assert _driver("cgroupfs", Hierarchies(2, {}, Path("/nowhere"))).version == 2
print([name for name in sys.modules if name.startswith("jeepney") or name == "trikubelet.linux.dbus"])
"""


def test_who_needs_no_message_bus_does_not_load_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TIME_AND_SLICES],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=REPOSITORY,
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture
def login1(bus: PrivateBus, monkeypatch: pytest.MonkeyPatch) -> Iterator[Login1Client]:
    """The logind that agents find."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
    command = [sys.executable, "-m", "tests.node.shutdown.login1", bus.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield Login1Client(bus.address)
        process.kill()


def says_when_it_ends(name: str, condition: str = "true") -> str:
    """A script that notes in `/shared` when it is asked to end, and when it ends: once a command succeeds."""
    ends = f"until {condition}; do sleep 0.05; done; echo ended >/shared/{name}-ended; exit 0"
    return f"trap 'echo asked >/shared/{name}; {ends}' TERM; while :; do sleep 0.05; done"


def has_ended(node: RealNode, name: str) -> bool:
    return node.status(name, name).state.terminated is not None


@pytest.mark.root
def test_pods_end_in_order_though_the_agent_is_killed_in_the_middle(
    embedded_node: RealNode, login1: Login1Client
) -> None:
    node = embedded_node
    node.configure(shutdownGracePeriod="120s", shutdownGracePeriodCriticalPods="20s")
    node.run("quick", node.container(says_when_it_ends("quick"), "quick"))
    slow = node.container(says_when_it_ends("slow", "[ -e /shared/go ]"), "slow")
    node.run("slow", slow, terminationGracePeriodSeconds=100)
    node.run("critical", node.container(says_when_it_ends("critical"), "critical"), priority=CRITICAL)
    node.start()
    for name in ("quick", "slow", "critical"):
        node.until_running(name)
        node.until(partial(node.listens, name), f"{name} handles SIGTERM")
    node.until(lambda: login1.inhibitors == 1, "the agent delays shutdowns")

    login1.call("ShutDown")
    node.until(lambda: node.process("quick") is None and (node.shared / "slow").exists(), "pods are ended")
    node.run("new", node.container("exit 0", "new"))
    assert node.until_phase("new", "Failed").status.reason == "NodeShutdown"
    assert node.agent is not None
    node.agent.kill()
    node.agent.wait()
    node.agent = None
    node.until(lambda: login1.inhibitors == 0, "an inhibitor ends with its process")
    assert node.process("slow") is not None
    assert node.process("critical") is not None

    before = len(node.log())
    node.start()
    node.until(lambda: "ending pods" in str(node.log()[before:]), "the next agent goes on with it")
    (node.shared / "go").touch()
    for name in ("quick", "slow", "critical"):
        node.until(partial(has_ended, node, name), f"{name} has ended")
        status = node.until_phase(name, "Failed").status
        assert (status.reason, status.message) == (
            "Terminated",
            "Pod was terminated in response to imminent node shutdown.",
        )
        assert status.container_statuses[0].restart_count == 0
    stamps = [(node.shared / name).stat().st_mtime for name in ("slow-ended", "critical")]
    assert stamps[1] >= stamps[0], "the critical pod is asked when the others have ended"
    assert node.process("quick") is None, "what has ended does not start again"
    node.until(lambda: "the pods have ended" in node.told(), "the agent is done")

    login1.call("CallOff")
    node.until(lambda: login1.inhibitors == 1, "the next shutdown is delayed again")
    node.run("later", node.container(says_when_it_ends("later"), "later"))
    node.until_running("later")
    login1.call("ShutDown")
    node.until(lambda: login1.inhibitors == 0, "the machine goes down")
    later = node.pod("later")
    assert later is not None
    assert later.status.reason == "Terminated"
