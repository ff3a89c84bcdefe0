from __future__ import annotations

import os
import ssl
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing

from tests.captured_logs import capture_logs
from tests.kube_client.pki import authority, pair, pem_of
from trikubelet.clock import TrioClock
from trikubelet.kube_client import credentials as module
from trikubelet.kube_client.credentials import Credentials
from trikubelet.kube_client.errors import CredentialsError
from trikubelet.kube_client.exec_plugin import ExecCredential, ExecPluginError
from trikubelet.kube_client.kubeconfig import ClusterAccess, CredentialSettings, ExecSettings, TlsSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SERVER = "https://api.example:6443"
CLOCK = TrioClock()


def made(*, tls: TlsSettings | None = None, **settings: Any) -> Credentials:
    access = ClusterAccess(SERVER, tls or TlsSettings(), CredentialSettings(**settings))
    return Credentials(access, clock=CLOCK, environment={})


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def replace(path: Path, content: bytes | str) -> None:
    """As a program that rotates: the new file takes the old one's place."""
    new = path.with_name("new")
    new.write_bytes(content if isinstance(content, bytes) else content.encode())
    new.rename(path)


async def test_what_stands_in_the_kubeconfig_is_sent() -> None:
    assert await made(token="abc").headers() == bearer("abc")
    assert await made(username="u", password="p").headers() == {"Authorization": "Basic dTpw"}
    assert await made().headers() == {}


# Token files


async def test_a_token_file_goes_before_a_token_and_is_read_again_before_a_minute_is_over(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    file = tmp_path / "token"
    file.write_text(" first\n")
    credentials = made(token="fixed", token_file=file)
    assert await credentials.headers() == bearer("first")
    file.write_text("second")
    await trio.sleep(49)
    assert await credentials.headers() == bearer("first")
    await trio.sleep(2)
    assert await credentials.headers() == bearer("second")


async def test_a_token_that_was_refused_is_read_again_at_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    credentials = made(token_file=file)
    old = await credentials.headers()
    file.write_text("second")
    credentials.rejected(old)
    assert await credentials.headers() == bearer("second")
    file.write_text("third")
    credentials.rejected(old)
    assert await credentials.headers() == bearer("second"), "the second token was not refused"


@pytest.mark.parametrize("content", ["", "  \n", "two words", "line\nbreak", None])
async def test_a_token_file_that_became_unreadable_keeps_its_last_token(
    tmp_path: Path, content: str | None, autojump_clock: trio.testing.MockClock
) -> None:
    file = tmp_path / "token"
    file.write_text("good")
    credentials = made(token_file=file)
    await credentials.headers()
    file.unlink() if content is None else file.write_text(content)
    await trio.sleep(60)
    assert await credentials.headers() == bearer("good")
    replace(file, "better")
    await trio.sleep(60)
    assert await credentials.headers() == bearer("better")


async def test_a_token_file_that_never_had_a_token_is_an_error_in_known_words(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(CredentialsError) as failed:
        await made(token_file=file).headers()
    told = f'connect to {SERVER}: failed to read token file "{file}": open {file}: no such file or directory'
    assert str(failed.value) == told
    file.touch()
    with pytest.raises(CredentialsError, match=f'read empty token from file "{file}"'):
        await made(token_file=file).headers()
    for words in ("two words", "schlüssel"):  # no header can carry them
        file.write_text(words)
        with pytest.raises(CredentialsError, match="expected one token of ASCII characters") as failed:
            await made(token_file=file).headers()
        assert words not in str(failed.value)


# Certificates


@attrs.define
class Folder:
    """Certificate files that a program rotates."""

    path: Path

    def settings(self) -> dict[str, Any]:
        return {
            "tls": TlsSettings(self.path / "ca.crt"),
            "certificate": self.path / "tls.crt",
            "key": self.path / "tls.key",
        }

    def put(self, name: str, end: datetime | None = None) -> None:
        identity = pair(authority("users"), name, end)
        replace(self.path / "tls.crt", identity.certificate)
        replace(self.path / "tls.key", identity.key)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made_folder = Folder(tmp_path)
    made_folder.put("first")
    replace(tmp_path / "ca.crt", pem_of(authority()))
    return made_folder


class Changes:
    def __init__(self, credentials: Credentials) -> None:
        self.count = 0
        credentials.on_change(self.note)

    def note(self) -> None:
        self.count += 1


async def test_one_context_serves_all_connections_while_no_file_changes(folder: Folder) -> None:
    credentials = made(**folder.settings())
    changes = Changes(credentials)
    context = await credentials.tls_context()
    os.utime(folder.path / "tls.crt")
    assert await credentials.tls_context() is context
    assert changes.count == 0


@pytest.mark.parametrize("file", ["pair", "authority"])
async def test_a_rotated_certificate_is_used_by_the_next_connection_and_told(folder: Folder, file: str) -> None:
    credentials = made(**folder.settings())
    changes = Changes(credentials)
    before = await credentials.tls_context()
    if file == "pair":
        folder.put("second")
    else:
        replace(folder.path / "ca.crt", pem_of(authority("other")))
    assert await credentials.tls_context() is not before
    assert changes.count == 1


async def test_a_rotated_certificate_is_noticed_within_a_minute_of_requests(
    folder: Folder, autojump_clock: trio.testing.MockClock
) -> None:
    credentials = made(**folder.settings())
    changes = Changes(credentials)
    await credentials.tls_context()
    folder.put("second")
    await trio.sleep(30)
    await credentials.headers()
    assert changes.count == 0
    await trio.sleep(31)
    await credentials.headers()
    await credentials.headers()
    assert changes.count == 1


async def test_a_certificate_that_was_refused_is_looked_at_with_the_next_request(folder: Folder) -> None:
    credentials = made(**folder.settings())
    changes = Changes(credentials)
    await credentials.tls_context()
    folder.put("second")
    credentials.rejected(await credentials.headers())
    await credentials.headers()
    assert changes.count == 1


async def test_who_knows_of_a_rotation_need_not_wait(folder: Folder) -> None:
    credentials = made(**folder.settings())
    changes = Changes(credentials)
    credentials.reload()
    await credentials.tls_context()
    folder.put("second")
    credentials.reload()
    assert changes.count == 1


async def test_half_of_a_new_pair_leaves_the_old_one_in_use(folder: Folder) -> None:
    credentials = made(**folder.settings())
    changes = Changes(credentials)
    before = await credentials.tls_context()
    identity = pair(authority("users"), "second")
    replace(folder.path / "tls.crt", identity.certificate)
    assert await credentials.tls_context() is before
    replace(folder.path / "tls.key", identity.key[:50])
    assert await credentials.tls_context() is before
    (folder.path / "tls.key").unlink()
    assert await credentials.tls_context() is before
    assert changes.count == 0
    replace(folder.path / "tls.key", identity.key)
    assert await credentials.tls_context() is not before
    assert changes.count == 1


async def test_a_certificate_that_is_still_to_come_is_an_error_until_it_is_there(folder: Folder) -> None:
    (folder.path / "tls.crt").unlink()
    credentials = made(**folder.settings())
    changes = Changes(credentials)
    with pytest.raises(CredentialsError, match=r"open .*tls\.crt: no such file or directory"):
        await credentials.tls_context()
    folder.put("first")
    assert isinstance(await credentials.tls_context(), ssl.SSLContext)
    assert changes.count == 0


async def test_that_a_certificate_has_come_is_told_to_those_who_asked_for_it_in_vain(folder: Folder) -> None:
    (folder.path / "tls.crt").unlink()
    credentials = made(**folder.settings())
    changes = Changes(credentials)
    credentials.reload()
    with pytest.raises(CredentialsError):
        await credentials.tls_context()
    credentials.reload()
    assert changes.count == 0
    folder.put("first")
    credentials.reload()
    assert changes.count == 1


# Certificates that have ended


def expired_in(logs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [
        (line["file"], line["expired"])
        for line in logs
        if "client certificate has expired" in line["event"] and "--bootstrap-kubeconfig" in line["event"]
    ]


async def test_a_certificate_that_has_ended_is_told_once_with_its_file_and_used_all_the_same(folder: Folder) -> None:
    end = (CLOCK.now() - timedelta(days=1)).replace(microsecond=0)
    folder.put("old", end)
    credentials = made(**folder.settings())
    told = [(str(folder.path / "tls.crt"), end.isoformat())]
    with capture_logs() as logs:
        assert isinstance(await credentials.tls_context(), ssl.SSLContext)
        credentials.rejected({})
        await credentials.headers()
        assert expired_in(logs) == told
        folder.put("new")
        credentials.reload()
        assert expired_in(logs) == told
        folder.put("older", end - timedelta(days=1))
        credentials.reload()
        assert expired_in(logs) == [*told, (told[0][0], (end - timedelta(days=1)).isoformat())]


async def test_a_certificate_that_ends_while_it_is_used_is_told_within_a_minute(
    folder: Folder, autojump_clock: trio.testing.MockClock
) -> None:
    clock = TrioClock()
    folder.put("short", clock.now().replace(microsecond=0) + timedelta(seconds=100))
    settings = folder.settings()
    access = ClusterAccess(SERVER, settings.pop("tls"), CredentialSettings(**settings))
    credentials = Credentials(access, clock=clock, environment={})
    with capture_logs() as logs:
        await credentials.tls_context()
        for _ in range(9):
            await trio.sleep(10)
            await credentials.headers()
        assert expired_in(logs) == []
        for _ in range(7):
            await trio.sleep(10)
            await credentials.headers()
        assert len(expired_in(logs)) == 1


async def test_of_a_certificate_in_the_kubeconfig_the_kubeconfig_is_named(tmp_path: Path) -> None:
    old = pair(authority("users"), "old", CLOCK.now() - timedelta(days=1))
    settings = CredentialSettings(certificate=old.certificate, key=old.key)
    access = ClusterAccess(SERVER, TlsSettings(pem_of(authority())), settings, file=tmp_path / "kubelet.conf")
    with capture_logs() as logs:
        await Credentials(access, clock=CLOCK, environment={}).tls_context()
    assert [file for file, _ in expired_in(logs)] == [str(tmp_path / "kubelet.conf")]


# Plugins


@attrs.define
class Program:
    """Stands in for the plugin's process."""

    answers: list[ExecCredential | ExecPluginError]
    takes: float = 0.5
    runs: int = 0
    killed: int = 0

    async def run(self, *_: object) -> ExecCredential:
        self.runs += 1
        try:
            await trio.sleep(self.takes)
        except trio.Cancelled:
            self.killed += 1
            raise
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ExecPluginError):
            raise answer
        return answer


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    stand_in = Program([ExecCredential("one"), ExecCredential("two"), ExecCredential("three")])
    monkeypatch.setattr(module, "run_exec_plugin", stand_in.run)
    return stand_in


def plugged() -> Credentials:
    return made(tls=TlsSettings(insecure=True), exec=ExecSettings("aws", "client.authentication.k8s.io/v1"))


async def test_an_answer_is_kept_until_it_expires(program: Program, autojump_clock: trio.testing.MockClock) -> None:
    program.answers[0] = ExecCredential("one", expires=CLOCK.now() + timedelta(minutes=10))
    credentials = plugged()
    assert await credentials.headers() == bearer("one")
    await trio.sleep(590)
    assert await credentials.headers() == bearer("one")
    await trio.sleep(20)
    assert await credentials.headers() == bearer("two")
    await trio.sleep(10**6)
    assert await credentials.headers() == bearer("two")
    assert program.runs == 2


async def test_who_asks_while_the_program_runs_shares_its_answer(
    program: Program, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    credentials = plugged()
    answers = []

    async def ask() -> None:
        answers.append(await credentials.headers())

    async with trio.open_nursery() as asking:
        for _ in range(20):
            asking.start_soon(ask)
    assert answers == [bearer("one")] * 20
    assert program.runs == 1


async def test_when_the_one_that_runs_the_program_is_cancelled_another_one_runs_it(
    program: Program, autojump_clock: trio.testing.MockClock
) -> None:
    credentials = plugged()
    answers = []

    async def ask(patience: float) -> None:
        with trio.move_on_after(patience):
            answers.append(await credentials.headers())

    async with trio.open_nursery() as asking:
        asking.start_soon(ask, 0.2)
        await trio.testing.wait_all_tasks_blocked()
        asking.start_soon(ask, 10)
    assert answers == [bearer("one")]
    assert (program.runs, program.killed) == (2, 1)


async def test_a_refused_token_is_asked_for_again_once(
    program: Program, autojump_clock: trio.testing.MockClock
) -> None:
    credentials = plugged()
    first = await credentials.headers()
    await trio.sleep(5)
    credentials.rejected(first)
    second = await credentials.headers()
    assert second == bearer("two")
    credentials.rejected(first)
    assert await credentials.headers() == second, "only the first token was refused"
    credentials.rejected(second)
    assert await credentials.headers() == second, "a token of this very second is not asked for again"
    assert program.runs == 2


async def test_a_refused_token_stays_when_the_program_fails(
    program: Program, autojump_clock: trio.testing.MockClock
) -> None:
    program.answers[1] = ExecPluginError("exec: executable aws failed with exit code 1")
    credentials = plugged()
    first = await credentials.headers()
    await trio.sleep(5)
    credentials.rejected(first)
    assert await credentials.headers() == first


async def test_a_program_that_fails_is_told_in_known_words_and_not_run_for_each_request(
    program: Program, autojump_clock: trio.testing.MockClock
) -> None:
    program.answers = [ExecPluginError("exec: executable aws not found"), ExecCredential("one")]
    credentials = plugged()
    for _ in range(20):
        with pytest.raises(CredentialsError) as failed:
            await credentials.headers()
        told = f"connect to {SERVER}: getting credentials: exec: executable aws not found"
        assert str(failed.value) == told
    assert program.runs == 1
    await trio.sleep(1.1)
    assert await credentials.headers() == bearer("one")


async def test_a_new_certificate_of_the_program_makes_connections_anew_and_a_new_token_does_not(
    program: Program, autojump_clock: trio.testing.MockClock
) -> None:
    first, second = (pair(authority("users"), name) for name in ("a", "b"))
    program.answers = [
        ExecCredential("one", first),
        ExecCredential("two", first),
        ExecCredential("three", second),
        ExecCredential("four"),
    ]
    credentials = plugged()
    changes = Changes(credentials)
    await credentials.tls_context()
    told = []
    for _ in range(4):
        headers = await credentials.headers()
        told.append((headers["Authorization"], changes.count))
        await trio.sleep(5)
        credentials.rejected(headers)
    assert told == [("Bearer one", 0), ("Bearer two", 0), ("Bearer three", 1), ("Bearer four", 2)]


async def test_a_certificate_of_the_program_that_is_none_is_refused(
    program: Program, autojump_clock: trio.testing.MockClock
) -> None:
    bad = attrs.evolve(pair(authority("users"), "a"), key=b"bad")
    program.answers = [ExecCredential(pair=bad)]
    with pytest.raises(CredentialsError, match="getting credentials: failed parsing client key/certificate: "):
        await plugged().tls_context()
