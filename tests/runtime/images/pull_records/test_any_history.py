"""Pulls, crashes, restarts and imports in any order: an image is open to its owners, and to nobody else; and one that
was there from the start, or was imported by the node's administrator, stays open to all until another has its name."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import attrs
import trio
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.rpc.cri import v1
from trikubelet.runtime.images.pull_records.model import (
    ImageCredentials,
    PodCredentials,
    PullSecret,
    VerificationPolicy,
)
from trikubelet.runtime.images.pull_records.records import PullRecords
from trikubelet.runtime.images.pull_records.store import RecordStore

if TYPE_CHECKING:
    from trikubelet.rpc.cri.client import ImageClient

IMAGE = "private:1"
OWNERS = tuple(PullSecret(f"uid-{name}", "default", name, f"hash-{name}") for name in "ab")
STRANGER = PullSecret("uid-c", "default", "c", "hash-c")
PRELOADED, PRIVATE, IMPORTED = "sha256:0", "sha256:1", "sha256:2"
NAME = "docker.io/library/private:1"


@attrs.define
class Clock:
    time: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time


@attrs.define
class Node:
    """A node whose image is never pulled but with the secrets of its owners."""

    store: RecordStore
    present: str = ""
    """The id of the image that has the name; empty for none."""
    let_in: set[str] = attrs.field(factory=set)
    """Owners who have a right to the image without a pull."""
    opened: bool = False
    """Whether the administrator brought the private image himself."""
    clock: Clock = attrs.field(factory=Clock)
    records: PullRecords = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.records = PullRecords(self.store, VerificationPolicy(), self.clock)

    async def list_images(self) -> list[v1.Image]:
        return [v1.Image(id=self.present, repo_tags=[NAME])] if self.present else []

    async def play(self, step: str) -> None:
        what, _, owner = step.partition(" ")
        if what == "restart":
            self.begin()
            await self.records.settle(cast("ImageClient", self))
        elif what == "hour":
            self.clock.time += timedelta(hours=1)
            await self.records.settle(cast("ImageClient", self))
        elif what == "import":
            self.present = {"other": IMPORTED, "same": PRIVATE}[owner]
            self.opened = self.opened or self.present == PRIVATE
            self.records.imported({NAME: self.present})
        elif what == "removed":  # and collected
            self.present, self.let_in, self.opened = "", set(), False
            await self.records.prune([], self.clock.time + timedelta(days=1))
        elif what == "brought":  # with the runtime's own tools
            self.present = self.present or PRELOADED
        elif what == "refused":
            with self.records.pulling(IMAGE, present=self.present) as pull:
                pull.failed()
        elif what == "late":  # a pull that was cut off brings its image after all
            self.present = PRIVATE if self.store.has_intent(IMAGE) else self.present
        elif what in {"cut", "lost"}:
            with self.records.pulling(IMAGE, present=self.present):
                self.present = PRIVATE if what == "lost" else self.present
        else:
            [secret] = [secret for secret in OWNERS if secret.name == owner]
            with self.records.pulling(IMAGE, present=self.present) as pull:
                self.present = PRIVATE
                pull.succeeded(PRIVATE, ImageCredentials((secret,)))
            self.let_in.add(owner)

    async def must_pull(self, *secrets: PullSecret) -> bool:
        async def credentials() -> PodCredentials:
            return PodCredentials(secrets)

        return await self.records.must_pull(IMAGE, self.present, credentials)


STEPS = ["pulled a", "pulled b", "refused", "cut", "lost", "late", "restart", "hour"]
STEPS_OF_ADMINISTRATORS = ["import other", "import same", "removed"]


@given(
    st.sampled_from(["", PRELOADED]),
    st.lists(st.sampled_from([*STEPS, *STEPS_OF_ADMINISTRATORS]), max_size=12),
)
def test_what_secrets_brought_is_open_to_their_owners_alone(present: str, steps: list[str]) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            node = Node(RecordStore(Path(folder)), present)
            for step in steps:
                await node.play(step)
                if node.present in {PRELOADED, IMPORTED}:
                    assert not await node.must_pull()
                if node.present != PRIVATE or node.opened:
                    continue
                assert await node.must_pull()
                assert await node.must_pull(STRANGER)
                for owner in OWNERS:
                    assert await node.must_pull(owner) is (owner.name not in node.let_in)

    trio.run(play)


@given(st.lists(st.sampled_from(["cut", "refused", "restart", "hour"]), max_size=8))
def test_what_is_brought_an_hour_after_a_pull_that_was_cut_off_is_open(steps: list[str]) -> None:
    """Nothing came meanwhile: the image of a later import by the runtime's own tools is nobody's."""

    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            node = Node(RecordStore(Path(folder)))
            for step in [*steps, "hour", "refused", "brought", "refused", "restart"]:
                await node.play(step)
            assert not await node.must_pull()

    trio.run(play)
