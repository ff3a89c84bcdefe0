"""`make nightly`: what takes longer than a day's patience, in one command, with one table at its end (`tests.night`).

The whole suite comes first, alone on the machine, at night's strength. After that as many parts run at once as there
are processors: agents that are killed at random moments, attacks, state machines and properties with many new examples,
changed documents, mutants, a long log, and what needs programs that a variable of the environment names.

    python -m tests.nightly [--minutes MINUTES] [--seed SEED] [PART...]

`--minutes` fits the numbers of examples to another time than an hour; the suite stays whole. `--seed` takes what an
earlier night printed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

import trio
from rich.console import Console

from tests import night
from tests.containerd_programs import CONTAINERD
from tests.examples import EXAMPLES, FIRST_SEED, NIGHTLY, PROFILE
from tests.night import SEED, Night, Part

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

OUTPUT: Final = night.PROJECT / "build" / "nightly"
AN_HOUR: Final = 60
"""Minutes that the numbers below are for, on two processors that have nothing else to do."""
LONGEST: Final = 88
"""Minutes after which what still runs is ended."""
WIDTH: Final = 160
"""Columns where the output is no terminal."""

MACHINES: Final = (
    "tests/pods/test_machine_properties.py",
    "tests/pods/test_life_properties.py",
    "tests/allocation/test_resource_manager_properties.py",
    "tests/allocation/test_resource_managers_machine.py",
    "tests/allocation/topology/test_policy.py",
    "tests/allocation/cpus/test_distribution.py",
    "tests/node/dra/test_properties.py",
)
WHOLE_NODES: Final = ("tests/pods/test_life_on_simulated_node.py",)
ATTACKS: Final = (
    "tests/volumes/test_subpath_attack.py",
    "tests/volumes/test_killed_mount.py",
    "tests/agent/test_senseless_clients.py",
    "tests/agent/test_bad_clients.py",
    "tests/agent/test_cgroups.py",
    "tests/pods/test_tree.py",
    "tests/scenarios/test_kill_moments.py",
)
CAMPAIGNS: Final = (
    "tests/agent/test_embedded_kill_campaign.py",
    "tests/agent/test_cluster_kill_campaign.py",
)
PARSERS: Final = (
    "tests/embedded/images/test_memory.py",
    "tests/embedded/registry/test_mutated_documents.py",
    "tests/embedded/network/cni/test_mutated_documents.py",
    "tests/rpc/grpc/test_http2.py",
    "tests/test_pumped_inputs.py",
)
LOGS: Final = ("tests/node_api/test_followed_logs.py",)
CRI_TOOLS_TESTS: Final = ("tests/embedded/test_cri_tools.py",)
CRI_TOOLS: Final = {"crictl": "TRIKUBELET_CRICTL", "critest": "TRIKUBELET_CRITEST"}


def parts_of_a_night(minutes: float = AN_HOUR) -> list[Part]:
    """Return the parts, with numbers for so many minutes. No test is in two of them but those on containerd."""

    def scaled(number: int, least: int = 1) -> int:
        return max(least, round(number * minutes / AN_HOUR))

    # Processor time: 135 ms for one example of each simple machine, 300 ms for one of a whole node, 400 ms for one of
    # each property, 7 ms for a document of each kind. A blow takes two seconds, most of which is waiting.
    simple, whole, of_a_property = scaled(8000), scaled(1500), scaled(1000)
    documents, archives, pumped = scaled(100_000, least=100), scaled(2), scaled(200)
    rounds, mebibytes = scaled(200), scaled(512, least=8)
    apart = without(*PARSERS, *ATTACKS, *CAMPAIGNS, *LOGS, *CRI_TOOLS_TESTS)
    return [
        Part(
            name="suite",
            what="all tests that are in no other part, and what they leave on the machine",
            command=pytest("tests", "-m", "not hypothesis", "--processes", "4", *apart, alone=True),
            environment=at_night(),
            minutes=40,
            without=CONTAINERD,
            alone=True,
        ),
        Part(
            name="campaigns",
            what=f"agents that are killed: {rounds} blows on each runtime",
            command=pytest(*CAMPAIGNS, "--processes", "3"),
            environment=at_night(KILL_ROUNDS=str(rounds)),
            minutes=40,
            on_machine=True,
        ),
        Part(
            name="attacks",
            what="attacks on volumes, ports and mounts; pods that come and go",
            command=pytest(*ATTACKS, "--processes", "2"),
            environment=at_night(),
            minutes=40,
            on_machine=True,
        ),
        Part(
            name="containerd",
            what=f"all tests on containerd, on the one that {CONTAINERD} names",
            command=pytest("tests", "-m", "containerd", "--processes", "3", *without(*CAMPAIGNS)),
            environment=at_night(),
            minutes=40,
            needs=CONTAINERD,
            on_machine=True,
        ),
        *(
            Part(
                name=tool,
                what=f"CRI's own {tool} on the embedded runtime",
                command=pytest(*CRI_TOOLS_TESTS, "-k", tool),
                environment=at_night(),
                minutes=20,
                needs=variable,
                on_machine=True,
            )
            for tool, variable in CRI_TOOLS.items()
        ),
        Part(
            name="machines",
            what=f"{simple} examples of each state machine of pods and of managers of resources",
            command=pytest("-m", "hypothesis", *MACHINES),
            environment=at_night(examples=simple),
            minutes=40,
        ),
        Part(
            name="nodes",
            what=f"{whole} examples of whole agents on a simulated node",
            command=pytest(*WHOLE_NODES),
            environment=at_night(examples=whole),
            minutes=40,
        ),
        Part(
            name="properties",
            what=f"{of_a_property} examples of every other property that says no number, and all of those that do",
            command=pytest("tests", "-m", "hypothesis", *apart, *without(*MACHINES, *WHOLE_NODES)),
            environment=at_night(examples=of_a_property),
            minutes=40,
        ),
        Part(
            name="documents",
            what=f"{documents} changed documents and layers of each kind, {pumped} pumped, {3 * archives} archives",
            command=pytest(*PARSERS),
            environment=at_night(
                examples=of_a_property,
                DOCUMENT_INPUTS=str(documents),
                PUMPED_INPUTS=str(pumped),
                ARCHIVE_SCALE=str(archives),
            ),
            minutes=40,
        ),
        Part(
            name="mutants",
            what="each guard of a pod's life taken away: whether the tests by day and those by night notice",
            command=("-m", "tests.mutants", "--night", f"--seed={SEED}"),
            minutes=40,
        ),
        Part(
            name="log",
            what=f"a log of {mebibytes} MiB, followed through its rotations",
            command=pytest(*LOGS),
            environment=at_night(FOLLOWED_LOG_MIB=str(mebibytes)),
            minutes=20,
        ),
    ]


def pytest(*arguments: str, alone: bool = False) -> tuple[str, ...]:
    """Return what Python is to run. What is left on the machine can only be told by who is alone there."""
    beside_others = () if alone else ("-p", "no:leftovers")
    seed = f"--hypothesis-seed={SEED}"
    return ("-m", "pytest", "-q", "--durations=5", "--durations-min=1", seed, *beside_others, *arguments)


def at_night(*, examples: int = 100, **variables: str) -> dict[str, str]:
    """Return an environment. A property that says no number gets so many examples."""
    return {PROFILE: NIGHTLY, EXAMPLES: str(examples), FIRST_SEED: SEED, "KILL_SEED": SEED, **variables}


def without(*modules: str) -> list[str]:
    return [f"--ignore={module}" for module in modules]


def main(words: Sequence[str]) -> int:
    """Return 0 when every part passed that could be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description="Run the tests of a night.")
    parser.add_argument("--minutes", type=float, default=AN_HOUR, help="what the numbers of examples are made to fit")
    parser.add_argument("--seed", type=int, default=None, help="that of an earlier night")
    parser.add_argument("parts", nargs="*", metavar="PART", help="the names of parts, where not all shall run")
    arguments = parser.parse_args(words)
    parts = parts_of_a_night(arguments.minutes)
    names = [part.name for part in parts]
    if unknown := set(arguments.parts) - set(names):
        parser.error(f"no parts: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if arguments.parts:
        parts = [part for part in parts if part.name in arguments.parts]
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    before = signal.signal(signal.SIGTERM, _interrupt)
    began = time.monotonic()
    run = Night(parts, seed, OUTPUT, tell=lambda line: print(line, flush=True))
    try:
        trio.run(run.run, os.cpu_count() or 1, LONGEST)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, before)
    console.print(night.table_of(run.rows))
    passed, line = night.verdict(parts, run.rows, (time.monotonic() - began) / 60)
    console.print(line, style="green" if passed else "red", markup=False, soft_wrap=True)
    return 0 if passed else 1


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
