"""Images that are loaded ahead from a folder."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from tests.embedded.images.archives import layer, oci_archive
from tests.embedded.registry.conftest import PullFixture
from tests.embedded.registry.scripted_registry import Answer, scripted_registry
from tests.patience import PATIENCE
from trikubelet.embedded.preload import Preload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


class Loading:
    def __init__(self, path: Path) -> None:
        self.pulls = PullFixture.make(path)
        self.folder = path / "preload"
        self.folder.mkdir()
        self.state = path / "preloaded.json"

    def put(self, name: str, content: bytes) -> None:
        """A file that appears at once."""
        part = self.folder / f"{name}.part"
        part.write_bytes(content)
        part.replace(self.folder / name)

    def archive(self, name: str, image: str) -> None:
        path = oci_archive(self.folder.parent / "made.tar", [layer(image)], image)
        self.put(name, path.read_bytes())

    def has(self, *images: str) -> bool:
        return all(self.pulls.store.resolve(image) is not None for image in images)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        preload = Preload(self.folder, self.state, self.pulls.store, self.pulls.puller)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(preload.run)
            yield
            nursery.cancel_scope.cancel()


@pytest.fixture
def loading(tmp_path: Path) -> Loading:
    return Loading(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.01)


async def test_archives_are_imported_when_they_are_there_and_when_they_come(loading: Loading) -> None:
    loading.archive("a.tar", "a:1")
    async with loading.running():
        await until(lambda: loading.has("a:1"))
        loading.archive("b.tar", "b:1")
        await until(lambda: loading.has("b:1"))


async def test_what_was_done_and_has_not_changed_is_left_alone(loading: Loading) -> None:
    loading.archive("a.tar", "a:1")
    async with loading.running():
        await until(loading.state.exists)
    await loading.pulls.store.remove("a:1")
    loading.archive("b.tar", "b:1")
    async with loading.running():
        await until(lambda: loading.has("b:1"))
        assert not loading.has("a:1")
        os.utime(loading.folder / "a.tar")
        loading.archive("c.tar", "c:1")
        await until(lambda: loading.has("a:1", "c:1"))


async def test_what_is_no_archive_stops_nobody(loading: Loading) -> None:
    loading.put("a.tar", b"nonsense")
    loading.put("readme", b"nonsense")
    loading.archive("b.tar", "b:1")
    async with loading.running():
        await until(lambda: loading.has("b:1"))
        await until(loading.state.exists)


async def test_references_in_lists_are_pulled(loading: Loading) -> None:
    async with scripted_registry() as registry:
        for tag in ("1", "2"):
            registry.put_image("app", tag, [layer(tag)])
        lines = f"# ahead\n{registry.host}/app:1\n\n{registry.host}/app:2 # the second\nNo Name\n"
        loading.put("list.txt", lines.encode())
        async with loading.running():
            await until(lambda: loading.has(f"{registry.host}/app:1", f"{registry.host}/app:2"))


async def test_a_reference_that_cannot_be_pulled_is_tried_again(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trikubelet.backoff import Backoff

    monkeypatch.setattr("trikubelet.embedded.preload._RETRIES", Backoff(first=0.01, longest=0.01))
    async with scripted_registry() as registry:
        registry.put_image("app", "1")
        refusals = iter([Answer(404)] * 3)
        registry.guard = lambda asked: next(refusals, None)
        loading.put("list.txt", f"{registry.host}/app:1".encode())
        async with loading.running():
            await until(lambda: loading.has(f"{registry.host}/app:1"))
