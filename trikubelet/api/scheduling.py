"""Where a pod may run. The agent checks some of it again when it admits a pod."""

from __future__ import annotations

from datetime import datetime

from attrs import field

from trikubelet.api.meta import LabelSelector
from trikubelet.api.schema import REQUIRED, APIObject, Int32
from trikubelet.formats.values import frozen


@frozen(repr=False)
class NodeSelectorRequirement(APIObject):
    """A condition on one label or field of a node."""

    key: str = field(default="", metadata=REQUIRED)
    operator: str = field(default="", metadata=REQUIRED)
    values: tuple[str, ...] = ()


@frozen(repr=False)
class NodeSelectorTerm(APIObject):
    """Conditions that must all hold."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


@frozen(repr=False)
class NodeSelector(APIObject):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = field(default=(), metadata=REQUIRED)


@frozen(repr=False)
class PreferredSchedulingTerm(APIObject):
    """A term that counts with a weight of 1 to 100."""

    weight: Int32 = field(default=0, metadata=REQUIRED)
    preference: NodeSelectorTerm = field(factory=NodeSelectorTerm)


@frozen(repr=False)
class NodeAffinity(APIObject):
    """Which nodes a pod must or would rather run on."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


@frozen(repr=False)
class PodAffinityTerm(APIObject):
    """Other pods, and the topology label in which "near" is measured."""

    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    topology_key: str = field(default="", metadata=REQUIRED)
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


@frozen(repr=False)
class WeightedPodAffinityTerm(APIObject):
    """A pod affinity term with a weight of 1 to 100."""

    weight: Int32 = field(default=0, metadata=REQUIRED)
    pod_affinity_term: PodAffinityTerm = field(factory=PodAffinityTerm)


@frozen(repr=False)
class PodAffinity(APIObject):
    """Which pods a pod must or would rather be near."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


@frozen(repr=False)
class PodAntiAffinity(APIObject):
    """Which pods a pod must or would rather be away from."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


@frozen(repr=False)
class Affinity(APIObject):
    """All wishes about nodes and neighbours."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAntiAffinity | None = None


@frozen(repr=False)
class Taint(APIObject):
    """A mark on a node that keeps pods away unless they tolerate it."""

    key: str = field(default="", metadata=REQUIRED)
    value: str = ""
    effect: str = field(default="", metadata=REQUIRED)
    time_added: datetime | None = None


@frozen(repr=False)
class Toleration(APIObject):
    """Which taints a pod puts up with, and for how many seconds."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


@frozen(repr=False)
class TopologySpreadConstraint(APIObject):
    """How evenly pods are spread over the values of a node label."""

    max_skew: Int32 = field(default=0, metadata=REQUIRED)
    topology_key: str = field(default="", metadata=REQUIRED)
    when_unsatisfiable: str = field(default="", metadata=REQUIRED)
    label_selector: LabelSelector | None = None
    min_domains: Int32 | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] = ()


@frozen(repr=False)
class PodSchedulingGate(APIObject):
    """A reason why the scheduler does not look at the pod yet."""

    name: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class PodSchedulingGroup(APIObject):
    """The pod group that is scheduled as one."""

    pod_group_name: str | None = None
