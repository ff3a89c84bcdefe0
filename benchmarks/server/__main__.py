"""What the node's API costs, each thing beside its floor in the same run.

    python -m benchmarks.server                                  # everything; about four minutes
    python -m benchmarks.server --only logs --json server.json
    python -m benchmarks.server --only exec --runtime embedded
    python -m benchmarks.server --only followers --follow 1024   # a log of 1 GiB

Logs of 200-byte lines, beside `cat` through the same kind of socket (`logs.py`); commands, beside the same client at
the runtime's own server (`commands.py`); handshakes, new tokens and the pages of collectors (`requests.py`); followers
of logs that are rotated (`followers.py`). Agents, runtimes and the API server are processes of their own; clients live
here, or in one of theirs. Commands need root, containerd also runc and the CNI plugins (`make packages`).
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import click

from benchmarks.detect.processes import runtime_process
from benchmarks.picture import picture_option
from benchmarks.report import Result, print_table, report
from benchmarks.server.commands import measure_commands
from benchmarks.server.followers import measure_followers
from benchmarks.server.logs import MIB, measure_logs
from benchmarks.server.requests import measure_requests
from trikubelet.telemetry.logs import silence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.server.commands import RoundTrip
    from benchmarks.server.followers import Followed
    from benchmarks.server.logs import Speed
    from benchmarks.server.requests import Request

LOG_GOAL: Final = 100.0
"""MiB a second; or half the speed of `cat`."""
COMMAND_GOAL: Final = 10.0
"""Milliseconds beyond the direct call."""
PAGE_GOAL: Final = 100.0
"""Milliseconds for each page, with a hundred pods."""
GROWN_GOAL: Final = 1.0
"""MiB of memory for each follower."""
ALWAYS_GROWN: Final = 16.0
"""However few they are."""
LATE_GOAL: Final = 50.0
"""Milliseconds that somebody else waits longer for an answer beside followers, 99th percentile."""
MEASUREMENTS: Final = ("logs", "exec", "requests", "followers")


def log_results(speeds: Sequence[Speed]) -> list[Result]:
    """Seconds for 100 MiB, which half the speed of `cat` may be instead."""
    results = []
    for speed in speeds:
        goal = max(100 / LOG_GOAL, 2 * 100 * MIB * speed.cat / speed.size)
        results.append(Result(f"100 MiB of logs by {speed.kind}, {speed.query}", "s", 100 / speed.rate, goal))
    return results


def command_results(trips: Sequence[RoundTrip]) -> list[Result]:
    """The aims of each way."""
    return [
        Result(f"exec on {trip.runtime} by {trip.way}: beyond the direct call", "ms", trip.beyond, COMMAND_GOAL)
        for trip in trips
    ]


def request_results(requests: Sequence[Request]) -> list[Result]:
    """The aims of the pages."""
    return [Result(f"{one.name}: answered in", "ms", one.seconds, PAGE_GOAL) for one in requests]


def follower_results(measured: Sequence[Followed]) -> list[Result]:
    """The aims of those who follow. The first is nobody."""
    nobody, *others = measured
    results = []
    for one in others:
        late = one.answered(0.99) - nobody.answered(0.99)
        each = one.grown / one.plan.followers
        results += [
            Result(f"followers ({one.plan.name}): with lines lost or doubled", "", one.problems, 0),
            Result(f"followers ({one.plan.name}): others wait longer (99th percentile)", "ms", late, LATE_GOAL),
            Result(
                f"followers ({one.plan.name}): memory of each",
                "MiB",
                each,
                max(GROWN_GOAL, ALWAYS_GROWN / one.plan.followers),
            ),
        ]
    return results


def _print_logs(speeds: Sequence[Speed]) -> None:
    print_table(
        "Logs of 200-byte lines, MiB of the file a second",
        ["socket, query", "agent", "cat", "share of cat", "agent's CPU, s per GiB"],
        [
            [
                f"{speed.kind}, {speed.query}",
                f"{speed.rate:.0f}",
                f"{speed.size / MIB / speed.cat:.0f}",
                f"{speed.share:.2f}",
                f"{speed.cpu * 1024 * MIB / speed.size:.1f}",
            ]
            for speed in speeds
        ],
    )


def _print_commands(trips: Sequence[RoundTrip]) -> None:
    print_table(
        "`true` in a container, ms",
        ["runtime, way", "by the node's port", "directly", "beyond", "agent's CPU"],
        [
            [
                f"{trip.runtime}, {trip.way}",
                *(f"{value:.1f}" for value in (trip.node, trip.direct, trip.beyond, trip.cpu)),
            ]
            for trip in trips
        ],
    )


def _print_requests(requests: Sequence[Request]) -> None:
    print_table(
        "Requests over TLS with a token, ms",
        ["", "answered in", "agent's CPU", "bytes", "floor"],
        [
            [
                one.name,
                f"{one.seconds:.2f}",
                f"{one.cpu:.2f}",
                str(one.size),
                "" if one.floor is None else f"{one.floor:.2f}",
            ]
            for one in requests
        ],
    )
    click.echo(
        "Floors: a bare TLS server in Python; both questions to the API server by a client that asks nothing else."
    )


def _print_followers(measured: Sequence[Followed]) -> None:
    print_table(
        "Followers of a log that is rotated; how long /healthz takes meanwhile, ms",
        ["", "lines", "seconds", "MiB/s of all", "lost or doubled", "CPU %", "memory, MiB", "p50", "p99", "max"],
        [
            [
                one.plan.name,
                str(one.plan.lines),
                f"{one.seconds:.1f}",
                f"{one.rate:.0f}",
                str(one.problems),
                f"{one.cpu:.0f}",
                f"+{one.grown:.1f}",
                *(f"{one.answered(share):.1f}" for share in (0.5, 0.99, 1)),
            ]
            for one in measured
        ],
    )


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims as JSON to this file.")
@picture_option
@click.option("--only", type=click.Choice(MEASUREMENTS), multiple=True, help="Leave out the other measurements.")
@click.option("--size", type=click.IntRange(min=1), default=128, show_default=True, help="MiB of the log, for logs.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Of logs.")
@click.option(
    "--runtime",
    "runtimes",
    type=click.Choice(["embedded", "containerd"]),
    multiple=True,
    default=("embedded", "containerd"),
    show_default=True,
    help="Where commands are run.",
)
@click.option("--commands", type=click.IntRange(min=1), default=40, show_default=True, help="By each way.")
@click.option("--pods", type=click.IntRange(min=1), default=100, show_default=True, help="For requests.")
@click.option("--requests", type=click.IntRange(min=1), default=100, show_default=True, help="Of each kind.")
@click.option("--follow", type=click.IntRange(min=1), default=256, show_default=True, help="MiB of the followed log.")
@click.option("--followers", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--rotations", type=click.IntRange(min=0), default=20, show_default=True)
def main(
    json_file: Path | None,
    only: tuple[str, ...],
    size: int,
    rounds: int,
    runtimes: tuple[str, ...],
    commands: int,
    pods: int,
    requests: int,
    follow: int,
    followers: int,
    rotations: int,
) -> None:
    """Measure the node's API."""
    silence()
    click.echo(f"load of the machine at the start: {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores")
    wanted = only or MEASUREMENTS
    results: list[Result] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="trikubelet-server-")))
        if {"logs", "requests", "followers"} & {*wanted}:
            sim = stack.enter_context(runtime_process("sim", folder / "sim"))
        if "logs" in wanted:
            speeds = measure_logs(sim, folder / "logs", size * MIB, rounds, _told)
            _print_logs(speeds)
            results += log_results(speeds)
        if "exec" in wanted:
            trips = []
            for runtime in dict.fromkeys(runtimes):
                trips += measure_commands(runtime, folder / runtime, commands, _told)
            _print_commands(trips)
            results += command_results(trips)
        if "requests" in wanted:
            asked = measure_requests(sim, folder / "requests", pods, requests, _told)
            _print_requests(asked)
            results += request_results(asked)
        if "followers" in wanted:
            measured = measure_followers(sim, folder / "followers", follow * MIB, followers, rotations, _told)
            _print_followers(measured)
            results += follower_results(measured)
    sys.exit(0 if report(results, json_file) else 1)


def _told(what: str) -> None:
    if sys.stderr.isatty():
        click.echo(what, err=True)


if __name__ == "__main__":
    main()
