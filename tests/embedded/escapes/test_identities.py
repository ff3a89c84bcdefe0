"""A container's process has the user, groups and capabilities that it is to have, and gets no more.

| hole | here |
|---|---|
| CVE-2024-40635 (containerd): a user id beyond 31 bits ends as root | `test_a_user_id_that_is_none…` |
| CVE-2026-46680 (containerd): a number is looked up as a name, which the image makes root | \
`test_a_number_is_no_name…`, `tests/embedded/test_image_service.py` |
| CVE-2026-47262 (containerd): a user database without end fills the memory | `test_an_endless_user_database…` |
| CVE-2022-29162 (runc), CVE-2022-24769 (moby), CVE-2022-27650 (crun), CVE-2025-27612 (youki): capabilities are \
inheritable, in exec too | `test_no_capability_is_inheritable` |
| CVE-2022-36109, CVE-2022-2995, CVE-2023-25173 (moby, CRI-O, containerd): supplementary groups are not set | \
`test_groups_of_the_agent_are_not_kept` |
| CVE-2021-3602, CVE-2023-0778 (buildah, podman): the agent's environment or files reach the container | \
`test_the_environment_of_the_keeper_is_not_seen` |
| CVE-2021-21334 (containerd): environment of another container of the same image | \
`test_the_environment_of_another_container…` |
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.embedded.escapes.attack import needs_isolation, start_fails
from tests.embedded.test_containers import busybox_image
from trikubelet.embedded.images.model import ImageConfig
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from pathlib import Path

    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root


@pytest.mark.parametrize(
    "user", ["2147483648", "4294967295", "4294967296", "18446744073709551616", "-1", "0x0", "1000:4294967296", "1e3"]
)
async def test_a_user_id_that_is_none_is_refused_and_not_root(node: Node, tmp_path: Path, user: str) -> None:
    needs_isolation(node)
    node.images.images["evil"] = busybox_image(tmp_path / "image", ImageConfig(user=user))
    await start_fails(node, await node.create(await node.sandbox(), ["id"], image="evil"), "unable to find")


async def test_a_user_database_does_not_give_root_for_a_number_beyond_the_range(node: Node, tmp_path: Path) -> None:
    needs_isolation(node)
    files = {"etc/passwd": "evil:x:4294967296:4294967296::/:/bin/sh\n", "etc/group": "evil:x:4294967296:\n"}
    node.images.images["evil"] = busybox_image(tmp_path / "image", ImageConfig(user="evil"), files)
    await start_fails(node, await node.create(await node.sandbox(), ["id"], image="evil"), "unable to find")


@pytest.mark.parametrize(("user", "number"), [("1000", "1000"), ("4294967296", ""), ("1" * 5000, "")])
async def test_a_number_is_no_name_that_the_image_makes_root(
    node: Node, tmp_path: Path, user: str, number: str
) -> None:
    """The agent has compared the number with 0, for `runAsNonRoot`."""
    needs_isolation(node)
    database = {"etc/passwd": f"{user}:x:0:0::/:/bin/sh\n", "etc/group": f"{user}:x:0:\n"}
    node.images.images["evil"] = busybox_image(tmp_path / "image", ImageConfig(user=f"{user}:{user}"), database)
    container = await node.create(await node.sandbox(), ["sh", "-c", "id -u; id -g"], image="evil")
    if not number:
        await start_fails(node, container, "unable to find user")
    elif "user-namespace" in str(node.cri.capabilities()["mode"]):
        await start_fails(node, container, f"cannot run as user {number}")
    else:
        await node.start(container)
        assert (await node.ended(container)).out.split() == [number, number]


@pytest.mark.parametrize("pid", [v1.NamespaceMode.CONTAINER, v1.NamespaceMode.POD])
async def test_a_user_whose_name_no_encoding_takes_is_an_error_like_any_other(
    node: Node, tmp_path: Path, pid: v1.NamespaceMode
) -> None:
    needs_isolation(node)
    node.images.images["evil"] = busybox_image(tmp_path / "image", ImageConfig(user="\udc80" * 100_000))
    sandbox = await node.sandbox(options=v1.NamespaceOption(pid=pid))
    container = await node.create(sandbox, ["true"], image="evil")
    await start_fails(node, container, "unable to find user \\udc80")
    (await node.status(container)).message.encode()
    assert (await node.run(sandbox, ["sh", "-c", "exit 3"])).exit_code == 3


async def test_an_endless_user_database_is_read_up_to_a_limit(node: Node, tmp_path: Path) -> None:
    needs_isolation(node)
    start = {"etc/passwd": "app:x:0:0::/home:/bin/sh\n", "etc/group": "some:x:7:app\n"}
    node.images.images["evil"] = busybox_image(tmp_path / "image", ImageConfig(user="app"), start)
    for name in start:
        os.truncate(tmp_path / "image" / name, 1 << 42)
    ended = await node.run(await node.sandbox(), ["sh", "-c", "echo $HOME"], image="evil")
    assert ended.out == "/home\n"


async def test_no_capability_is_inheritable(node: Node) -> None:
    needs_isolation(node)
    look = ["sh", "-c", "grep CapInh /proc/self/status; grep CapAmb /proc/self/status"]
    none = ["CapInh:", "0" * 16, "CapAmb:", "0" * 16]
    sandbox = await node.sandbox()
    for security in (v1.LinuxContainerSecurityContext(), v1.LinuxContainerSecurityContext(privileged=True)):
        assert (await node.run(sandbox, look, security=security)).out.split() == none
        container = await node.launch(sandbox, ["sleep", "1000"], security=security)
        assert (await node.exec(container, look)).stdout.decode().split() == none


async def test_groups_of_the_agent_are_not_kept(node: Node) -> None:
    needs_isolation(node)
    if "user-namespace" in str(node.cri.capabilities()["mode"]):
        pytest.skip("a user namespace of one user has its groups")
    security = v1.LinuxContainerSecurityContext(
        run_as_user=v1.Int64Value(value=4321), run_as_group=v1.Int64Value(value=1234)
    )
    sandbox = await node.sandbox()
    assert (await node.run(sandbox, ["id", "-G"], security=security)).out == "1234\n"
    container = await node.launch(sandbox, ["sleep", "1000"], security=security)
    assert (await node.exec(container, ["id", "-G"])).stdout == b"1234\n"


async def test_the_environment_of_the_keeper_is_not_seen(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_isolation(node)
    ended = await node.run(await node.sandbox(), ["env"])
    names = {line.partition("=")[0] for line in ended.out.splitlines()}
    assert names <= {"PATH", "HOME", "HOSTNAME", "PWD", "SHLVL", "_"}


async def test_the_environment_of_another_container_of_the_same_image_is_not_seen(node: Node, tmp_path: Path) -> None:
    needs_isolation(node)
    node.images.images["app"] = busybox_image(tmp_path / "image", ImageConfig(env=("OF=the image",)))
    sandbox = await node.sandbox()
    with_secret = await node.run(sandbox, ["env"], image="app", env={"SECRET": "x", "OF": "the container"})
    assert {"SECRET=x", "OF=the container"} <= set(with_secret.out.splitlines())
    without = await node.run(sandbox, ["env"], image="app")
    assert "OF=the image" in without.out.splitlines()
    assert "SECRET" not in without.out
