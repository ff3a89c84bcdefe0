"""What pulls leave behind, and who may use an image without one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest

from trikubelet.rpc.cri import v1
from trikubelet.runtime.images.pull_records.model import (
    ImageBefore,
    ImageCredentials,
    PodCredentials,
    PulledRecord,
    PullSecret,
    PullServiceAccount,
    VerificationPolicy,
)
from trikubelet.runtime.images.pull_records.records import IntentError, PullRecords
from trikubelet.runtime.images.pull_records.store import RecordStore

if TYPE_CHECKING:
    from trikubelet.rpc.cri.client import ImageClient

IMAGE = "docker.io/testing/test:latest"
NAME = "docker.io/testing/test"
REF = "sha256:abc"
BEFORE = datetime(2024, 10, 21, 12, 26, 40, tzinfo=UTC)
NOW = datetime(2026, 1, 1, tzinfo=UTC)

SECRET = PullSecret("uid", "default", "pull-secret", "hash")
ACCOUNT = PullServiceAccount("uid", "default", "account")
NODE = ImageCredentials(node_pods_accessible=True)
OF_SECRET = ImageCredentials(kubernetes_secrets=(SECRET,))
OF_ACCOUNT = ImageCredentials(kubernetes_service_accounts=(ACCOUNT,))


@attrs.frozen
class Clock:
    time: datetime = NOW

    def now(self) -> datetime:
        return self.time


@attrs.define
class Desk:
    """The records of a node, and a pod that asks."""

    root: Path
    store: RecordStore
    records: PullRecords
    asked: int = 0

    def restarted(self, policy: str = "NeverVerifyPreloadedImages") -> None:
        self.records = PullRecords(self.store, VerificationPolicy(policy), Clock())

    def know(self, **mapping: ImageCredentials) -> None:
        """A record of the image, as an earlier agent wrote it."""
        names = {NAME if name == "test" else name: credentials for name, credentials in mapping.items()}
        self.store.write(PulledRecord(last_updated_time=BEFORE, image_ref=REF, credential_mapping=names))

    async def must_pull(
        self, *secrets: PullSecret, account: PullServiceAccount | None = None, image: str = IMAGE
    ) -> bool:
        async def credentials() -> PodCredentials:
            self.asked += 1
            return PodCredentials(secrets, account)

        return await self.records.must_pull(image, REF, credentials)

    def recorded(self, name: str = NAME) -> ImageCredentials | None:
        record = self.store.read(REF)
        assert record is not None
        return record.credential_mapping.get(name)

    def break_record(self) -> None:
        self.know(test=NODE)
        [path] = (self.root / "image_manager" / "pulled").iterdir()
        path.write_text("{")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    store = RecordStore(tmp_path)
    return Desk(tmp_path, store, PullRecords(store, VerificationPolicy(), Clock()))


# Using an image that is there


async def test_an_image_that_nobody_pulled_is_open(desk: Desk) -> None:
    assert not await desk.must_pull()
    assert not await desk.must_pull(SECRET)
    desk.restarted("AlwaysVerify")
    assert await desk.must_pull(SECRET)
    assert desk.asked == 0


@pytest.mark.parametrize(
    ("recorded", "secrets", "account", "expected", "asked"),
    [
        (OF_SECRET, [SECRET], None, False, 1),
        (OF_SECRET, [], None, True, 1),
        (OF_SECRET, [PullSecret("other", "default", "pull-secret", "other")], None, True, 1),
        (OF_SECRET, [PullSecret("uid", "elsewhere", "pull-secret", "other")], None, True, 1),
        (OF_SECRET, [], ACCOUNT, True, 1),
        (OF_ACCOUNT, [], ACCOUNT, False, 1),
        (OF_ACCOUNT, [], PullServiceAccount("other", "default", "account"), True, 1),
        (NODE, [], None, False, 0),
        (NODE, [SECRET], ACCOUNT, False, 0),
        (ImageCredentials(), [SECRET], ACCOUNT, True, 0),
        (None, [SECRET], ACCOUNT, True, 0),
    ],
)
async def test_the_record_says_who_may(
    desk: Desk,
    recorded: ImageCredentials | None,
    secrets: list[PullSecret],
    account: PullServiceAccount | None,
    expected: bool,
    asked: int,
) -> None:
    desk.know(**({} if recorded is None else {"test": recorded}))
    assert await desk.must_pull(*secrets, account=account) is expected
    assert desk.asked == asked
    assert desk.recorded() == recorded
    desk.restarted("NeverVerify")
    assert not await desk.must_pull()


async def test_a_record_of_another_name_says_nothing(desk: Desk) -> None:
    desk.know(test=OF_SECRET)
    assert await desk.must_pull(SECRET, image="docker.io/testing/different:latest")
    assert desk.asked == 0
    assert not await desk.must_pull(SECRET, image=f"{NAME}:another-tag")


@pytest.mark.parametrize(
    "secret", [PullSecret("uid", "default", "pull-secret", "changed"), PullSecret("u", "other", "s", "hash")]
)
async def test_a_secret_that_fits_is_noted(desk: Desk, secret: PullSecret) -> None:
    desk.know(test=OF_SECRET)
    assert not await desk.must_pull(secret)
    recorded = desk.recorded()
    assert recorded is not None
    assert secret in recorded.kubernetes_secrets
    desk.restarted()
    assert not await desk.must_pull(attrs.evolve(secret, credential_hash="changed again"))


async def test_a_long_record_does_not_grow_for_pods_that_only_use_the_image(desk: Desk) -> None:
    many = ImageCredentials(tuple(PullSecret(str(number), "n", "s", "hash") for number in range(100)))
    desk.know(test=many)
    assert not await desk.must_pull(SECRET)
    assert desk.recorded() == many
    changed = attrs.evolve(many.kubernetes_secrets[0], credential_hash="changed")
    assert await desk.must_pull(changed), "only by its content, since the new one cannot be noted"
    assert not await desk.must_pull(changed, SECRET)
    desk.know(test=ImageCredentials(many.kubernetes_secrets[1:]))
    assert not await desk.must_pull(attrs.evolve(changed, uid="1"))


async def test_a_record_that_cannot_be_read_asks_for_a_pull_that_mends_it(desk: Desk) -> None:
    desk.break_record()
    assert await desk.must_pull()
    with desk.records.pulling(IMAGE) as pull:
        pull.succeeded(REF, NODE)
    assert not await desk.must_pull()
    desk.break_record()
    desk.restarted("NeverVerify")
    assert not await desk.must_pull(), "what is never checked needs no record"


async def test_what_the_lookup_of_credentials_raises_comes_through(desk: Desk) -> None:
    desk.know(test=OF_SECRET)

    async def credentials() -> PodCredentials:
        raise ValueError("broken secret")

    with pytest.raises(ValueError, match="broken secret"):
        await desk.records.must_pull(IMAGE, REF, credentials)


async def test_checks_are_counted_by_what_came_of_them(desk: Desk) -> None:
    """The results of the kubelet's `TestMustAttemptPullMetrics`."""
    await desk.must_pull()
    assert dict(desk.records.checks) == {("credentialPolicyAllowed",): 1}
    desk.know(test=OF_SECRET)
    for _ in range(3):
        await desk.must_pull(SECRET)
    await desk.must_pull()
    await desk.must_pull(SECRET, image="docker.io/testing/different:latest")
    desk.break_record()
    await desk.must_pull()
    desk.know(test=OF_SECRET)

    async def credentials() -> PodCredentials:
        raise ValueError("broken secret")

    with pytest.raises(ValueError, match="broken secret"):
        await desk.records.must_pull(IMAGE, REF, credentials)
    assert dict(desk.records.checks) == {
        ("credentialPolicyAllowed",): 1,
        ("credentialRecordFound",): 3,
        ("mustAuthenticate",): 2,
        ("error",): 2,
    }


def test_what_is_on_the_disk_is_counted(desk: Desk) -> None:
    assert desk.records.on_disk() == (0, 0)
    with desk.records.pulling(IMAGE) as pull:
        assert desk.records.on_disk() == (1, 0)
        pull.succeeded(REF, OF_SECRET)
    assert desk.records.on_disk() == (0, 1)
    desk.break_record()
    assert desk.records.on_disk() == (0, 1)
    (desk.root / "image_manager" / "pulling").rmdir()
    (desk.root / "image_manager" / "pulling").touch()
    assert desk.records.on_disk() is None


# Pulling


async def test_a_pull_leaves_a_record_and_no_intent(desk: Desk) -> None:
    with desk.records.pulling(IMAGE) as pull:
        assert desk.store.has_intent(IMAGE)
        assert await desk.must_pull(SECRET), "the image may be there before its record is"
        pull.succeeded(REF, OF_SECRET)
        assert desk.recorded() == OF_SECRET
    assert not desk.store.has_intent(IMAGE)
    assert not await desk.must_pull(SECRET)
    assert await desk.must_pull()


async def test_a_second_pull_adds_to_the_record(desk: Desk) -> None:
    for image, credentials in ((IMAGE, OF_SECRET), (IMAGE, OF_ACCOUNT), ("other", NODE)):
        with desk.records.pulling(image) as pull:
            pull.succeeded(REF, credentials)
    assert desk.recorded() == ImageCredentials((SECRET,), (ACCOUNT,))
    assert desk.recorded("other") == NODE


def test_a_failed_pull_leaves_nothing(desk: Desk) -> None:
    with desk.records.pulling(IMAGE) as pull:
        pull.failed()
    assert desk.store.intents() == []
    assert desk.store.records() == []


def test_an_intent_stays_until_the_last_of_several_pulls_has_ended(desk: Desk) -> None:
    with desk.records.pulling(IMAGE) as first:
        with desk.records.pulling(IMAGE) as second:
            second.failed()
        assert desk.store.has_intent(IMAGE)
        first.failed()
    assert not desk.store.has_intent(IMAGE)


async def test_a_pull_whose_end_nobody_saw_leaves_its_intent(desk: Desk) -> None:
    with desk.records.pulling(IMAGE):
        pass
    assert await desk.must_pull()
    with desk.records.pulling(IMAGE) as failing:
        failing.failed()
    assert await desk.must_pull(), "the first pull may have brought the image all the same"
    with desk.records.pulling(IMAGE) as pull:
        pull.succeeded(REF, OF_SECRET)
    assert not desk.store.has_intent(IMAGE)
    assert not await desk.must_pull(SECRET)


async def test_a_pull_whose_end_nobody_saw_takes_no_image_from_anybody(desk: Desk) -> None:
    with desk.records.pulling(IMAGE, present=REF):
        assert not await desk.must_pull()
    assert desk.store.has_intent(IMAGE)
    assert not await desk.must_pull()
    desk.restarted()
    assert not await desk.must_pull()
    await desk.records.settle(cast("ImageClient", Images([v1.Image(id=REF, repo_tags=[IMAGE])])))
    assert desk.store.records() == []
    assert not await desk.must_pull()


async def test_what_came_late_is_not_what_was_there(desk: Desk) -> None:
    with desk.records.pulling(IMAGE, present="sha256:old"):
        pass
    assert await desk.must_pull()
    with desk.records.pulling(IMAGE, present=REF) as failing:  # which the first pull brought
        failing.failed()
    assert await desk.must_pull()
    desk.restarted()
    await desk.records.settle(cast("ImageClient", Images([v1.Image(id=REF, repo_tags=[IMAGE])])))
    assert desk.recorded() is None
    assert await desk.must_pull()


async def test_after_a_pull_that_was_seen_to_end_what_is_there_counts_anew(desk: Desk) -> None:
    with desk.records.pulling(IMAGE, present="sha256:old") as failing:
        failing.failed()
    assert not (desk.root / "image_manager" / "before").exists() or not [
        *(desk.root / "image_manager" / "before").iterdir()
    ]
    with desk.records.pulling(IMAGE, present=REF):
        pass
    assert not await desk.must_pull()


async def test_a_note_of_what_was_there_that_cannot_be_read_says_nothing(desk: Desk) -> None:
    with desk.records.pulling(IMAGE, present=REF):
        pass
    [note] = (desk.root / "image_manager" / "before").iterdir()
    note.write_text("{")
    assert await desk.must_pull()


async def test_an_intent_of_an_agent_that_died_outlives_a_failing_pull(desk: Desk) -> None:
    desk.store.write_intent(IMAGE)
    with desk.records.pulling(IMAGE) as pull:
        pull.failed()
    assert await desk.must_pull()


def refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_without_an_intent_there_is_no_pull(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.store, "write_intent", refuse)
    with pytest.raises(IntentError, match=r"failed to record image pull intent: .*No space left"):
        desk.records.pulling(IMAGE).__enter__()


async def test_without_a_record_the_intent_stays(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.store, "write", refuse)
    with desk.records.pulling(IMAGE) as pull:
        pull.succeeded(REF, NODE)
    assert desk.store.has_intent(IMAGE)
    assert await desk.must_pull()


# After another agent


@attrs.define
class Images:
    """What the runtime has."""

    present: list[v1.Image]
    asked: int = 0

    async def list_images(self) -> list[v1.Image]:
        self.asked += 1
        return self.present


def runtime_with(*present: v1.Image) -> ImageClient:
    return cast("ImageClient", Images(list(present)))


@pytest.mark.parametrize(
    ("intent", "listed"),
    [
        (IMAGE, {"repo_tags": ["x:1", IMAGE]}),
        ("busybox", {"repo_tags": ["docker.io/library/busybox:latest"]}),
        ("a.io/b@sha256:" + "0" * 64, {"repo_digests": ["a.io/b@sha256:" + "0" * 64]}),
        ("a.io/b:1@sha256:" + "0" * 64, {"repo_digests": ["a.io/b@sha256:" + "0" * 64]}),
    ],
)
async def test_an_image_that_came_while_no_agent_looked_is_open_to_nobody(
    desk: Desk, intent: str, listed: dict[str, Any]
) -> None:
    desk.store.write_intent(intent)
    await desk.records.settle(runtime_with(v1.Image(id="other", repo_tags=["y:1"]), v1.Image(id=REF, **listed)))
    assert desk.store.intents() == []
    assert [record.image_ref for record in desk.store.records()] == [REF]
    assert await desk.must_pull(SECRET, image=intent)


async def test_an_image_that_has_a_record_keeps_it(desk: Desk) -> None:
    desk.know(test=OF_SECRET)
    desk.store.write_intent(IMAGE)
    await desk.records.settle(runtime_with(v1.Image(id=REF, repo_tags=[IMAGE])))
    assert desk.store.intents() == []
    assert desk.recorded() == OF_SECRET


async def test_an_intent_whose_image_did_not_come_stays(desk: Desk) -> None:
    desk.store.write_intent(IMAGE)
    await desk.records.settle(runtime_with(v1.Image(id=REF, repo_tags=["y:1"])))
    assert desk.store.intents() == [IMAGE]
    assert desk.store.records() == []


async def test_without_intents_the_runtime_is_not_asked(desk: Desk) -> None:
    images = Images([])
    await desk.records.settle(cast("ImageClient", images))
    assert images.asked == 0


async def test_an_intent_of_a_kubelet_goes_an_hour_after_it_was_first_seen(desk: Desk) -> None:
    """It says nothing of the time, and a clock that was set back says what cannot be."""
    desk.store.write_intent(IMAGE)
    for times, expected in ([BEFORE, BEFORE + timedelta(minutes=59)], [IMAGE]), ([NOW, NOW], []):
        for now in times:
            desk.records = PullRecords(desk.store, VerificationPolicy(), Clock(now))
            await desk.records.settle(runtime_with())
        assert desk.store.intents() == expected
    desk.store.write_intent(IMAGE)
    desk.store.write_before(ImageBefore(image=IMAGE, last_pull=NOW + timedelta(days=900)))
    await desk.records.settle(runtime_with())
    desk.records = PullRecords(desk.store, VerificationPolicy(), Clock(NOW + timedelta(hours=1)))
    assert desk.store.intents() == [IMAGE]
    await desk.records.settle(runtime_with())
    assert desk.store.intents() == []


async def test_what_the_administrator_imports_is_open_whatever_was_pulled_before(desk: Desk) -> None:
    with desk.records.pulling(IMAGE):
        pass
    desk.know(test=OF_SECRET)
    assert await desk.must_pull()
    desk.records.imported({IMAGE: REF})
    assert not await desk.must_pull()
    desk.restarted()
    await desk.records.settle(runtime_with(v1.Image(id=REF, repo_tags=[IMAGE])))
    assert not await desk.must_pull()
    desk.restarted("AlwaysVerify")
    assert await desk.must_pull()


async def test_an_import_opens_the_short_names_too(desk: Desk) -> None:
    with desk.records.pulling("testing/test"):
        pass
    desk.records.imported({IMAGE: REF})
    assert not await desk.must_pull(image="testing/test")


# After image garbage collection


async def test_records_of_images_that_are_gone_go(desk: Desk) -> None:
    for ref in ("kept", "gone"):
        desk.store.write(PulledRecord(last_updated_time=BEFORE, image_ref=ref))
    await desk.records.prune({"kept", "other"}, BEFORE + timedelta(seconds=1))
    assert [record.image_ref for record in desk.store.records()] == ["kept"]
    await desk.records.prune([], NOW)
    assert desk.store.records() == []


async def test_a_record_that_is_as_young_as_the_collection_stays(desk: Desk) -> None:
    """A file has whole seconds: the pull may have come after the collection began, in the same second."""
    desk.store.write(PulledRecord(last_updated_time=BEFORE, image_ref=REF))
    await desk.records.prune([], BEFORE + timedelta(seconds=0.9))
    assert [record.image_ref for record in desk.store.records()] == [REF]


async def test_what_a_pull_that_was_cut_off_brings_back_after_it_was_removed_is_closed(desk: Desk) -> None:
    """Its record, which closed it, has gone with it."""
    desk.know(test=OF_SECRET)
    with desk.records.pulling(IMAGE, present=REF):
        pass
    await desk.records.prune([REF], NOW + timedelta(days=1))
    assert not await desk.must_pull(SECRET)
    await desk.records.prune([], NOW + timedelta(days=1))
    assert desk.store.records() == []
    assert await desk.must_pull(SECRET)
