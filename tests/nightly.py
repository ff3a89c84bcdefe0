"""`python -m tests.nightly [EXAMPLES]`: many examples of what pods and nodes live through, 10,000 each, on all cores.

Every other property gets 1,000 new examples: by day they are always the same. What reads documents and layers from
anybody gets a million of each.

Every process plays its share with a seed of its own, which it prints. A failure comes with what replays it. After that,
volumes and ports are attacked for longer, agents killed at more steps, more pods begun and ended, and a longer log
followed, than by day. By day the machine's containerd is tested, at night the one that TRIKUBELET_CONTAINERD names.
TRIKUBELET_CRICTL and TRIKUBELET_CRITEST name CRI's own tools, with which the embedded runtime is tested.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from tests.conftest import EXAMPLES, NIGHTLY_EXAMPLES
from tests.containerd_programs import CONTAINERD, containerd_version
from tests.examples import NIGHTLY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROJECT: Final = Path(__file__).parents[1]
MACHINES: Final = (
    "tests/pods/test_machine_properties.py",
    "tests/pods/test_life_properties.py",
    "tests/pods/test_life_on_simulated_node.py",
    "tests/allocation/test_resource_manager_properties.py",
    "tests/allocation/test_resource_managers_machine.py",
    "tests/allocation/topology/test_policy.py",
    "tests/allocation/cpus/test_distribution.py",
    "tests/node/dra/test_properties.py",
)

ATTACKS: Final = (
    "tests/volumes/test_subpath_attack.py",
    "tests/volumes/test_killed_mount.py",
    "tests/agent/test_senseless_clients.py",
    "tests/agent/test_cgroups.py",
    "tests/pods/test_tree.py",
    "tests/scenarios/test_kill_moments.py",
    "tests/agent/test_embedded_kill_campaign.py",
    "tests/agent/test_cluster_kill_campaign.py",
)
PROPERTIES: Final = ("tests", "-m", "hypothesis", *(f"--ignore={machine}" for machine in MACHINES))
EXAMPLES_OF_A_PROPERTY: Final = 1_000
"""Where the test does not say how many it wants."""
PARSERS: Final = (
    "tests/embedded/images/test_memory.py",
    "tests/embedded/registry/test_mutated_documents.py",
    "tests/embedded/network/cni/test_mutated_documents.py",
    "tests/rpc/grpc/test_http2.py",
    "tests/test_pumped_inputs.py",
)
MANY_INPUTS: Final = {"DOCUMENT_INPUTS": "1000000", "PUMPED_INPUTS": "1000", "ARCHIVE_SCALE": "10"}
CONTAINERD_TESTS: Final = ("tests", "-m", "containerd")
CRI_TOOLS: Final = ("TRIKUBELET_CRICTL", "TRIKUBELET_CRITEST")
CRI_TOOLS_TESTS: Final = "tests/embedded/test_cri_tools.py"


def loud(text: str) -> str:
    """For what a person should not overlook."""
    return f"\n{'!' * 100}\n{text}\n{'!' * 100}\n"


NO_CONTAINERD: Final = loud(
    f"NO CONTAINERD 2 WAS TESTED. {CONTAINERD} is not set: let it name a folder with containerd, its shim and ctr."
)
LOGS: Final = "tests/node_api/test_followed_logs.py"
LONG_LOG: Final = {"FOLLOWED_LOG_MIB": "1024"}


async def play(examples: int, seed: int) -> bool:
    """Play so many examples of each machine in a process of its own, print what came of it. Whether they passed."""
    passed, output = await run(f"--hypothesis-seed={seed}", *MACHINES, examples=examples)
    print(f"{examples} examples with seed {seed}:\n{output}", flush=True)
    return passed


async def explore(seed: int) -> bool:
    """Give every property new examples. Whether all of them hold."""
    passed, output = await run(f"--hypothesis-seed={seed}", *PROPERTIES, examples=EXAMPLES_OF_A_PROPERTY)
    print(f"properties with seed {seed}:\n{output}", flush=True)
    return passed


async def attack() -> bool:
    """Run what takes longer at night. Whether it passed."""
    passed, output = await run(*ATTACKS)
    print(f"attacks and kills:\n{output}", flush=True)
    return passed


async def parse() -> bool:
    """Have a million changed documents and layers of each kind read. Whether every one was read or refused."""
    passed, output = await run(*PARSERS, more=MANY_INPUTS)
    print(f"changed documents and layers:\n{output}", flush=True)
    return passed


async def contain() -> bool:
    """Run all that runs on containerd on the one that the environment names. Whether it passed, or none is named."""
    if not os.environ.get(CONTAINERD):
        print(NO_CONTAINERD, flush=True)
        return True
    passed, output = await run(*CONTAINERD_TESTS)
    print(f"on containerd {'.'.join(map(str, containerd_version()))}:\n{output}", flush=True)
    return passed


async def validate() -> bool:
    """Run CRI's own tools on the embedded runtime, those that the environment names. Whether they passed."""
    for name in CRI_TOOLS:
        if not os.environ.get(name):
            tool = name.rpartition("_")[2]
            print(loud(f"{tool} WAS NOT RUN. {name} is not set: let it name the program."), flush=True)
    if not any(map(os.environ.get, CRI_TOOLS)):
        return True
    passed, output = await run(CRI_TOOLS_TESTS)
    print(f"CRI's own tools:\n{output}", flush=True)
    return passed


async def follow() -> bool:
    """Follow a log of 1 GiB. Whether nobody missed anything."""
    passed, output = await run(LOGS, more=LONG_LOG)
    print(f"followed logs:\n{output}", flush=True)
    return passed


async def run(
    *arguments: str, examples: int = NIGHTLY_EXAMPLES, more: Mapping[str, str] | None = None
) -> tuple[bool, str]:
    """Run tests in a process of their own with `more` in its environment. Whether they passed, what was printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:leftovers"]
    command += ["--durations=2", "--durations-min=0"]
    environment = {**os.environ, "HYPOTHESIS_PROFILE": NIGHTLY, EXAMPLES: str(examples), **(more or {})}
    ended = await trio.run_process(
        [*command, *arguments], cwd=PROJECT, env=environment, check=False, capture_stdout=True, stderr=subprocess.STDOUT
    )
    return ended.returncode == 0, ended.stdout.decode(errors="replace")


async def play_all(examples: int) -> bool:
    shares = os.cpu_count() or 1
    passed: list[bool] = []

    async def share() -> None:
        passed.append(await play(-(-examples // shares), random.randrange(2**32)))

    async with trio.open_nursery() as nursery:
        for _ in range(shares):
            nursery.start_soon(share)
    passed.append(await explore(random.randrange(2**32)))
    passed.append(await parse())
    passed.append(await attack())
    passed.append(await follow())
    passed.append(await contain())
    passed.append(await validate())
    return all(passed)


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 when every example passes."""
    examples = int(arguments[0]) if arguments else NIGHTLY_EXAMPLES
    return 0 if trio.run(play_all, examples) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
