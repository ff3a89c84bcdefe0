"""Pulls, crashes and restarts in any order: an image is open to its owners, and to nobody else; and one that was there
from the start stays open to all until another one has its name."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, cast

import attrs
import trio
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.clock import TrioClock
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
PRELOADED, PRIVATE = "sha256:0", "sha256:1"


@attrs.define
class Node:
    """A node whose image is never pulled but with the secrets of its owners."""

    store: RecordStore
    present: str = ""
    """The id of the image that has the name; empty for none."""
    let_in: set[str] = attrs.field(factory=set)
    """Owners who have a right to the image without a pull."""
    records: PullRecords = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.records = PullRecords(self.store, VerificationPolicy(), TrioClock())

    async def list_images(self) -> list[v1.Image]:
        return [v1.Image(id=self.present, repo_tags=["docker.io/library/private:1"])] if self.present else []

    async def play(self, step: str) -> None:
        what, _, owner = step.partition(" ")
        if what == "restart":
            self.records = PullRecords(self.store, VerificationPolicy(), TrioClock())
            await self.records.adopt(cast("ImageClient", self))
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


STEPS = ["pulled a", "pulled b", "refused", "cut", "lost", "late", "restart"]


@given(st.sampled_from(["", PRELOADED]), st.lists(st.sampled_from(STEPS), max_size=12))
def test_what_secrets_brought_is_open_to_their_owners_alone(present: str, steps: list[str]) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            node = Node(RecordStore(Path(folder)), present)
            for step in steps:
                await node.play(step)
                if node.present == PRELOADED:
                    assert not await node.must_pull()
                if node.present != PRIVATE:
                    continue
                assert await node.must_pull()
                assert await node.must_pull(STRANGER)
                for owner in OWNERS:
                    assert await node.must_pull(owner) is (owner.name not in node.let_in)

    trio.run(play)
