"""A container on the machine's own root filesystem sees neither the node's keys nor other pods' Secrets.

| hole | here |
|---|---|
| CVE-2021-25741 and the like: whoever may create pods reads the node's files | `test_what_is_hidden…`; in a cluster \
there is no such image, `test_without_the_host_image…` |
"""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from grpclib import GRPCError
from grpclib.const import Status

from tests import own_machine
from tests.embedded.escapes.attack import needs_isolation
from tests.embedded.runtime_node import running_node
from trikubelet.linux.trees import remove_tree
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.root

SECRET = "the-nodes-own"


@pytest.fixture
def agent() -> Iterator[Path]:
    """A folder that the host image shows (not below /tmp), with the agent's root folder and more."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    yield folder
    remove_tree(folder)


def fill(agent: Path) -> list[Path]:
    """The agent's secrets; what is to be hidden."""
    places = [agent / "root/pods/uid/volumes/kubernetes.io~secret/keys", agent / "pki"]
    for place in places:
        place.mkdir(parents=True)
        (place / "key").write_text(SECRET)
    (agent / "kubeconfig").write_text(SECRET)
    (agent / "plain").write_text("not hidden\n")
    return [agent / "root", agent / "pki", agent / "kubeconfig", agent / "not-there-yet"]


@contextmanager
def mounted(*arguments: str | Path) -> Iterator[None]:
    if subprocess.run(["mount", *arguments], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(arguments[-1])], check=True)


async def search(agent: Path, *folders: Path) -> str:
    """What a container finds."""
    hidden = fill(agent)
    async with running_node(agent / "root" / "runtime", agent / "logs", hidden=hidden) as node:
        try:
            needs_isolation(node)
            sandbox = await node.sandbox()
            command = ["grep", "-rs", "", *map(str, folders or [agent])]
            ended = await node.run(sandbox, [*command, "--exclude=*.log"])
            (agent / "not-there-yet").mkdir(exist_ok=True)
            (agent / "not-there-yet" / "key").write_text(SECRET)
            again = await node.run(sandbox, [*command, "--exclude=*.log"])
            return ended.out + again.out
        finally:
            await node.remove_everything()
            assert await node.runtime.shutdown()


async def test_what_is_hidden_is_not_seen(agent: Path) -> None:
    found = await search(agent)
    assert "not hidden" in found
    assert SECRET not in found


async def test_what_is_hidden_is_not_seen_on_a_file_system_of_its_own(agent: Path) -> None:
    with mounted("-t", "tmpfs", "none", agent):
        found = await search(agent)
    assert "not hidden" in found
    assert SECRET not in found


@pytest.mark.parametrize("seen", [".", "root", "root/pods/uid"])
async def test_what_is_hidden_is_not_seen_by_way_of_a_bind_mount(agent: Path, seen: str) -> None:
    other = Path(tempfile.mkdtemp(dir="/var/tmp"))
    (agent / seen).mkdir(parents=True, exist_ok=True)
    try:
        with mounted("--bind", agent / seen, other):
            assert SECRET not in await search(agent, other)
    finally:
        other.rmdir()


async def a_kubelets_machine(folder: Path) -> None:
    """Here /var/lib and /etc are other folders, with a kubelet's and a control plane's secrets."""
    for place in (Path("/var/lib"), Path("/etc")):
        own_machine.run("mount", "-t", "tmpfs", "none", str(place))
        (place / "plain").write_text("not hidden\n")
    Path("/etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    for name in ("hosts", "hostname", "resolv.conf"):
        Path("/etc", name).touch()  # what is mounted there needs a place
    for folder_of_key in ("/var/lib/kubelet/pods/uid/volumes/kubernetes.io~secret/token", "/etc/kubernetes/pki"):
        Path(folder_of_key).mkdir(parents=True)
        Path(folder_of_key, "key").write_text(SECRET)
    async with running_node(folder / "runtime", folder / "logs") as node:
        try:
            needs_isolation(node)
            found = (await node.run(await node.sandbox(), ["grep", "-rs", "", "/var/lib", "/etc"])).out
        finally:
            await node.remove_everything()
            assert await node.runtime.shutdown()
    assert found.count("not hidden") == 2
    assert SECRET not in found


async def test_the_folders_of_a_kubelet_are_not_seen(tmp_path: Path) -> None:
    with mounted("-t", "tmpfs", "none", tmp_path):  # who may not mount has no other file systems in containers
        await own_machine.run_there(a_kubelets_machine, tmp_path)


async def test_without_the_host_image_there_is_none(tmp_path: Path) -> None:
    async with running_node(tmp_path / "runtime", tmp_path / "logs", host_image=False) as node:
        with pytest.raises(GRPCError) as failure:
            await node.create(await node.sandbox(), ["true"])
        assert failure.value.status is Status.NOT_FOUND
        images = node.runtime.image_service
        assert (await images.list_images(v1.ListImagesRequest())).images == []
        for name in ("localhost/host", "localhost/host:latest"):
            request = v1.PullImageRequest(image=v1.ImageSpec(image=name))
            with pytest.raises(GRPCError, match="--host-image"):
                await images.pull_image(request)
        with pytest.raises(GRPCError) as failure:
            await images.pull_image(v1.PullImageRequest(image=v1.ImageSpec(image="no/such:1")))
        assert "localhost/host" not in str(failure.value.message)
        await node.remove_everything()
        assert await node.runtime.shutdown()
