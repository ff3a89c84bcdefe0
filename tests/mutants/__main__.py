"""`python -m tests.mutants [WORD…]`: run all mutants, or those whose name or file contains one of the words."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from tests.mutants import workshop
from tests.mutants.catalogue import MUTANTS, Mutant, Promise
from tests.mutants.workshop import MACHINE, Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

AT_ONCE: Final = min(2, os.cpu_count() or 1)


@attrs.frozen
class Result:
    """What came of one mutant."""

    mutant: Mutant
    seconds: float
    by_facts: Failure | None = None
    by_machine: Failure | None = None
    problem: str | None = None
    """Why nothing can be said of it."""

    @property
    def killed(self) -> bool:
        return self.by_facts is not None or self.by_machine is not None

    @property
    def shown(self) -> bool:
        """Whether the property machine failed for the promise that the mutant breaks."""
        failure, promise = self.by_machine, self.mutant.promise
        return failure is not None and promise is not None and any(_speaks_of(failure, sign) for sign in promise.value)


def _speaks_of(failure: Failure, sign: str) -> bool:
    return sign == failure.check or sign in failure.message


async def try_mutant(mutant: Mutant, model: Path) -> Result:
    """Build one mutant and let the tests look at it: the machine too when it is about one of its invariants."""
    began = trio.current_time()
    with tempfile.TemporaryDirectory(prefix="trikubelet-mutant-") as directory:
        root = Path(directory) / "copy"
        try:
            workshop.copy_model(model, root)
            workshop.apply(mutant, root)
            by_facts = await workshop.run_tests(root, workshop.facts_of(mutant), mutant.name)
            asks_machine = workshop.is_pure(mutant) and (by_facts is None or mutant.promise is not None)
            by_machine = await workshop.run_tests(root, MACHINE, mutant.name) if asks_machine else None
        except (workshop.EditError, workshop.RunError) as problem:
            return Result(mutant, trio.current_time() - began, problem=str(problem))
    return Result(mutant, trio.current_time() - began, by_facts, by_machine)


async def try_all(mutants: Sequence[Mutant], tell: Callable[[Result], object]) -> list[Result]:
    """Try each, AT_ONCE at a time; the results are in the order of the catalogue."""
    results: dict[str, Result] = {}
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def one(mutant: Mutant, model: Path) -> None:
        async with limiter:
            results[mutant.name] = await try_mutant(mutant, model)
        tell(results[mutant.name])

    with tempfile.TemporaryDirectory(prefix="trikubelet-model-") as directory:
        model = Path(directory)
        await workshop.make_model(model, mutants)
        async with trio.open_nursery() as nursery:
            for mutant in mutants:
                nursery.start_soon(one, mutant, model)
    return [results[mutant.name] for mutant in mutants]


def _caught(result: Result) -> str:
    if result.problem is not None:
        return "[red]could not be tried[/]"
    if not result.killed:
        return "[red]survived[/]"
    lines = []
    if result.by_facts is not None:
        lines.append(escape(result.by_facts.test.partition("::")[2]))
    if result.by_machine is not None:
        lines.append(f"[green]machine:[/] {escape(str(result.by_machine))}")
    return "\n".join(lines)


def mutant_table(results: Sequence[Result]) -> Table:
    """Who caught what."""
    table = Table("mutant", "killed by", "seconds", title=f"{len(results)} mutants", show_lines=True)
    table.columns[1].overflow = "fold"
    table.columns[2].justify = "right"
    for result in results:
        name = f"{result.mutant.name}\n[dim]{result.mutant.file}: {result.mutant.without}[/]"
        table.add_row(name, _caught(result), f"{result.seconds:.1f}")
    return table


def promise_table(results: Sequence[Result]) -> Table:
    """Which mutants showed that the property machine would notice a broken promise."""
    table = Table("promise", "seen to fail by the property machine on", title="Invariants")
    for promise in Promise:
        table.add_row(_sentence(promise), ", ".join(_showing(promise, results)) or "[red]no mutant[/]")
    return table


def complaints(results: Sequence[Result], promises: Sequence[Promise]) -> list[str]:
    """What makes the run a failure."""
    found = [result.problem for result in results if result.problem is not None]
    found += [f"survived: {each.mutant.name}" for each in results if each.problem is None and not each.killed]
    found += [
        f"no mutant made the property machine fail for: {_sentence(promise)}"
        for promise in promises
        if not _showing(promise, results)
    ]
    return found


def _showing(promise: Promise, results: Sequence[Result]) -> list[str]:
    return [result.mutant.name for result in results if result.mutant.promise is promise and result.shown]


def _sentence(promise: Promise) -> str:
    return promise.name.replace("_", " ").lower()


def main(words: Sequence[str]) -> int:
    """Exit status 0 when every mutant was killed and every invariant was seen to fail."""
    console = Console()
    mutants = [each for each in MUTANTS if not words or any(word in each.name or word in each.file for word in words)]
    if not mutants:
        console.print(f"no mutant has any of these words in its name or file: {' '.join(words)}")
        return 2
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("trying mutants", total=len(mutants))
        try:
            results = trio.run(try_all, mutants, lambda _result: progress.advance(task))
        except workshop.RunError as problem:
            console.print(f"[red]{problem}[/]")
            return 1
    console.print(mutant_table(results))
    if not words:
        console.print(promise_table(results))
    found = complaints(results, () if words else tuple(Promise))
    for complaint in found:
        console.print(complaint, style="red", markup=False)
    if not found:
        killed = "all mutants killed" if not words else f"all killed: {', '.join(each.mutant.name for each in results)}"
        console.print(killed, style="green", markup=False)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
