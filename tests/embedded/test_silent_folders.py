"""A folder on a file system that does not answer keeps those waiting that want to go there, and nobody else."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest
import trio
from grpclib import GRPCError

from tests.embedded.escapes.attack import needs_isolation
from tests.embedded.runtime_node import OWN_PID, wait_until
from tests.embedded.silent_folder import shared, silent
from tests.patience import PATIENCE
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root
SHARED_PID = v1.NamespaceOption(pid=v1.NamespaceMode.POD)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """A folder of a volume that shows in containers what is mounted on it later on."""
    if os.geteuid() != 0:
        pytest.skip("mounts on the machine")
    work = tmp_path / "volume" / "work"
    work.mkdir(parents=True)
    with shared(work.parent):
        yield work


def listening(work: Path) -> dict[str, Any]:
    """How a container is in that folder."""
    propagation = v1.MountPropagation.PROPAGATION_HOST_TO_CONTAINER
    mounts = [v1.Mount(container_path="/volume", host_path=str(work.parent), propagation=propagation)]
    return {"working_dir": "/volume/work", "mounts": mounts}


@pytest.mark.parametrize("options", [OWN_PID, SHARED_PID], ids=["alone", "among others"])
async def test_a_command_that_cannot_get_to_its_folder_keeps_nobody_waiting(
    node: Node, work: Path, options: v1.NamespaceOption
) -> None:
    needs_isolation(node)
    sandbox = await node.sandbox(options=options)
    container = await node.launch(
        sandbox,
        ["sh", "-c", "while sleep 0.05; do echo alive; done"],
        **listening(work),
        security=v1.LinuxContainerSecurityContext(namespace_options=options),
    )
    await node.wait_for_output(container, "alive")
    with silent(work):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(never_runs, node, container)
            await trio.sleep(0.2)
            said = len(node.log(container))
            await wait_until(lambda: len(node.log(container)) > said, "its output is written")
            with trio.fail_after(PATIENCE):
                assert (await node.run(await node.sandbox("other"), ["sh", "-c", "exit 7"])).exit_code == 7
                nursery.cancel_scope.cancel()
        with trio.fail_after(PATIENCE):
            await node.stop(container, 0)
            await node.remove(container)


async def never_runs(node: Node, container: str) -> None:
    await node.exec(container, ["true"], timeout=int(PATIENCE))
    raise AssertionError("it cannot have come into its folder")


async def test_a_command_that_waits_for_its_folder_ends_when_its_time_is_over(node: Node, work: Path) -> None:
    needs_isolation(node)
    container = await node.launch(await node.sandbox(), ["sleep", "1000"], **listening(work))
    with silent(work):
        started = time.monotonic()
        with pytest.raises(GRPCError, match="timeout 1s exceeded"), trio.fail_after(PATIENCE):
            await node.exec(container, ["true"], timeout=1)
        assert time.monotonic() - started < PATIENCE
    assert (await node.exec(container, ["pwd"])).stdout == b"/volume/work\n"


@pytest.mark.parametrize("options", [OWN_PID, SHARED_PID], ids=["alone", "among others"])
async def test_a_container_that_cannot_get_to_its_volume_keeps_nobody_waiting(
    node: Node, tmp_path: Path, options: v1.NamespaceOption
) -> None:
    needs_isolation(node)
    volume = tmp_path / "volume"
    volume.mkdir()
    sandbox, other = await node.sandbox(options=options), await node.sandbox("other")
    security = v1.LinuxContainerSecurityContext(namespace_options=options)
    mounts = [v1.Mount(container_path="/volume", host_path=str(volume))]
    outcomes: list[str | None] = []

    async def start() -> None:
        try:
            await node.start(container)
        except GRPCError as error:
            outcomes.append(error.message)

    async with trio.open_nursery() as nursery:
        with silent(volume):
            # In there: its mounts may be made before it is started.
            container = await node.create(sandbox, ["true"], mounts=mounts, security=security)
            nursery.start_soon(start)
            await trio.sleep(0.2)
            with trio.fail_after(PATIENCE):
                assert (await node.run(other, ["sh", "-c", "exit 7"])).exit_code == 7
            assert outcomes == []
            assert (await node.status(container)).state == v1.ContainerState.CONTAINER_CREATED
    await node.ended(container)
