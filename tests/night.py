"""Runs the parts of a night: each is a process of its own with a seed and a deadline, and a row of one table.

What a part prints goes into a file, whose first line is what runs the part once more. A part that takes longer than it
may is interrupted, so that it can still tell what it has found, and ended when it does not. `tests.nightly` has the
parts themselves.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROJECT: Final = Path(__file__).parents[1]
SEED: Final = "{seed}"
"""Stands for the seed in commands and environments."""
LAST_WORDS: Final = 60.0
"""Seconds for telling what was found, when a part's time is over."""

_COUNTS: Final = re.compile(r"^(?:=+ )?(\d+ [a-z ]+?(?:, \d+ [a-z ]+?)*) in [\d.]+ ?s", re.MULTILINE)
_FAILURE: Final = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+(?:\[.*?\](?= - |$))?|.+?)(?: - .*)?$", re.MULTILINE)
_LEFT: Final = re.compile(r"^[-=]+ left on the machine.*[-=]+\n(.+)$", re.MULTILINE)


@attrs.frozen(kw_only=True)
class Part:
    """What one process runs."""

    name: str
    """Its file is called so, too."""
    what: str
    """With its numbers."""
    command: tuple[str, ...]
    """For Python."""
    minutes: float
    """Its deadline."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    without: str | None = None
    """A variable that it does not get."""
    needs: str | None = None
    """A variable without which it is not run."""
    on_machine: bool = False
    """Whether it uses what the machine has only once: no two of these run at once."""
    alone: bool = False
    """Whether nothing else may run, since it looks what is left on the machine."""


@attrs.frozen(kw_only=True)
class Row:
    """What came of a part."""

    part: Part
    seed: int
    seconds: float = 0.0
    ran: str = ""
    """How many tests did what, in pytest's words."""
    failure: str | None = None
    """What failed first, or why the part counts as failed."""
    missing: str | None = None
    """Why it was not run."""
    file: Path | None = None


class Night:
    """Runs parts, and remembers what came of them."""

    def __init__(self, parts: Sequence[Part], seed: int, folder: Path, tell: Callable[[str], object] = print) -> None:
        self._parts = list(parts)
        self._seed = seed
        self._folder = folder
        self._tell = tell
        self._rows: dict[str, Row] = {}

    @property
    def rows(self) -> list[Row]:
        """In the order of the parts."""
        return [self._rows[part.name] for part in self._parts if part.name in self._rows]

    async def run(self, at_once: int, minutes: float) -> None:
        """Run all parts, so many at once, until so many minutes are over.

        Whoever cancels it waits until the parts that run have told what they have found and have ended.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        until = trio.current_time() + 60 * minutes
        alone = [part for part in self._parts if part.alone]
        on_machine = [part for part in self._parts if part.on_machine and not part.alone]
        others = [part for part in self._parts if not part.on_machine and not part.alone]

        async def lane(*queues: list[Part]) -> None:
            for queue in queues:
                while queue:
                    await self._one(queue.pop(0), until)

        await lane(alone)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lane, on_machine, others)
            for _ in range(at_once - 1):
                nursery.start_soon(lane, others)

    async def _one(self, part: Part, until: float) -> None:
        if part.needs is not None and not os.environ.get(part.needs):
            self._rows[part.name] = Row(part=part, seed=self._seed, missing=f"{part.needs} names no {part.name}")
            return
        if trio.current_time() >= until:
            self._rows[part.name] = Row(part=part, seed=self._seed, failure="the night was over before it began")
            return
        row = self._rows[part.name] = await run_part(part, self._seed, self._folder / f"{part.name}.txt", until)
        self._tell(f"{part.name}: {row.failure or 'passed'} ({row.seconds:.0f} s)")


async def run_part(part: Part, seed: int, file: Path, until: float) -> Row:
    """Run a part, and end it when its time or that of the whole night is over. Return what came of it."""
    command = [sys.executable, *(word.replace(SEED, str(seed)) for word in part.command)]
    variables = {name: value.replace(SEED, str(seed)) for name, value in part.environment.items()}
    environment = {name: value for name, value in {**os.environ, **variables}.items() if name != part.without}
    began = trio.current_time()
    allowed = min(60 * part.minutes, until - began)
    with file.open("wb") as output:
        settings = [f"{name}={value}" for name, value in variables.items()]
        output.write(f"{shlex.join([*settings, *command])}\n\n".encode())
        output.flush()
        process = await trio.lowlevel.open_process(
            command, cwd=PROJECT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            with trio.move_on_after(allowed) as time:
                await process.wait()
        finally:
            await _end(process)
    text = file.read_text(encoding="utf-8", errors="replace")
    counts = _COUNTS.findall(text)
    failure = first_failure(text, process.returncode or 0)
    if time.cancelled_caught:
        late = f"took longer than {_duration(allowed)}"
        failure = late if (found := _FAILURE.search(text)) is None else f"{late}; {found[1]}"
    seconds = trio.current_time() - began
    return Row(part=part, seed=seed, seconds=seconds, ran=counts[-1] if counts else "", failure=failure, file=file)


async def _end(process: trio.Process) -> None:
    """Have a process that still runs tell what it has found, then end what is left of it."""
    with trio.CancelScope(shield=True):
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            with trio.move_on_after(LAST_WORDS):
                await process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def first_failure(text: str, status: int) -> str | None:
    """Return what failed first by what a part has printed, or None where it passed."""
    if status == 0:
        return None
    if (found := _FAILURE.search(text)) is not None:
        return found[1]
    if (found := _LEFT.search(text)) is not None:
        return f"left on the machine: {found[1]}"
    return f"ended with {status}"


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


def table_of(rows: Sequence[Row]) -> Table:
    """Return a row for each part."""
    table = Table("part", "what", "ran", "seconds", "result", "printed in", title="The night", show_lines=True)
    table.columns[3].justify = "right"
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        ran, seconds, file = row.ran, f"{row.seconds:.0f}", "" if row.file is None else _relative(row.file)
        if row.missing is not None:
            result, seconds = f"[yellow]not run: {escape(row.missing)}[/]", ""
        elif row.failure is not None:
            result = f"[red]FAILED: {escape(row.failure)}[/]\nseed {row.seed}"
        else:
            result = f"[green]passed[/]\nseed {row.seed}"
        table.add_row(row.part.name, escape(row.part.what), ran, seconds, result, file)
    return table


def _relative(file: Path) -> str:
    return str(file.relative_to(PROJECT) if file.is_relative_to(PROJECT) else file)


def verdict(parts: Sequence[Part], rows: Sequence[Row], minutes: float) -> tuple[bool, str]:
    """Return whether the night passed, and a line that says so."""
    of_parts = {row.part.name: row for row in rows}
    failed = [part.name for part in parts if part.name not in of_parts or of_parts[part.name].failure is not None]
    missing = [row.part.name for row in rows if row.missing is not None]
    not_run = f"; not run: {', '.join(missing)}" if missing else ""
    if failed:
        return False, f"FAILED after {minutes:.0f} minutes: {', '.join(failed)}{not_run}"
    return True, f"passed after {minutes:.0f} minutes, {len(parts) - len(missing)} of {len(parts)} parts{not_run}"
