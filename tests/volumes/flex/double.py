"""A flexVolume driver: a script that writes down how it was called, and answers as a test says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tests.volumes.fake_mounter import FakeMounter
from tests.volumes.stage import FakeStorage, InlineDisk
from trikubelet.clock import SystemClock
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.flex.answers import parse_answer
from trikubelet.volumes.flex.driver import FlexDriver
from trikubelet.volumes.flex.kind import FlexKind
from trikubelet.volumes.flex.tools import FlexTools
from trikubelet.volumes.stats import VolumeMeter

if TYPE_CHECKING:
    from trikubelet.linux.mounter import Mounter
    from trikubelet.volumes.disk import Disk

NAME = "vendor/disks"
SUCCESS = '{"status": "Success"}'

_SCRIPT = """#!/bin/sh
{{ for word in "$@"; do printf '%s\\t' "$word"; done; echo; }} >> {folder}/calls
[ -e "{folder}/does/$1" ] && . "{folder}/does/$1" && exit
echo '{{"status": "Not supported"}}'
exit 1
"""


@attrs.frozen
class DriverDouble:
    """`folder`: `volumePluginDir`. What the script keeps lies beside it."""

    folder: Path
    name: str = NAME

    @property
    def own(self) -> Path:
        return self.folder.parent / f"{self.folder.name}-{self.name.replace('/', '-')}"

    @property
    def program(self) -> Path:
        return self.folder / self.name.replace("/", "~") / self.name.rpartition("/")[2]

    def install(self, **capabilities: bool) -> DriverDouble:
        """At once, as drivers should be: written under a hidden name."""
        self.answers("init", {"status": "Success", "capabilities": capabilities})
        hidden = self.folder / f".{self.program.parent.name}"
        hidden.mkdir(parents=True)
        program = hidden / self.program.name
        program.write_text(_SCRIPT.format(folder=self.own))
        program.chmod(0o755)
        hidden.rename(self.program.parent)
        return self

    def does(self, command: str, script: str) -> None:
        path = self.own / "does" / command
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{script}\n")

    def answers(self, command: str, answer: dict[str, Any] | None = None) -> None:
        self.does(command, f"echo '{json.dumps(answer or {'status': 'Success'})}'")

    def calls(self) -> list[list[str]]:
        """Since the last time."""
        path = self.own / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line.split("\t")[:-1] for line in lines]

    def kind(
        self,
        root: Path,
        mounter: Mounter | None = None,
        storage: FakeStorage | None = None,
        *,
        disk: Disk | None = None,
        **capabilities: bool,
    ) -> FlexKind:
        answer = json.dumps({"status": "Success", "capabilities": capabilities})
        found = parse_answer("init", answer.encode()).capabilities
        return FlexKind(FlexDriver(self.name, self.program, found), tools(root, mounter, storage, disk=disk))


def tools(
    root: Path, mounter: Mounter | None = None, storage: FakeStorage | None = None, *, disk: Disk | None = None
) -> FlexTools:
    return FlexTools(
        root=root,
        mounter=mounter or FakeMounter(),
        disk=disk or InlineDisk(),
        meter=VolumeMeter(SystemClock()),
        recorder=EventRecorder(SystemClock()),
        storage=storage or FakeStorage(),
        controller_attaches=True,
    )


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
