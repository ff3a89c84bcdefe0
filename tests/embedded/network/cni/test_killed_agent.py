"""An agent is killed before each of its steps; the next one leaves nothing of the pod on the machine. Needs root."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest
import trio

from tests.embedded.network.cni.attaching import NamespaceAt, folders_in
from tests.embedded.network.cni.scripted import ScriptedPlugins, network_list
from tests.own_machine import run_there
from trikubelet.embedded.network.cni.network import CniNetwork
from trikubelet.embedded.network.model import PodNetworkSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

pytestmark = pytest.mark.root

_STEPS: Final = frozenset(("os.mkdir", "os.rename", "os.remove", "subprocess.Popen", "trikubelet.mount"))
_POD: Final = PodNetworkSpec(sandbox_id="killed", namespace="default", name="pod", uid="u")


async def test_a_killed_agent_loses_nothing(tmp_path: Path) -> None:
    await run_there(kill_before_each_step, tmp_path)


def kill_before_each_step(folder: Path) -> None:
    plugins = ScriptedPlugins(folder / "bin")
    for name in ("lease", "link"):
        plugins.install(name)
        made = plugins.folder / f"{name}.ADD.do"
        plugins.script(name, "ADD", f'sleep 0.02; touch "made.{name}"; {made.read_text()}')
        plugins.script(name, "DEL", f'rm -f "made.{name}"')
    (folder / "net.d").mkdir()
    (folder / "net.d/net.conflist").write_bytes(network_list("lease", "link", version="1.0.0"))

    def agent() -> CniNetwork:
        return CniNetwork(folder / "runtime", folders_in(folder))

    async def attach() -> None:
        await agent().attach(_POD, NamespaceAt("/proc/self/ns/net"))

    async def reconcile() -> None:
        await agent().reconcile({})

    for before, act, fewest in ((None, attach, 15), (attach, reconcile, 6)):
        for step in itertools.count(1):
            if before is not None:
                assert in_a_process(before) == 0
                assert len(list(plugins.folder.glob("made.*"))) == 2
            ended = in_a_process(act, killed_before=step)
            assert ended in (0, -signal.SIGKILL)
            killed = f"{act.__name__} was killed before step {step}"
            assert in_a_process(reconcile) == 0, killed
            left = [*plugins.folder.glob("made.*"), *(folder / "netns").glob("*"), *(folder / "cache").glob("*/*")]
            assert left == [], killed
            if ended == 0:
                break
        assert step > fewest, f"{act.__name__} has {step} steps"
    assert list(plugins.folder.glob("made.*")) == []


def in_a_process(act: Callable[[], Awaitable[None]], *, killed_before: int | None = None) -> int:
    """How it ended: an exit code, or the number of a signal below zero."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        if killed_before is not None:
            sys.addaudithook(partial(_kill_before, itertools.count(1), killed_before))
        trio.run(act)
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)


def _kill_before(steps: itertools.count[int], last: int, event: str, arguments: tuple[Any, ...]) -> None:
    writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR) and arguments[0] != os.devnull
    if (event in _STEPS or writes) and next(steps) == last:
        os.kill(os.getpid(), signal.SIGKILL)
