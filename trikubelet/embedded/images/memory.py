"""What an import keeps in memory, counted against one limit.

An archive of a few KB can name millions of files, each with long names. So whatever is kept for each of them is taken
from one budget, and of names only digests are kept.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trikubelet.embedded.images.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterator

_FREE = 0
_SMALLEST_TABLE = 64


class MemoryBudget:
    """The bytes that one import keeps at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    def take(self, size: int) -> None:
        """Raise ArchiveError if the import keeps more than its limit with so many bytes more."""
        self.used += size
        if self.used > self._limit:
            raise ArchiveError(
                f"the image has so many or so long names, attributes or documents that its import would take more than "
                f"{self._limit >> 20} MiB of memory"
            )

    def give_back(self, size: int) -> None:
        self.used -= size

    @contextmanager
    def for_a_while(self) -> Iterator[None]:
        """Give back at the end what is taken inside, which nobody keeps any longer than that."""
        before = self.used
        try:
            yield
        finally:
            self.used = before


class NameSet:
    """A set of names. It keeps eight bytes of a digest for each, in a table of which two thirds are in use at most.

    The digests have a random key, so nobody can choose names with the same one; by chance, a name among a million has
    the digest of another one in one import of thirty million. Raises ArchiveError when the budget is used up.
    """

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._key = os.urandom(16)
        self._table = array("Q")
        self._names = 0
        self.clear()

    def __len__(self) -> int:
        return self._names

    def __contains__(self, name: str) -> bool:
        return self._table[self._slot(self._digest(name))] != _FREE

    def add(self, name: str) -> None:
        digest = self._digest(name)
        slot = self._slot(digest)
        if self._table[slot] != _FREE:
            return
        self._table[slot] = digest
        self._names += 1
        if 3 * self._names > 2 * len(self._table):
            self._double()

    def clear(self) -> None:
        """Forget all names, and give the memory back."""
        self._memory.give_back(len(self._table) * self._table.itemsize)
        self._table = self._new_table(_SMALLEST_TABLE)
        self._names = 0

    def _digest(self, name: str) -> int:
        data = name.encode("utf-8", "surrogateescape")
        digest = int.from_bytes(hashlib.blake2b(data, digest_size=8, key=self._key).digest(), "little")
        return digest or 1

    def _slot(self, digest: int) -> int:
        """Where the digest is, or the free slot that it would get."""
        table, mask = self._table, len(self._table) - 1
        slot = digest & mask
        while table[slot] not in (_FREE, digest):
            slot = (slot + 1) & mask
        return slot

    def _double(self) -> None:
        before = self._table
        self._table = self._new_table(2 * len(before))
        for digest in before:
            if digest != _FREE:
                self._table[self._slot(digest)] = digest
        self._memory.give_back(len(before) * before.itemsize)

    def _new_table(self, size: int) -> array[int]:
        table = array("Q", [_FREE])
        self._memory.take(size * table.itemsize)
        return table * size
