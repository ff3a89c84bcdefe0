"""Images that a container is about to be made of. They are not garbage, though no container uses them yet.

An image's minimum age is there for this, but it is no promise: it can be set to nothing, and it does not help an image
that has lain on the node for long, was found present a moment ago, and is removed before its container exists. So who
makes a container holds the name of its image for all that time, and who removes images learns which names are held.

The two meet in one lock, held for the removal of one image, and by a start only while it notes a name: an image is
either noted before its removal is decided, or looked for after it is gone.
"""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class ImageHolds:
    """Names of images in use by what has no container yet. One for the node."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._since: set[str] | None = None
        """All names held since the present collection began: their containers may be younger than what it knows."""
        self._deciding = trio.Lock()

    @asynccontextmanager
    async def hold(self, *images: str) -> AsyncIterator[None]:
        """Keep images, by the names that pods give them, from before they are looked for until the container exists.

        Waits while an image is being removed.
        """
        async with self._deciding:
            self._held.update(images)
            if self._since is not None:
                self._since.update(images)
        try:
            yield
        finally:
            self._held.subtract(images)
            for image in images:
                if not self._held[image]:
                    del self._held[image]

    @contextmanager
    def collection(self) -> Iterator[None]:
        """The time from looking which images are used to the last removal. One at a time."""
        self._since = set(self._held)
        try:
            yield
        finally:
            self._since = None

    @asynccontextmanager
    async def removal(self) -> AsyncIterator[frozenset[str]]:
        """The time of deciding on one image and removing it, within a collection; gives the names that must stay."""
        async with self._deciding:
            yield frozenset(self._since or ())
