"""`cpu_manager_state`: who has which CPUs, in the kubelet's file (`cpumanager/state/checkpoint.go`).

    {"policyName":"static","defaultCpuSet":"0-1","entries":{"<uid>":{"<container>":"2-3"}},"checksum":…}

This is version 2, which is written unless the feature gate `PodLevelResourceManagers` is on; then it is version 3, with
`"podEntries":{"<uid>":{"cpuSet":"2-5"}}`. Both have the checksum of a structure named CPUManagerCheckpoint. Version 1,
until Kubernetes 1.17, has the ids of containers in place of pods and names; it is read if they are known. Version 3 is
not read without the gate.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from trikubelet.allocation.cpus.state import CpuState
from trikubelet.formats.cpu_list import format_cpu_list, members, parse_cpu_list
from trikubelet.formats.go_checkpoint import (
    GoCheckpointError,
    by_lower_name,
    go_checksum,
    go_map,
    go_object,
    go_sorted,
    go_struct,
    mapping_of,
    number_of,
    read_object,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FILE: Final = "cpu_manager_state"
"""Below the agent's root directory."""

_NAME: Final = "state.CPUManagerCheckpoint"

_Entries = dict[str, dict[str, str]]


def to_bytes(policy: str, state: CpuState, *, pod_level: bool = False) -> bytes:
    """What the file says. `policy`: the name of the CPU manager's policy."""
    shared = format_cpu_list(state.shared)
    entries = {
        uid: {name: format_cpu_list(cpus) for name, cpus in its.items()} for uid, its in state.containers.items()
    }
    pods = {uid: format_cpu_list(cpus) for uid, cpus in state.pods.items()} if pod_level else {}
    checksum = _checksum_v3(policy, shared, entries, pods) if pod_level else _checksum_v2(policy, shared, entries)
    return go_object(
        policyName=policy,
        defaultCpuSet=shared,
        entries=go_sorted({uid: go_sorted(its) or {} for uid, its in entries.items()}),
        podEntries=go_sorted({uid: {"cpuSet": cpus} if cpus else {} for uid, cpus in pods.items()}),
        checksum=checksum,
    )


def from_bytes(
    content: bytes, policy: str, containers: Mapping[str, tuple[str, str]], *, pod_level: bool = False
) -> CpuState:
    """What the file says. `containers`: the pod's UID and the container's name, by the container's id.

    Raises GoCheckpointError for a file that is broken, of another policy or not to be understood.
    """
    wire = read_object(content)
    entries, pods = _read(wire, containers, pod_level=pod_level)
    written_by = text_of(wire.get("policyname"))
    if written_by != policy:
        raise GoCheckpointError(f'it is of the policy "{written_by}", and the policy is "{policy}" now')
    try:
        return CpuState(
            shared=parse_cpu_list(text_of(wire.get("defaultcpuset"))),
            containers={
                uid: {name: parse_cpu_list(cpus) for name, cpus in its.items()} for uid, its in entries.items()
            },
            pods={uid: parse_cpu_list(cpus) for uid, cpus in pods.items()},
        )
    except ValueError as error:
        raise GoCheckpointError(str(error)) from error


def _read(
    wire: dict[str, Any], containers: Mapping[str, tuple[str, str]], *, pod_level: bool
) -> tuple[_Entries, dict[str, str]]:
    """The newest version that the checksum is right for; where none is, the complaint is the oldest one's."""
    policy, shared = text_of(wire.get("policyname")), text_of(wire.get("defaultcpuset"))
    expected = number_of(wire.get("checksum"))
    readers: list[Callable[[], tuple[_Entries, dict[str, str]]]] = [
        partial(_read_v2, wire, policy, shared, expected, pod_level=pod_level),
        partial(_read_v1, wire, policy, shared, expected, containers),
    ]
    if pod_level:
        readers.insert(0, partial(_read_v3, wire, policy, shared, expected))
    for reader in readers[:-1]:
        try:
            return reader()
        except GoCheckpointError:
            continue
    return readers[-1]()


def _read_v3(wire: dict[str, Any], policy: str, shared: str, expected: int) -> tuple[_Entries, dict[str, str]]:
    entries = _entries(wire)
    pods = mapping_of(wire.get("podentries"), lambda entry: text_of(by_lower_name(entry).get("cpuset")))
    try:
        actual = _checksum_v3(policy, shared, entries, pods)
    except ValueError as error:
        raise GoCheckpointError(str(error)) from error
    _check(expected, actual)
    return entries, pods


def _read_v2(
    wire: dict[str, Any], policy: str, shared: str, expected: int, *, pod_level: bool
) -> tuple[_Entries, dict[str, str]]:
    """Without the gate also with the checksum of the structure's own name."""
    entries = _entries(wire)
    if expected and not (not pod_level and expected == _checksum_v2(policy, shared, entries, f"{_NAME}V2")):
        _check(expected, _checksum_v2(policy, shared, entries))
    return entries, {}


def _read_v1(
    wire: dict[str, Any], policy: str, shared: str, expected: int, containers: Mapping[str, tuple[str, str]]
) -> tuple[_Entries, dict[str, str]]:
    by_id: dict[str, str] = mapping_of(wire.get("entries"), text_of)
    if expected:
        printed = f"(map[string]string){go_map(by_id)}"
        _check(expected, _checksum(policy, shared, printed))
    entries: _Entries = {}
    for container, cpus in by_id.items():
        if container not in containers:
            raise GoCheckpointError(f"it is of version 1, and speaks of the container {container}, which is unknown")
        uid, name = containers[container]
        entries.setdefault(uid, {})[name] = cpus
    return entries, {}


def _entries(wire: dict[str, Any]) -> _Entries:
    return mapping_of(wire.get("entries"), lambda its: mapping_of(its, text_of))


def _check(expected: int, actual: int) -> None:
    if expected != actual:
        raise GoCheckpointError(f"it has the checksum {actual}, and should have {expected}: it is not as written")


def _checksum_v2(policy: str, shared: str, entries: _Entries, name: str = _NAME) -> int:
    return _checksum(policy, shared, _printed(entries), name)


def _checksum_v3(policy: str, shared: str, entries: _Entries, pods: dict[str, str]) -> int:
    """Raises ValueError for what is no list of CPUs."""
    printed = {
        uid: go_struct(CPUSet="(cpuset.CPUSet)" + go_struct(elems=f"(map[int]struct {{}}){_elements(cpus)}"))
        for uid, cpus in pods.items()
    }
    return _checksum(policy, shared, _printed(entries), PodEntries=f"(state.PodCPUAssignments){go_map(printed)}")


def _elements(cpus: str) -> str:
    return f"map[{' '.join(f'{cpu}:{{}}' for cpu in members(parse_cpu_list(cpus)))}]"


def _printed(entries: _Entries) -> str:
    return f"(map[string]map[string]string){go_map({uid: go_map(its) for uid, its in entries.items()})}"


def _checksum(policy: str, shared: str, entries: str, name: str = _NAME, **more: str) -> int:
    return go_checksum(name, PolicyName=f"(string){policy}", DefaultCPUSet=f"(string){shared}", Entries=entries, **more)
