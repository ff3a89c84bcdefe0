"""Parts that replace those which an agent makes for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random

import attrs

from trikubelet.admission.types import Admission
from trikubelet.agent.node import MachineView
from trikubelet.allocation.store import AllocationStore
from trikubelet.cgroups.interface import PodCgroups
from trikubelet.formats.values import frozen
from trikubelet.node.eviction.model import UsageSource
from trikubelet.node.shutdown.interface import Logind
from trikubelet.pleg.exits import ExitTracker
from trikubelet.pleg.pidfd import PidfdWatchers
from trikubelet.pods.registry import OnMove, PodWorkerRegistry
from trikubelet.probes.types import Asker
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.grpc import Channel
from trikubelet.runtime.pod_files import PodFiles
from trikubelet.sources.mux import PodSource
from trikubelet.volumes.interface import PodVolumes


@frozen(kw_only=True)
class Overrides:
    """Parts that replace those which an agent makes for itself: a simulated node has no disk and no kernel."""

    sources: Sequence[PodSource] | None = None
    """None: those that the options name."""
    volumes: PodVolumes | None = None
    pod_files: PodFiles | None = None
    cgroups: PodCgroups | None = None
    """None: the machine's, as the options say."""
    diskless: bool = False
    """No pull records, no credentials from files, no rotation of logs and no collection of images."""
    connect_plugins: Callable[[Path], AbstractAsyncContextManager[Channel]] | None = None
    """How plugins of devices and of resource claims are reached, by their sockets; None on a node without a disk: there
    are none."""
    make_pidfds: Callable[[RuntimeClient, ExitTracker], PidfdWatchers] = PidfdWatchers
    machine: MachineView = attrs.field(factory=MachineView)
    admission: Admission | None = None
    """None: the kubelet's rules."""
    usage: UsageSource | None = None
    """Measures the node for eviction. None: the node's statistics; a diskless node has none, and evicts no pod."""
    asker: Asker | None = None
    """Carries probes out."""
    make_registry: Callable[[OnMove], PodWorkerRegistry] = PodWorkerRegistry
    """Makes the pod workers' phases, empty, of what is told of their moves."""
    open_allocations: Callable[[Path], AllocationStore] | None = None
    """Finds what an earlier agent wrote of pods' resources. None: the files do."""
    rng: Random | None = None
    """For the jitter of the pod workers."""
    logind: Logind | None = None

    @property
    def grants_devices(self) -> bool:
        """Whether there are devices and resource claims, and files of what was granted."""
        return not self.diskless or self.connect_plugins is not None

    """Announces shutdowns. None: the machine's; a node without a disk has none."""
