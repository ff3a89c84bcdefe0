"""`trikubelet check`: what works on this machine, what does not, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trikubelet.cli.failures import CommandError
from trikubelet.cli.network_flags import network_flags, pod_cidr_flag
from trikubelet.cli.output import echo
from trikubelet.cli.root_dir import agent_root_dir_option
from trikubelet.embedded.network.choice import NetworkOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.cli.machine_checks import CheckResult
    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.config.loader import LoadedConfiguration


@click.command(short_help="Check this machine.")
@agent_root_dir_option
@click.option("--runtime-endpoint", help="The runtime to check for.  [default: the agent's]")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="The KubeletConfiguration whose ports, podCIDR and runtime are checked.",
)
@click.option("--in-cluster", is_flag=True, help="Check for a node of a cluster.")
@network_flags
@pod_cidr_flag
def check(
    root_dir: Path,
    runtime_endpoint: str | None,
    config_file: Path | None,
    in_cluster: bool,
    pod_network: str,
    pod_cidr: str,
    cluster_cidr: str,
    cni_conf_dir: Path,
    cni_bin_dirs: tuple[Path, ...],
) -> int:
    """Check whether the agent can run here. Exits 1 when something it needs is missing.

    If an agent runs, this checks the machine for that one: its ports, its root folder, its configuration and its flags.
    With --config it checks for an agent that has this configuration.
    """
    from trikubelet.cli.run import runtime_of
    from trikubelet.cli.running_agent import running_agent

    agent = running_agent(root_dir)
    if agent is not None and config_file is None:
        echo(f"The agent with pid {agent.pid} and root folder {root_dir} is checked.", err=True)
        endpoint = runtime_endpoint or agent.configuration.container_runtime_endpoint
        results = check_node(
            root_dir, endpoint, agent.configuration, agent.network, configured=agent.configured, pid=agent.pid
        )
        return show_results(results)
    loaded = _load(config_file)
    configuration, configured = loaded.config, config_file is not None
    endpoint = runtime_endpoint or runtime_of(loaded, configured=configured, in_cluster=in_cluster)
    options = NetworkOptions(
        way=pod_network,
        pod_cidr=pod_cidr or configuration.pod_cidr,
        cluster_cidr=cluster_cidr,
        in_cluster=in_cluster,
        cni_conf_dir=cni_conf_dir,
        cni_bin_dirs=cni_bin_dirs,
    )
    results = check_node(root_dir, endpoint, configuration, options, configured=configured)
    return show_results(results)


def check_node(
    root_dir: Path,
    runtime_endpoint: str,
    configuration: KubeletConfiguration,
    options: NetworkOptions,
    *,
    configured: bool,
    pid: int | None = None,
) -> list[CheckResult]:
    """All that is looked at. Blocks on the runtime for seconds. `configured`: see `AgentOptions.configured`. `pid`: the
    agent's, if it runs."""
    from trikubelet.cli.machine_checks import Machine, check_machine
    from trikubelet.cli.neighbour_checks import check_neighbours
    from trikubelet.cli.network_checks import check_networks
    from trikubelet.cli.port_checks import check_ports
    from trikubelet.cli.runtime_checks import check_runtime
    from trikubelet.cli.volume_checks import check_volumes

    embedded = runtime_endpoint == "embedded"
    return [
        *check_machine(
            root_dir, embedded=embedded, fail_cgroup_v1=configuration.fail_cgroup_v1 if configured else None
        ),
        *check_volumes(root_dir),
        *(check_networks(root_dir, Machine(), options) if embedded else ()),
        check_ports(configuration, pid),
        check_neighbours(
            root_dir, shares_runtime=not embedded, cgroup_root=configuration.cgroup_root if options.in_cluster else None
        ),
        *check_runtime(runtime_endpoint),
    ]


def show_results(results: Sequence[CheckResult], *, also_ok: bool = True) -> int:
    """Print them, without those that are well unless `also_ok`; 1 when something is missing, else 0."""
    from trikubelet.cli.machine_checks import Level

    colours = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}
    for result in results:
        if result.level is Level.OK and not also_ok:
            continue
        echo(f"{result.level.value:<5}", nl=False, fg=colours[result.level])
        echo(f" {result.subject}: {result.finding}")
        if result.fix:
            echo(f"      → {result.fix}")
    failed = sum(1 for result in results if result.level is Level.FAIL)
    warned = sum(1 for result in results if result.level is Level.WARN)
    echo(f"{len(results) - failed - warned} ok, {warned} to look at, {failed} missing")
    return 1 if failed else 0


def _load(config_file: Path | None) -> LoadedConfiguration:
    """Raises CommandError for a file that cannot be used."""
    from trikubelet.config.loader import ConfigurationError, load_configuration

    try:
        return load_configuration(config_file, None)
    except ConfigurationError as error:
        raise CommandError("; ".join(map(str, error.problems))) from None
