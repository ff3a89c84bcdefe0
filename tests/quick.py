"""`python -m tests.quick [REV]`, or `make quick`: within a minute, what a change is most likely to break.

What changed is what differs from the last commit, files that git does not know included, or from REV. Ruff looks at
the changed files, mypy and import-linter at everything, which their caches make cheap. Meanwhile pytest runs tests that
reach a changed module by imports: those of the same name and those that import it themselves first, then those that
are further away, as many as have room in `BUDGET`. Left out is what needs root, a containerd or kubectl, what is made
by chance (fuzz, state machines), and what takes long, mostly since it waits for real time. At the end it says how much
that was. It stops after `QUICK_SECONDS`, however busy the machine is; 0 lets it take its time.

Not every link is an import: see `Links`.

This module is also the plugin of that run of pytest. `python -m tests.quick --record`, on a quiet machine, runs all
tests that such a run may have, and writes how long they took into `quick.json`.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

PROJECT: Final = Path(__file__).parents[1]
TOPS: Final = ("trikubelet", "tests", "benchmarks")
RECORDED: Final = Path(__file__).with_name("quick.json")
SMALL: Final = 0.1
"""Seconds of a test module that says no number."""
SLOW: Final = 1.5
"""Seconds from which on a test is left out, all its parameters together."""
COLLECTING: Final = 0.02
"""Seconds that a module costs before its first test."""
BUDGET: Final = 28.0
"""Seconds of a processor that the tests may take."""
SECONDS: Final = float(os.environ.get("QUICK_SECONDS", "44"))
"""From the start of the command to its end, if it must end itself."""
LONGEST: Final = 6.0
"""Seconds of a module that was not changed itself: a longer one would take the place of too many others."""
TOLD: Final = "TRIKUBELET_QUICK_TOLD"
"""Name of an environment variable: the file in which pytest says what came of a quick run, or of one that records."""
STOP_AT: Final = "TRIKUBELET_QUICK_STOP_AT"
"""Name of an environment variable: when that run ends, by the monotonic clock."""
RECORDS: Final = "TRIKUBELET_QUICK_RECORDS"
"""Name of an environment variable: set where pytest is to record."""

BEYOND: Final = "beyond the budget"
MANY: Final = 10
"""Failures after which the others are not worth the time."""
NO_TESTS: Final = 5
"""The exit code of pytest that has found none."""

# --- What changed ----------------------------------------------------------------------------------------------------


def git(*arguments: str) -> str:
    """What a command of git prints. Raises subprocess.CalledProcessError."""
    return subprocess.run(["git", *arguments], cwd=PROJECT, check=True, capture_output=True, text=True).stdout


def changed_since(revision: str) -> list[str]:
    """Return the files that are not as they were in a revision, deleted ones and new ones included."""
    names = git("diff", "--name-only", "--no-renames", "-z", revision, "--").split("\0")
    names += git("ls-files", "--others", "--exclude-standard", "-z").split("\0")
    return sorted({name for name in names if name})


def means_the_same(before: str, after: str) -> bool:
    """Return whether two texts of a module differ in comments and layout alone."""
    try:
        return ast.dump(ast.parse(before)) == ast.dump(ast.parse(after))
    except (SyntaxError, ValueError):
        return False


def is_comment_alone(name: str, revision: str) -> bool:
    """Return whether nothing but comments and layout of a file changed since a revision."""
    if not name.endswith(".py") or not (PROJECT / name).exists():
        return False
    try:
        before = git("show", f"{revision}:{name}")
    except subprocess.CalledProcessError:
        return False
    return means_the_same(before, (PROJECT / name).read_text())


# --- What depends on it ----------------------------------------------------------------------------------------------

_QUOTED_MODULE: Final = re.compile(r"""["'](?:from |import )?((?:trikubelet|tests|benchmarks)(?:\.\w+)+)""")
_QUOTED_FILE: Final = re.compile(r"""["'/](\w+\.py)["']""")
_FIXTURE: Final = re.compile(r"^@pytest\.fixture.*\n(?:async )?def (\w+)", re.MULTILINE)
_EVERYWHERE: Final = ("__init__.py", "__main__.py", "conftest.py")
"""Names that say too little of a file."""
_COMMAND_TESTS: Final = ("tests/cli/", "tests/agent/", "tests/docs/")
_BY_RULE: Final = (
    # Read as a whole folder by tests that name none of its files.
    ("docs/parity", ("tests/parity/test_",)),
    ("docs/", ("tests/docs/test_",)),
    ("README.md", ("tests/docs/test_",)),
    ("mkdocs.yml", ("tests/docs/test_",)),
    ("examples/", ("tests/docs/test_", "tests/sim/test_", "tests/cli/test_")),
    # A wheel is built of these.
    ("packaging/", ("tests/packaging/test_",)),
    ("pyproject.toml", ("tests/packaging/test_", "tests/test_workers.py")),
    # Run as a file in a new process; these talk to a real keeper, the others of its tests need root.
    ("trikubelet/embedded/keeper/", ("tests/embedded/test_unprivileged.py", "tests/embedded/test_keeper")),
)
"""How names of files begin, and how those of the tests begin that look at them though no import and no name says so."""


def file_of(module: str) -> str | None:
    """Return the file of a module, or None when there is none of that name."""
    path = module.replace(".", "/")
    return next((name for name in (f"{path}.py", f"{path}/__init__.py") if (PROJECT / name).is_file()), None)


def is_test(name: str) -> bool:
    return name.startswith("tests/") and Path(name).name.startswith("test_") and name.endswith(".py")


def is_module(name: str) -> bool:
    return name.endswith(".py") and name.startswith(tuple(f"{top}/" for top in TOPS))


@attrs.frozen
class Links:
    """Which modules depend on which files.

    Besides imports these are: names of modules in quotes (commands are loaded by name, programs are run with `-m`), the
    name of a command in quotes in its tests, names of files in quotes, names of folders in quotes in the modules near
    them, and `_BY_RULE`. A `conftest.py` belongs to the tests that name one of its fixtures.
    """

    importers: Mapping[str, Collection[str]]
    """Of each file."""
    quoted: Mapping[str, Collection[str]]
    """The modules that have the name of a module's file in quotes, without its folder."""
    sources: Mapping[str, str]
    """The text of each module."""

    def direct(self, name: str) -> set[str]:
        """Return the modules that depend on a file by themselves."""
        path = Path(name)
        found = {*self.importers.get(name, ()), *self.quoted.get(path.name, ())}
        if name.startswith("trikubelet/cli/"):
            command = re.compile(rf"""["']{re.escape(path.stem.replace("_", "-"))}\b""")
            tests = [module for module in self.sources if module.startswith(_COMMAND_TESTS)]
            found |= {test for test in tests if command.search(self.sources[test])}
        if not is_module(name):
            named = re.compile(rf"""["'/]{re.escape(path.name)}["']""")
            near = re.compile(rf"""["'/](?:{re.escape(path.stem)}|{re.escape(path.parent.name)})["']""")
            around = (f"{path.parents[1]}/", f"{Path('tests', *path.parts[1:-2])}/") if len(path.parts) > 2 else ()
            for module, text in self.sources.items():
                if named.search(text) or (module.startswith(around) and near.search(text)):
                    found.add(module)
        for start, tests_of in _BY_RULE:
            if name.startswith(start):
                found |= {test for test in self.sources if test.startswith(tests_of)}
        if path.name == "conftest.py" and name in self.sources:
            fixtures = "|".join(_FIXTURE.findall(self.sources[name]))
            uses = re.compile(rf"\b(?:{fixtures})\b")
            below = [test for test in self.sources if test.startswith(f"{path.parent}/")]
            found |= {test for test in below if fixtures and uses.search(self.sources[test])}
        found.discard(name)
        return found

    def distances(self, changed: Sequence[str]) -> dict[str, int]:
        """Return how many links are between each test module and the nearest of what changed."""
        found = dict.fromkeys(changed, 0)
        around = list(found)
        steps = 0
        while around:
            steps += 1
            following = {each for name in around for each in self.direct(name)} - found.keys()
            found.update(dict.fromkeys(following, steps))
            around = sorted(following)
        for folder in [f"{Path(name).parent}/" for name in changed if Path(name).name == "conftest.py"]:
            found.update({test: 1 for test in self.sources if test.startswith(folder)})
        return {name: steps for name, steps in found.items() if is_test(name) and name in self.sources}


def read_links(folder: Path) -> Links:
    """Look at all modules. What grimp found in a file is kept in a folder until the file changes."""
    import grimp

    graph = grimp.build_graph(
        *TOPS, include_external_packages=False, exclude_type_checking_imports=True, cache_dir=str(folder)
    )
    files = {module: file for module in graph.modules if (file := file_of(module)) is not None}
    sources = {file: (PROJECT / file).read_text() for file in files.values()}
    importers = {
        file: {files[each] for each in graph.find_modules_that_directly_import(module)}
        for module, file in files.items()
    }
    for file, text in sources.items():
        for named in _QUOTED_MODULE.findall(text):
            while named not in files and "." in named:
                named = named.rpartition(".")[0]
            if named in files and "." in named:
                importers[files[named]].add(file)
    quoted: dict[str, set[str]] = {}
    for file, text in sources.items():
        for name in _QUOTED_FILE.findall(text):
            quoted.setdefault(name, set()).add(file)
    for name in _EVERYWHERE:
        quoted.pop(name, None)
    return Links(importers, quoted, sources)


# --- Which tests -----------------------------------------------------------------------------------------------------


def mirrors(name: str) -> str:
    """Return how the names of the test modules begin that are named after a module."""
    path = Path(name)
    folder = Path("tests", *path.parent.parts[1:])
    while not (PROJECT / folder).is_dir():
        folder = folder.parent
    return str(folder / f"test_{path.stem}")


@attrs.frozen
class Record:
    """How long tests took: what `quick.json` holds."""

    seconds: dict[str, float] = attrs.field(factory=dict)
    """Of test modules, without the tests that are left out. One that is missing takes less than `SMALL`."""
    slow: dict[str, float] = attrs.field(factory=dict)
    """Of tests, without their parameters, that are left out since they take long."""
    impossible: dict[str, str] = attrs.field(factory=dict)
    """Why of a test module nothing can be in a quick run."""

    @classmethod
    def read(cls) -> Record:
        return cls(**json.loads(RECORDED.read_text())) if RECORDED.exists() else cls()

    @classmethod
    def of(cls, took: Mapping[str, float], reasons: Mapping[str, str | None]) -> Record:
        """Make it of the seconds of tests that ran, and of the reasons why tests may not be in a quick run."""
        functions: defaultdict[str, float] = defaultdict(float)
        for nodeid, each in took.items():
            functions[function_of(nodeid)] += each
        slow = {name: round(each, 1) for name, each in functions.items() if each >= SLOW}
        modules: dict[str, Counter[str]] = {}
        for nodeid, reason in reasons.items():
            why = "slow" if reason is None and function_of(nodeid) in slow else reason
            modules.setdefault(module_of(nodeid), Counter())[why or ""] += 1
        seconds = dict.fromkeys(modules, 0.0)
        for name, each in functions.items():
            if name not in slow:
                seconds[module_of(name)] += each
        impossible = {module: found.most_common(1)[0][0] for module, found in modules.items() if not found[""]}
        return cls(
            {
                name: round(each, 1)
                for name, each in sorted(seconds.items())
                if each >= SMALL and name not in impossible
            },
            dict(sorted(slow.items())),
            dict(sorted(impossible.items())),
        )

    def write(self) -> None:
        RECORDED.write_text(json.dumps(attrs.asdict(self), indent=0) + "\n")


@attrs.frozen
class Plan:
    """Test modules that a change may break."""

    chosen: list[str]
    """Those to run, the nearest first."""
    left_out: dict[str, str]
    """Why the others are not run."""


def plan(changed: Sequence[str], distances: Mapping[str, int], record: Record, budget: float = BUDGET) -> Plan:
    """Choose the nearest test modules, and the shortest of those that are equally near."""
    named_after = tuple(mirrors(name) for name in changed if name.startswith("trikubelet/") and name.endswith(".py"))
    folders = {str(Path("tests", *Path(name).parent.parts[1:])) for name in changed}

    def rank(test: str) -> tuple[int, bool, float, str]:
        is_mirror = test.startswith(named_after) if named_after else False
        distance = min(distances[test], 1) if is_mirror else 1 + distances[test]
        return distance, str(Path(test).parent) not in folders, record.seconds.get(test, SMALL), test

    result = Plan([], {})
    for test in sorted(distances, key=rank):
        took = record.seconds.get(test, SMALL) + COLLECTING
        if test in record.impossible and test not in changed:
            result.left_out[test] = record.impossible[test]
        elif took > budget or (took > LONGEST and test not in changed):
            result.left_out[test] = BEYOND
        else:
            budget -= took
            result.chosen.append(test)
    return result


# --- The plugin of pytest --------------------------------------------------------------------------------------------


def why_not(item: pytest.Item, slow: Collection[str]) -> str | None:
    """Return why a test may not be in a quick run."""
    for marker in ("containerd", "kubectl", "root", "night", "fuzz"):
        if item.get_closest_marker(marker):
            return marker
    if hasattr(getattr(item, "obj", None), "_hypothesis_state_machine_class"):
        return "fuzz"
    return "slow" if function_of(item.nodeid) in slow else None


def function_of(nodeid: str) -> str:
    """Return the name of a test without its parameters."""
    return nodeid.partition("[")[0]


def module_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_configure(config: pytest.Config) -> None:
    if TOLD in os.environ:
        stop_at = float(os.environ.pop(STOP_AT))
        config.pluginmanager.register(Recording() if RECORDS in os.environ else Quick(stop_at))
        config.option.quick_told = Path(os.environ.pop(TOLD))  # a run within a test's has none


class Quick:
    """Leaves out what a quick run may not have, and tells how much that was and what became of the others."""

    def __init__(self, stop_at: float) -> None:
        self._stop_at = stop_at
        self._stopped = False
        self._running: set[str] = set()
        self._slow = Record.read().slow
        self._left_out: Counter[str] = Counter()
        self._tests = self._finished = self._failed = 0

    def pytest_sessionstart(self) -> None:
        signal.signal(signal.SIGALRM, self._stop)
        signal.setitimer(signal.ITIMER_REAL, max(0.001, self._stop_at - time.monotonic()))

    def _stop(self, *_: object) -> None:
        self._stopped = True
        raise KeyboardInterrupt("the time is over")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept, others = [], []
        for item in items:
            reason = why_not(item, self._slow)
            if reason is None:
                kept.append(item)
            else:
                others.append(item)
                self._left_out[reason] += 1
        items[:] = kept
        self._tests = len(kept)
        config.hook.pytest_deselected(items=others)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running.add(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.discard(nodeid)
        self._finished += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed += report.failed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._stopped:
            self._left_out["not reached in time"] = self._tests - self._finished
        told = {
            "stopped": self._stopped,
            "failed": self._failed,
            "finished": self._finished,
            "running": sorted(self._running),
            "left_out": self._left_out,
        }
        session.config.option.quick_told.write_text(json.dumps(told))


class Recording:
    """Runs all that any quick run may have, and writes how long it took."""

    def __init__(self) -> None:
        self._reasons: dict[str, str | None] = {}
        self._took: defaultdict[str, float] = defaultdict(float)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._reasons = {item.nodeid: why_not(item, ()) for item in items}
        items[:] = [item for item in items if self._reasons[item.nodeid] is None]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        Record.of(self._took, self._reasons).write()


# --- The command -----------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Check:
    """A program that runs meanwhile, and what it is called for whoever reads the result."""

    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]

    @classmethod
    def start(cls, name: str, *command: str) -> Check:
        output = TemporaryFile()  # noqa: SIM115 - closed with the check
        program = str(Path(sys.executable).with_name(command[0]))
        process = subprocess.Popen([program, *command[1:]], cwd=PROJECT, stdout=output, stderr=subprocess.STDOUT)
        return cls(name, process, output)

    def passed(self, stop_at: float) -> bool:
        """Wait for it, and print what it says if it failed, or that it has not ended in time."""
        with self.output:
            if not ended_by(self.process, stop_at):
                self.process.kill()
                self.process.wait()
                print(f"{self.name}: not done, the time is over")
                return True
            if self.process.returncode == 0:
                print(f"{self.name}: fine")
                return True
            self.output.seek(0)
            print(f"{self.name}:\n{self.output.read().decode(errors='replace').rstrip()}")
            return False


def ended_by(process: subprocess.Popen[bytes], stop_at: float) -> bool:
    """Wait for the end of a process, until `stop_at`. Return whether it came."""
    try:
        process.wait(max(0.0, stop_at - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def start_checks(changed: Sequence[str]) -> list[Check]:
    """Start all that looks at the code without running it."""
    modules = [name for name in changed if name.endswith(".py") and (PROJECT / name).exists()]
    checks = []
    if modules:
        checks.append(Check.start("rules", "ruff", "check", "--force-exclude", *modules))
        checks.append(Check.start("format", "ruff", "format", "--check", "--force-exclude", *modules))
    typed = [name for name in modules if is_module(name)]
    if any((PROJECT / ".mypy_cache").glob("3*")):
        if any(name.endswith(".py") for name in changed):
            checks.append(Check.start("types", "mypy"))
    elif typed:
        # Without a cache, all takes half a minute: only what changed, and `make types` once would fill the cache.
        alone = ("--follow-imports=silent", f"--cache-dir={os.devnull}")
        checks.append(Check.start("types of the changed files alone (`make types` once)", "mypy", *alone, *typed))
    if any(name.startswith("trikubelet/") and name.endswith(".py") for name in changed) or "pyproject.toml" in changed:
        checks.append(Check.start("imports", "lint-imports"))
    if any(name.startswith("protos/") or "/v1" in name for name in changed):
        checks.append(Check.start("generated code", "python", "protos/generate.py", "--check"))
    return checks


def run_tests(modules: Sequence[str], stop_at: float, **environment: str) -> tuple[int, dict[str, int]]:
    """Run test modules. Return 0 when none failed, and how many tests were left out and why."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.quick", "-p", "no:leftovers", "--processes", "2"]
    command += ["-q", "--no-header", "-r", "fE", "--tb=short", f"--maxfail={MANY}", *modules]
    with TemporaryDirectory() as folder:
        told = Path(folder, "told.json")
        more = {TOLD: str(told), STOP_AT: str(stop_at), **environment}
        code = subprocess.run(command, cwd=PROJECT, env={**os.environ, **more}, check=False).returncode
        if not told.exists():
            return code, {}
        found = json.loads(told.read_text())
    if found["stopped"]:
        print(f"The time was over before all tests had run. These had begun: {shortened(found['running'])}")
        code = int(found["failed"] or not found["finished"])
    left_out: dict[str, int] = found["left_out"]
    return 0 if code == NO_TESTS else code, left_out


def numbers(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=lambda each: -each[1]))


def shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def main() -> int:
    """Return 0 when nothing is known to be wrong."""
    started = time.monotonic()
    stop_at = started + (SECONDS or 1e6)
    parser = argparse.ArgumentParser(prog="python -m tests.quick", description="Test what a change can break.")
    parser.add_argument("revision", nargs="?", default="HEAD", metavar="REV", help="what to compare with (HEAD)")
    parser.add_argument("--record", action="store_true", help=f"write how long tests take into {RECORDED.name}")
    parser.add_argument("--plan", action="store_true", help="only say which test modules would run")
    options = parser.parse_args()
    if options.record:
        return run_tests(["tests"], stop_at=time.monotonic() + 1e6, **{RECORDS: "1"})[0]
    revision = options.revision
    try:
        changed = changed_since(revision)
    except subprocess.CalledProcessError as error:
        parser.error(error.stderr.strip().partition("\n")[0])
    if not changed:
        print(f"Nothing differs from {revision}: this is about the last commit.")
        revision = "HEAD~1"
        changed = changed_since(revision)
    print(f"Changed since {revision}: {shortened(changed)}", flush=True)
    checks = [] if options.plan else start_checks(changed)
    changed = [name for name in changed if not is_comment_alone(name, revision)]
    chosen = plan(changed, read_links(PROJECT / ".import_linter_cache" / "quick").distances(changed), Record.read())
    if options.plan:
        print(*chosen.chosen, sep="\n")
        return 0
    code, left_out = run_tests(chosen.chosen, stop_at) if chosen.chosen else (0, {})
    passed = [check.passed(stop_at) for check in checks]
    print(told(chosen, left_out))
    print(f"{time.monotonic() - started:.0f} s, {sum(os.times()[:4]):.0f} s of a processor")
    return min(1, code) or int(not all(passed))


def told(chosen: Plan, left_out: Mapping[str, int]) -> str:
    """Say what was not run."""
    count = len(chosen.chosen) + len(chosen.left_out)
    if not count:
        return "The change can break no test that imports or names tell of. Everything: make test"
    lines = [f"The change may break tests in {count} modules; of {len(chosen.chosen)} tests were run."]
    if chosen.left_out:
        lines.append(f"Not of the others: {numbers(Counter(chosen.left_out.values()))}.")
    if left_out:
        lines.append(f"Tests that were left out of those modules: {numbers(left_out)}.")
    if len(lines) > 1:
        lines.append("Everything: make test")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
