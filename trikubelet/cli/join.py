"""`trikubelet join`: make this machine a node of a cluster that kubeadm has made.

Everything that can be refused is refused before anything is written: what the server says of its cluster, the cluster's
KubeletConfiguration and the agent's flags, what this machine lacks, and what is there already.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from trikubelet.cli.failures import CommandError
from trikubelet.cli.install import SYSTEM_MANIFESTS, install_service, this_program
from trikubelet.cli.node_files import (
    NodePaths,
    kubernetes_dir_option,
    node_root_dir_option,
    node_runtime_option,
    refuse_node,
    write_node_files,
)
from trikubelet.cli.output import echo
from trikubelet.cli.service_files import ServiceSettings, run_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.agent.options import AgentOptions
    from trikubelet.cli.machine_checks import CheckResult
    from trikubelet.kube_client.cluster_info import JoinableCluster


@click.command(short_help="Join a cluster made by kubeadm.")
@click.option("--server", required=True, help="The API server: HOST:PORT, as `kubeadm join` is given it, or its URL.")
@click.option("--token", required=True, help="A bootstrap token; `kubeadm token create` makes one.")
@click.option(
    "--discovery-token-ca-cert-hash",
    "hashes",
    multiple=True,
    help="sha256:… of the public key of the cluster's authority; `kubeadm token create --print-join-command` says it.",
)
@click.option(
    "--discovery-token-unsafe-skip-ca-verification",
    "unsafe",
    is_flag=True,
    help="Join without such a hash. Whoever else has the token can pretend to be the cluster.",
)
@click.option("--node-name", "--hostname-override", "node_name", help="This node's name.  [default: the host's name]")
@node_runtime_option
@node_root_dir_option
@kubernetes_dir_option
@click.option("--timeout", default=60.0, show_default=True, help="Seconds for an API server that is away.")
@click.option("--ignore-checks", is_flag=True, help="Go on although this machine lacks something.")
@click.option("--dry-run", is_flag=True, help="Ask the server, and only show what would be written and run.")
@click.option("--start/--no-start", default=True, help="Make the agent a service and start it.  [default: start]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def join(
    server: str,
    token: str,
    hashes: tuple[str, ...],
    unsafe: bool,
    node_name: str | None,
    runtime_endpoint: str,
    root_dir: Path,
    kubernetes_dir: Path,
    timeout: float,
    ignore_checks: bool,
    dry_run: bool,
    start: bool,
    arguments: tuple[str, ...],
) -> None:
    """Make this machine a node of a cluster that kubeadm has made. `trikubelet leave` undoes it.

    The words are those of `kubeadm join`. ARGUMENTS are further flags of `trikubelet run`, after --.
    """
    if not hashes and not unsafe:
        raise CommandError(
            "give --discovery-token-ca-cert-hash, by which the cluster is known (`kubeadm token create "
            "--print-join-command` says it), or --discovery-token-unsafe-skip-ca-verification"
        )
    if start and not dry_run and os.geteuid() != 0:
        raise CommandError("a node's service is root's: use sudo, or --no-start and start the agent yourself")
    paths = NodePaths(kubernetes_dir, root_dir)
    refuse_node(paths, ())
    cluster, configuration = _discover(_as_url(server), token, hashes, timeout)
    files = paths.files(cluster, configuration)
    refuse_node(paths, files)
    flags = [*paths.flags(runtime_endpoint, node_name), *arguments]
    options = _options(flags, configuration)
    _check(options, ignored=ignore_checks)
    settings = ServiceSettings(
        program=this_program(),
        manifests=Path(options.configuration.static_pod_path or SYSTEM_MANIFESTS),
        arguments=flags,
    )
    if dry_run:
        for file in files:
            echo(f"write {file.path} (mode {file.mode:o}, {len(file.content)} bytes)")
    else:
        write_node_files(files)
    if not start:
        echo("Start the agent with:", f"  {shlex.join(run_command(settings))}")
    elif install_service(settings, dry_run=dry_run):
        echo(
            f"The agent of node {options.node_name} runs, and joins the cluster at {cluster.access.server}. There, "
            "`kubectl get nodes` shows it, and `kubectl get csr` while its certificate is to be approved."
        )


def _as_url(server: str) -> str:
    """Raises CommandError."""
    from trikubelet.kube_client.kubeconfig_schema import split_server

    url = (server if "://" in server else f"https://{server}").rstrip("/")
    parts = split_server(url)
    if parts is None or parts.scheme != "https" or not parts.hostname:
        raise CommandError(f"--server: expected HOST:PORT or https://HOST:PORT, got {server!r}")
    return url if parts.port else f"{url}:6443"


def _discover(server: str, token: str, hashes: Sequence[str], timeout: float) -> tuple[JoinableCluster, str]:
    """Raises CommandError."""
    import trio

    from trikubelet.kube_client.client import open_client
    from trikubelet.kube_client.cluster_info import BootstrapToken, DiscoveryError, parse_hash
    from trikubelet.kube_client.dialing import open_access
    from trikubelet.kube_client.discovery import discover
    from trikubelet.telemetry.logs import configure_logging

    async def ask() -> tuple[JoinableCluster, str]:
        return await discover(
            server,
            BootstrapToken.parse(token),
            [parse_hash(text) for text in hashes],
            open_client=lambda access: open_client(open_access(access)),
            timeout=timeout,
            report=lambda reason: echo(f"waiting: {reason}", err=True),
        )

    try:
        # The log would say once more what is reported.
        with Path(os.devnull).open("w") as nowhere:
            configure_logging("text", 0, file=nowhere)
            return trio.run(ask)
    except DiscoveryError as error:
        raise CommandError(str(error)) from None
    finally:
        configure_logging("text", 0)


def _options(flags: Sequence[str], configuration: str) -> AgentOptions:
    """What the agent will make of its flags and the cluster's configuration. Raises CommandError."""
    from trikubelet.cli.run import build_options, run

    with TemporaryDirectory() as folder:
        file = Path(folder) / "kubelet-config"
        file.write_text(configuration)
        with run.make_context("run", [*flags, f"--config={file}"]) as context:
            return build_options(context.params)


def _check(options: AgentOptions, *, ignored: bool) -> None:
    """Raises CommandError when something is missing."""
    from trikubelet.cli.check import check_node, show_results

    results = [
        *check_node(
            options.root_dir,
            options.runtime_endpoint,
            options.configuration,
            options.network,
            configured=options.configured,
        ),
        *_check_resolver(options.configuration.resolv_conf),
    ]
    if show_results(results, also_ok=False) and not ignored:
        raise CommandError("this machine lacks something, nothing is changed: --ignore-checks joins nevertheless")


def _check_resolver(path: str) -> list[CheckResult]:
    from trikubelet.cli.machine_checks import warn

    if not path or Path(path).exists():
        return []
    fix = "give `-- --resolv-conf=/etc/resolv.conf`, or start systemd-resolved"
    return [warn("resolvConf", f"the cluster's configuration names {path}, which is not here", fix)]
