"""The part of an agent that cares for pods' volumes: every kind of volume that it has, and the manager that uses them.

Without a cluster there are no claims and no CSI drivers to be had, so those kinds are not even imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from trikubelet.api import Quantity
from trikubelet.clock import WallClock
from trikubelet.config.feature_gates import gate_enabled
from trikubelet.formats.values import frozen
from trikubelet.kube_client.volume_objects import PodCredentials, StorageObjects, WatchedObjects
from trikubelet.linux.mounter import Mounter
from trikubelet.linux.selinux import ContainerLabels
from trikubelet.supervision import follow, supervise
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.attaching import Attaching
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.flex.discovery import FlexDrivers
from trikubelet.volumes.flex.tools import FlexTools
from trikubelet.volumes.kinds.content import ConfigMapKind, DownwardAPIKind, ProjectedKind, SecretKind
from trikubelet.volumes.kinds.empty_dir import EmptyDirKind
from trikubelet.volumes.kinds.host_path import HostPathKind
from trikubelet.volumes.kinds.nfs import NFSKind
from trikubelet.volumes.kinds.protocol import Kinds
from trikubelet.volumes.manager import VolumeManager
from trikubelet.volumes.mount_labels import GATE, MountLabels
from trikubelet.volumes.no_cluster import NoClusterCredentials, NoClusterObjects, NoClusterStorage
from trikubelet.volumes.scsi.fibre_channel import FibreChannelKind
from trikubelet.volumes.scsi.iscsi import ISCSIKind
from trikubelet.volumes.stats import VolumeMeter

if TYPE_CHECKING:
    from trio_typing import TaskStatus

    from trikubelet.agent.cluster import ClusterParts
    from trikubelet.agent.plugins import AgentPlugins
    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.linux.machine_facts import MachineFacts
    from trikubelet.volumes.csi.drivers import Drivers
    from trikubelet.volumes.csi.registration import CSIRegistration
    from trikubelet.volumes.kinds.protocol import VolumeKind


VOLUME_PLUGIN_DIR: Final = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec"


@frozen(kw_only=True)
class VolumeTools:
    """What all kinds are made with."""

    root: Path
    allocatable: Callable[[], Mapping[str, Quantity]]
    recorder: EventRecorder
    clock: WallClock
    rng: Random
    objects: WatchedObjects
    storage: StorageObjects
    credentials: PodCredentials
    mounter: Mounter = attrs.field(factory=Mounter)
    disk: Disk = attrs.field(factory=Disk)
    meter: VolumeMeter
    controller_attaches: bool = False
    """A controller says which disks the node may use."""


class VolumeParts:
    """`manager` implements `volumes.interface.PodVolumes`."""

    def __init__(
        self,
        root: Path,
        *,
        cluster: ClusterParts | None,
        plugins: AgentPlugins,
        allocatable: Callable[[], Mapping[str, Quantity]],
        recorder: EventRecorder,
        clock: WallClock,
        rng: Random,
        containers_gone: Callable[[str], bool],
        usage_period: float,
        labels: MountLabels,
        controller_attaches: bool = True,
        plugin_dir: str = VOLUME_PLUGIN_DIR,
    ) -> None:
        """`usage_period`: seconds between two looks at how much a volume holds. `controller_attaches`: in a cluster.
        `plugin_dir`: of flexVolume drivers.

        The tools of the kinds are made here from these arguments, so a context of them would be `VolumeTools` twice.
        """
        self._cluster = cluster
        storage = NoClusterStorage() if cluster is None else cluster.cluster.storage
        tools = VolumeTools(
            root=root.resolve(),  # the mount table knows no links
            allocatable=allocatable,
            recorder=recorder,
            clock=clock,
            rng=rng,
            objects=NoClusterObjects() if cluster is None else cluster.cluster.watched,
            storage=storage,
            credentials=NoClusterCredentials() if cluster is None else cluster.cluster.credentials,
            meter=VolumeMeter(clock),
            controller_attaches=controller_attaches and cluster is not None,
        )
        self.measuring = tools.meter.durations
        """Seconds that it took to measure volumes, by how."""
        kinds = node_kinds(tools)
        self.drivers: Drivers | None = None
        self._csi: CSIRegistration | None = None
        if cluster is not None:
            from trikubelet.volumes.csi.drivers import Drivers

            drivers = self.drivers = Drivers()
            kinds += _cluster_kinds(tools, cluster, drivers, selinux=labels.selinux)
            self._csi = _csi_registration(tools, cluster, drivers, plugins)
        all_kinds = Kinds.of(kinds)
        self._flex = FlexDrivers(Path(plugin_dir), all_kinds, flex_tools(tools))
        self.manager = VolumeManager(
            root=tools.root,
            kinds=all_kinds,
            mounter=tools.mounter,
            disk=tools.disk,
            objects=tools.objects,
            storage=storage,
            credentials=tools.credentials,
            attaching=Attaching(storage, node_name="" if cluster is None else cluster.node_name),
            recorder=recorder,
            clock=clock,
            rng=rng,
            containers_gone=containers_gone,
            labels=labels,
            usage_period=usage_period,
        )

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started when the volumes that an earlier agent left are known."""
        async with trio.open_nursery() as nursery:
            if self._csi is not None:
                nursery.start_soon(supervise, self._csi.run)
            if self._cluster is not None:
                node = self._cluster.node
                nursery.start_soon(follow, node.reported.subscribe(lambda _: None), self.manager.reported_in_use)
                nursery.start_soon(follow, self.manager.in_use_changes.subscribe(), lambda _: node.report_soon())
            if self.drivers is not None:
                nursery.start_soon(follow, self.drivers.changes.subscribe(), self.manager.driver_changed)
            nursery.start_soon(follow, self._flex.changes.subscribe(), self.manager.driver_changed)
            await nursery.start(supervise, self._flex.run)  # their volumes may be on the disk
            await nursery.start(self.manager.run)
            task_status.started()


def mount_labels(configuration: KubeletConfiguration, machine: MachineFacts) -> MountLabels:
    """Reads the machine's policy when SELinux is on."""
    labels = ContainerLabels.read() if machine.selinux else None
    return MountLabels(labels, every_mode=gate_enabled(configuration.feature_gates, GATE))


def node_kinds(tools: VolumeTools) -> list[VolumeKind]:
    """The kinds that need no cluster to be had."""
    root, mounter, disk, meter = tools.root, tools.mounter, tools.disk, tools.meter
    clock, allocatable, objects = tools.clock, tools.allocatable, tools.objects
    return [
        HostPathKind(root=root, disk=disk),
        NFSKind(root=root, mounter=mounter, disk=disk, meter=meter),
        EmptyDirKind(root=root, mounter=mounter, disk=disk, meter=meter, allocatable=allocatable),
        DownwardAPIKind(root=root, mounter=mounter, disk=disk, meter=meter, clock=clock, allocatable=allocatable),
        *(
            kind(
                root=root,
                mounter=mounter,
                disk=disk,
                meter=meter,
                clock=clock,
                allocatable=allocatable,
                objects=objects,
            )
            for kind in (ConfigMapKind, SecretKind)
        ),
        *(kind(**_of_disks(tools)) for kind in (partial(ISCSIKind, storage=tools.storage), FibreChannelKind)),
        ProjectedKind(
            root=root,
            mounter=mounter,
            disk=disk,
            meter=meter,
            clock=clock,
            allocatable=allocatable,
            objects=objects,
            credentials=tools.credentials,
        ),
    ]


def flex_tools(tools: VolumeTools) -> FlexTools:
    return FlexTools(
        root=tools.root,
        mounter=tools.mounter,
        disk=tools.disk,
        meter=tools.meter,
        recorder=tools.recorder,
        storage=tools.storage,
        controller_attaches=tools.controller_attaches,
    )


def _of_disks(tools: VolumeTools) -> dict[str, Any]:
    return {
        "root": tools.root,
        "mounter": tools.mounter,
        "disk": tools.disk,
        "meter": tools.meter,
        "recorder": tools.recorder,
        "attached_by_controller": tools.controller_attaches,
    }


def _cluster_kinds(tools: VolumeTools, cluster: ClusterParts, drivers: Drivers, *, selinux: bool) -> list[VolumeKind]:
    from trikubelet.volumes.csi.kind import CSIKind
    from trikubelet.volumes.kinds.local import LocalKind

    return [
        LocalKind(root=tools.root, mounter=tools.mounter, disk=tools.disk, meter=tools.meter, recorder=tools.recorder),
        CSIKind(
            root=tools.root,
            node=cluster.node_name,
            drivers=drivers,
            disk=tools.disk,
            mounter=tools.mounter,
            storage=tools.storage,
            credentials=tools.credentials,
            recorder=tools.recorder,
            clock=tools.clock,
            rng=tools.rng,
            selinux=selinux,
        ),
    ]


def _csi_registration(
    tools: VolumeTools, cluster: ClusterParts, drivers: Drivers, plugins: AgentPlugins
) -> CSIRegistration:
    from trikubelet.volumes.csi.registration import PLUGIN_TYPE, CSIRegistration

    csi = CSIRegistration(drivers, entries=cluster.node.drivers, storage=tools.storage)
    plugins.add_handler(PLUGIN_TYPE, csi)
    return csi
