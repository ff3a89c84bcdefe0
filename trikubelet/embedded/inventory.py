"""All sandboxes and containers that the runtime knows, found by id, by the beginning of one, or by a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import betterproto

from trikubelet.embedded.records import ContainerRecord, Phase, SandboxRecord, images_in
from trikubelet.embedded.selinux import level_of
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STATES = {
    Phase.CREATED: v1.ContainerState.CONTAINER_CREATED,
    Phase.RUNNING: v1.ContainerState.CONTAINER_RUNNING,
    Phase.EXITED: v1.ContainerState.CONTAINER_EXITED,
}


class UnknownIdError(Exception):
    """No sandbox or container has this id, or several begin with it."""

    def __init__(self, kind: str, wanted: str, matches: int) -> None:
        why = "not found" if matches == 0 else f"{matches} ids begin with it"
        super().__init__(f'{kind} "{wanted}": {why}')
        self.kind = kind
        self.wanted = wanted


T = TypeVar("T", "SandboxRecord", "ContainerRecord")


class Inventory:
    """The records in memory. Only the runtime service changes them."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, SandboxRecord] = {}
        self.containers: dict[str, ContainerRecord] = {}

    def sandbox(self, wanted: str) -> SandboxRecord:
        """By id, or by its unambiguous beginning. Raises UnknownIdError."""
        return _find("sandbox", self.sandboxes, wanted)

    def container(self, wanted: str) -> ContainerRecord:
        """By id, or by its unambiguous beginning. Raises UnknownIdError."""
        return _find("container", self.containers, wanted)

    def selinux_levels(self) -> set[str]:
        """Those that pods have, and containers that asked for others."""
        levels = {record.selinux_level for record in self.sandboxes.values()}
        labels = [record.spec.get("selinux") for record in self.containers.values()]
        return levels | {level_of(each["files"]) for each in labels if each}

    def containers_of(self, sandbox_id: str) -> list[ContainerRecord]:
        return [record for record in self.containers.values() if record.sandbox_id == sandbox_id]

    def users_of_image(self, image_id: str) -> list[str]:
        """Ids of the containers that are made of an image, or have it as a volume."""
        return [record.id for record in self.containers.values() if image_id in images_in(record.image.id, record.spec)]

    def filter_sandboxes(self, wanted: v1.PodSandboxFilter) -> list[SandboxRecord]:
        found: Iterable[SandboxRecord] = self.sandboxes.values()
        if wanted.id:
            found = (record for record in found if record.id.startswith(wanted.id))
        if betterproto.serialized_on_wire(wanted.state):
            ready = wanted.state.state == v1.PodSandboxState.SANDBOX_READY
            found = (record for record in found if record.ready == ready)
        return [record for record in found if has_labels(record.config.labels, wanted.label_selector)]

    def filter_containers(self, wanted: v1.ContainerFilter) -> list[ContainerRecord]:
        found: Iterable[ContainerRecord] = self.containers.values()
        if betterproto.serialized_on_wire(wanted.state):
            state = wanted.state.state
            found = (record for record in found if STATES[record.phase] == state)
        return [
            record
            for record in found
            if record.id.startswith(wanted.id)
            and record.sandbox_id.startswith(wanted.pod_sandbox_id)
            and has_labels(record.config.labels, wanted.label_selector)
        ]


def has_labels(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def _find(kind: str, records: Mapping[str, T], wanted: str) -> T:
    record = records.get(wanted)
    if record is not None:
        return record
    matches = [record for record in records.values() if record.id.startswith(wanted)] if wanted else []
    if len(matches) == 1:
        return matches[0]
    raise UnknownIdError(kind, wanted, len(matches))
