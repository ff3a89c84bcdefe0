"""`trikubelet run`: an agent with everything around it: the lock, the embedded runtime, signals, the service manager.

The first SIGINT or SIGTERM ends the agent. With `--drain-on-exit`, the default with the embedded runtime outside of
clusters, every pod is ended gracefully first; otherwise pods run on, for the next agent to adopt. A second signal ends
it at once (`ending.py`).
"""

from __future__ import annotations

import socket
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import attrs
import trio

from trikubelet import __version__
from trikubelet.admission.sysctls import SysctlPatternError
from trikubelet.agent.agent import Agent
from trikubelet.agent.cluster_access import ClusterAccessError, OpenCluster, open_cluster
from trikubelet.agent.devices import DeviceFolderError
from trikubelet.agent.ending import Ending, until_ended
from trikubelet.agent.image_arrivals import watch_image_arrivals
from trikubelet.agent.node import ReservationError
from trikubelet.agent.node_view import NodeView
from trikubelet.agent.options import EMBEDDED, AgentOptions
from trikubelet.agent.process import LockFileError, configure_log, limit_descriptors, lock_file, watch_lock
from trikubelet.agent.registry_access import RegistryAccessError
from trikubelet.agent.resource_managers import ResourceManagerError
from trikubelet.agent.resources import CgroupStartError
from trikubelet.agent.root_folder import (
    RootFolderInUseError,
    lock_root_folder,
    share_root_folder,
    stop_sharing_root_folder,
)
from trikubelet.agent.server import AgentServer, ServerError
from trikubelet.clock import SystemClock
from trikubelet.linux import sd_notify
from trikubelet.linux.checkpoint import CheckpointError
from trikubelet.node.addresses import primary_address
from trikubelet.node.iptables_chains import keep_chains
from trikubelet.node.oom.score import set_own_score
from trikubelet.node.start_checks import StartCheckError, check_machine, set_kernel
from trikubelet.node_api.listeners import PortError
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.rpc.grpc import Channel, Server, SocketInUseError, UnixStream, open_unix_channel
from trikubelet.runtime.options import DEFAULT_IDS_PER_POD
from trikubelet.runtime.sandboxes.user_namespaces import UserNamespaceError, id_range_of_node
from trikubelet.scopes import leaves
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import flush, get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.agent.tracing import Tracing
    from trikubelet.clock import WallClock
    from trikubelet.embedded.runtime import EmbeddedRuntime  # noqa: TC004 - only agents that use it import it
    from trikubelet.kube_client.certificates.rotation import CertificateManager
    from trikubelet.kube_client.types import ApiClient
    from trikubelet.linux.inotify import Inotify
    from trikubelet.rpc.cri.caller import CallChannel

log = get_logger("agent")

START_TIMEOUT: Final = 5.0
"""Seconds that an agent asked to end its pods may still take to start: before, it does not know them."""
WATCHED: Final = ("syncloop", "device-plugin")
"""Checks that the service manager hears of (kubelet: `SetHealthCheckers`)."""
EXIT_PODS_LEFT: Final = 1
EXIT_CANNOT_START: Final = 1
EXIT_IN_USE: Final = 2


class StartError(Exception):
    """Something that the agent needs could not be started. The text says what, and what to do."""


def run_agent(options: AgentOptions) -> int:
    """Run an agent until a signal ends it. Returns the exit code."""
    configure_log(options.configuration.logging)
    unlimited = limit_descriptors(options)
    with ExitStack() as stack:
        try:
            if options.lock_file is not None:
                lock_file(options.lock_file, stack)
            options.root_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
            lock_root_folder(options.root_dir, stack)
        except RootFolderInUseError as error:
            log.error(str(error))
            return EXIT_IN_USE
        except OSError as error:
            log.error(f"cannot use {options.root_dir} as root folder: {error}: give another --root-dir")
            return EXIT_CANNOT_START
        except LockFileError as error:
            log.error(str(error))
            return EXIT_CANNOT_START
        if unlimited is not None:
            options = attrs.evolve(options, warnings=(*options.warnings, unlimited))
        return _run_on_shared_mount(options)


def _run_on_shared_mount(options: AgentOptions) -> int:
    """The exit code. The mount stays where containers may rely on it."""
    made = share_root_folder(options.root_dir)
    try:
        code = trio.run(_run, options)
    except BaseExceptionGroup as group:
        kinds = (StartError, CgroupStartError, SocketInUseError, PortError, DeviceFolderError)
        expected, unexpected = group.split(kinds)
        if expected is None or unexpected is not None:
            raise
        for leaf in leaves(expected):
            log.error(str(leaf))
        if made:
            stop_sharing_root_folder(options.root_dir)
        return EXIT_CANNOT_START
    if options.drains and code == 0:
        stop_sharing_root_folder(options.root_dir)
    return code


async def _run(options: AgentOptions) -> int:
    for warning in options.warnings:
        log.warning(warning)
    log.info("starting", version=__version__, node=options.node_name, root_dir=str(options.root_dir))
    ending = Ending()
    with ending.by_signals(), ExitStack() as stack:
        contention = watch_lock(options, stack)
        code = await until_ended(partial(_run_until, options, ending, contention), ending)
    log.info("ended", exit_code=code)
    return code


async def _end_on_contention(contention: Inotify, ending: Ending) -> None:
    await contention.wait()
    log.info("the lock file is wanted by another process: ending")
    ending.ask()


def _is_well(view: NodeView) -> bool:
    return not any(view.health()[name] for name in WATCHED)


async def _flush_logs(period: float) -> None:
    while True:
        await trio.sleep(period)
        flush()


async def _run_until(options: AgentOptions, ending: Ending, contention: Inotify | None) -> int:
    clock = SystemClock()
    started_at = clock.now()
    _check_machine(options)
    # The embedded keeper, with which all containers would end, inherits it.
    unprotected = set_own_score(options.configuration.oom_score_adj)
    async with (
        _tracing(options, clock) as tracing,
        _cluster(options, clock, tracing) as cluster,  # first: a kubeconfig that cannot be used starts nothing
        _connected_runtime(options) as runtime,
        trio.open_nursery() as nursery,
    ):
        ending.runtime_started = True
        if contention is not None:
            nursery.start_soon(supervise, _end_on_contention, contention, ending)
        nursery.start_soon(supervise, _flush_logs, options.configuration.logging.flush_frequency.total_seconds())
        agent = await _agent(options, runtime, None if cluster is None else cluster.client, clock, tracing)
        view = NodeView(agent, runtime.embedded, started_at=started_at)
        await nursery.start(view.run)
        server = _server(agent, view, None if cluster is None else cluster.certificate)
        await nursery.start(server.run)
        if unprotected is not None:
            log.warning(unprotected)
        set_kernel(options.configuration)
        if options.configuration.make_iptables_util_chains:
            nursery.start_soon(supervise, keep_chains)
        starting = trio.CancelScope()
        nursery.start_soon(supervise, _cancel_when, ending.asked, starting, START_TIMEOUT if options.drains else 0)
        with starting:
            await nursery.start(agent.run)
            if runtime.embedded is not None:
                await nursery.start(supervise, watch_image_arrivals, agent, runtime.embedded.images)
            sd_notify.notify("READY=1")
            # A runtime that is away is no reason to restart the agent: only what is its own counts.
            nursery.start_soon(supervise, sd_notify.watchdog, partial(_is_well, view))
            await ending.asked.wait()
        sd_notify.notify("STOPPING=1")
        started = not starting.cancelled_caught
        ending.step = "ending pods"
        left = await agent.drain() if options.drains and started else frozenset()
        ending.step = "finishing answers"
        await server.shutdown()
        ending.step = "cancelling what goes on"
        nursery.cancel_scope.cancel()
        if left:
            log.error("pods did not end in time", uids=sorted(left))
        return EXIT_PODS_LEFT if left else 0
    raise AssertionError("unreachable")


def _check_machine(options: AgentOptions) -> None:
    """Raises StartError when it is not one to start on."""
    try:
        check_machine(options.configuration)
    except StartCheckError as error:
        raise StartError(str(error)) from error


async def _agent(
    options: AgentOptions, runtime: _Runtime, api_client: ApiClient | None, clock: WallClock, tracing: Tracing | None
) -> Agent:
    """Raises StartError when it cannot be what the options say."""
    timeout = options.configuration.runtime_request_timeout.total_seconds()
    channel: CallChannel = runtime.channel
    image_channel: CallChannel = runtime.image_channel
    if tracing is not None:
        channel = tracing.channel(channel, options.runtime_endpoint)
        image_channel = tracing.channel(image_channel, options.image_endpoint or options.runtime_endpoint)
    runtime_client = RuntimeClient(channel, timeout=timeout)
    image_client = ImageClient(image_channel, timeout=timeout)
    namespaces = options.configuration.user_namespaces
    ids_per_pod = DEFAULT_IDS_PER_POD if namespaces is None else namespaces.ids_per_pod or DEFAULT_IDS_PER_POD
    try:
        user_ids = await id_range_of_node(ids_per_pod)
        found = attrs.evolve(options, user_ids=user_ids)
        return Agent(found, runtime_client, image_client, clock=clock, api_client=api_client, tracing=tracing)
    except (
        ReservationError,
        UserNamespaceError,
        SysctlPatternError,
        RegistryAccessError,
        CheckpointError,
        CgroupStartError,
        ResourceManagerError,
    ) as error:
        raise StartError(str(error)) from error


def _server(agent: Agent, view: NodeView, client_certificate: CertificateManager | None) -> AgentServer:
    """Raises StartError when it cannot be served what the options say."""
    try:
        return AgentServer(agent, view, client_certificate=client_certificate)
    except ServerError as error:
        raise StartError(str(error)) from error


@asynccontextmanager
async def _cluster(
    options: AgentOptions, clock: WallClock, tracing: Tracing | None
) -> AsyncIterator[OpenCluster | None]:
    """Raises StartError when the kubeconfig cannot be used."""
    try:
        async with open_cluster(options, clock, tracing) as cluster:
            yield cluster
    except ClusterAccessError as error:
        raise StartError(str(error)) from error


@asynccontextmanager
async def _tracing(options: AgentOptions, clock: WallClock) -> AsyncIterator[Tracing | None]:
    """None when nobody has asked for traces: then nothing of them is imported."""
    if options.configuration.tracing is None:
        yield None
        return
    from trikubelet.agent.tracing import open_tracing

    async with open_tracing(options, clock) as tracing:
        yield tracing


async def _cancel_when(event: trio.Event, scope: trio.CancelScope, delay: float) -> None:
    await event.wait()
    await trio.sleep(delay)
    scope.cancel()


@attrs.frozen
class _Runtime:
    """A runtime to work with; the embedded one also as it is, for what CRI has no calls for."""

    channel: Channel
    image_channel: Channel
    embedded: EmbeddedRuntime | None = None


@asynccontextmanager
async def _connected_runtime(options: AgentOptions) -> AsyncIterator[_Runtime]:
    if options.runtime_endpoint == EMBEDDED:
        async with _embedded_runtime(options) as runtime:
            yield runtime
        return
    async with open_unix_channel(socket_path(options.runtime_endpoint)) as channel:
        if options.image_endpoint in (None, options.runtime_endpoint):
            yield _Runtime(channel, channel)
            return
        async with open_unix_channel(socket_path(options.image_endpoint)) as image_channel:
            yield _Runtime(channel, image_channel)


@asynccontextmanager
async def _embedded_runtime(options: AgentOptions) -> AsyncIterator[_Runtime]:
    """The embedded runtime in this process, behind the same gRPC as any other.

    After a drain the keeper ends with it; otherwise it goes on with its containers, and the next agent finds it.
    """
    from trikubelet.embedded.keeper_client import KeeperStartError
    from trikubelet.embedded.network.model import NetworkError
    from trikubelet.embedded.registry.hosts import DEFAULT_HOSTS_DIRS
    from trikubelet.embedded.runtime import EmbeddedRuntime

    given = next((str(ip) for ip in options.node.ips if not ip.is_unspecified), None)
    node_ip = given or primary_address()
    try:
        runtime = EmbeddedRuntime(
            options.root_dir / "runtime",
            clock=SystemClock(),
            node_ip=node_ip,
            registry_hosts_dirs=options.registry_hosts_dirs or DEFAULT_HOSTS_DIRS,
            host_image=options.has_host_image,
            hidden=options.secret_paths,
            network=options.network,
        )
    except NetworkError as error:
        raise StartError(f"podCIDR: {error}") from error
    async with trio.open_nursery() as nursery:
        try:
            await nursery.start(runtime.run)
        except KeeperStartError as error:
            raise StartError(f"{error}: `trikubelet check` tells what this machine lacks") from error
        server = Server(runtime.handlers)

        async def connect() -> UnixStream:
            ours, theirs = socket.socketpair()
            nursery.start_soon(contain, server.serve_stream, UnixStream(theirs))
            return UnixStream(ours)

        async with Channel(connect) as channel:
            yield _Runtime(channel, channel, runtime)
        if options.drains:
            await runtime.shutdown()
        nursery.cancel_scope.cancel()


def socket_path(endpoint: str) -> Path:
    """The path in `unix:///path`. Raises ValueError for anything else."""
    parts = urlsplit(endpoint)
    if parts.scheme != "unix" or parts.netloc or not parts.path.startswith("/"):
        raise ValueError(f"expected unix:///path/to/socket as runtime endpoint, got {endpoint!r}")
    return Path(parts.path)
