"""Names of cgroups, and how the two drivers write them (kubelet: `CgroupName`, `ToCgroupfs`, `ToSystemd`).

A name is a tuple of components, `("kubepods", "burstable", "pod12-34")`. The driver `cgroupfs` writes it as a path. The
driver `systemd` writes slices, whose names repeat the whole way: `/kubepods.slice/kubepods-burstable.slice/
kubepods-burstable-pod12_34.slice`. There a `-` separates levels, so a `-` within a component becomes `_`; a component
that holds `_` of its own could not be read back and is refused.

Pods lie in three groups: Guaranteed ones directly below the root of all pods, the others in a group of their class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trikubelet.api import QOS_BEST_EFFORT, QOS_BURSTABLE, QOS_GUARANTEED, qos_class
from trikubelet.cgroups.errors import CgroupNameError
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.api import Pod

CgroupName = tuple[str, ...]

ROOT: Final[CgroupName] = ()
NODE_ALLOCATABLE: Final = "kubepods"
"""The group below the cgroup root that all pods are in (kubelet: `defaultNodeAllocatableCgroupName`)."""
POD_PREFIX: Final = "pod"
_SLICE: Final = ".slice"


def cgroup_name(base: CgroupName, *components: str) -> CgroupName:
    """`base` with more components. Raises CgroupNameError for one that has `/` or `_`, or is no name of a folder."""
    for component in components:
        if "/" in component or "_" in component:
            raise CgroupNameError(
                to_cgroupfs((*base, component)),
                f'invalid character in component ["{component}"]: "/" and "_" may not be',
            )
        if component in ("", ".", "..") or "\0" in component:
            raise CgroupNameError(to_cgroupfs(base), f"{component!r} cannot be the name of a cgroup below it")
    return (*base, *components)


def to_cgroupfs(name: CgroupName) -> str:
    """The path from the root of a hierarchy."""
    return "/" + "/".join(name)


def from_cgroupfs(literal: str) -> CgroupName:
    """A path as a name; empty parts say nothing. Raises CgroupNameError for a path with `..`."""
    parts = tuple(part for part in literal.split("/") if part not in ("", "."))
    if ".." in parts or "\0" in literal:
        raise CgroupNameError(literal, "the path has to lead downwards from the root of the hierarchy")
    return parts


def to_systemd(name: CgroupName) -> str:
    """The path of the slice from the root of a hierarchy. Raises CgroupNameError for an empty component."""
    if not all(name):
        raise CgroupNameError(to_cgroupfs(name), "a slice cannot have an empty part")
    parts = [part.replace("-", "_") for part in name]
    return "/" + "/".join("-".join(parts[: depth + 1]) + _SLICE for depth in range(len(parts)))


def from_systemd(literal: str) -> CgroupName:
    """The name of a slice; all of it is in the last part of the path."""
    base = literal.rstrip("/").rpartition("/")[2].removesuffix(_SLICE)
    return tuple(part.replace("_", "-") for part in base.split("-")) if base not in ("", "-") else ROOT


def systemd_unit(name: CgroupName) -> str:
    """The slice's unit: `kubepods-burstable.slice`; the root's is `-.slice`."""
    return to_systemd(name).rpartition("/")[2] or "-.slice"


@frozen
class Naming:
    """How one driver writes names."""

    literal: Callable[[CgroupName], str]
    parse: Callable[[str], CgroupName]


CGROUPFS: Final = Naming(to_cgroupfs, from_cgroupfs)
SYSTEMD: Final = Naming(to_systemd, from_systemd)


def paths_of_all_pods(cgroup_root: str) -> tuple[str, str]:
    """Where the group of all pods lies with either driver, below `cgroupRoot` as configured. Raises CgroupNameError."""
    name = cgroup_name(from_cgroupfs(cgroup_root), NODE_ALLOCATABLE)
    return to_cgroupfs(name), to_systemd(name)


def paths_of_tiers(cgroup_root: str) -> tuple[str, ...]:
    """The same of the groups within that one which hold the pods of a class."""
    root = cgroup_name(from_cgroupfs(cgroup_root), NODE_ALLOCATABLE)
    names = [tier_name(root, quality) for quality in (QOS_BURSTABLE, QOS_BEST_EFFORT)]
    return (*map(to_cgroupfs, names), *map(to_systemd, names))


def tier_name(root: CgroupName, quality: str) -> CgroupName:
    """The group that holds the pods of a class; `root` is the group of all pods."""
    return root if quality == QOS_GUARANTEED else cgroup_name(root, quality.lower())


def tier_names(root: CgroupName) -> dict[str, CgroupName]:
    """The three groups by class."""
    return {quality: tier_name(root, quality) for quality in (QOS_GUARANTEED, QOS_BURSTABLE, QOS_BEST_EFFORT)}


def pod_name(root: CgroupName, pod: Pod) -> CgroupName:
    """A pod's group. Raises CgroupNameError where its uid cannot be part of a name."""
    return cgroup_name(tier_name(root, qos_class(pod)), POD_PREFIX + pod.metadata.uid)


def names_of_uid(root: CgroupName, uid: str) -> list[CgroupName]:
    """Every place where the group of a pod can be whose class is no longer known."""
    return [cgroup_name(tier, POD_PREFIX + uid) for tier in tier_names(root).values()]


def uid_of(name: CgroupName, root: CgroupName) -> str | None:
    """The uid of the pod whose group this is; None for every other group, of pods' containers too.

    As in the kubelet (`IsPodCgroup`) a uid that holds the word "pod" is none: uids are hexadecimal.
    """
    if not name or name[:-1] not in tier_names(root).values() or not name[-1].startswith(POD_PREFIX):
        return None
    uid = name[-1].removeprefix(POD_PREFIX)
    return uid if uid and POD_PREFIX not in uid else None
