"""`trikubelet logs`: what a container has written, like `kubectl logs`."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.find_pod import find_pod
from trikubelet.cli.root_dir import agent_root_dir_option

if TYPE_CHECKING:
    from pathlib import Path


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
@click.argument("pod")
@click.option("-c", "--container", help="Which container.  [default: the pod's first]")
@click.option("-n", "--namespace", help="The pod's namespace, when its name is not enough.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until the container ends.")
@click.option("--tail", type=click.IntRange(min=0), help="Print only so many of the last lines.")
@click.option("--since", type=_Since(), help="Only what is newer than this, e.g. 5m.")
@click.option("-p", "--previous", is_flag=True, help="Print the log of the instance before the last restart.")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time.")
@agent_root_dir_option
def logs(
    pod: str,
    container: str | None,
    namespace: str | None,
    follow: bool,
    tail: int | None,
    since: int | None,
    previous: bool,
    timestamps: bool,
    root_dir: Path,
) -> None:
    """Print what a container of POD has written.

    POD is a name, with or without its -NODE ending, or NAMESPACE/NAME.
    """
    client = AgentClient(root_dir)
    found = find_pod(client, pod, namespace)
    if container is None:
        from trikubelet.node_api.log_location import default_container

        container = default_container(found)
    path = f"/containerLogs/{found.metadata.namespace}/{found.metadata.name}/{container}"
    query = {
        "follow": follow,
        "tailLines": tail,
        "sinceSeconds": since,
        "previous": previous,
        "timestamps": timestamps,
    }
    out = sys.stdout.buffer
    for block in client.blocks(path, query):
        out.write(block)
        out.flush()
