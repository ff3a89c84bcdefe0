"""What the parts of the runtime manager share, and need from other packages."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from trikubelet.cgroups.interface import PodCgroups
from trikubelet.cgroups.pods import NoPodCgroups
from trikubelet.clock import WallClock
from trikubelet.container.abilities import RuntimeAbilities
from trikubelet.formats.values import frozen
from trikubelet.kube_client.object_getter import NoObjects, ObjectGetter
from trikubelet.runtime.containers.container import Extras, no_extras
from trikubelet.runtime.containers.mounts import PodMounts
from trikubelet.runtime.hooks import Ended
from trikubelet.runtime.images.pull_credentials import Credentials
from trikubelet.runtime.images.pull_records.records import PullRecords
from trikubelet.runtime.options import NodeValues, RuntimeOptions
from trikubelet.runtime.pod_files import PodFiles
from trikubelet.runtime.resize import Resizing
from trikubelet.runtime.sandboxes.sandbox import NoResourceClaims, ResourceClaims
from trikubelet.telemetry.events import EventRecorder
from trikubelet.telemetry.spans import Spans
from trikubelet.telemetry.steps import Steps


@frozen(kw_only=True)
class RuntimeContext:
    """By default, of a node of its own that keeps nothing on the disk but pods' files."""

    recorder: EventRecorder
    clock: WallClock
    options: RuntimeOptions
    mounts: PodMounts
    files: PodFiles = attrs.field(default=attrs.Factory(lambda self: PodFiles(self.options), takes_self=True))
    """Files of pods, by default on the disk below the folders that `options` names."""
    objects: ObjectGetter = attrs.field(factory=NoObjects)
    """Secrets, ConfigMaps and RuntimeClasses."""
    node: NodeValues = attrs.field(default=attrs.Factory(lambda self: self.options.fixed_node, takes_self=True))
    """The node's addresses and what it can give, by default as `options` say."""
    abilities: Callable[[], RuntimeAbilities] = RuntimeAbilities
    """The runtime's abilities, as it last reported them."""
    claims: ResourceClaims = attrs.field(factory=NoResourceClaims)
    """Resource claims of pods."""
    credentials: Credentials | None = None
    """Credentials for registries."""
    pull_records: PullRecords | None = None
    """Records of pulls: which pods may use which images."""
    ended: Ended | None = None
    """Waits for the end of a container."""
    cgroups: PodCgroups = attrs.field(factory=NoPodCgroups)
    """The parent cgroups of pods' sandboxes."""
    resizing: Resizing | None = None
    """For resizes of running pods; without it they keep the resources that they were started with."""
    spans: Spans | None = None
    """Tells of garbage collections."""
    steps: Steps = attrs.field(factory=Steps)
    """Where it is told what goes on for a pod."""
    extras: Extras = no_extras
    """Additions to containers for their devices."""
