"""The next step to make the API server show a pod as the status manager has it. Pure decisions for the writer.

`next_action` compares three things: the newest change of the pod's status, what this agent has written before
(`Record`), and the newest copy of the pod that the server is known to have. A patch is made against that copy, without
asking for a newer one first: it names only what differs, so what others changed meanwhile stays.

The server's copy may differ from what was sent without anybody having changed it: an old server drops fields that it
does not know. So a later copy is compared with what the server made of the last write, not with what was sent; such a
difference is never written twice.

The object is one of many lives of a name. All is about one UID: a pod that was replaced gets nothing of the old one,
and a static pod's status goes to the mirror pod of its version (kubelet: `syncPod`, `needsUpdate`, `needsReconcile`).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from trikubelet.api import CONDITION_TRUE, POD_READY, POD_READY_TO_START_CONTAINERS, Pod, PodStatus, to_dict
from trikubelet.api.pod_kinds import has_ended, is_mirror_pod, is_static_pod, shows_version
from trikubelet.backoff import Backoff
from trikubelet.formats.values import define, frozen
from trikubelet.kube_client.errors import ApiAnswerError, ApiError, ApiStatusError, ApiUnreachable
from trikubelet.kube_client.patches import ORDER, POD_LISTS, strategic_patch
from trikubelet.kube_client.types import Urgency, version_number
from trikubelet.status.conditions import find_condition
from trikubelet.status.manager import StatusChange
from trikubelet.status.merge import may_be_deleted, merge_for_server, normalized, says_the_same

if TYPE_CHECKING:
    from datetime import datetime

RECONCILE_PERIOD: Final = 10.0
"""Seconds between two writes that only undo what another client has written, as the kubelet's `syncPeriod`."""
PAUSES: Final = Backoff(first=0.1, longest=10.0)
FORBIDDEN_PAUSE: Final = 10.0
REFUSED_PAUSE: Final = 60.0
"""Seconds after a write that the server finds invalid; a new status is tried at once."""
QUICK_TRIES: Final = 3
"""Conflicts after which the next try no longer comes at once."""


@frozen
class Record:
    """What this agent has written to the API server about a pod."""

    uid: str = ""
    """Of the object in the API server: a mirror pod's for a static pod."""
    change: StatusChange | None = None
    """The newest change that the server has."""
    sent: PodStatus | None = None
    accepted: PodStatus | None = None
    """The status in the server's reply, normalised."""
    version: str = ""
    """The resource version of the copy with `accepted`."""
    written_at: float = -float("inf")
    unsure: bool = False
    """A write may have happened, or the copy at hand is too old: the next one needs a new copy."""
    gone: bool = False
    """The object does not exist any more, or is to be left alone."""


@frozen
class NothingThere:
    """There is no object to write to, or not yet."""


@frozen
class UpToDate:
    """The server has it."""

    copy: Pod
    change: StatusChange


@frozen
class Later:
    """Another client wrote again what was undone just now."""


@frozen
class Fetch:
    """Get the server's copy first."""

    pod: Pod
    """With the name to ask for."""


_CONDITIONS_ALONE: Final = {"conditions", ORDER + "conditions"}


@frozen
class PatchStatus:
    """Write a status."""

    copy: Pod
    """The server's, to which the patch refers."""
    merged: PodStatus
    change: StatusChange
    body: Mapping[str, Any]
    urgency: Urgency
    fields: Mapping[str, Any]
    """Of `merged`, as they are written."""

    @property
    def more_follows(self) -> bool:
        """Whether it tells no more than that a pod is to be deleted, whose end comes next, or that a pod has its
        sandbox, in which its containers start next."""
        told = self.body["status"]
        if self.copy.metadata.deletion_timestamp is not None:
            return not any(name.lower().endswith("containerstatuses") for name in told)
        conditions = [(condition["type"], condition.get("status")) for condition in told.get("conditions", ())]
        return (POD_READY_TO_START_CONTAINERS, CONDITION_TRUE) in conditions and told.keys() <= _CONDITIONS_ALONE


@frozen
class DeletePod:
    """The pod has ended, and its object was asked to go: it goes."""

    copy: Pod


WriteAction: TypeAlias = NothingThere | UpToDate | Later | Fetch | PatchStatus | DeletePod


@define(eq=False)
class LastAction:
    """The answer to the last question, which is asked several times for a write: by everybody who may begin it, and
    after each wait. Objects that are the same are known to be, not compared."""

    _about: tuple[object, ...] = ()
    _at: int = 0
    """Whole seconds, which is as exactly as the date is written; 0 of a pod that has not ended, for which none is."""
    _action: WriteAction = attrs.field(factory=NothingThere)

    def next(
        self,
        change: StatusChange,
        record: Record,
        copy: Pod | None,
        *,
        may_fetch: bool,
        may_run: bool,
        now: datetime,
        time: float,
    ) -> WriteAction:
        """What `next_action` says."""
        about, at = (change, record, copy, may_fetch, may_run), int(now.timestamp()) if has_ended(change.status) else 0
        known = at == self._at and len(about) == len(self._about) and all(map(operator.is_, about, self._about))
        # Another client's writing is undone when some time has passed.
        if not known or isinstance(self._action, Later):
            self._action = next_action(change, record, copy, may_fetch=may_fetch, may_run=may_run, now=now, time=time)
            self._about, self._at = about, at
        return self._action


def record_for(record: Record, copy: Pod | None) -> Record:
    """The record, or a new one when the server's copy is of another object than the last."""
    return record if copy is None or copy.metadata.uid == record.uid else Record(copy.metadata.uid)


def next_action(
    change: StatusChange,
    record: Record,
    copy: Pod | None,
    *,
    may_fetch: bool,
    may_run: bool,
    now: datetime,
    time: float,
) -> WriteAction:
    """The next step for the newest change.

    - `record` is about the object of `copy`, the newest copy of the server that is known (see `record_for`).
    - `may_fetch`: there may be a copy that is not known.
    - `may_run`: containers of the pod may be running.
    - `now` is the date, `time` Trio's.
    """
    if copy is None:
        fetch = may_fetch and not record.gone and not is_static_pod(change.pod)
        return Fetch(change.pod) if fetch else NothingThere()
    if record.gone or not _shows(copy, change):
        return NothingThere()
    if record.unsure:
        return Fetch(copy)
    fresh = change is not record.change
    foreign = not fresh and _is_foreign(record, copy)
    if fresh or foreign:
        patch = _patch(change, record, copy, merge_for_server(copy, copy.status, change.status, now, may_run=may_run))
        if patch is not None:
            return Later() if foreign and time < record.written_at + RECONCILE_PERIOD else patch
    if may_be_deleted(copy, finished=change.finished, mirror=is_mirror_pod(copy)):
        return DeletePod(copy)
    return UpToDate(copy, change)


def _shows(copy: Pod, change: StatusChange) -> bool:
    """Whether the object is the pod, or the mirror pod of this version of a static one.

    A pod that waits for its predecessor's end, and that predecessor, have one name: neither is shown with the other's
    status. A rejected version has no mirror pod of its own, and is told of by the one that is there, as in the kubelet.
    """
    pod = change.pod
    if not is_static_pod(pod):
        return copy.metadata.uid == pod.metadata.uid
    return is_mirror_pod(copy) and (change.rejected or shows_version(copy, pod))


def _is_foreign(record: Record, copy: Pod) -> bool:
    """Whether another client has written what is the agent's to say."""
    if record.accepted is None or copy.metadata.resource_version == record.version:
        return False
    return not says_the_same(record.accepted, normalized(copy, copy.status))


def _patch(change: StatusChange, record: Record, copy: Pod, merged: PodStatus) -> PatchStatus | None:
    if merged == record.sent and not _is_foreign(record, copy):
        return None
    fields = to_dict(merged)
    difference = strategic_patch({"status": to_dict(copy.status)}, {"status": fields}, POD_LISTS)
    if not difference:
        return None
    body = {"metadata": {"uid": copy.metadata.uid}, **difference}
    return PatchStatus(copy, merged, change, body, _urgency(change, copy.status, merged), fields)


def _urgency(change: StatusChange, served: PodStatus, merged: PodStatus) -> Urgency:
    """What others wait for goes at once; what a crashing container tells can wait, and add up."""
    others_wait = (
        change.finished
        or served.phase != merged.phase
        or served.pod_ip != merged.pod_ip
        or _readiness(served) != _readiness(merged)
    )
    return Urgency.URGENT if others_wait else Urgency.ORDINARY


def _readiness(status: PodStatus) -> str:
    condition = find_condition(status.conditions, POD_READY)
    return "" if condition is None else condition.status


def accepted(record: Record, written: PatchStatus, reply: Pod, time: float) -> Record:
    """The record after a write."""
    as_sent = reply.status == written.merged  # the usual case, which keeps one of the two
    record = attrs.evolve(record, change=written.change, sent=reply.status if as_sent else written.merged)
    if not as_sent and _was_overtaken(written, reply):
        # The foreign write was not seen: what was meant is compared with the reply, as with any foreign write.
        meant, version = normalized(reply, written.merged), written.copy.metadata.resource_version
        return attrs.evolve(record, accepted=meant, version=version)
    served, version = normalized(reply, reply.status), reply.metadata.resource_version
    return attrs.evolve(record, accepted=served, version=version, written_at=time)


def _was_overtaken(written: PatchStatus, reply: Pod) -> bool:
    """Whether another client wrote after the copy that the patch refers to: what it left alone is another now.

    A field that an old server drops was not in the copy either.
    """
    before, meant, served = map(_parts, (to_dict(written.copy.status), written.fields, to_dict(reply.status)))
    return any(before.get(name) == part != served.get(name) for name, part in meant.items())


def _parts(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a status and of its conditions: what a patch can leave alone one by one."""
    parts = {name: value for name, value in fields.items() if name != "conditions"}
    for one in fields.get("conditions", ()):
        parts |= {f"{one['type']}.{name}": value for name, value in one.items()}
    return parts


def up_to_date(record: Record, found: UpToDate) -> Record:
    """The record when there was nothing to write."""
    version = found.copy.metadata.resource_version
    if record.change is found.change and record.version == version:
        return record
    served = normalized(found.copy, found.copy.status)
    return attrs.evolve(record, change=found.change, accepted=served, version=version)


def newest(one: Pod | None, other: Pod | None) -> Pod | None:
    """The newer of two copies of pods with one name."""
    if one is None or other is None:
        return one or other
    return (
        other
        if version_number(other.metadata.resource_version) > version_number(one.metadata.resource_version)
        else one
    )


def missing_fields(sent: Mapping[str, Any], served: Mapping[str, Any], path: str = "status") -> frozenset[str]:
    """The paths of fields that were sent and that the server does not have: it is older than they are."""
    found: set[str] = set()
    for name, value in sent.items():
        where = f"{path}.{name}"
        other = served.get(name)
        if other is None and value not in (None, {}, []):
            found.add(where)
        elif isinstance(value, dict) and isinstance(other, dict):
            found |= missing_fields(value, other, where)
        elif isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
            for mine, theirs in zip(value, other, strict=True):
                if isinstance(mine, dict) and isinstance(theirs, dict):
                    found |= missing_fields(mine, theirs, where)
    return frozenset(found)


# --- Failures --------------------------------------------------------------------------------------------------------


@frozen
class Failures:
    """How often the writes of a pod have failed since one succeeded."""

    conflicts: int = 0
    refusals: int = 0
    others: int = 0

    @property
    def count(self) -> int:
        return self.conflicts + self.refusals + self.others


@frozen
class Retry:
    """Try again."""

    pause: float
    """Seconds; the writer varies it."""
    fetch: bool = False
    """With a new copy: this one is too old, or a write may have happened."""
    sooner_for_change: bool = False
    """A new status need not wait."""


@frozen
class ObjectGone:
    """There is no such object any more."""


def after_failure(error: ApiError, failures: Failures) -> tuple[Failures, Retry | ObjectGone]:
    """The next step after a write, deletion or fetch failed, after `failures` of earlier ones."""
    if isinstance(error, ApiStatusError):
        if error.not_found or error.uid_differs:
            return Failures(), ObjectGone()
        if error.conflict:
            failures = attrs.evolve(failures, conflicts=failures.conflicts + 1)
            late = failures.conflicts - QUICK_TRIES
            return failures, Retry(PAUSES.delay(late) if late > 0 else 0.0, fetch=True)
        if error.forbidden:
            return _another(failures), Retry(FORBIDDEN_PAUSE)
        if not (error.server_fault or error.too_many or error.unauthorized):
            failures = attrs.evolve(failures, refusals=failures.refusals + 1)
            pause = 0.0 if failures.refusals == 1 else REFUSED_PAUSE
            return failures, Retry(pause, fetch=True, sooner_for_change=True)
    failures = _another(failures)
    pause = PAUSES.delay(failures.others)
    if isinstance(error, ApiStatusError) and error.retry_after is not None:
        pause = max(pause, error.retry_after)
    return failures, Retry(pause, fetch=_may_have_happened(error))


def _another(failures: Failures) -> Failures:
    return attrs.evolve(failures, others=failures.others + 1)


def _may_have_happened(error: ApiError) -> bool:
    if isinstance(error, ApiUnreachable):
        return error.sent
    return isinstance(error, ApiAnswerError) or (isinstance(error, ApiStatusError) and error.server_fault)
