"""`trikubelet logs`: what a container has written, like `kubectl logs`."""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.completion import complete_containers, complete_pods
from trikubelet.cli.find_pod import find_pod
from trikubelet.cli.pod_containers import chosen_container
from trikubelet.cli.root_dir import agent_root_dir_option
from trikubelet.scopes import leaves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trikubelet.api import Pod


class _Since(click.ParamType[int]):
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from trikubelet.formats.durations import parse_duration

        try:
            seconds = parse_duration(str(value)).total_seconds()
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds <= 0:
            self.fail("expected a duration longer than 0s", param, ctx)
        return math.ceil(seconds)


@click.command(short_help="Print the logs of a container.")
@click.argument("pod", shell_complete=complete_pods)
@click.argument("container_argument", metavar="[CONTAINER]", required=False, shell_complete=complete_containers)
@click.option("-c", "--container", help="Which container.", shell_complete=complete_containers)
@click.option("--all-containers", is_flag=True, help="Of all containers of the pod, one after the other.")
@click.option("--prefix", is_flag=True, help="Begin each line with its pod and container.")
@click.option("-n", "--namespace", help="The pod's namespace, when its name is not enough.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written until the container ends.")
@click.option("--tail", type=click.IntRange(min=-1), default=-1, help="Only the last lines; -1: all.")
@click.option("--since", type=_Since(), help="Only what is newer than this, e.g. 5m.")
@click.option("--since-time", help="Only what is newer than this time, e.g. 2026-01-31T12:00:00Z.")
@click.option("--limit-bytes", type=click.IntRange(min=1), help="At most so many bytes.")
@click.option("-p", "--previous", is_flag=True, help="Of the instance before the last restart.")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time.")
@agent_root_dir_option
def logs(
    pod: str,
    container_argument: str | None,
    container: str | None,
    all_containers: bool,
    prefix: bool,
    namespace: str | None,
    root_dir: Path,
    **options: Any,
) -> None:
    """Print what a container of POD has written; without CONTAINER, its first one.

    POD is a name, with or without its -NODE ending, NAMESPACE/NAME, or pod/NAME.
    """
    named = container or container_argument
    if named and all_containers:
        raise click.UsageError("--all-containers=true should not be specified with a container name")
    if container and container_argument:
        raise click.UsageError("only one of -c or an inline [CONTAINER] arg is allowed")
    if options["since"] is not None and options["since_time"] is not None:
        raise click.UsageError("at most one of `--since-time` and `--since` may be used")
    client = AgentClient(root_dir)
    found = find_pod(client, pod.removeprefix("pod/"), namespace)
    containers = _all_containers(found) if all_containers else [chosen_container(found, named).name]
    query = _query(options)
    if len(containers) > 1 and options["follow"]:
        _follow_all(client, found, containers, query, prefix=prefix)
        return
    for name in containers:
        mark = f"[pod/{found.metadata.name}/{name}] ".encode() if prefix else b""
        write = _Writer(sys.stdout.buffer, mark)
        for block in client.blocks(_path(found, name), query):
            write(block)


def _path(pod: Pod, container: str) -> str:
    return f"/containerLogs/{pod.metadata.namespace}/{pod.metadata.name}/{container}"


def _query(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "follow": options["follow"],
        "tailLines": None if options["tail"] < 0 else options["tail"],
        "sinceSeconds": options["since"],
        "sinceTime": options["since_time"],
        "limitBytes": options["limit_bytes"],
        "previous": options["previous"],
        "timestamps": options["timestamps"],
    }


def _all_containers(pod: Pod) -> list[str]:
    """Those that have begun, in the order in which they do; the others have no log yet."""
    statuses = (
        *pod.status.init_container_statuses,
        *pod.status.container_statuses,
        *pod.status.ephemeral_container_statuses,
    )
    begun = [status.name for status in statuses if status.container_id]
    return begun or [chosen_container(pod, None, quiet=True).name]


class _Writer:
    """Writes the log of one container, each line behind a mark."""

    def __init__(self, out: BinaryIO, mark: bytes = b"") -> None:
        self._out = out
        self._mark = mark
        self._rest = b""

    def __call__(self, block: bytes) -> None:
        if self._mark:
            *whole, self._rest = (self._rest + block).split(b"\n")
            block = b"".join(self._mark + line + b"\n" for line in whole)
        self._out.write(block)
        self._out.flush()


def _follow_all(
    client: AgentClient, pod: Pod, containers: Sequence[str], query: Mapping[str, Any], *, prefix: bool
) -> None:
    """Their lines as they come. A failure of one stream ends all."""
    import trio

    def follow(name: str) -> None:
        mark = f"[pod/{pod.metadata.name}/{name}] ".encode() if prefix else b""
        write = _Writer(sys.stdout.buffer, mark)
        for block in client.blocks(_path(pod, name), query):
            write(block)

    async def follow_each() -> None:
        async with trio.open_nursery() as nursery:
            for name in containers:
                nursery.start_soon(partial(trio.to_thread.run_sync, follow, name, abandon_on_cancel=True))

    try:
        trio.run(follow_each)
    except BaseExceptionGroup as group:
        raise next(leaves(group)) from None
