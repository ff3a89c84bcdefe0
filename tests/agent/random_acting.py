"""Random commands of a person on an agent's pods, and what they may do to the person's own files."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from random import Random

NAMES: Final = ("web", "db", "job", "cache")
BROKEN: Final = ("kind: [", "", "kind: Deployment\n", "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n", "\0")
FILES: Final = ("web.yaml", "all.yaml", "trikubelet-web.yaml", "notes.txt", "db.json")


def manifest(*names: str, image: str = "test:1") -> str:
    return "---\n".join(
        f"# {name}, by hand\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n"
        f"spec: {{containers: [{{name: main, image: {image!r}}}], terminationGracePeriodSeconds: 0}}\n"
        for name in names
    )


def some_manifest(rng: Random) -> str:
    if rng.random() < 0.2:
        return rng.choice(BROKEN)
    return manifest(*rng.sample(NAMES, rng.choice((1, 1, 1, 2))), image=f"test:{rng.randint(1, 3)}")


def sums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a folder, by name."""
    if not folder.is_dir():
        return {}
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


@attrs.define
class PersonsFolder:
    """A person's folder, and where `delete --remove-file` moves its files."""

    folder: Path
    removed: Path
    own: Path | None = None
    """In a cluster: copies of the command line's files in `folder`, which are no person's as long as they are equal."""
    before: dict[str, str] = attrs.field(factory=dict)
    removed_before: dict[str, str] = attrs.field(factory=dict)
    moved: int = 0

    def edit(self, rng: Random) -> None:
        """The person saves a file, or removes one by hand."""
        self.folder.mkdir(exist_ok=True)
        file = self.folder / rng.choice(FILES)
        if rng.random() < 0.8:
            file.write_text(some_manifest(rng))
        else:
            file.unlink(missing_ok=True)

    def remember(self) -> None:
        self.before, self.removed_before = self._persons(), sums(self.removed)

    def check(self, command: str, *, may_move: bool) -> None:
        """Fail if the command since `remember` changed a file of the person; it may move one if told to."""
        now, removed = self._persons(), sums(self.removed)
        for name, digest in self.removed_before.items():
            assert removed[name] == digest, f"{command} changed {name}, which was moved away before"
        fresh = sorted(removed[name] for name in removed.keys() - self.removed_before.keys())
        gone = sorted(digest for name, digest in self.before.items() if name not in now)
        assert fresh == gone, f"{command} lost a file, or made one up"
        assert may_move or not gone, f"{command} moved a file without being told to"
        changed = [name for name in now if now[name] != self.before.get(name)]
        assert changed == [], f"{command} changed {changed}"
        self.moved += len(gone)

    def _persons(self) -> dict[str, str]:
        found = sums(self.folder)
        own = {} if self.own is None else sums(self.own)
        return {name: digest for name, digest in found.items() if own.get(name) != digest}
