"""`trikubelet stop`: end an agent, and what runs on without one."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from trikubelet.cli.failures import CommandError
from trikubelet.cli.root_dir import agent_pid, agent_root_dir_option

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
    from trikubelet.volumes.folders import names_in
    from trikubelet.volumes.layout import pods_directory

    pid = agent_pid(root_dir)
    options = stopping_options(root_dir, runtime_endpoint, config_file, kubeconfig)
    elsewhere = options.runtime_endpoint == EMBEDDED and not (root_dir / "runtime").is_dir()
    pods = pods_directory(root_dir)
    try:
        nobody_knows_where = elsewhere and runtime_endpoint is None and bool(names_in(pods))
    except OSError as error:
        raise CommandError(f"{pods} cannot be read: {error.strerror}") from None
    if nobody_knows_where:
        raise CommandError(
            f"{pods}: expected to be told which runtime these pods run on, it is not the embedded one: give "
            "--runtime-endpoint=unix:///PATH, or for a node of a cluster --config and --kubeconfig as to the agent"
        )
    if pid is not None:
        click.echo(f"ending the agent (process {pid})", err=True)
        end_process(pid)
    if elsewhere:
        click.echo("Nothing runs.", err=True)
        return 0
    from trikubelet.agent.run import run_agent

    code = run_agent(options)
    if code == 0:
        click.echo("No pod runs any more.")
    return code


def end_process(pid: int) -> None:
    """Ask it to end, and wait until it has. Raises CommandError."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        select.select([descriptor], [], [])
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
