"""A night's parts, each by what Python is given to run: what its row says, and that none takes longer than it may."""

from __future__ import annotations

import io
import os
import select
from functools import partial
from typing import TYPE_CHECKING

import trio
from rich.console import Console

from tests import night, nightly
from tests.night import SEED, Night, Part, Row, first_failure, table_of, verdict
from tests.nightly import parts_of_a_night
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PASSES = "print('3 passed, 1 skipped in 0.52s')"
FAILS = """
print('=== short test summary info ===')
print('FAILED tests/a/test_b.py::test_c[one - two] - AssertionError: assert 1 == 2')
print('FAILED tests/a/test_d.py::test_e')
print('2 failed, 7 passed in 61.00s (0:01:01)')
raise SystemExit(1)
"""
MUTANTS = "print('2 killed, 0 survived, 1 only at night in 219s')"
HANGS = """
import sys, time
print('begun', flush=True)
try:
    time.sleep(3600)
except KeyboardInterrupt:
    print('FAILED tests/test_f.py::test_g - oh')
    print('1 failed, 5 passed in 3.10s')
    sys.exit(2)
"""
HANGS_FOR_GOOD = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(3600)"


def part(name: str, program: str, *, minutes: float = 1.0, **more: str | bool) -> Part:
    return Part(name=name, what=f"what {name} is", command=("-I", "-S", "-c", program), minutes=minutes, **more)  # type: ignore[arg-type]


def rows_of(folder: Path, *parts: Part, at_once: int = 2, minutes: float = 10.0) -> dict[str, Row]:
    run = Night(parts, 7, folder, tell=lambda _: None)
    trio.run(run.run, at_once, minutes)
    return {row.part.name: row for row in run.rows}


def shown(*rows: Row) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(table_of(rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_table_says_what_passed_and_what_failed_first_with_its_seed_and_file(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, part("good", PASSES), part("bad", FAILS), part("ugly", "raise SystemExit(3)"))
    good, bad, ugly = rows["good"], rows["bad"], rows["ugly"]
    assert rows_of(tmp_path, part("mutants", MUTANTS))["mutants"].ran == "2 killed, 0 survived, 1 only at night"
    assert (good.ran, good.failure) == ("3 passed, 1 skipped", None)
    assert (bad.ran, bad.failure) == ("2 failed, 7 passed", "tests/a/test_b.py::test_c[one - two]")
    assert ugly.failure == "ended with 3"
    table = shown(good, bad, ugly)
    assert "3 passed, 1 skipped" in table
    assert "FAILED: tests/a/test_b.py::test_c[one - two]" in table
    assert "seed 7" in table
    assert bad.file == tmp_path / "bad.txt"
    assert "AssertionError: assert 1 == 2" in bad.file.read_text()
    parts = [row.part for row in rows.values()]
    passed, line = verdict(parts, list(rows.values()), 12.3)
    assert (passed, line) == (False, "FAILED after 12 minutes: bad, ugly")
    assert verdict(parts[:1], [good], 1) == (True, "passed after 1 minutes, 1 of 1 parts")
    assert verdict(parts[:1], [], 1) == (False, "FAILED after 1 minutes: good"), "interrupted"


def test_a_part_that_takes_too_long_tells_what_it_found_and_is_a_row(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, part("late", HANGS, minutes=2 / 60), part("good", PASSES))
    assert rows["late"].failure == "took longer than 2 seconds; tests/test_f.py::test_g"
    assert rows["late"].ran == "1 failed, 5 passed"
    assert rows["good"].failure is None


def test_a_part_that_does_not_even_listen_is_ended_with_all_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(night, "LAST_WORDS", 0.2)
    held = tmp_path / "held"
    os.mkfifo(held)
    reading = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    program = f"import os; os.open({str(held)!r}, os.O_WRONLY); os.fork(); print('begun', flush=True); {HANGS_FOR_GOOD}"
    rows = rows_of(tmp_path, part("deaf", program, minutes=2 / 60))
    assert rows["deaf"].failure == "took longer than 2 seconds"
    assert (tmp_path / "deaf.txt").read_text().splitlines().count("begun") == 2
    ended = select.poll()
    ended.register(reading, select.POLLHUP)
    assert ended.poll(1000 * PATIENCE), "none of the two has ended"
    os.close(reading)


def test_when_the_night_is_over_what_runs_is_ended_and_nothing_begins(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, part("long", HANGS, minutes=5), part("next", PASSES), at_once=1, minutes=2 / 60)
    assert rows["long"].failure is not None
    assert rows["long"].failure.startswith("took longer than 2 seconds")
    assert rows["next"].failure == "the night was over before it began"


def test_a_part_without_its_program_is_not_run_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_TOOL", raising=False)
    rows = rows_of(tmp_path, part("tool", FAILS, needs="NO_SUCH_TOOL"), part("good", PASSES))
    assert "not run: NO_SUCH_TOOL names no tool" in shown(rows["tool"])
    parts = [row.part for row in rows.values()]
    assert verdict(parts, list(rows.values()), 1) == (True, "passed after 1 minutes, 1 of 2 parts; not run: tool")


def test_the_seed_and_variables_reach_a_part_and_replay_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAKEN", "away")
    told = Part(
        name="told",
        what="",
        command=("-c", "import os, sys; print(sys.argv[1], os.environ['OTHER'], 'TAKEN' in os.environ)", f"--x={SEED}"),
        minutes=1,
        environment={"OTHER": f"o{SEED}"},
        without="TAKEN",
    )
    rows_of(tmp_path, told)
    first, *_, last = (tmp_path / "told.txt").read_text().splitlines()
    assert first.startswith("OTHER=o7 ")
    assert first.endswith("--x=7")
    assert last == "--x=7 o7 False"


def test_who_must_be_alone_is_and_two_never_share_the_machine(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = f"""
import os, sys, time
log = os.open({str(log)!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(log, b'+NAME ')
time.sleep(0.5)
os.write(log, b'-NAME ')
"""

    def noting(name: str, **more: bool) -> Part:
        return part(name, program.replace("NAME", name), **more)

    parts = [
        noting("other"),
        noting("alone", alone=True),
        noting("one", on_machine=True),
        noting("two", on_machine=True),
    ]
    rows_of(tmp_path / "output", *parts)
    events = log.read_text().split()
    assert events[:2] == ["+alone", "-alone"]
    assert events.index("-one") < events.index("+two")
    assert events.index("+other") < events.index("+two"), "beside the first"


def test_what_is_left_on_the_machine_is_a_failure() -> None:
    text = "=== left on the machine (or made by another run beside this one) ===\nlink veth0\n5 passed in 1.00s\n"
    assert first_failure(text, 1) == "left on the machine: link veth0"
    assert first_failure(text, 0) is None


def test_an_interrupted_night_ends_its_parts(tmp_path: Path) -> None:
    run = Night([part("long", HANGS, minutes=5)], 7, tmp_path, tell=lambda _: None)

    async def begin_and_cancel() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(run.run, 1, 10))
            while not (tmp_path / "long.txt").exists() or "begun" not in (tmp_path / "long.txt").read_text():
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    trio.run(begin_and_cancel)
    assert "1 failed, 5 passed" in (tmp_path / "long.txt").read_text()
    assert run.rows == []


def test_the_last_line_and_the_exit_status_are_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [part("good", PASSES), part("bad", FAILS)]
    monkeypatch.setattr(nightly, "parts_of_a_night", lambda _: parts)
    monkeypatch.setattr(nightly, "OUTPUT", tmp_path)
    assert nightly.main(["--seed", "12", "good"]) == 0
    told = capsys.readouterr().out
    assert "seed 12" in told
    assert told.splitlines()[-1] == "passed after 0 minutes, 1 of 1 parts"
    assert nightly.main([]) == 1
    told = capsys.readouterr().out
    assert told.splitlines()[-1] == "FAILED after 0 minutes: bad"
    assert told.count("FAILED: tests/a/test_b.py::test_c") == 1


def test_parts_name_modules_that_are_there_and_numbers_follow_the_minutes() -> None:
    hour, short = parts_of_a_night(), parts_of_a_night(3)
    assert [each.name for each in hour] == [each.name for each in short]
    assert len({each.name for each in hour}) == len(hour)
    for each in hour:
        for word in each.command:
            path = word.removeprefix("--ignore=")
            assert not path.startswith("tests/") or (night.PROJECT / path).exists(), path
    many, few = ({each.name: each for each in parts}["machines"].environment for parts in (hour, short))
    assert int(few["HYPOTHESIS_EXAMPLES"]) == int(many["HYPOTHESIS_EXAMPLES"]) // 20
