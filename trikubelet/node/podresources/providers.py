"""The managers that give parts of the machine to containers, as this API asks them: one of each kind, or none.

The answers are values of our own: a device manager need not know how the API puts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.allocation.memory.state import Block
    from trikubelet.api import Container, Pod


@frozen
class Device:
    """A device of a device plugin."""

    resource: str
    """The extended resource, "vendor.com/kind"."""
    id: str
    """As the plugin calls it."""
    numa_nodes: tuple[int, ...] = ()
    """Empty when the plugin does not tell."""


@frozen
class ClaimDevice:
    """A device of a ResourceClaim."""

    driver: str
    pool: str
    name: str
    cdi_ids: tuple[str, ...] = ()
    """Qualified names, "vendor.com/class=name"."""
    share_id: str = ""
    """Which part of it, if several claims may have parts."""


@frozen
class Claim:
    """A ResourceClaim, and what of it one container has."""

    name: str
    namespace: str
    devices: tuple[ClaimDevice, ...] = ()


class Devices(Protocol):
    """The device manager."""

    def forget_ended(self) -> None:
        """Free what pods hold that have ended. Asked before all pods are (kubelet: `UpdateAllocatedDevices`)."""
        ...

    def devices(self, uid: str, container: str) -> Iterable[Device]:
        """What the container of this name has, in the pod with this UID."""
        ...

    def allocatable_devices(self) -> Iterable[Device]:
        """All that there are, and that are healthy; also those that a container has."""
        ...


class Cpus(Protocol):
    """The CPU manager (`allocation.managers`). Sets, as in `formats.cpu_list`."""

    def exclusive_cpus(self, uid: str, container: str) -> int:
        """Those that the container has for itself."""
        ...

    @property
    def allocatable_cpus(self) -> int:
        """All that containers may have for themselves, whether one has them or not."""
        ...


class Memory(Protocol):
    """The memory manager (`allocation.managers`)."""

    def memory(self, uid: str, container: str) -> Iterable[Block]:
        """What the container has of NUMA nodes."""
        ...

    @property
    def allocatable_memory(self) -> Iterable[Block]:
        """All that containers may have, whether one has it or not."""
        ...


class Claims(Protocol):
    """The manager of ResourceClaims (dynamic resource allocation)."""

    def claims(self, pod: Pod, container: Container) -> Iterable[Claim]: ...


class NoProvider:
    """Gives nothing: in the place of a manager that is switched off."""

    def forget_ended(self) -> None:
        """There is nothing to forget."""

    def devices(self, uid: str, container: str) -> Iterable[Device]:
        return ()

    def allocatable_devices(self) -> Iterable[Device]:
        return ()

    def exclusive_cpus(self, uid: str, container: str) -> int:
        return 0

    @property
    def allocatable_cpus(self) -> int:
        return 0

    def memory(self, uid: str, container: str) -> Iterable[Block]:
        return ()

    @property
    def allocatable_memory(self) -> Iterable[Block]:
        return ()

    def claims(self, pod: Pod, container: Container) -> Iterable[Claim]:
        return ()


NO_PROVIDER: Final = NoProvider()


@frozen(kw_only=True)
class Providers:
    """All of them. They answer at once, from what they know."""

    devices: Devices = NO_PROVIDER
    cpus: Cpus = NO_PROVIDER
    memory: Memory = NO_PROVIDER
    claims: Claims = NO_PROVIDER


NO_PROVIDERS: Final = Providers()
