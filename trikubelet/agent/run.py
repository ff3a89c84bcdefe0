"""`trikubelet run`: an agent with everything around it: the lock, the embedded runtime, signals, the service manager.

The first SIGINT or SIGTERM ends the agent. With `--drain-on-exit`, the default with the embedded runtime outside of
clusters, every pod is ended gracefully first; otherwise pods run on, for the next agent to adopt. A second signal ends
it at once (`ending.py`).
"""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import attrs
import trio

from trikubelet import __version__
from trikubelet.agent.cluster_access import ClusterAccessError, OpenCluster, open_cluster
from trikubelet.agent.ending import Ending, until_ended
from trikubelet.agent.options import EMBEDDED, AgentOptions
from trikubelet.agent.process import LockFileError, configure_log, limit_descriptors, lock_file, watch_lock
from trikubelet.agent.root_folder import (
    RootFolderInUseError,
    lock_root_folder,
    share_root_folder,
    stop_sharing_root_folder,
)
from trikubelet.agent.start import ConnectedRuntime, StartError
from trikubelet.clock import SystemClock
from trikubelet.node.addresses import primary_address
from trikubelet.node.oom.score import set_own_score
from trikubelet.node.pod_managers import (
    KUBELET_SHARES_RUNTIME,
    OTHER_RUNTIME,
    STOP_KUBELET,
    conflicting_kubelet,
    describe,
    other_pod_managers,
)
from trikubelet.node.start_checks import StartCheckError, check_machine
from trikubelet.rpc.grpc import Channel, Server, SocketInUseError, UnixStream, open_unix_channel
from trikubelet.scopes import leaves
from trikubelet.supervision import contain
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.agent.console import Terminal
    from trikubelet.agent.tracing import Tracing
    from trikubelet.clock import WallClock
    from trikubelet.linux.inotify import Inotify

log = get_logger("agent")

EXIT_CANNOT_START: Final = 1
EXIT_IN_USE: Final = 2


def run_agent(options: AgentOptions) -> int:
    """Run an agent until a signal ends it. Returns the exit code."""
    configure_log(options.configuration.logging)
    unlimited = limit_descriptors(options)
    with ExitStack() as stack:
        try:
            if options.lock_file is not None:
                lock_file(options.lock_file, stack)
            options.root_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
            for folder in (options.manifests, options.applied):
                if folder is not None and folder.parent == options.root_dir:
                    folder.mkdir(mode=0o750, exist_ok=True)  # its own: see `cli.run`
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
        return _run_on_shared_mount(options, _terminal(options))


def _terminal(options: AgentOptions) -> Terminal | None:
    """What a person looks at; None when nobody does, or when the log cannot go elsewhere."""
    if not options.console:
        return None
    from trikubelet.agent.console import Terminal, log_to_file

    terminal = Terminal(sys.stdout)
    try:
        log_to_file(options, terminal)
    except OSError as error:
        log.warning("the log cannot go to a file", error=str(error))
        return None
    return terminal


def _run_on_shared_mount(options: AgentOptions, terminal: Terminal | None) -> int:
    """The exit code. The mount stays where containers may rely on it."""
    made = share_root_folder(options.root_dir)
    try:
        code = trio.run(_run, options, terminal)
    except BaseExceptionGroup as group:
        from trikubelet.agent.devices import DeviceFolderError
        from trikubelet.agent.resources import CgroupStartError
        from trikubelet.node_api.listeners import PortError

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


async def _run(options: AgentOptions, terminal: Terminal | None) -> int:
    for warning in options.warnings:
        log.warning(warning)
    log.info("starting", version=__version__, node=options.node_name, root_dir=str(options.root_dir))
    ending = Ending()
    with ending.by_signals(), ExitStack() as stack:
        contention = watch_lock(options, stack)
        code = await until_ended(partial(_run_until, options, ending, contention, terminal), ending)
    log.info("ended", exit_code=code)
    if terminal is not None and ending.result and not options.only_ends:
        terminal.say(ending.result)
    return code


async def _run_until(
    options: AgentOptions, ending: Ending, contention: Inotify | None, terminal: Terminal | None
) -> int:
    clock = SystemClock()
    started_at = clock.now()
    if not options.only_ends:
        _check_machine(options, terminal)
    # The embedded keeper, with which all containers would end, inherits it.
    unprotected = set_own_score(options.configuration.oom_score_adj)
    async with (
        _tracing(options, clock) as tracing,
        _cluster(options, clock, tracing) as cluster,  # first: a kubeconfig that cannot be used starts nothing
        _connected_runtime(options) as runtime,
    ):
        ending.runtime_started = True
        if options.only_ends:
            ending.ask()
        if unprotected is not None:
            # A node is told to be protected; an agent that nobody has configured makes do without.
            (log.warning if options.configured else log.info)(unprotected)
        from trikubelet.agent.service import serve  # which `_embedded_runtime` has begun to import

        return await serve(
            options,
            ending,
            runtime,
            cluster,
            clock=clock,
            started_at=started_at,
            tracing=tracing,
            contention=contention,
            terminal=terminal,
        )
    raise AssertionError("unreachable")


def _check_machine(options: AgentOptions, terminal: Terminal | None) -> None:
    """Raises StartError when it is not one to start on."""
    try:
        check_machine(options.configuration)
    except StartCheckError as error:
        raise StartError(str(error)) from error
    _look_for_others(options, terminal)


def _look_for_others(options: AgentOptions, terminal: Terminal | None) -> None:
    """Say which other programs manage pods here. Raises StartError for a kubelet that manages the pods of this node."""
    try:
        others = other_pod_managers(options.root_dir)
    except OSError as error:
        log.warning("cannot look for other programs that manage pods here", problem=str(error))
        return
    cgroup_root = None if options.cluster is None else options.configuration.cgroup_root
    kubelet = conflicting_kubelet(others, options.root_dir, cgroup_root)
    if kubelet is not None:
        raise StartError(f"{kubelet} manages the same pods, and each would end the other's: {STOP_KUBELET}")
    if options.runtime_endpoint != EMBEDDED and any(one.is_kubelet for one in others):
        log.warning(f"{KUBELET_SHARES_RUNTIME}: {describe(others)}: {OTHER_RUNTIME}")
    elif others:
        told = f"other programs manage pods on this machine, and this agent leaves their pods alone: {describe(others)}"
        log.info(told)
        if terminal is not None:
            terminal.notice("info", told, {})


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


@asynccontextmanager
async def _connected_runtime(options: AgentOptions) -> AsyncIterator[ConnectedRuntime]:
    if options.runtime_endpoint == EMBEDDED:
        async with _embedded_runtime(options) as runtime:
            yield runtime
        return
    async with open_unix_channel(socket_path(options.runtime_endpoint)) as channel:
        if options.image_endpoint in (None, options.runtime_endpoint):
            yield ConnectedRuntime(channel, channel)
            return
        async with open_unix_channel(socket_path(options.image_endpoint)) as image_channel:
            yield ConnectedRuntime(channel, image_channel)


@asynccontextmanager
async def _embedded_runtime(options: AgentOptions) -> AsyncIterator[ConnectedRuntime]:
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
        raise StartError(str(error)) from error
    async with trio.open_nursery() as nursery:
        # The keeper takes about as long to start as all that is still to be imported.
        nursery.start_soon(_import_service)
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
            yield ConnectedRuntime(channel, channel, runtime)
        if options.drains:
            await runtime.shutdown()
        nursery.cancel_scope.cancel()


async def _import_service() -> None:
    await trio.to_thread.run_sync(import_module, "trikubelet.agent.service")


def socket_path(endpoint: str) -> Path:
    """The path in `unix:///path`. Raises ValueError for anything else."""
    parts = urlsplit(endpoint)
    if parts.scheme != "unix" or parts.netloc or not parts.path.startswith("/"):
        raise ValueError(f"expected unix:///path/to/socket as runtime endpoint, got {endpoint!r}")
    return Path(parts.path)
