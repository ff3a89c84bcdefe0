"""Containers in AppArmor profiles, where the kernel has them: Debian's, in a guest (`python -m tests.guest`).

A profile is loaded by the machine's own tool, and what it forbids is tried in the container.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from grpclib import GRPCError

from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.embedded.runtime_node import Node

ENABLED: Final = Path("/sys/module/apparmor/parameters/enabled")
NAME: Final = "trikubelet-test"
PROFILE: Final = f"""
profile {NAME} flags=(attach_disconnected,mediate_deleted) {{
  file,
  capability,
  network,
  signal,
  deny /etc/hostname r,
}}
"""
LOOK: Final = ["sh", "-c", "cat /proc/self/attr/current; cat /etc/hostname || echo denied"]

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        not (ENABLED.exists() and ENABLED.read_text().startswith("Y") and shutil.which("apparmor_parser")),
        reason="needs a kernel with AppArmor, and apparmor_parser",
    ),
]


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[None]:
    file = tmp_path / "profile"
    file.write_text(PROFILE)
    subprocess.run(["apparmor_parser", "--replace", "--skip-cache", str(file)], check=True)
    yield
    subprocess.run(["apparmor_parser", "--remove", str(file)], check=True)


def localhost(name: str) -> v1.LinuxContainerSecurityContext:
    kind = v1.SecurityProfileProfileType.Localhost
    return v1.LinuxContainerSecurityContext(apparmor=v1.SecurityProfile(profile_type=kind, localhost_ref=name))


@pytest.mark.usefixtures("loaded")
async def test_a_container_and_commands_in_it_are_in_their_profile(node: Node) -> None:
    sandbox = await node.sandbox()
    assert (await node.run(sandbox, LOOK, security=localhost(NAME))).out.split() == [NAME, "(enforce)", "denied"]
    container = await node.launch(sandbox, ["sleep", "1000"], security=localhost(f"localhost/{NAME}"))
    assert (await node.exec(container, LOOK)).stdout.decode().split() == [NAME, "(enforce)", "denied"]


async def test_without_a_profile_there_is_none(node: Node) -> None:
    security = v1.LinuxContainerSecurityContext(
        apparmor=v1.SecurityProfile(profile_type=v1.SecurityProfileProfileType.Unconfined)
    )
    assert (await node.run(await node.sandbox(), LOOK, security=security)).out.startswith("unconfined")


async def test_a_profile_that_is_not_loaded_starts_nothing(node: Node) -> None:
    with pytest.raises(GRPCError, match="not loaded on this machine"):
        await node.create(await node.sandbox(), ["true"], security=localhost("nowhere"))
