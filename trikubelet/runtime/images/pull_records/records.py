"""The records of pulls, put together: what a pull leaves behind, and what a pod may use without one.

Nothing here waits between reading a file and writing it, so there are no locks. An intent's file goes only when it is
known how every pull of its image ended: a pull whose end was not seen (the reply was lost, the sync was cancelled, the
agent died) may have brought the image, and without file or record it would pass for one that was there from the start,
open to all.

A pull whose end was not seen takes nothing from anybody, though: beside the intent is written which image had the name
before. As long as the name leads to that one, no pull has brought it, and it is as open as it was. And when an hour
later still nothing has come, nothing will: runtimes end a pull whose caller has left. Then the intent goes, and an
image that somebody brings later is open as if nobody had ever tried to pull it. One that is imported with the agent's
own command is open at once.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.formats.image_names import InvalidImageNameError, parse_image_name, without_tag_and_digest
from trikubelet.formats.values import define, frozen
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.images.pull_records.model import (
    MOST_SECRETS_NOTED,
    ImageBefore,
    ImageCredentials,
    PodCredentials,
    PullSecret,
    VerificationPolicy,
    key_that_fits,
    with_credentials,
)
from trikubelet.runtime.images.pull_records.store import BrokenRecordError, RecordStore
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

    from trikubelet.clock import WallClock
    from trikubelet.rpc.cri import v1
    from trikubelet.rpc.cri.client import ImageClient
    from trikubelet.telemetry.metrics import Counts

log = get_logger("runtime")

LATE: Final = timedelta(hours=1)
"""How long after its caller has left a pull may still bring its image. Runtimes end it at once; containerd and CRI-O
give up one that makes no progress after minutes."""
SETTLING_PERIOD: Final = 600.0
"""Seconds."""

# What came of a check, as the kubelet's metrics name it.
POLICY_ALLOWS: Final = "credentialPolicyAllowed"
RECORD_FOUND: Final = "credentialRecordFound"
MUST_AUTHENTICATE: Final = "mustAuthenticate"
CHECK_FAILED: Final = "error"


@frozen
class IntentError(Exception):
    """The intent to pull an image could not be written down, so that the image must not be pulled."""

    problem: str

    def __str__(self) -> str:
        return f"failed to record image pull intent: {self.problem}"


@define
class Pull:
    """A pull that is going on. When neither method is called, its end is unknown."""

    _records: PullRecords
    _image: str
    end_known: bool = attrs.field(default=False, init=False)

    def succeeded(self, image_ref: str, credentials: ImageCredentials) -> None:
        """`image_ref`: what the runtime calls the image. A record that cannot be written leaves the intent behind."""
        self.end_known = self._records.record_pull(self._image, image_ref, credentials)

    def failed(self) -> None:
        """The image did not come, for certain."""
        self.end_known = True


class PullRecords:
    """The node's records of pulls. One for all pods."""

    def __init__(self, store: RecordStore, policy: VerificationPolicy, clock: WallClock) -> None:
        self._store = store
        self._policy = policy
        self._clock = clock
        self._going_on: Counter[str] = Counter()
        self._end_unknown: dict[str, datetime | None] = {}
        """Images with a pull whose end was not seen, and when it was last seen going on."""
        self.checks: Final[Counts] = Counter()
        """Whether present images may be used, by what came of it."""

    @contextmanager
    def pulling(self, image: str, *, present: str = "") -> Iterator[Pull]:
        """The time of a pull: an intent is on the disk before it begins. `image` is the container's name for it,
        `present` the id of the image that has this name now; empty when there is none, or it is not known.

        Raises IntentError.
        """
        try:
            if not self._going_on[image]:
                before = ImageBefore(image=image, image_ref=present)
                if self._has_old_intent(image):
                    before = self._store.before(image)  # that pull may have brought what is there now
                    self._end_unknown.setdefault(image, before.last_pull)
                self._store.write_before(attrs.evolve(before, last_pull=self._clock.now()))
            self._store.write_intent(image)
        except OSError as error:
            raise IntentError(str(error)) from error
        self._going_on[image] += 1
        pull = Pull(self, image)
        try:
            yield pull
        finally:
            self._going_on[image] -= 1
            if not pull.end_known:
                self._end_unknown[image] = self._clock.now()
            if not self._going_on[image]:
                del self._going_on[image]
                self._remove_intent(image)

    async def must_pull(
        self, image: str, image_ref: str, pod_credentials: Callable[[], Awaitable[PodCredentials]]
    ) -> bool:
        """Whether a pod may use an image that is present only after a pull of its own (`MustAttemptImagePull`).

        `image` is the container's name for it, `image_ref` the runtime's. `pod_credentials` is called when the answer
        depends on it; what it raises comes through.
        """
        try:
            result = await self._check(image, image_ref, pod_credentials)
        except Exception:
            self.checks[CHECK_FAILED,] += 1
            raise
        self.checks[result,] += 1
        return result in (MUST_AUTHENTICATE, CHECK_FAILED)

    async def _check(self, image: str, image_ref: str, pod_credentials: Callable[[], Awaitable[PodCredentials]]) -> str:
        if not self._policy.checks(image, pulled_here=True):
            return POLICY_ALLOWS
        try:
            record = self._store.read(image_ref)
            pulled_here = record is not None or self._may_have_come_by_pull(image, image_ref)
        except (OSError, BrokenRecordError) as error:
            log.warning("image pull record is not readable; the image is pulled", image=image, problem=str(error))
            return CHECK_FAILED
        if not self._policy.checks(image, pulled_here=pulled_here):
            return POLICY_ALLOWS
        recorded = None if record is None else record.credential_mapping.get(without_tag_and_digest(image))
        if recorded is None:
            return MUST_AUTHENTICATE
        if recorded.node_pods_accessible:
            return RECORD_FOUND
        if not recorded.kubernetes_secrets and not recorded.kubernetes_service_accounts:
            return MUST_AUTHENTICATE
        key = key_that_fits(recorded, await pod_credentials())
        if key is None:
            return MUST_AUTHENTICATE
        if isinstance(key, PullSecret) and len(recorded.kubernetes_secrets) < MOST_SECRETS_NOTED:
            self._write_record(image, image_ref, ImageCredentials(kubernetes_secrets=(key,)))
        return RECORD_FOUND

    def on_disk(self) -> tuple[int, int] | None:
        """How many intents and records there are; None where that cannot be read."""
        try:
            return self._store.sizes()
        except OSError as error:
            log.debug("image pull records are not counted", problem=str(error))
            return None

    async def run(self, images: ImageClient) -> None:
        """Settle every ten minutes, until cancelled."""
        while True:
            await trio.sleep(SETTLING_PERIOD)
            await self.settle(images)

    async def settle(self, images: ImageClient) -> None:
        """Take up the intents of pulls whose end was not seen. Call it before the first pull, too: an agent before this
        one may have left some.

        An image that came gets a record by which no pod may use it; where the image did not come, or is still the one
        that was there before, the intent stays for an hour, since the runtime may still be at it. Raises nothing: what
        cannot be read now counts as unknown.
        """
        try:
            intents = self._store.intents()
            present = await images.list_images() if intents else []
        except (OSError, CRIError) as error:
            log.warning("left-over image pull intents are not looked at", problem=str(error))
            return
        for intent in intents:
            try:
                if self._going_on[intent]:
                    self._store.write_before(attrs.evolve(self._store.before(intent), last_pull=self._clock.now()))
                elif self._has_old_intent(intent):  # also after the runtime was asked
                    self._settle(intent, present)
            except OSError as error:
                log.warning("left-over image pull intent is not settled", image=intent, problem=str(error))

    def _settle(self, intent: str, present: Collection[v1.Image]) -> None:
        """Raises OSError."""
        before = self._store.before(intent)
        came = [image.id for image in present if is_called(image, intent) and image.id != before.image_ref]
        now = self._clock.now()
        if came:
            if all(self._write_record(intent, image_ref, None) for image_ref in came):
                self._forget_intent(intent)
        elif before.last_pull is None or before.last_pull > now:  # of a kubelet, or the clock was set back
            self._store.write_before(attrs.evolve(before, last_pull=now))
        elif now - before.last_pull >= LATE:
            self._forget_intent(intent)

    def _forget_intent(self, image: str) -> None:
        self._end_unknown.pop(image, None)
        self._remove_intent(image)

    def imported(self, image_refs: Mapping[str, str]) -> None:
        """The node's administrator brought images, by their full names their ids: from now on they count as those that
        were there before any pull."""
        try:
            for image_ref in set(image_refs.values()):
                self._store.remove(image_ref)
            for intent in self._store.intents():
                brought = image_refs.get(_full_name(intent))
                if brought is not None:
                    self._store.write_before(attrs.evolve(self._store.before(intent), image_ref=brought))
        except OSError as error:
            log.error("imported images may stay closed to pods", images=sorted(image_refs), problem=str(error))

    async def image_refs(self) -> frozenset[str]:
        """Return what the runtime calls the images that were pulled here. Raises OSError."""
        listed = await trio.to_thread.run_sync(self._store.records)
        return frozenset(record.image_ref for record in listed)

    async def prune(self, image_refs: Collection[str], until: datetime) -> None:
        """Remove the records of images that are gone (`PruneUnknownRecords`). For image garbage collection.

        `image_refs` are the ids of all images that the runtime has, asked for after `until`; younger records stay.
        """
        kept = frozenset(image_refs)
        # Files have whole seconds.
        until = until.replace(microsecond=0)
        try:
            listed = await trio.to_thread.run_sync(self._store.records)
            for image_ref in {record.image_ref for record in listed} - kept:
                record = self._store.read(image_ref)
                if record is not None and (record.last_updated_time is None or record.last_updated_time < until):
                    self._store.remove(image_ref)
            for intent in self._store.intents():
                before = self._store.before(intent)
                old = before.last_pull is None or before.last_pull < until
                if old and before.image_ref and before.image_ref not in kept:
                    # It has no record any more, so that it would be open to all if a pull brought it back.
                    self._store.write_before(attrs.evolve(before, image_ref=""))
        except (OSError, BrokenRecordError) as error:
            log.warning("old image pull records are not removed", problem=str(error))

    def record_pull(self, image: str, image_ref: str, credentials: ImageCredentials) -> bool:
        """For `Pull`: the image came. False when that could not be written."""
        written = self._write_record(image, image_ref, credentials)
        if written:
            self._end_unknown.pop(image, None)
        return written

    def _write_record(self, image: str, image_ref: str, credentials: ImageCredentials | None) -> bool:
        try:
            name = without_tag_and_digest(image)
            try:
                known = self._store.read(image_ref)
            except BrokenRecordError as error:
                log.warning("image pull record is broken; a new one is written", image=image, problem=str(error))
                known = None
            record = with_credentials(known, image_ref, name, credentials, self._clock.now())
            if record is not known:
                self._store.write(record)
        except (OSError, InvalidImageNameError) as error:
            log.error("image pull record is not written", image=image, image_ref=image_ref, problem=str(error))
            return False
        return True

    def _may_have_come_by_pull(self, image: str, image_ref: str) -> bool:
        """Of an image without a record. Raises OSError, BrokenRecordError."""
        under_way = image in self._going_on or self._store.has_intent(image)
        return under_way and image_ref != self._store.before(image).image_ref

    def _has_old_intent(self, image: str) -> bool:
        try:
            return self._store.has_intent(image)
        except (OSError, BrokenRecordError):
            return True

    def _remove_intent(self, image: str) -> None:
        """After the last pull of an image."""
        try:
            if image in self._end_unknown:
                since = self._end_unknown[image]
                self._store.write_before(attrs.evolve(self._store.before(image), last_pull=since))
            else:
                self._store.remove_intent(image)
        except OSError as error:
            log.error("image pull intent is not removed", image=image, problem=str(error))


def is_called(image: v1.Image, name: str) -> bool:
    """Runtimes list full names; a container's name may be short."""
    return bool({name, _full_name(name)} & {*image.repo_tags, *image.repo_digests})


def _full_name(name: str) -> str:
    try:
        return str(parse_image_name(name))
    except InvalidImageNameError:
        return name
