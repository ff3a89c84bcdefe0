"""What the agent makes of the options for its node: settings, the observer of facts, and a view of the node.

In a cluster the view is the manager of the node object (`agent.cluster`). An agent by itself has the node that it would
create, which changes with what is seen of the machine; that is made anew only now and then, since it is asked for with
every status.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.api import Taint
from trikubelet.container.errors import SandboxConfigError
from trikubelet.formats.values import frozen
from trikubelet.kube_client.node_view import LocalNodeView
from trikubelet.linux.machine import Machine, processors_in
from trikubelet.linux.machine_topology import MachineTopology
from trikubelet.node.address_choice import AddressSettings, HostAddresses
from trikubelet.node.addresses import read_host_addresses
from trikubelet.node.capacity import Reservations, capacity, reservation_problem
from trikubelet.node.declared_features import declared_features
from trikubelet.node.facts import NodeSettings, reported_version
from trikubelet.node.observer import Lookup, NodeObserver, look_up
from trikubelet.node.oom.watcher import KERNEL_LOG, watch_kernel_log
from trikubelet.node.registration import initial_node
from trikubelet.node.start_checks import report_swapped_volumes
from trikubelet.runtime.sandboxes.name_resolution import cluster_servers, limits_exceeded
from trikubelet.runtime.sandboxes.user_namespaces import UserNamespaceError, UserNamespaces
from trikubelet.telemetry.events import EventRecorder, EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.agent.options import AgentOptions
    from trikubelet.api import Node
    from trikubelet.clock import WallClock
    from trikubelet.linux.machine_facts import MachineFacts
    from trikubelet.runtime.options import RuntimeOptions
    from trikubelet.runtime.pod_files import PodFiles

log = get_logger("node")

REFRESH: Final = 10.0
"""Seconds for which the node of an agent without a cluster is taken to be as it was."""


class ReservationError(Exception):
    """The configuration keeps more of a resource from pods than the machine has."""


@frozen(kw_only=True)
class MachineView:
    """Where the facts of the machine come from; a simulated node has its own."""

    machine: Machine | None = None
    """None: read it."""
    topology: MachineTopology | None = None
    """Its NUMA nodes and CPUs. None: read them where a policy needs them."""
    host: Callable[[], HostAddresses] = read_host_addresses
    lookup: Lookup = look_up
    kernel_log: Path | None = KERNEL_LOG
    """None: it has no kernel."""


def node_settings(options: AgentOptions) -> NodeSettings:
    """What flags and configuration say of the node."""
    configuration = options.configuration
    node = options.node
    addresses = AddressSettings(
        node_name=options.node_name,
        hostname=node.hostname or options.node_name,
        node_ips=node.ips,
        external_cloud=node.external_cloud,
    )
    reservations = Reservations.of(
        kube=configuration.kube_reserved,
        system=configuration.system_reserved,
        reserved_cpus=processors_in(configuration.reserved_system_cpus),
        eviction_hard={} if options.ignores_eviction else configuration.eviction_hard,
    )
    return NodeSettings(
        addresses=addresses,
        register=configuration.register_node,
        looks_when_forbidden=not configuration.enabled("KubeletRegistrationGetOnExistsOnly"),
        labels=node.labels,
        taints=(
            *(Taint(key=one.key, value=one.value, effect=one.effect) for one in configuration.register_with_taints),
            *node.taints,
        ),
        provider_id=configuration.provider_id,
        max_pods=configuration.max_pods,
        pods_per_core=configuration.pods_per_core,
        reservations=reservations,
        local_storage=configuration.local_storage_capacity_isolation,
        controller_attaches=configuration.enable_controller_attach_detach,
        max_images=configuration.node_status_max_images,
        kubelet_port=configuration.port,
        kubelet_version=reported_version(node.reported_version),
        declared_features=declared_features(configuration.feature_gates),
        update_period=configuration.node_status_update_frequency.total_seconds(),
        report_period=configuration.node_status_report_frequency.total_seconds(),
        lease_duration=configuration.node_lease_duration_seconds,
    )


def read_machine(options: AgentOptions, settings: NodeSettings, view: MachineView) -> Machine | None:
    """A machine that cannot be read is logged, and takes no pods. Raises ReservationError."""
    facts = view.machine
    if facts is None:
        try:
            facts = Machine.read(root_dir=options.root_dir)
        except OSError as error:
            log.error(
                "cannot tell what this machine has: pods that ask for resources will be refused", error=str(error)
            )
    if facts is not None:
        _check_reservations(facts, settings)
    return facts


def _check_reservations(machine: Machine, settings: NodeSettings) -> None:
    """The kubelet does not start either (`validateNodeAllocatable`). Raises ReservationError."""
    found = capacity(
        machine,
        max_pods=settings.max_pods,
        pods_per_core=settings.pods_per_core,
        local_storage=settings.local_storage,
    )
    problem = reservation_problem(found, settings.reservations)
    if problem is not None:
        fields = "kubeReserved, systemReserved, reservedSystemCPUs and evictionHard"
        raise ReservationError(f"{problem} Lower what the configuration keeps with {fields}, or use a larger machine.")


def local_view(settings: NodeSettings, observer: NodeObserver, clock: WallClock) -> LocalNodeView:
    """The node of an agent without a cluster."""
    made: Node | None = None
    made_at = -math.inf

    changes = observer.changed.subscribe()

    def node() -> Node:
        nonlocal made, made_at
        now = trio.current_time()
        if made is None or len(changes) or now - made_at > REFRESH:
            changes.drop(None)
            made, made_at = initial_node(settings, observer.facts(), clock.now()).node, now
        return made

    return LocalNodeView(node)


def look_at_node(
    user_namespaces: UserNamespaces,
    files: PodFiles,
    runtime: RuntimeOptions,
    options: AgentOptions,
    recorder: EventRecorder,
) -> None:
    """Take up what an earlier agent left, and say what is not as it should be."""
    try:
        user_namespaces.adopt()
    except (UserNamespaceError, OSError) as error:
        log.warning("the user ids that pods have cannot be read", error=str(error))
    for server in cluster_servers(options.configuration.cluster_dns)[1]:
        log.warning("Invalid clusterDNS IP", address=server)
    path = runtime.resolver_config
    if path is None:
        return
    try:
        settings = files.resolver_settings()
    except (OSError, SandboxConfigError) as error:
        problem: str | None = str(error)
    else:
        problem = None if settings is None else limits_exceeded(str(path), settings, runtime.cluster_domain)
    if problem:
        recorder.node_event(EventType.WARNING, "CheckLimitsForResolvConf", problem)


async def watch_memory(recorder: EventRecorder, machine: MachineFacts, kernel_log: Path | None) -> None:
    """Tell what comes of too little memory. A node without a kernel of its own has nothing to tell."""
    if kernel_log is None:
        return
    report_swapped_volumes(recorder, machine)
    await watch_kernel_log(recorder, kernel_log)
