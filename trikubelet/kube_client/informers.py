"""What the node knows of its cluster: copies of the objects that it must not ask for one by one.

Five reflectors keep five stores: the node's own object, its pods, all services, all RuntimeClasses, all CSIDrivers. The
pods are read when the node has been: pods are judged by the node's labels and taints, and those of a restart ago would
be the wrong ones. ConfigMaps, Secrets and trust bundles are followed when a pod needs them. Objects are
read from the stores, and written with one of three clients on the same connections.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.kube_client.objects import ClusterObjects
from trikubelet.kube_client.pod_credentials import ClusterCredentials
from trikubelet.kube_client.pod_objects import PodObjects, copies_by
from trikubelet.kube_client.reflector import Reflector, ReflectorStatistics
from trikubelet.kube_client.storage_objects import ClusterStorage
from trikubelet.kube_client.store import Store
from trikubelet.kube_client.tokens import Tokens
from trikubelet.kube_client.trust_bundles import TrustBundles
from trikubelet.kube_client.types import CSI_DRIVERS, NODES, PODS, RUNTIME_CLASSES, SERVICES
from trikubelet.supervision import supervise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import CSIDriver, Node, Pod, RuntimeClass, Service
    from trikubelet.clock import WallClock
    from trikubelet.kube_client.pod_certificates import PodCertificates
    from trikubelet.kube_client.types import ApiClient, RateLimit

EVENT_TIMEOUT: Final = 10.0


class Cluster:
    """The cluster that this node is part of.

    `client` is for everything but heartbeats and events, with the limit that it was opened with. Heartbeats are not
    limited, since a node that is busy must not look dead, and have a deadline of their own; events have their own
    limit, since they must not hold up anything else.
    """

    def __init__(
        self,
        client: ApiClient,
        node_name: str,
        *,
        event_limit: RateLimit | None,
        heartbeat_timeout: float,
        clock: WallClock,
        rng: random.Random | None = None,
        change_detection: str = "Watch",
        sync_frequency: float = 60.0,
        boot_id: str = "",
        certificates: PodCertificates | None = None,
        projects_trust_bundles: bool = True,
    ) -> None:
        """`change_detection`: of ConfigMaps and Secrets, by Watch, Cache or Get. `sync_frequency`: seconds between two
        syncs of a pod that does not change. `certificates` is run by others.

        There are ten parameters since the parts that are made here have few in common; five have defaults.
        """
        rng = rng or random.Random()
        self.client = client
        self.events_client = client.view(limit=event_limit, timeout=EVENT_TIMEOUT)
        self.heartbeat_client = client.view(limit=None, timeout=heartbeat_timeout)
        self.node_name = node_name
        self.node: Store[Node] = Store(NODES)
        self.pods: Store[Pod] = Store(PODS)
        self.services: Store[Service] = Store(SERVICES)
        self.runtime_classes: Store[RuntimeClass] = Store(RUNTIME_CLASSES)
        self.csi_drivers: Store[CSIDriver] = Store(CSI_DRIVERS)
        self._node_reflector = Reflector(client, NODES, self.node, rng=rng, field_selector=f"metadata.name={node_name}")
        self._pod_reflector = Reflector(client, PODS, self.pods, rng=rng, field_selector=f"spec.nodeName={node_name}")
        self._service_reflector = Reflector(
            client, SERVICES, self.services, rng=rng, field_selector="spec.clusterIP!=None"
        )
        self._class_reflector = Reflector(client, RUNTIME_CLASSES, self.runtime_classes, rng=rng)
        self._driver_reflector = Reflector(client, CSI_DRIVERS, self.csi_drivers, rng=rng)
        self.tokens = Tokens(client, clock=clock, rng=rng)
        self.watched = PodObjects(
            copies_by(
                change_detection,
                client,
                node=lambda: self.node.get(node_name),
                sync_frequency=sync_frequency,
                rng=rng,
            )
        )
        self.objects = ClusterObjects(
            client,
            watched=self.watched,
            tokens=self.tokens,
            pods=self.pods,
            services=self.services,
            runtime_classes=self.runtime_classes,
        )
        self.storage = ClusterStorage(client, node_name, nodes=self.node, csi_drivers=self.csi_drivers)
        self.trust_bundles = TrustBundles(client, rng=rng, order=boot_id)
        self.credentials = ClusterCredentials(
            tokens=self.tokens,
            trust_bundles=self.trust_bundles if projects_trust_bundles else None,
            certificates=certificates,
            clock=clock,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the stores current until cancelled; never fails. `started` is called at once."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, self._node_reflector.run)
            nursery.start_soon(supervise, self._service_reflector.run)
            nursery.start_soon(supervise, self._class_reflector.run)
            nursery.start_soon(supervise, self._driver_reflector.run)
            nursery.start_soon(supervise, self.trust_bundles.run)
            nursery.start_soon(self.watched.run)
            await supervise(self._follow_pods)

    async def _follow_pods(self) -> None:
        await self.node.wait_synced()
        await self._pod_reflector.run()

    def statistics(self) -> Mapping[str, ReflectorStatistics]:
        """By resource."""
        reflectors: dict[str, Reflector[Any]] = {
            "nodes": self._node_reflector,
            "pods": self._pod_reflector,
            "services": self._service_reflector,
            "runtimeclasses": self._class_reflector,
            "csidrivers": self._driver_reflector,
        }
        return {name: reflector.statistics() for name, reflector in reflectors.items()}
