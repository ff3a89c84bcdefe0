"""Followers of a log that is rotated while it is written: does everybody get every line, and what is the agent like?

The writer and the followers are the tests' (`tests.node_api.numbered_log`), each in a process of its own; the followers
check every byte. How late the agent is meanwhile is asked from outside: somebody wants `/healthz` every twenty
milliseconds.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import attrs

from benchmarks.detect.crash import percentile
from benchmarks.server.agents import REPOSITORY, ServingAgent, serving_agent
from benchmarks.server.logs import MIB, pods_of, start_pods
from benchmarks.server.sockets import Place
from tests.node_api.numbered_log import LINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.detect.processes import RuntimeProcess

PERIOD: Final = 0.02
IDLE: Final = 5.0
STEADY_LINES: Final = 200
STEADY_RATE: Final = 20
"""Lines a second, one at a time."""


@attrs.frozen
class Plan:
    """What is followed."""

    name: str
    lines: int
    followers: int
    rotations: int
    rate: float | None = None
    at_once: int = 1000


@attrs.frozen
class Followed:
    """How it went."""

    plan: Plan
    seconds: float
    problems: int
    """Followers that missed something, or got something twice."""
    cpu: float
    """Percent of a core."""
    grown: float
    """MiB of the agent's memory at most, over what it had before."""
    answers: list[float]
    """Seconds until `/healthz` was answered."""

    @property
    def rate(self) -> float:
        """MiB of lines a second, of all followers together."""
        return self.plan.lines * self.plan.followers * LINE / MIB / self.seconds

    def answered(self, share: float) -> float:
        """Milliseconds."""
        return 1000 * percentile(self.answers, share)


def measure_followers(
    runtime: RuntimeProcess, folder: Path, size: int, followers: int, rotations: int, told: Callable[[str], None]
) -> list[Followed]:
    """First nobody, then one on a log of `size` bytes, many on a shorter one, and many on one that grows slowly."""
    lines = size // LINE
    plans = [
        Plan("one, as fast as it is written", lines, 1, rotations),
        Plan(f"{followers}, as fast as it is written", max(1000, lines // 64), followers, rotations),
        Plan(f"{followers}, {STEADY_RATE} lines a second", STEADY_LINES, followers, 2, STEADY_RATE, 1),
    ]
    with serving_agent(folder, runtime.endpoint) as agent:
        start_pods(agent, [f"writes-{number}" for number in range(len(plans))], runtime.image)
        told("nobody follows")
        measured = [_nobody(agent)]
        for number, plan in enumerate(plans):
            told(plan.name)
            measured.append(_measure(agent, plan, f"writes-{number}"))
        return measured


def _nobody(agent: ServingAgent) -> Followed:
    began, cpu = time.monotonic(), agent.cpu()
    with _beside(agent) as beside:
        time.sleep(IDLE)
    seconds = time.monotonic() - began
    return Followed(
        Plan("nobody", 0, 0, 0), seconds, 0, 100 * (agent.cpu() - cpu) / seconds, beside.grown, beside.answers
    )


def _measure(agent: ServingAgent, plan: Plan, name: str) -> Followed:
    pod = next(pod for pod in pods_of(agent) if pod["metadata"]["name"].startswith(name))["metadata"]["name"]
    [log] = (agent.folder / "logs").glob(f"default_{pod}_*/main/0.log")
    module = [sys.executable, "-m", "tests.node_api.numbered_log"]
    target = f"/containerLogs/default/{pod}/main?follow=true"
    follow = [*module, "follow", str(agent.socket), target, f"--lines={plan.lines}", f"--followers={plan.followers}"]
    write = [*module, "write", str(log), f"--lines={plan.lines}", f"--rotations={plan.rotations}"]
    write += [f"--at-once={plan.at_once}", *([f"--rate={plan.rate}"] if plan.rate else [])]
    with _beside(agent) as beside, subprocess.Popen(follow, stdout=subprocess.PIPE, cwd=REPOSITORY) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        began, cpu = time.monotonic(), agent.cpu()
        subprocess.run(write, check=True, cwd=REPOSITORY)
        problems = json.loads(reader.stdout.read())
        seconds = time.monotonic() - began
        cpu = agent.cpu() - cpu
    wrong = [problem for problem in problems if problem]
    for problem in wrong[:3]:
        print(problem, file=sys.stderr)
    return Followed(plan, seconds, len(wrong), 100 * cpu / seconds, beside.grown, beside.answers)


class _Beside:
    def __init__(self, agent: ServingAgent) -> None:
        self._agent = agent
        self._before = self._most = agent.resident()
        self.answers: list[float] = []
        self.ended = threading.Event()

    @property
    def grown(self) -> float:
        return (self._most - self._before) / MIB

    def watch(self) -> None:
        client = http.client.HTTPConnection("node")
        client.sock = Place("unix", self._agent.socket).connect()
        while not self.ended.wait(PERIOD):
            began = time.monotonic()
            client.request("GET", "/healthz")
            client.getresponse().read()
            self.answers.append(time.monotonic() - began)
            self._most = max(self._most, self._agent.resident())
        client.close()


@contextmanager
def _beside(agent: ServingAgent) -> Iterator[_Beside]:
    beside = _Beside(agent)
    thread = threading.Thread(target=beside.watch, daemon=True)
    thread.start()
    try:
        yield beside
    finally:
        beside.ended.set()
        thread.join()
