"""`trikubelet runtime serve`: the embedded runtime alone, for this agent, a kubelet or crictl."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from trikubelet.cli.failures import CommandError
from trikubelet.cli.network_flags import network_flags, pod_cidr_flag
from trikubelet.cli.output import echo
from trikubelet.cli.root_dir import default_root_dir, registry_hosts_option
from trikubelet.embedded.network.choice import NetworkOptions
from trikubelet.embedded.network.model import NetworkError


@click.group(short_help="The embedded runtime by itself.")
def runtime() -> None:
    """The embedded container runtime by itself."""


@runtime.command()
@click.option("--listen", required=True, help="Where to serve CRI: unix:///PATH.")
@click.option("--root", type=click.Path(path_type=Path), help="The runtime's state.  [default: ROOT-DIR/runtime]")
@registry_hosts_option
@click.option("--host-image", is_flag=True, help="Offer pods the machine's own root filesystem, as localhost/host.")
@network_flags
@pod_cidr_flag
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The format of the log.",
)
@click.option("-v", "--v", "verbosity", type=click.IntRange(0, 10), default=0, help="Log verbosity.")
def serve(
    listen: str,
    root: Path | None,
    hosts_dirs: tuple[Path, ...],
    host_image: bool,
    pod_network: str,
    pod_cidr: str,
    cluster_cidr: str,
    cni_conf_dir: Path,
    cni_bin_dirs: tuple[Path, ...],
    log_format: str,
    verbosity: int,
) -> None:
    """Serve CRI v1 on a unix socket until interrupted. Containers keep running, and the next start finds them."""
    import trio

    from trikubelet.telemetry.logs import configure_logging

    if not listen.startswith("unix:///"):
        raise CommandError(f"--listen: expected unix:///PATH, got {listen!r}")
    configure_logging("json" if log_format == "json" else "text", verbosity)
    network = NetworkOptions(
        way=pod_network,
        pod_cidr=pod_cidr,
        cluster_cidr=cluster_cidr,
        cni_conf_dir=cni_conf_dir,
        cni_bin_dirs=cni_bin_dirs,
    )
    folder = Path.cwd() / root if root is not None else default_root_dir() / "runtime"
    try:
        trio.run(_serve, Path(listen.removeprefix("unix://")), folder, hosts_dirs, host_image, network)
    except NetworkError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{listen} cannot be served: {error}") from None


async def _serve(
    socket: Path, root: Path, hosts_dirs: tuple[Path, ...], host_image: bool, network: NetworkOptions
) -> None:
    import trio

    from trikubelet.clock import SystemClock
    from trikubelet.embedded.registry.hosts import DEFAULT_HOSTS_DIRS
    from trikubelet.embedded.runtime import EmbeddedRuntime
    from trikubelet.rpc.grpc import Server

    embedded = EmbeddedRuntime(
        root,
        clock=SystemClock(),
        host_image=host_image,
        hidden=[default_root_dir()],
        registry_hosts_dirs=hosts_dirs or DEFAULT_HOSTS_DIRS,
        network=network,
    )
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(embedded.run)
            await nursery.start(Server(embedded.handlers).serve_unix, socket)
            echo(f"serving CRI on unix://{socket}", err=True)
            async for _ in signals:
                break
            await embedded.take_networks_down()
            nursery.cancel_scope.cancel()
