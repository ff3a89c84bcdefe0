"""A tree of plain files that behaves as cgroup v2 does: controllers pass from a group to those below it, as far as it
turns them on. Writes are remembered."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from trikubelet.cgroups.kernel_files import KernelFiles

CONTROLLERS: Final = ("cpu", "cpuset", "hugetlb", "io", "memory", "pids")
_ALWAYS: Final = {
    "cgroup.subtree_control": "",
    "cgroup.procs": "",
    "cgroup.events": "populated 0\nfrozen 0\n",
    "cgroup.kill": "",
    "cgroup.freeze": "0\n",
}
_FILES: Final = {
    "cpu": {"cpu.weight": "100\n", "cpu.max": "max 100000\n"},
    "memory": {"memory.max": "max\n", "memory.current": "4096\n", "memory.min": "0\n", "memory.low": "0\n"},
    "pids": {"pids.max": "max\n"},
    "cpuset": {"cpuset.cpus": "\n"},
    "hugetlb": {"hugetlb.2MB.max": "max\n"},
    "io": {},
}


class FakeKernel(KernelFiles):
    def __init__(self, root: Path, controllers: tuple[str, ...] = CONTROLLERS) -> None:
        self.root = root
        self.writes: list[tuple[str, str]] = []
        self.refuses: dict[str, OSError] = {}
        """Errors by the name of the file."""
        self.takes_marks = True
        self._marks: dict[str, set[str]] = {}
        """By group: a file system for tests may have no extended attributes."""
        self._furnish(root, controllers)

    def _furnish(self, folder: Path, controllers: tuple[str, ...]) -> None:
        files = dict(_ALWAYS)
        for controller in controllers:
            files |= _FILES[controller]
        files["cgroup.controllers"] = " ".join(controllers) + "\n"
        for name, text in files.items():
            if not (folder / name).exists() or name == "cgroup.controllers":
                (folder / name).write_text(text)

    def mark(self, path: str, owner: str) -> bool:
        if self.takes_marks:
            self._marks[path] = {owner}
        return self.takes_marks

    def marks(self, path: str) -> set[str]:
        if not Path(path).exists():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return self._marks.get(path, set())

    def make(self, path: str) -> bool:
        made = super().make(path)
        if made:
            above = (Path(path).parent / "cgroup.subtree_control").read_text().split()
            self._furnish(Path(path), tuple(above))
        return made

    def delete(self, path: str) -> None:
        folder = Path(path)
        if not folder.exists():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if self.folders(path):
            raise OSError(errno.EBUSY, "Device or resource busy", path)
        if self.processes(path):
            raise OSError(errno.EBUSY, "Device or resource busy", path)
        for file in folder.iterdir():
            file.unlink()
        super().delete(path)
        self._marks.pop(path, None)

    def write(self, path: str, text: str) -> None:
        file = Path(path)
        if not file.exists():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if file.name in self.refuses:
            raise self.refuses[file.name]
        self.writes.append((f"/{file.relative_to(self.root)}", text))
        if file.name == "cgroup.subtree_control":
            enabled = {*file.read_text().split(), *(word.removeprefix("+") for word in text.split())}
            missing = enabled - set((file.parent / "cgroup.controllers").read_text().split())
            if missing:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            text = " ".join(sorted(enabled))
            for child in self.folders(str(file.parent)):
                self._furnish(file.parent / child, tuple(sorted(enabled)))
        file.write_text(text)
