"""Docker's configuration: its entries, and where the node's own is looked for."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING

import pytest
import trio

from trikubelet.runtime.images.credentials.docker_config import (
    DockerConfigFiles,
    decode_auth,
    parse_config,
    parse_legacy_config,
)
from trikubelet.runtime.images.credentials.secret_json import SecretJSONError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.runtime.images.credentials.docker_config import Logins

ENTRY = '{"username": "foo", "password": "bar", "email": "foo@example.com"}'
BAD_AUTH = "unable to parse auth field, must be formatted as base64(username:password)"


def plain(logins: Logins) -> dict[str, tuple[str, str, str]]:
    return {location: (auth.username, auth.password, auth.email) for location, auth in logins.items()}


def login(entry: str) -> tuple[str, str, str]:
    return plain(parse_legacy_config(f'{{"quay.io": {entry}}}'.encode()))["quay.io"]


def problem_of(parse: Callable[[bytes], Logins], raw: bytes) -> str:
    with pytest.raises(SecretJSONError) as caught:
        parse(raw)
    assert caught.value.__cause__ is caught.value.__context__ is None, "json's errors hold the whole text"
    return str(caught.value)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (ENTRY, ("foo", "bar", "foo@example.com")),
        ('{"auth": "Zm9vOmJhcg==", "email": "foo@example.com"}', ("foo", "bar", "foo@example.com")),
        ('{"username": "foo", "password": "bar", "auth": "cGluZzpwb25n"}', ("ping", "pong", "")),
        ('{"Username": "foo", "PASSWORD": "bar"}', ("foo", "bar", "")),
        ('{"username": null, "other": [1]}', ("", "", "")),
        ("null", ("", "", "")),
        (r'{"username": "\ud800"}', ("\ufffd", "", "")),
    ],
)
def test_an_entry_is_a_login(entry: str, expected: tuple[str, str, str]) -> None:
    assert login(entry) == expected


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ('{"auth": "pants", "email": "foo@example.com"}', BAD_AUTH),
        ('{"email": false}', "email is no string"),
        ('"hush"', "an entry is no JSON object"),
    ],
)
def test_a_broken_entry_breaks_the_whole(entry: str, problem: str) -> None:
    assert problem_of(parse_legacy_config, f'{{"a.io": {ENTRY}, "b.io": {entry}}}'.encode()) == problem


@pytest.mark.parametrize(
    "auth",
    [
        "Zm9vOmJhcg==",
        "Zm9vOmJhcg",
        "Zm9vOm\nJhcg==\n",
        "Zm9vOm\r\nJhcg",
        base64.b64encode(b"foo:bar").decode(),
    ],
)
def test_the_auth_field_may_be_padded_and_broken_into_lines(auth: str) -> None:
    assert decode_auth(auth) == ("foo", "bar")


def test_a_password_may_hold_colons() -> None:
    assert decode_auth(base64.b64encode(b"foo:a:b").decode()) == ("foo", "a:b")


@pytest.mark.parametrize("auth", ["cGFudHM=", "Zm9vOmJhcg== ", "pants", "Zm9v=Omx", "Zm9vOmJhcg=", "Zm9vOsO/ÿ", "/w=="])
def test_a_bad_auth_field_is_refused(auth: str) -> None:
    with pytest.raises(SecretJSONError, match="unable to parse auth field") as caught:
        decode_auth(auth)
    assert str(caught.value) == BAD_AUTH


def test_the_newer_form_has_its_entries_below_auths() -> None:
    raw = f'{{"auths": {{"http://foo.example.com": {ENTRY}}}, "HttpHeaders": {{}}}}'.encode()
    assert plain(parse_config(raw)) == {"http://foo.example.com": ("foo", "bar", "foo@example.com")}
    assert parse_config(b'{"credsStore": "pass"}') == {}


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (f'{{"auths": {{"hush": {ENTRY}'.encode(), "unexpected end of JSON input"),
        (b"", "unexpected end of JSON input"),
        (b'{"auths":\n  hush}', "no JSON at line 2 column 3"),
        (b'["hush"]', "the configuration is no JSON object"),
        (b'{"auths": "hush"}', "the list of credentials is no JSON object"),
        (b"[" * 100_000, "JSON that is nested too deeply"),
        (b'{"auths": ' + b"1" * 5000 + b"}", "a number that is too long"),
    ],
)
def test_errors_quote_nothing(raw: bytes, problem: str) -> None:
    assert problem_of(parse_config, raw) == problem


class Folders:
    """The four folders that are looked in."""

    def __init__(self, tmp_path: Path) -> None:
        self.preferred, self.working, self.home, self.root = (
            tmp_path / name for name in ("preferred", "working", "home", "root")
        )
        for folder in (self.preferred, self.working, self.home / ".docker", self.root / ".docker"):
            folder.mkdir(parents=True)

    def files(self) -> DockerConfigFiles:
        return DockerConfigFiles(self.preferred, home=self.home, working=self.working, root=self.root)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def write(path: Path, user: str) -> None:
    entries = f'{{"quay.io": {{"username": "{user}"}}}}'
    path.write_text(entries if path.name == ".dockercfg" else f'{{"auths": {entries}}}')


def found(files: DockerConfigFiles) -> list[str]:
    return [each.auth.username for each in files.keyring().lookup("quay.io/app")]


async def test_the_first_file_is_the_nodes(autojump_clock: MockClock, folders: Folders) -> None:
    assert found(folders.files()) == []
    for path in (
        folders.root / ".dockercfg",
        folders.home / ".dockercfg",
        folders.working / ".dockercfg",
        folders.preferred / ".dockercfg",
        folders.root / ".docker" / "config.json",
        folders.home / ".docker" / "config.json",
        folders.working / "config.json",
        folders.preferred / "config.json",
    ):
        user = str(path.relative_to(folders.root.parent))
        write(path, user)
        assert found(folders.files()) == [user]


async def test_a_file_that_cannot_be_used_is_passed_over(autojump_clock: MockClock, folders: Folders) -> None:
    (folders.preferred / "config.json").mkdir()
    os.mkfifo(folders.working / "config.json")
    (folders.home / ".docker" / "config.json").write_text("{hush")
    write(folders.root / ".docker" / "config.json", "good")
    assert found(folders.files()) == ["good"]


async def test_an_empty_configuration_ends_the_search(autojump_clock: MockClock, folders: Folders) -> None:
    (folders.preferred / "config.json").write_text("{}")
    write(folders.home / ".docker" / "config.json", "unseen")
    assert found(folders.files()) == []


async def test_files_are_read_again_after_five_minutes(autojump_clock: MockClock, folders: Folders) -> None:
    files = folders.files()
    assert found(files) == []
    write(folders.preferred / "config.json", "later")
    await trio.sleep(299)
    assert found(files) == []
    await trio.sleep(1)
    assert found(files) == ["later"]


async def test_a_node_without_a_home_has_its_own_folders(
    autojump_clock: MockClock, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    write(folders.preferred / "config.json", "own")
    assert found(DockerConfigFiles.of_node(folders.preferred)) == ["own"]
