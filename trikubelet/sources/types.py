"""What a pod source and the merge of all sources yield."""

from __future__ import annotations

import enum

import attrs

from trikubelet.api import Pod


class PodOperation(enum.Enum):
    """What happened to the pods of an update (kubelet: `PodOperation`)."""

    SET = "set"
    ADD = "add"
    DELETE = "delete"
    REMOVE = "remove"
    UPDATE = "update"
    RECONCILE = "reconcile"


@attrs.frozen
class PodUpdate:
    """Pods of one source that one operation concerns. SET carries the whole truth of the source."""

    op: PodOperation
    source: str
    """`file`, `http` or `api`."""
    pods: tuple[Pod, ...] = ()
