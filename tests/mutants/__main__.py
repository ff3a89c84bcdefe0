"""`python -m tests.mutants [--night] [WORD…]`: try all mutants, or those whose name or file has one of the words.

Each is tried by the tests as they run by day. With `--night`, what survives that, or is not noticed by the property
machine, is tried by those tests as they run at night, with more examples, and new ones each time. The run fails when a
mutant survives.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.examples import EXAMPLES, FIRST_SEED, NIGHTLY, PROFILE
from tests.mutants.catalogue import MUTANTS, Mutant, Promise
from tests.mutants.trials import UNCHANGED, Failure, Trial
from tests.mutants.workshop import PROJECT

if TYPE_CHECKING:
    from collections.abc import Sequence

AT_NIGHT: Final = 1000
"""Examples of a property that says no number."""
WIDTH: Final = 160
"""Columns where the output is no terminal."""


class TrialError(Exception):
    """Nothing can be said of mutants: the tests do not pass on the unchanged package, or could not be run."""


@attrs.frozen
class Result:
    """What came of one mutant."""

    mutant: Mutant
    by_day: Trial
    at_night: Trial | None = None
    """None where it was not tried."""

    @property
    def problem(self) -> str | None:
        """Why nothing can be said of it."""
        return next((trial.problem for trial in self.trials if trial.problem is not None), None)

    @property
    def trials(self) -> list[Trial]:
        return [self.by_day] if self.at_night is None else [self.by_day, self.at_night]

    @property
    def killed(self) -> bool:
        return any(trial.killed for trial in self.trials)

    @property
    def machine_missed(self) -> bool:
        """Whether the property machine did not notice by day, though an invariant breaks."""
        return self.mutant.promise is not None and self.by_day.by_machine is None

    @property
    def only_at_night(self) -> bool:
        return self.killed and not self.by_day.killed

    @property
    def shown(self) -> bool:
        """Whether the property machine failed for the promise that the mutant breaks."""
        promise = self.mutant.promise
        failures = [trial.by_machine for trial in self.trials if trial.by_machine is not None]
        return promise is not None and any(_speaks_of(each, sign) for each in failures for sign in promise.value)


def _speaks_of(failure: Failure, sign: str) -> bool:
    return sign == failure.check or sign in failure.message


def try_all(mutants: Sequence[Mutant], *, night: bool, seed: int | None = None) -> list[Result]:
    """Return what came of each, in their order. Raises TrialError."""
    by_day = _try(mutants)
    results = [Result(mutant, by_day[mutant.name]) for mutant in mutants]
    if not night:
        return results
    again = [each.mutant for each in results if not each.by_day.killed or each.machine_missed]
    at_night = _try(again, {PROFILE: NIGHTLY, EXAMPLES: str(AT_NIGHT)}, seed) if again else {}
    return [attrs.evolve(result, at_night=at_night.get(result.mutant.name)) for result in results]


def _try(
    mutants: Sequence[Mutant], variables: dict[str, str] | None = None, seed: int | None = None
) -> dict[str, Trial]:
    """Try mutants in a process of its own, whose environment says how many examples there are."""
    with tempfile.TemporaryDirectory(prefix="trikubelet-mutants-") as directory:
        file = Path(directory, "trials")
        names = json.dumps([mutant.name for mutant in mutants])
        command = [sys.executable, "-m", "tests.mutants.trials", names, str(file)]
        if seed is not None:
            command.append(f"--hypothesis-seed={seed}")
        without = (PROFILE, EXAMPLES, FIRST_SEED)
        environment = {name: value for name, value in os.environ.items() if name not in without} | (variables or {})
        ended = subprocess.run(
            command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        lines = file.read_text().splitlines() if file.exists() else []
    trials = {trial.name: trial for trial in map(Trial.from_json, lines)}
    unchanged = trials.get(UNCHANGED)
    if unchanged is not None and unchanged.problem is not None:
        raise TrialError(unchanged.problem)
    if unchanged is not None and unchanged.by_facts is not None:
        raise TrialError(f"{UNCHANGED}: {unchanged.by_facts.test}: {unchanged.by_facts}")
    if any(mutant.name not in trials for mutant in mutants):
        raise TrialError(f"the tests could not be run:\n{ended.stdout.decode(errors='replace')[-2000:]}")
    return trials


def _caught(trial: Trial | None) -> str:
    if trial is None:
        return ""
    if trial.problem is not None:
        return "[red]could not be tried[/]"
    if not trial.killed:
        return "[red]survived[/]"
    lines = []
    if trial.by_facts is not None:
        lines.append(escape(trial.by_facts.test.partition("::")[2]))
    if trial.by_machine is not None:
        lines.append(f"[green]machine:[/] {escape(str(trial.by_machine))}")
    return "\n".join(lines)


def mutant_table(results: Sequence[Result], title: str) -> Table:
    """Who caught what."""
    table = Table("mutant", "killed by day by", title=title, show_lines=True)
    night = any(result.at_night is not None for result in results)
    if night:
        table.add_column("killed at night by")
    table.add_column("seconds", justify="right")
    table.columns[1].overflow = "fold"
    for result in results:
        name = f"{result.mutant.name}\n[dim]{result.mutant.file}: {escape(result.mutant.without)}[/]"
        caught = [_caught(result.by_day), *([_caught(result.at_night)] if night else [])]
        table.add_row(name, *caught, f"{sum(trial.seconds for trial in result.trials):.1f}")
    return table


def promise_table(results: Sequence[Result]) -> Table:
    """Which mutants showed that the property machine would notice a broken promise."""
    table = Table("promise", "seen to fail by the property machine on", title="Invariants")
    for promise in Promise:
        table.add_row(_sentence(promise), ", ".join(_showing(promise, results)) or "[red]no mutant[/]")
    return table


def complaints(results: Sequence[Result], promises: Sequence[Promise]) -> list[tuple[str, str]]:
    """Return what makes the run a failure: of what, and why."""
    found = [(each.mutant.name, each.problem) for each in results if each.problem is not None]
    found += [(each.mutant.name, "survived") for each in results if each.problem is None and not each.killed]
    found += [
        (_sentence(promise), "no mutant made the property machine fail for it")
        for promise in promises
        if not _showing(promise, results)
    ]
    return found


def _showing(promise: Promise, results: Sequence[Result]) -> list[str]:
    return [result.mutant.name for result in results if result.mutant.promise is promise and result.shown]


def _sentence(promise: Promise) -> str:
    return promise.name.replace("_", " ").lower()


def main(words: Sequence[str]) -> int:
    """Return 0 when every mutant was killed and every invariant was seen to fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--night", action="store_true", help="try those that survive by day as the tests run at night")
    parser.add_argument("--seed", type=int, help="for the examples of the night")
    parser.add_argument("words", nargs="*", metavar="WORD", help="a part of a mutant's name or file")
    options = parser.parse_args(words)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    asked = options.words
    mutants = [each for each in MUTANTS if not asked or any(word in each.name or word in each.file for word in asked)]
    if not mutants:
        console.print(f"no mutant has any of these words in its name or file: {' '.join(asked)}")
        return 2
    began = time.monotonic()
    try:
        results = try_all(mutants, night=options.night, seed=options.seed)
    except TrialError as problem:
        console.print(f"FAILED {problem}", style="red", markup=False)
        return 1
    console.print(mutant_table(results, f"{len(results)} mutants"))
    if not asked:
        console.print(promise_table(results))
    if only := [result for result in results if result.only_at_night]:
        console.print(mutant_table(only, "Only at night"))
    found = complaints(results, () if asked else tuple(Promise))
    for what, why in found:
        console.print(f"FAILED {what} - {why}", style="red", markup=False, soft_wrap=True)
    killed, at_night = sum(each.killed for each in results), len(only)
    counts = f"{killed} killed, {len(results) - killed} survived, {at_night} only at night"
    line = f"{counts} in {time.monotonic() - began:.0f}s"
    console.print(line, style="red" if found else "green", markup=False, soft_wrap=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
