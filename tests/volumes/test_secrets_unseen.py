"""Whatever fails, and at whichever step: no log, event or exception has a secret in it, in any of its spellings."""

from __future__ import annotations

import base64
import errno
import json
import os
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio

from tests.captured_logs import capture_logs
from tests.examples import IS_NIGHT
from tests.volumes.fake_mounter import FakeMounter
from tests.volumes.payload.steps import before_each_step
from tests.volumes.real_kinds import KnownObjects, OneToken, running_manager
from tests.volumes.stage import pod as pod_with
from trikubelet.api import Pod, PodSecurityContext, Secret, set_pod_defaults
from trikubelet.clock import TrioClock
from trikubelet.kube_client.volume_objects import CertificateAndKey, Token
from trikubelet.telemetry.events import EventRecorder
from trikubelet.telemetry.logs import configure_logging, configured_as_before
from trikubelet.volumes.errors import VolumesNotReadyError
from trikubelet.volumes.payload.files import PayloadFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trio.testing import MockClock

    from trikubelet.api import PodCertificateProjection
    from trikubelet.volumes.manager import VolumeManager

PASSWORD, NEW_PASSWORD, TOKEN, KEY = b"hunter2-\xff", b"correct horse", "eyJhbGciOi.token", b"PRIVATE KEY 4711"
SECRETS: Final = (b"hunter2", NEW_PASSWORD, TOKEN.encode(), KEY)
SPELLINGS: Final = frozenset(
    spelling
    for secret in SECRETS
    for spelling in (secret.decode(), secret.hex(), base64.b64encode(secret).decode().rstrip("=")[:-1])
)
FAR: Final = datetime(2999, 1, 1, tzinfo=UTC)


class Credentials(OneToken):
    async def pod_certificate(
        self, pod: Pod, volume: str, index: int, source: PodCertificateProjection
    ) -> CertificateAndKey:
        await trio.lowlevel.checkpoint()
        return CertificateAndKey(b"CHAIN", KEY)


@attrs.define
class Failing:
    """Lets a step on files fail, counted from 0; `met` when it came."""

    step: int
    met: bool = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in ("os.listdir", "os.scandir"):
            return
        if self.step == 0:
            self.met = True
            self.step -= 1
            raise OSError(errno.EIO, "the disk fails", str(arguments[0]))
        self.step -= 1


@attrs.define
class Told:
    """Everything that somebody might read."""

    texts: list[str] = attrs.field(factory=list)

    def error(self, error: BaseException) -> None:
        self.texts += [str(error), repr(error), "".join(traceback.format_exception(error))]

    def logs(self, lines: Iterable[Any]) -> None:
        for line in lines:
            self.texts += [repr(line), json.dumps(line, default=repr)]
            if isinstance(problem := line.get("exc_info"), BaseException):
                self.error(problem)

    def check(self) -> None:
        found = [(spelling, text) for text in self.texts for spelling in SPELLINGS if spelling in text]
        assert found == []


@pytest.fixture(autouse=True)
def all_levels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of logs; and no threads."""
    monkeypatch.setattr(trio.from_thread, "check_cancelled", lambda: None)
    with configured_as_before():
        configure_logging("json", 10)
        yield


def pod() -> Pod:
    sources: list[dict[str, Any]] = [
        {"serviceAccountToken": {"path": "token"}},
        {"secret": {"name": "password"}},
        {"podCertificate": {"signerName": "a.example.com/b", "keyType": "ED25519", "keyPath": "key"}},
    ]
    made = pod_with(
        "web",
        {"name": "secret", "secret": {"secretName": "password"}},
        {"name": "api", "projected": {"sources": sources}},
    )
    group = attrs.evolve(made.spec, security_context=PodSecurityContext(fs_group=os.getgid()))
    return set_pod_defaults(attrs.evolve(made, spec=group))


async def life(root: Path, told: Told, *, fail_at: int) -> bool:
    """Of a pod whose Secret changes, with one step on files that fails. Whether it was met."""
    clock = TrioClock()
    recorder = EventRecorder(clock)
    objects, web, failing = KnownObjects(secrets={"password": {"password": PASSWORD}}), pod(), Failing(fail_at)
    with capture_logs() as lines, before_each_step(failing):
        try:
            async with running_manager(
                root,
                objects=objects,
                credentials=Credentials(TOKEN, FAR),
                mounter=FakeMounter(),
                clock=clock,
                recorder=recorder,
            ) as manager:
                await prepared(manager, web, told)
                objects.secrets["password"] = {"password": NEW_PASSWORD, "more": KEY}
                objects.change("secrets", "default", "password")
                await trio.sleep(1)
                manager.refresh(web)
                await trio.sleep(20)
                told.texts.append(repr(manager.mounted(web, "secret")))
                await manager.release(web.metadata.uid)
        except Exception as error:  # noqa: BLE001  whatever it is
            told.error(error)
    told.logs(lines)
    told.texts += [event.message for event in recorder.events_of(web.metadata.uid)]
    return failing.met


async def prepared(manager: VolumeManager, web: Pod, told: Told) -> None:
    """Again and again, as a worker does."""
    for _ in range(5):
        try:
            await manager.prepare(web)
        except VolumesNotReadyError as error:
            told.error(error)
            await trio.sleep(1)
        else:
            return


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is some: thousands of folders come and go."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


async def test_no_step_that_fails_shows_a_secret(folder: Path, autojump_clock: MockClock) -> None:
    told = Told()
    step = 0
    while await life(folder / str(step), told, fail_at=step):
        step += 1 if IS_NIGHT else 4
    told.check()
    assert step > 60, "the failure was everywhere"
    assert any("the disk fails" in text or "cannot write" in text for text in told.texts), "failures were told"


@pytest.mark.parametrize(
    "sources",
    [
        [{"secret": {"name": "password", "items": [{"key": "missing", "path": "a"}]}}],
        [{"secret": {"name": "password", "items": [{"key": "password", "path": "../a"}]}}],
        [{"secret": {"name": "password", "items": [{"key": "password", "path": "a" * 300}]}}],
        [{"secret": {"name": "password"}}, {"configMap": {"name": "missing"}}],
        [{"serviceAccountToken": {"path": "/absolute"}}, {"secret": {"name": "password"}}],
        [{"serviceAccountToken": {"path": "password/below"}}, {"secret": {"name": "password"}}],
    ],
)
async def test_what_is_refused_is_refused_without_showing_a_secret(
    tmp_path: Path, sources: list[dict[str, Any]], autojump_clock: MockClock
) -> None:
    told, clock = Told(), TrioClock()
    recorder = EventRecorder(clock)
    web = set_pod_defaults(pod_with("web", {"name": "api", "projected": {"sources": sources}}))
    objects = KnownObjects(secrets={"password": {"password": PASSWORD}})
    with capture_logs() as lines:
        async with running_manager(
            tmp_path,
            objects=objects,
            credentials=OneToken(TOKEN, FAR),
            mounter=FakeMounter(),
            clock=clock,
            recorder=recorder,
        ) as manager:
            with pytest.raises(VolumesNotReadyError) as caught:
                await manager.prepare(web)
    told.error(caught.value)
    told.logs(lines)
    messages = [event.message for event in recorder.events_of(web.metadata.uid)]
    assert messages
    assert lines
    told.texts += messages
    told.check()


def test_values_that_hold_secrets_do_not_show_them() -> None:
    told = Told()
    values: list[object] = [
        Secret(data={"a": PASSWORD}, string_data={"b": NEW_PASSWORD.decode()}),
        Token(TOKEN, FAR, FAR),
        CertificateAndKey(b"CHAIN", KEY),
        PayloadFile(PASSWORD, 0o600),
        {"path": PayloadFile(NEW_PASSWORD, 0o600)},
    ]
    told.texts += [repr(value) for value in values] + [str(value) for value in values]
    told.check()


def test_a_secret_in_a_text_would_be_noticed() -> None:
    for text in (repr({"a": PASSWORD}), base64.b64encode(NEW_PASSWORD).decode(), KEY.hex(), f"Bearer {TOKEN}"):
        with pytest.raises(AssertionError):
            Told([text]).check()
