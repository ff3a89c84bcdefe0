from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.node_api.auth.people import authority, client
from trikubelet.node_api.auth import client_ca
from trikubelet.node_api.auth.client_ca import REREAD_SECONDS, Bundle, ClientCA, ClientCAError

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.broadcast import Subscription


def bundle_file(folder: Path, *names: str) -> Path:
    path = folder / "ca.pem"
    path.write_bytes(b"".join(authority(name).pem for name in names or ("cluster",)))
    return path


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "empty file"),
        (b" \n", "empty file"),
        (b"nothing of the kind", "expected certificates in PEM"),
        (authority().pem[:-60], "expected certificates in PEM"),
        (authority().pem + authority().pem[:200] + b"\n-----END CERTIFICATE-----\n", "expected certificates in PEM"),
    ],
)
def test_a_file_that_is_no_bundle_is_named_with_what_is_wrong(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ClientCAError, match=words) as caught:
        ClientCA(path)
    assert str(path) in str(caught.value)


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_ca, "LARGEST", 1000)
    with pytest.raises(ClientCAError, match="at most 1000 bytes"):
        ClientCA(bundle_file(tmp_path, "a", "b", "c"))


def test_text_between_certificates_and_other_things_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(b"# ours\n" + authority().pem + b"# theirs\n" + authority("others").pem)
    assert len(ClientCA(path).bundle.certificates) == 2


async def test_the_last_good_bundle_stays_until_the_next_good_one(tmp_path: Path) -> None:
    path = bundle_file(tmp_path)
    authorities = ClientCA(path)
    changes = authorities.changed.subscribe()
    first = authorities.bundle
    for garbage in (b"", b"half a certi", client().pem[:-40]):
        path.write_bytes(garbage)
        await authorities.reread()
        assert authorities.bundle is first
        assert authorities.problem
    path.unlink()
    await authorities.reread()
    assert authorities.bundle is first
    bundle_file(tmp_path)
    await authorities.reread()
    assert (authorities.bundle, authorities.problem, len(changes)) == (first, "", 0)
    bundle_file(tmp_path, "others")
    await authorities.reread()
    assert await changes.receive() == authorities.bundle
    assert len(changes) == 0
    assert authorities.bundle.pem == authority("others").pem


async def test_a_change_is_seen_at_once(tmp_path: Path, nursery: trio.Nursery) -> None:
    path = bundle_file(tmp_path)
    authorities = ClientCA(path)
    changes = authorities.changed.subscribe()
    await nursery.start(authorities.run)
    await trio.sleep(0.05)
    (tmp_path / "something else").touch()
    (tmp_path / "new").write_bytes(authority("others").pem)
    os.replace(tmp_path / "new", path)  # noqa: PTH105
    with trio.fail_after(5):
        await changes.receive()


async def test_a_volume_that_replaces_all_its_files_at_once_is_seen(tmp_path: Path, nursery: trio.Nursery) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    bundle_file(tmp_path / "one")
    bundle_file(tmp_path / "two", "others")
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "ca.pem").symlink_to("..data/ca.pem")
    authorities = ClientCA(tmp_path / "ca.pem")
    changes = authorities.changed.subscribe()
    await nursery.start(authorities.run)
    await trio.sleep(0.05)
    (tmp_path / "..new").symlink_to("two")
    os.replace(tmp_path / "..new", tmp_path / "..data")  # noqa: PTH105
    with trio.fail_after(5):
        await changes.receive()


async def test_a_change_that_nobody_told_of_is_seen_after_a_minute(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mock_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
) -> None:
    def no_inotify() -> None:
        raise OSError(24, "too many")

    monkeypatch.setattr(client_ca, "Inotify", no_inotify)
    path = bundle_file(tmp_path)
    authorities = ClientCA(path)
    changes = authorities.changed.subscribe()
    bundle_file(tmp_path, "others")
    await nursery.start(authorities.run)
    assert (await next_of(changes)).pem == authority("others").pem  # it reads when it begins
    bundle_file(tmp_path)
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(REREAD_SECONDS - 1)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert len(changes) == 0
    mock_clock.jump(1.5)
    assert (await next_of(changes)).pem == authority().pem


async def next_of(changes: Subscription[Bundle]) -> Bundle:
    """The next bundle, while the clock stands and a thread reads."""
    for _ in range(100):
        if len(changes):
            return await changes.receive()
        await trio.testing.wait_all_tasks_blocked(0.05)
    raise AssertionError("nothing was read")
