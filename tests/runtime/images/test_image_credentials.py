"""Pulling with credentials, and who may use what they brought."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import attrs
import pytest
import trio
from grpclib.const import Status

from tests.runtime.conftest import make_container, make_pod
from trikubelet.clock import TrioClock
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.images.credentials.keyring import Auth, Source, TrackedCredential
from trikubelet.runtime.images.manager import ImageError, ImageManager, ImageRequest, PresentImage
from trikubelet.runtime.images.pull_credentials import CredentialsError
from trikubelet.runtime.images.pull_rate import PullRate
from trikubelet.runtime.images.pull_records.model import VerificationPolicy
from trikubelet.runtime.images.pull_records.records import PullRecords
from trikubelet.runtime.images.pull_records.store import RecordStore
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.api import Pod, Secret
    from trikubelet.rpc.cri.client import ImageClient

IMAGE = "registry.test/private:1"
DENIED = CRIError("PullImage", Status.UNKNOWN, "failed to authorize: 401 Unauthorized")
LOST = CRIError("PullImage", Status.UNAVAILABLE, "connection lost")


def of_secret(user: str, name: str = "pull-secret") -> TrackedCredential:
    return TrackedCredential(Auth(user, "password"), Source("secret", f"uid-{name}", "default", name))


@attrs.define
class Purse:
    """Credentials by pod."""

    contents: dict[str, list[TrackedCredential]] = attrs.field(factory=dict)
    problem: str = ""
    asked: list[str] = attrs.field(factory=list)

    async def lookup(self, repository: str, pod: Pod, secrets: Sequence[Secret]) -> Sequence[TrackedCredential]:
        self.asked.append(repository)
        if self.problem:
            raise CredentialsError(self.problem)
        return self.contents.get(pod.metadata.name, [])


@attrs.define
class Registry:
    """A runtime and the registry behind it: users that it knows, and how pulls by others end."""

    users: set[str] = attrs.field(factory=set)
    refusal: dict[str, CRIError] = attrs.field(factory=dict)
    present: bool = False
    status_error: CRIError | None = None
    list_error: CRIError | None = None
    asked: list[str] = attrs.field(factory=list)
    """The users who pulled, "" for nobody."""
    sent: list[v1.AuthConfig | None] = attrs.field(factory=list)

    async def image_status(self, spec: v1.ImageSpec) -> v1.Image | None:
        if self.status_error is not None:
            raise self.status_error
        return v1.Image(id="sha256:1", size=7, repo_tags=[IMAGE]) if self.present else None

    async def pull_image(
        self, spec: v1.ImageSpec, auth: v1.AuthConfig | None, sandbox_config: v1.PodSandboxConfig
    ) -> str:
        await trio.sleep(1)
        user = "" if auth is None else auth.username
        self.asked.append(user)
        self.sent.append(auth)
        if user not in self.users:
            raise self.refusal.get(user, DENIED)
        self.present = True
        return "sha256:1"

    async def list_images(self) -> list[v1.Image]:
        if self.list_error is not None:
            raise self.list_error
        return [v1.Image(id="sha256:1", repo_tags=[IMAGE])] if self.present else []


@attrs.define
class Desk:
    registry: Registry
    purse: Purse
    recorder: EventRecorder
    store: RecordStore
    images: ImageManager

    def restarted(self, policy: str = "NeverVerifyPreloadedImages", rate: PullRate | None = None) -> PullRecords:
        records = PullRecords(self.store, VerificationPolicy(policy), TrioClock())
        self.images = ImageManager(
            cast("ImageClient", self.registry),
            self.recorder,
            credentials=self.purse,
            records=records,
            rate=rate,
        )
        return records

    async def ensure(self, name: str, policy: str = "IfNotPresent", *, container: bool = True) -> PresentImage:
        request = ImageRequest(IMAGE, policy, make_container() if container else None)
        return await self.images.ensure(make_pod(name=name), request, v1.PodSandboxConfig())

    async def refused(self, name: str, policy: str = "IfNotPresent") -> tuple[str, str]:
        with pytest.raises(ImageError) as caught:
            await self.ensure(name, policy)
        return caught.value.reason, caught.value.message

    def said(self, name: str) -> list[tuple[str, str]]:
        return [(event.reason, event.message) for event in self.recorder.events_of(f"uid-{name}")]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    recorder = EventRecorder(TrioClock())
    registry = Registry()
    desk = Desk(
        registry, Purse(), recorder, RecordStore(tmp_path), ImageManager(cast("ImageClient", registry), recorder)
    )
    desk.restarted()
    return desk


async def test_without_credentials_the_pull_goes_without(autojump_clock: MockClock, desk: Desk) -> None:
    desk.registry.users = {""}
    assert (await desk.ensure("a")).reference == "sha256:1"
    assert desk.registry.asked == [""]
    assert desk.purse.asked == ["registry.test/private"]


async def test_credentials_are_tried_until_one_does(autojump_clock: MockClock, desk: Desk) -> None:
    desk.purse.contents["a"] = [of_secret("x"), of_secret("y"), of_secret("z")]
    desk.registry.users = {"y", "z"}
    await desk.ensure("a")
    assert desk.registry.asked == ["x", "y"]
    assert desk.said("a") == [
        ("Pulling", f'Pulling image "{IMAGE}"'),
        ("Pulled", f'Successfully pulled image "{IMAGE}" in 2s (2s including waiting). Image size: 7 bytes.'),
    ]


async def test_everything_a_credential_has_is_sent(autojump_clock: MockClock, desk: Desk) -> None:
    desk.purse.contents["a"] = [TrackedCredential(Auth("u", "p", "e@x", "a", "s", "i", "r"))]
    desk.registry.users = {"u"}
    await desk.ensure("a")
    assert desk.registry.sent == [
        v1.AuthConfig(username="u", password="p", auth="a", server_address="s", identity_token="i", registry_token="r")
    ]


@pytest.mark.parametrize(
    ("refusals", "message"),
    [
        ({"x": DENIED}, "failed to authorize: 401 Unauthorized"),
        ({"x": DENIED, "y": DENIED}, "failed to authorize: 401 Unauthorized"),
        (
            {"x": DENIED, "y": CRIError("PullImage", Status.NOT_FOUND, "not found"), "z": DENIED},
            "[failed to authorize: 401 Unauthorized, rpc error: code = NotFound desc = not found]",
        ),
    ],
)
async def test_when_none_does_each_problem_is_told_once(
    autojump_clock: MockClock, desk: Desk, refusals: dict[str, CRIError], message: str
) -> None:
    desk.purse.contents["a"] = [of_secret(user) for user in refusals]
    desk.registry.refusal = refusals
    assert await desk.refused("a") == ("ErrImagePull", message)
    assert desk.said("a")[1] == ("Failed", f'Failed to pull image "{IMAGE}": {message}')
    backoff = f'Back-off pulling image "{IMAGE}": ErrImagePull: {message}'
    assert await desk.refused("a") == ("ImagePullBackOff", backoff)
    assert len(desk.purse.asked) == 1, "a pod that waits needs no credentials"
    assert desk.store.intents() == []


async def test_a_broken_secret_stops_the_pull(autojump_clock: MockClock, desk: Desk) -> None:
    desk.purse.problem = "unexpected end of JSON input"
    assert await desk.refused("a") == ("ErrImagePull", "unexpected end of JSON input")
    assert desk.registry.asked == []


async def test_a_pod_does_not_start_from_what_another_pods_secret_brought(
    autojump_clock: MockClock, desk: Desk
) -> None:
    desk.registry.users = {"owner"}
    desk.purse.contents = {
        "owner": [of_secret("owner")],
        "twin": [of_secret("owner", "copy")],
        "thief": [of_secret("x", "own")],
    }
    await desk.ensure("owner")
    desk.restarted()
    assert (await desk.refused("thief"))[1] == "failed to authorize: 401 Unauthorized"
    assert (await desk.refused("nobody"))[1] == "failed to authorize: 401 Unauthorized"
    never = (
        "ErrImageNeverPull",
        f'Container image "{IMAGE}" is not present with pull policy of Never',
    )
    assert await desk.refused("thief", "Never") == never
    assert desk.said("thief")[-1] == never
    desk.registry.asked.clear()
    await desk.ensure("twin")
    await desk.ensure("owner", "Never")
    assert desk.registry.asked == []
    assert desk.said("twin") == [
        ("Pulled", f'Container image "{IMAGE}" already present on machine and can be accessed by the pod')
    ]


async def test_where_nobody_checks_nothing_is_told_of_access(autojump_clock: MockClock, desk: Desk) -> None:
    desk.registry.present = True
    desk.images = ImageManager(cast("ImageClient", desk.registry), desk.recorder)
    await desk.ensure("a")
    assert desk.said("a") == [("Pulled", f'Container image "{IMAGE}" already present on machine')]


@pytest.mark.parametrize("credential", [None, TrackedCredential(Auth("node"))])
async def test_what_the_node_pulled_is_open_to_all(
    autojump_clock: MockClock, desk: Desk, credential: TrackedCredential | None
) -> None:
    desk.registry.users = {"", "node"}
    desk.purse.contents["a"] = [] if credential is None else [credential]
    await desk.ensure("a")
    desk.registry.users.clear()
    desk.restarted()
    await desk.ensure("nobody")
    await desk.ensure("nobody", "Never")


async def test_a_service_account_opens_what_its_token_brought(autojump_clock: MockClock, desk: Desk) -> None:
    desk.registry.users = {"token"}
    account = Source("service account", "uid", "default", "builder")
    desk.purse.contents = {name: [TrackedCredential(Auth("token"), account)] for name in ("a", "b")}
    await desk.ensure("a")
    await desk.ensure("b")
    assert desk.registry.asked == ["token"]
    assert (await desk.refused("c"))[0] == "ErrImagePull"


async def test_an_image_whose_pull_was_cut_off_is_open_to_nobody(autojump_clock: MockClock, desk: Desk) -> None:
    desk.purse.contents["a"] = [of_secret("a")]
    with trio.move_on_after(0.5) as scope:
        await desk.ensure("a")
    assert scope.cancelled_caught
    desk.registry.present = True
    assert (await desk.refused("thief"))[0] == "ErrImagePull"
    records = desk.restarted()
    await records.settle(cast("ImageClient", desk.registry))
    assert (await desk.refused("thief"))[0] == "ErrImagePull"
    desk.registry.users = {"a"}
    await desk.ensure("a")
    assert desk.registry.asked[-1] == "a"
    assert desk.store.intents() == []


async def test_an_image_whose_pull_lost_its_answer_is_open_to_nobody(autojump_clock: MockClock, desk: Desk) -> None:
    desk.purse.contents["a"] = [of_secret("a")]
    desk.registry.refusal["a"] = LOST
    assert (await desk.refused("a"))[1] == "rpc error: code = Unavailable desc = connection lost"
    desk.registry.present = True
    for name in ("thief", "second-thief"):
        assert (await desk.refused(name))[1] == "failed to authorize: 401 Unauthorized"


async def test_an_image_that_was_there_before_is_open_unless_all_are_checked(
    autojump_clock: MockClock, desk: Desk
) -> None:
    desk.registry.present = True
    await desk.ensure("a")
    assert desk.purse.asked == []
    desk.restarted("AlwaysVerify")
    assert (await desk.refused("a"))[0] == "ErrImagePull"


async def test_a_pod_that_is_deleted_while_its_pull_hangs_takes_a_preloaded_image_from_nobody(
    desk: Desk, autojump_clock: MockClock
) -> None:
    """On a node without a registry every pod of the image had to pull from then on."""
    desk.registry.present = True
    with trio.move_on_after(0.5) as scope:
        await desk.ensure("deleted", "Always")
    assert scope.cancelled_caught
    assert desk.store.intents() == [IMAGE]
    for _ in range(2):
        assert (await desk.ensure("stranger")).reference == "sha256:1"
        await desk.restarted().settle(cast("ImageClient", desk.registry))
    assert desk.registry.asked == []


async def test_an_image_that_cannot_be_looked_at_before_its_pull_is_looked_up_in_the_list(
    desk: Desk, autojump_clock: MockClock
) -> None:
    desk.registry.present = True
    desk.registry.status_error = CRIError("ImageStatus", Status.UNKNOWN, "broken")
    with trio.move_on_after(0.5) as scope:
        await desk.ensure("deleted", "Always")
    assert scope.cancelled_caught
    desk.registry.status_error = None
    assert (await desk.ensure("stranger")).reference == "sha256:1"
    assert desk.registry.asked == []


async def test_where_the_runtime_does_not_tell_what_is_there_nothing_is_pulled(
    desk: Desk, autojump_clock: MockClock
) -> None:
    """A pull that is cut off would take an image that was there from all pods."""
    desk.registry.present = True
    desk.registry.status_error = desk.registry.list_error = CRIError("ListImages", Status.UNAVAILABLE, "gone")
    reason, message = await desk.refused("a", "Always")
    assert (reason, message) == (
        "ImageInspectError",
        f'Failed to inspect image "{IMAGE}": rpc error: code = Unavailable desc = gone',
    )
    assert desk.store.intents() == []
    desk.registry.status_error = desk.registry.list_error = None
    assert (await desk.ensure("stranger")).reference == "sha256:1"
    assert desk.registry.asked == []


async def test_an_image_that_is_imported_long_after_its_pull_was_cut_off_is_open(
    desk: Desk, autojump_clock: MockClock
) -> None:
    """It was absent, the pull of a pod that was deleted hung, and a later pull was refused for certain."""
    with trio.move_on_after(0.5):
        await desk.ensure("deleted")
    assert (await desk.refused("refused"))[0] == "ErrImagePull"
    records = desk.restarted()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(records.run, cast("ImageClient", desk.registry))
        await trio.sleep(2 * 3600)
        nursery.cancel_scope.cancel()
    assert desk.store.intents() == []
    desk.registry.present = True
    for _ in range(2):
        assert (await desk.ensure("stranger")).reference == "sha256:1"
        await desk.restarted().settle(cast("ImageClient", desk.registry))


async def test_a_pull_that_goes_on_for_hours_may_still_come_when_the_agent_has_died(
    desk: Desk, autojump_clock: MockClock
) -> None:
    records = desk.restarted()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(records.run, cast("ImageClient", desk.registry))
        with records.pulling(IMAGE):
            await trio.sleep(3 * 3600)
            # Another agent, since this one died.
            await desk.restarted().settle(cast("ImageClient", desk.registry))
            assert desk.store.intents() == [IMAGE]
        nursery.cancel_scope.cancel()


async def test_an_intent_that_cannot_be_written_stops_the_pull(
    autojump_clock: MockClock, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(image: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(desk.store, "write_intent", refuse)
    reason, message = await desk.refused("a")
    assert reason == "ErrImagePull"
    assert message.startswith(
        f'Failed to record image pull intent for container image "{IMAGE}": failed to record image pull intent: '
    )
    assert desk.registry.asked == []
    assert desk.said("a") == []


async def test_too_many_pulls_at_once_wait_like_failed_ones(autojump_clock: MockClock, desk: Desk) -> None:
    desk.registry.users = {""}
    desk.restarted(rate=PullRate(per_second=0.1, burst=1))
    await desk.ensure("a", "Always")
    assert await desk.refused("b", "Always") == ("ErrImagePull", "pull QPS exceeded")
    assert desk.said("b")[-1] == ("Failed", f'Failed to pull image "{IMAGE}": pull QPS exceeded')
    assert (await desk.refused("b", "Always"))[0] == "ImagePullBackOff"
    await trio.sleep(10)
    await desk.ensure("b", "Always")
    assert desk.store.intents() == []


async def test_an_image_that_cannot_be_inspected_after_its_pull_starts_no_container(
    autojump_clock: MockClock, desk: Desk
) -> None:
    desk.registry.users = {""}
    desk.registry.status_error = CRIError("ImageStatus", Status.UNAVAILABLE, "gone")
    with pytest.raises(ImageError) as caught:
        await desk.ensure("a", "Always")
    assert caught.value.reason == "CreateContainerConfigError"
    assert caught.value.message == "rpc error: code = Unavailable desc = gone"
    assert desk.said("a")[-1][1].endswith("Image size: 0 bytes.")
    assert (await desk.ensure("b", "Always", container=False)).reference == "sha256:1"


async def test_the_events_of_a_volumes_image_are_the_pods(autojump_clock: MockClock, desk: Desk) -> None:
    desk.registry.present = True
    await desk.ensure("a", container=False)
    await desk.ensure("a")
    paths = [event.field_path for event in desk.recorder.events_of("uid-a")]
    assert paths == ["", "spec.containers{main}"]
