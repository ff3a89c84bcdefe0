"""What is to be hidden of the kernel's files stays hidden, whatever lies on the container's volumes.

| hole | here |
|---|---|
| CVE-2025-31133 (runc), CVE-2025-62161 (youki): `/dev/null` of the container, a link, is bound over masked paths | \
the first two tests |
| CVE-2019-16884, CVE-2019-19921, CVE-2023-27561, CVE-2023-28642, CVE-2026-41579 (runc), CVE-2026-47766 (crun): \
`/proc`, `/sys` or `/dev` of the image is a link | `test_a_link_in_the_place_of_a_kernel_file_system…` |
| CVE-2019-18837 (crun): a mount point in the image is a link out of it | `test_a_link_in_an_image_leads_no_volume…` |
| CVE-2021-30465 (runc): a volume's folder is exchanged for a link while another volume is mounted in it | \
`test_a_link_on_a_volume_leads_no_other_volume_out_of_the_container` |
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from grpclib import GRPCError

from tests.embedded.escapes.attack import needs_isolation, start_fails
from tests.embedded.test_containers import busybox_image
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.hidden_paths import MASKED_PATHS

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root

SECRET = Path("/proc/sys/kernel/core_pattern")


@pytest.mark.parametrize("leads_to", [str(SECRET), "../proc/sys/kernel/core_pattern", "/proc/1/root/proc/sys/kernel"])
async def test_a_link_left_as_dev_null_is_not_bound_over_masked_paths(
    node: Node, tmp_path: Path, leads_to: str
) -> None:
    needs_isolation(node)
    volume = tmp_path / "volume"
    volume.mkdir()
    sandbox = await node.sandbox()
    init = v1.Mount(container_path="/mnt", host_path=str(volume))
    assert (await node.run(sandbox, ["ln", "-s", leads_to, "/mnt/null"], mounts=[init])).exit_code == 0

    look = (
        'for path in "$@"; do [ ! -f $path ] || cat $path; done; for path in "$@"; do [ ! -d $path ] || ls $path; done'
    )
    ended = await node.run(
        sandbox,
        ["sh", "-c", look, "look", *MASKED_PATHS],
        mounts=[v1.Mount(container_path="/dev", host_path=str(volume))],
    )
    assert ended.records == []
    assert ended.exit_code == 0


async def test_masked_files_are_the_null_device(node: Node, tmp_path: Path) -> None:
    needs_isolation(node)
    (tmp_path / "null").write_text("what the container says")
    script = "for path in /proc/kcore /proc/keys /proc/timer_list; do stat -c %F,%t:%T $path; done"
    ended = await node.run(
        await node.sandbox(),
        ["sh", "-c", script],
        mounts=[v1.Mount(container_path="/dev/null", host_path=str(tmp_path / "null"))],
    )
    assert set(ended.out.split("\n")) == {"character special file,1:3", ""}


@pytest.mark.parametrize("name", ["proc", "sys", "dev"])
async def test_a_link_in_the_place_of_a_kernel_file_system_is_refused(node: Node, tmp_path: Path, name: str) -> None:
    needs_isolation(node)
    node.images.images["evil"] = busybox_image(tmp_path / "image")
    (tmp_path / "image" / "elsewhere").mkdir()
    (tmp_path / "image" / name).symlink_to("elsewhere")
    container = await node.create(await node.sandbox(), ["true"], image="evil")
    await start_fails(node, container, f"/{name}")


async def test_a_mask_that_cannot_be_put_on_is_an_error_and_not_left_out(node: Node, tmp_path: Path) -> None:
    needs_isolation(node)
    node.images.images["evil"] = busybox_image(tmp_path / "image")
    (tmp_path / "image" / "hidden").symlink_to("hidden")
    security = v1.LinuxContainerSecurityContext(masked_paths=["/hidden"])
    container = await node.create(await node.sandbox(), ["true"], image="evil", security=security)
    await start_fails(node, container, "symbolic links")


async def test_a_link_on_a_volume_leads_no_other_volume_out_of_the_container(node: Node, tmp_path: Path) -> None:
    needs_isolation(node)
    volume, other, outside = tmp_path / "volume", tmp_path / "other", tmp_path / "outside"
    for folder in (volume, other, outside):
        folder.mkdir()
    node.images.images["evil"] = busybox_image(tmp_path / "image")
    sandbox = await node.sandbox()
    for name, leads_to in (("a", f"../../../../../../..{outside}"), ("b", "/proc/self/cwd"), ("c", "/proc/1/root")):
        (volume / name).symlink_to(leads_to)
        mounts = [
            v1.Mount(container_path="/volume", host_path=str(volume)),
            v1.Mount(container_path=f"/volume/{name}/there", host_path=str(other)),
        ]
        container = await node.create(sandbox, ["ls", f"{outside}"], image="evil", mounts=mounts)
        if name == "a":  # a place of that name is made in the container
            await node.start(container)
            assert (await node.ended(container)).out == "there\n"
            continue
        with pytest.raises(GRPCError):
            await node.start(container)
    assert list(outside.iterdir()) == list(other.iterdir()) == []


@pytest.mark.parametrize("way_out", ["../../../../../../..", "/proc/1/root", "/proc/self/root"])
async def test_a_link_in_an_image_leads_no_volume_out_of_the_container(
    node: Node, tmp_path: Path, way_out: str
) -> None:
    needs_isolation(node)
    outside, volume = tmp_path / "outside", tmp_path / "volume"
    for folder in (outside, volume):
        folder.mkdir()
    (volume / "mine").touch()
    node.images.images["evil"] = busybox_image(tmp_path / "image")
    (tmp_path / "image" / "data").symlink_to(f"{way_out}{outside}")
    mounts = [v1.Mount(container_path="/data/there", host_path=str(volume))]
    container = await node.create(await node.sandbox(), ["ls", f"{outside}/there"], image="evil", mounts=mounts)
    with suppress(GRPCError):
        await node.start(container)
        assert (await node.ended(container)).out == "mine\n"
    assert list(outside.iterdir()) == []
