"""`trikubelet stop`: end an agent, and what runs on without one."""

from __future__ import annotations

import os
import select
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from trikubelet.cli.client import TICK_SECONDS, AgentClient, Tick
from trikubelet.cli.failures import CommandError
from trikubelet.cli.output import echo
from trikubelet.cli.root_dir import agent_pid, agent_root_dir_option, listener_pid
from trikubelet.cli.waiting import Waiting
from trikubelet.embedded.keeper.protocol import SOCKET_NAME as KEEPER_SOCKET

if TYPE_CHECKING:
    from trikubelet.agent.options import AgentOptions


@click.command(short_help="End the agent and all pods.")
@click.option("--runtime-endpoint", help="The runtime that pods run on.  [default: that of `trikubelet run`]")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="The agent's KubeletConfiguration.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="The agent's, of a node of a cluster. Not read.")
@agent_root_dir_option
def stop(runtime_endpoint: str | None, config_file: Path | None, kubeconfig: Path | None, root_dir: Path) -> int:
    """End the agent, if one runs, and every pod that runs on without it, each with its grace period.

    Pods outlive an agent that was killed, was interrupted twice, or ran with --no-drain-on-exit. Their volumes and
    cgroups are released too. Manifests stay: the next agent runs their pods again.
    """
    return end_everything(root_dir, runtime_endpoint, config_file, kubeconfig)


def end_everything(
    root_dir: Path, runtime_endpoint: str | None, config_file: Path | None, kubeconfig: Path | None = None
) -> int:
    """What `stop` does; 0 when nothing runs any more. Raises CommandError."""
    from trikubelet.agent.options import EMBEDDED
    from trikubelet.volumes.layout import pods_directory

    pid = agent_pid(root_dir)
    options = stopping_options(root_dir, runtime_endpoint, config_file, kubeconfig)
    embedded = options.runtime_endpoint == EMBEDDED
    pods = pods_directory(root_dir)
    has_pods = _has_entries(pods)
    if embedded and runtime_endpoint is None and has_pods and not (root_dir / "runtime").is_dir():
        raise CommandError(
            f"{pods}: expected to be told which runtime these pods run on, it is not the embedded one: give "
            "--runtime-endpoint=unix:///PATH, or for a node of a cluster --config and --kubeconfig as to the agent"
        )
    if pid is not None:
        echo(f"ending the agent (process {pid})", err=True)
        end_agent(root_dir, pid)
    if embedded and not _is_anything_left(root_dir / "runtime", pods):
        if pid is None:
            echo("Nothing runs.", err=True)
        else:
            echo("No pod runs any more.")
        return 0
    from trikubelet.agent.run import run_agent

    code = run_agent(options)
    if code == 0:
        echo("No pod runs any more.")
    return code


def _is_anything_left(runtime: Path, pods: Path) -> bool:
    """True if an agent on the embedded runtime would find something to end: a keeper, containers, or pods' folders."""
    if not runtime.is_dir():
        return False
    leftovers = (runtime / "containers", runtime / "sandboxes", pods)
    keeper = listener_pid(runtime / KEEPER_SOCKET, socket.SOCK_SEQPACKET)
    return keeper is not None or any(map(_has_entries, leftovers))


def _has_entries(folder: Path) -> bool:
    from trikubelet.volumes.folders import names_in

    try:
        return bool(names_in(folder))
    except OSError as error:
        raise CommandError(f"{folder} cannot be read: {error.strerror}") from None


def end_agent(root_dir: Path, pid: int) -> None:
    """Ask it to end and wait until it has, showing which pods it waits for. Raises CommandError."""
    client = AgentClient(root_dir)
    waiting = Waiting(client)

    def tick() -> None:
        with suppress(CommandError):  # it serves nothing any more when its pods have ended
            found = (item["metadata"] for item in client.get("/pods")["items"])
            ending = (metadata for metadata in found if "deletionTimestamp" in metadata)
            waiting.pods = {f"{metadata['namespace']}/{metadata['name']}": None for metadata in ending}
        waiting.tick()

    with waiting.shown():
        end_process(pid, tick)


def end_process(pid: int, tick: Tick = lambda: None) -> None:
    """Ask it to end, and wait until it has; `tick` is called each second meanwhile. Raises CommandError."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        while not ended.poll(TICK_SECONDS * 1000):
            tick()
    except PermissionError:
        raise CommandError(f"process {pid} belongs to another user: run this command as the agent's user") from None
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def stopping_options(
    root_dir: Path, runtime_endpoint: str | None, config_file: Path | None, kubeconfig: Path | None = None
) -> AgentOptions:
    """Those of an agent that wants no pods, and ends when it has ended all that it finds. It has no cluster:
    `kubeconfig` only says that there was one."""
    from trikubelet.cli.run import build_options, run

    arguments = [f"--root-dir={root_dir}", "--drain-on-exit"]
    if runtime_endpoint is not None:
        arguments.append(f"--runtime-endpoint={runtime_endpoint}")
    if config_file is not None:
        arguments.append(f"--config={config_file}")
    if kubeconfig is not None:
        arguments.append(f"--kubeconfig={kubeconfig}")
    with run.make_context("run", arguments) as context:
        options = build_options(context.params)
    # Nobody has to reach it, and another agent may have the ports. A machine that is refused to run pods can end them.
    configuration = attrs.evolve(
        options.configuration,
        healthz_port=0,
        enable_server=False,
        read_only_port=0,
        static_pod_url="",
        fail_cgroup_v1=False,
    )
    return attrs.evolve(options, configuration=configuration, cluster=None, manifests=None, only_ends=True)
