from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from grpclib.const import Status

from trikubelet.cgroups import names
from trikubelet.cgroups.driver_choice import PAUSE, UnknownDriverError, choose_driver, file_driver
from trikubelet.cgroups.hierarchy import Hierarchies
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError

if TYPE_CHECKING:
    from trio.testing import MockClock

BUSY = CRIError("RuntimeConfig", Status.UNAVAILABLE, "starting")
TOO_OLD = CRIError("RuntimeConfig", Status.UNIMPLEMENTED, "unknown method")
SYSTEMD = b"\x0a\x00"
"""A `linux` part that says nothing: 0, which is systemd."""
CGROUPFS = b"\x0a\x02\x08\x01"
UNKNOWN = b"\x0a\x02\x08\x07"
NO_LINUX = b""


class Runtime:
    """Answers what the wire would bring, one after the other."""

    def __init__(self, *answers: bytes | CRIError) -> None:
        self.answers = list(answers)

    async def runtime_config(self) -> v1.RuntimeConfigResponse:
        await trio.lowlevel.checkpoint()
        answer = self.answers.pop(0)
        if isinstance(answer, CRIError):
            raise answer
        return v1.RuntimeConfigResponse().parse(answer)


@pytest.mark.parametrize(
    ("answer", "configured", "chosen"),
    [
        (SYSTEMD, "cgroupfs", "systemd"),
        (CGROUPFS, "systemd", "cgroupfs"),
        (NO_LINUX, "cgroupfs", "cgroupfs"),
        (NO_LINUX, "systemd", "systemd"),
        (TOO_OLD, "systemd", "systemd"),
        (TOO_OLD, "cgroupfs", "cgroupfs"),
    ],
)
async def test_the_runtime_decides_where_it_answers(answer: bytes | CRIError, configured: str, chosen: str) -> None:
    assert await choose_driver(Runtime(answer).runtime_config, configured) == chosen


async def test_a_runtime_that_is_starting_is_asked_three_times(autojump_clock: MockClock) -> None:
    assert await choose_driver(Runtime(BUSY, BUSY, CGROUPFS).runtime_config, "systemd") == "cgroupfs"
    assert trio.current_time() == 2 * PAUSE
    with pytest.raises(CRIError):
        await choose_driver(Runtime(BUSY, BUSY, BUSY).runtime_config, "systemd")


async def test_an_unknown_driver_stops_the_start() -> None:
    with pytest.raises(UnknownDriverError, match="runtime returned an unknown cgroup driver 7"):
        await choose_driver(Runtime(UNKNOWN).runtime_config, "cgroupfs")
    with pytest.raises(UnknownDriverError, match='got "croupfs"'):
        await choose_driver(Runtime(NO_LINUX).runtime_config, "croupfs")


def test_files_are_of_the_version_that_is_mounted() -> None:
    for version in (1, 2):
        hierarchies = Hierarchies(2 if version == 2 else 1)
        assert file_driver(hierarchies).version == version
        assert file_driver(hierarchies).literal(("a", "b")) == "/a/b"
        assert file_driver(hierarchies, naming=names.SYSTEMD).literal(("a", "b")) == "/a.slice/a-b.slice"
