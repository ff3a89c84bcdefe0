"""What a container is started with for its devices, out of what each of their plugins asks for. Pure.

Kubelet: `deviceRunContainerOptions`. Where two plugins want different things for one variable, path or annotation, the
first has its way; resources are taken by their names, so it is always the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from trikubelet.formats.values import frozen
from trikubelet.rpc.cri import v1
from trikubelet.runtime.containers.container import ContainerExtras

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trikubelet.node.devices.model import Grant

NO_EXTRAS: Final = ContainerExtras()

T = TypeVar("T")


@frozen
class Conflict:
    """Two plugins want different things."""

    what: str
    """`variable`, `device`, `mount` or `annotation`."""
    name: str
    kept: str
    dropped: str


def container_extras(grants: Mapping[str, Grant]) -> tuple[ContainerExtras, list[Conflict]]:
    """From what a container has, by resource. The messages in it are new ones, for the caller to keep."""
    conflicts: list[Conflict] = []
    needs = [grant.needs for _, grant in sorted(grants.items())]

    def first(what: str, wanted: Iterable[T], name: Callable[[T], str], value: Callable[[T], str]) -> list[T]:
        kept: dict[str, T] = {}
        for one in wanted:
            known = kept.setdefault(name(one), one)
            if value(known) != value(one):
                conflicts.append(Conflict(what, name(one), value(known), value(one)))
        return list(kept.values())

    def pairs(what: str, wanted: Iterable[Mapping[str, str]]) -> dict[str, str]:
        every = [pair for mapping in wanted for pair in mapping.items()]
        return dict(first(what, every, lambda pair: pair[0], lambda pair: pair[1]))

    def by_path(what: str, wanted: Iterable[Any]) -> list[Any]:
        return first(what, wanted, lambda one: str(one.container_path), lambda one: str(one.host_path))

    files = by_path("device", [file for one in needs for file in one.files])
    mounts = by_path("mount", [mount for one in needs for mount in one.mounts])
    extras = ContainerExtras(
        devices=[
            v1.Device(container_path=one.container_path, host_path=one.host_path, permissions=one.permissions)
            for one in files
        ],
        cdi_devices=list(dict.fromkeys(name for one in needs for name in one.cdi_devices)),
        mounts=[
            v1.Mount(container_path=one.container_path, host_path=one.host_path, readonly=one.read_only)
            for one in mounts
        ],
        environment=pairs("variable", [one.environment for one in needs]),
        annotations=pairs("annotation", [one.annotations for one in needs]),
    )
    return extras, conflicts
