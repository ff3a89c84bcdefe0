"""An agent on its runtime: from the first part that is made to the last answer that is given.

All parts of the agent are imported here. `run.py` imports this module while the embedded keeper starts.
"""

from __future__ import annotations

import gc
import linecache
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.admission.sysctls import SysctlPatternError
from trikubelet.agent.agent import Agent
from trikubelet.agent.console import Console, name_some, pods_waited_for, short_name, show_ending
from trikubelet.agent.image_arrivals import watch_image_arrivals, watch_listed_images
from trikubelet.agent.node import ReservationError
from trikubelet.agent.node_view import NodeView
from trikubelet.agent.registry_access import RegistryAccessError
from trikubelet.agent.resource_managers import ResourceManagerError
from trikubelet.agent.resources import CgroupStartError
from trikubelet.agent.server import AgentServer, ServerError
from trikubelet.agent.sources import tell_of_nothing_to_run
from trikubelet.agent.start import StartError
from trikubelet.linux import sd_notify
from trikubelet.linux.checkpoint import CheckpointError
from trikubelet.node.iptables_chains import keep_chains
from trikubelet.node.start_checks import set_kernel
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.runtime.options import DEFAULT_IDS_PER_POD
from trikubelet.runtime.sandboxes.user_namespaces import UserNamespaceError, id_range_of_node
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import flush, get_logger

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from trikubelet.agent.cluster_access import OpenCluster
    from trikubelet.agent.console import Terminal
    from trikubelet.agent.ending import Ending
    from trikubelet.agent.options import AgentOptions
    from trikubelet.agent.start import ConnectedRuntime
    from trikubelet.agent.tracing import Tracing
    from trikubelet.clock import WallClock
    from trikubelet.kube_client.certificates.rotation import CertificateManager
    from trikubelet.kube_client.types import ApiClient
    from trikubelet.linux.inotify import Inotify
    from trikubelet.rpc.cri.caller import CallChannel

log = get_logger("agent")

START_TIMEOUT: Final = 5.0
"""Seconds that an agent asked to end its pods may still take to start: before, it does not know them."""
START_TIMEOUT_TO_END: Final = 60.0
"""The same for one that is started for that alone."""
SETTLED_AFTER: Final = 5.0
"""Seconds in which what lives long is there, and the first pods run."""
WATCHED: Final = ("syncloop", "device-plugin")
"""Checks that the service manager hears of (kubelet: `SetHealthCheckers`)."""
EXIT_PODS_LEFT: Final = 1


async def serve(
    options: AgentOptions,
    ending: Ending,
    runtime: ConnectedRuntime,
    cluster: OpenCluster | None,
    *,
    clock: WallClock,
    started_at: datetime,
    tracing: Tracing | None,
    contention: Inotify | None,
    terminal: Terminal | None,
) -> int:
    """Until the agent is asked to end; the exit code. Raises StartError when it cannot be what the options say."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(contain, _collect_old_garbage_again)
        if contention is not None:
            nursery.start_soon(supervise, _end_on_contention, contention, ending)
        nursery.start_soon(supervise, _flush_logs, options.configuration.logging.flush_frequency.total_seconds())
        agent = await _agent(options, runtime, None if cluster is None else cluster.client, clock, tracing)
        view = NodeView(agent, runtime.embedded, started_at=started_at)
        ending.progress = partial(pods_waited_for, agent.workers.states, agent.options.node_name)
        ending.left_running = partial(_left_running, agent)
        console = None if terminal is None else Console(agent, terminal)
        if console is not None and terminal is not None:
            await nursery.start(supervise, console.run)
            again = "leaves pods running" if options.drains else "ends at once"
            nursery.start_soon(supervise, show_ending, ending.asked, ending.progress, terminal, again)
        await nursery.start(view.run)
        server = await _server(agent, view, None if cluster is None else cluster.certificate)
        await nursery.start(server.run)
        set_kernel(options.configuration)
        if options.configuration.make_iptables_util_chains:
            nursery.start_soon(supervise, keep_chains)
        starting = trio.CancelScope()
        start_timeout = START_TIMEOUT_TO_END if options.only_ends else START_TIMEOUT if options.drains else 0.0
        nursery.start_soon(supervise, _cancel_when, ending.asked, starting, start_timeout)
        with starting:
            await nursery.start(agent.run)
            if runtime.embedded is not None:
                await nursery.start(supervise, watch_image_arrivals, agent, runtime.embedded.images)
            else:
                nursery.start_soon(supervise, watch_listed_images, agent)
            if not options.only_ends:
                nursery.start_soon(supervise, tell_of_nothing_to_run, agent)
            sd_notify.notify("READY=1")
            if console is not None and not options.only_ends:
                console.banner()
            # A runtime that is away is no reason to restart the agent: only what is its own counts.
            nursery.start_soon(supervise, sd_notify.watchdog, partial(_is_well, view))
            await ending.asked.wait()
        sd_notify.notify("STOPPING=1")
        started = not starting.cancelled_caught
        ending.step = "ending pods"
        left = await agent.drain() if options.drains and started else frozenset()
        ending.step = "finishing answers"
        await server.shutdown()
        ending.result = _result(agent, left, drained=options.drains and started)
        ending.step = "cancelling what goes on"
        nursery.cancel_scope.cancel()
        if left:
            log.error("pods did not end in time", uids=sorted(left))
        return EXIT_PODS_LEFT if left else 0
    raise AssertionError("unreachable")


async def _agent(
    options: AgentOptions,
    runtime: ConnectedRuntime,
    api_client: ApiClient | None,
    clock: WallClock,
    tracing: Tracing | None,
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
        return Agent(
            found,
            runtime_client,
            image_client,
            clock=clock,
            api_client=api_client,
            tracing=tracing,
            pull_progress=runtime.pull_progress,
        )
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


def _result(agent: Agent, left: Collection[str], *, drained: bool) -> str:
    """For people, how the pods are when the agent has ended. `left`: UIDs of those that did not end in time."""
    if not drained:
        return _left_running(agent)
    if not left:
        return "All pods have ended."
    phases = agent.workers.states.phases()
    names = sorted(short_name(phases[uid].identity.full_name, agent.options.node_name) for uid in left if uid in phases)
    return f"Did not end in time: {name_some(names)}. `trikubelet stop` tries again"


def _left_running(agent: Agent) -> str:
    """For people, which pods run on."""
    running = [pod for pod in agent.pods.pods() if agent.pleg.cache.runs(pod.metadata.uid)]
    names = [short_name(pod.full_name, agent.options.node_name) for pod in running]
    if not names:
        return ""
    runs, them = ("runs", "it") if len(names) == 1 else ("run", "them")
    return f"{name_some(names)} {runs} on. `trikubelet stop` ends {them}, `trikubelet run` takes {them} up again"


async def _server(agent: Agent, view: NodeView, client_certificate: CertificateManager | None) -> AgentServer:
    """Raises StartError when it cannot be served what the options say."""
    try:
        return await AgentServer.make(agent, view, client_certificate=client_certificate)
    except ServerError as error:
        raise StartError(str(error)) from error


async def _cancel_when(event: trio.Event, scope: trio.CancelScope, delay: float) -> None:
    await event.wait()
    await trio.sleep(delay)
    scope.cancel()


async def _end_on_contention(contention: Inotify, ending: Ending) -> None:
    await contention.wait()
    log.info("the lock file is wanted by another process: ending")
    ending.ask()


def _is_well(view: NodeView) -> bool:
    return not any(view.health()[name] for name in WATCHED)


async def _collect_old_garbage_again() -> None:
    """`trikubelet run` has put this off, or Python would look through all modules again and again.

    What there is now lives mostly as long as the process. Frozen it is not looked at any more: each full collection
    would hold everything up for 50 ms.
    """
    await trio.sleep(SETTLED_AFTER)
    # What attrs has compiled, 1.3 MiB, of which nothing but tracebacks would show a line. They name it without.
    linecache.clearcache()
    freeze_garbage()


def freeze_garbage() -> None:
    """Have Python look for garbage as an agent does that has started.

    What has lived long is looked through five times more seldom than by default: that takes long where there are many
    pods, and has found nothing, since what pods leave behind is not held in cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 10, 50)


async def _flush_logs(period: float) -> None:
    while True:
        await trio.sleep(period)
        flush()
