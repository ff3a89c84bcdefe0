"""Which driver makes cgroups: the one that the runtime uses, since two that disagree make two trees.

The runtime is asked (CRI `RuntimeConfig`, KEP-4033); `cgroupDriver` of the configuration counts where it cannot answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import betterproto
import trio

from trikubelet.cgroups.files_v1 import V1Files
from trikubelet.cgroups.files_v2 import V2Files
from trikubelet.cgroups.names import CGROUPFS
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from trikubelet.cgroups.hierarchy import Hierarchies
    from trikubelet.cgroups.names import Naming
    from trikubelet.rpc.cri import v1

DriverKind = Literal["cgroupfs", "systemd"]

TRIES: Final = 3
PAUSE: Final = 2.0
"""Seconds: a runtime may still be starting."""
_KINDS: Final[Mapping[int, DriverKind]] = {0: "systemd", 1: "cgroupfs"}

log = get_logger("cgroups")


class UnknownDriverError(Exception):
    """The runtime or the configuration names a driver that is none."""


async def choose_driver(
    runtime_config: Callable[[], Awaitable[v1.RuntimeConfigResponse]], configured: str
) -> DriverKind:
    """Ask the runtime by `runtime_config` (kubelet: `getCgroupDriverFromCRI`).

    Raises CRIError after three failures, and UnknownDriverError. Cancelling it leaves nothing behind.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            reply = await runtime_config()
        except CRIError as error:
            if error.unimplemented:
                log.info(
                    "CRI implementation should be updated to support RuntimeConfig. "
                    "Falling back to using cgroupDriver from kubelet config."
                )
                break
            if not tries_left:
                raise
            await trio.sleep(PAUSE)
            continue
        # A message that is absent reads like one that says 0, which is systemd.
        if not betterproto.serialized_on_wire(reply.linux):
            break
        number = int(reply.linux.cgroup_driver)
        if number not in _KINDS:
            raise UnknownDriverError(f"runtime returned an unknown cgroup driver {number}")
        log.info("Using cgroup driver setting received from the CRI runtime", driver=_KINDS[number])
        return _KINDS[number]
    for kind in _KINDS.values():
        if configured == kind:
            return kind
    raise UnknownDriverError(f'expected cgroupDriver "cgroupfs" or "systemd", got "{configured}"')


def file_driver(hierarchies: Hierarchies, *, naming: Naming = CGROUPFS) -> V1Files | V2Files:
    """The driver `cgroupfs`. With `naming=names.SYSTEMD` it is what the driver `systemd` writes with besides asking
    systemd for the slice: limits that have no property, reading, killing and what systemd leaves behind."""
    return V1Files(hierarchies, naming=naming) if hierarchies.version == 1 else V2Files(hierarchies, naming=naming)
