"""The answers to whether a pod may run here, and the interface that gives them (kubelet: `lifecycle.PodAdmitHandler`).

The kubelet's handlers answer yes or no, and end other pods or ask the API server themselves while the sync loop waits.
Here that is an answer too: the loop does it beside its other work, then asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from trikubelet.api import Pod
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trikubelet.api import Node, Quantity


@frozen
class Admitted:
    """The pod may run."""


@frozen
class Rejected:
    """The pod may not run: its status becomes Failed. A static pod is judged again when another pod has ended."""

    reason: str
    """One word, as in status.reason and in the event: `OutOfcpu`, `NodeAffinity`."""
    message: str
    because: str = attrs.field(default="", kw_only=True)
    """What its status says beyond the message, which is the kubelet's: who holds what the pod lacks."""


@frozen
class InfeasibleResize(Rejected):
    """The pod runs, and can never have the resources that it asks for now without a restart."""

    detail: str
    """The obstacle, as `kubelet_pod_infeasible_resizes_total` counts it: `swap_limitation`."""


@frozen
class Preempt:
    """The pod is critical, and may run once these pods have ended. Then it is admitted without being asked again."""

    victims: tuple[Pod, ...]
    """In the order in which they are to be ended; never empty."""
    resource: str = ""
    """The resource that does not suffice, the first of several."""


@frozen
class NeedsFreshNode:
    """The node at hand refuses the pod for its labels, which may have just changed: ask again with a fetched node."""


@frozen
class Wait:
    """Nothing can be said yet: the runtime has not told what it can do."""

    why: str


Verdict = Admitted | Rejected | Preempt | NeedsFreshNode | Wait


class Devices(Protocol):
    """The devices of plugins, as admission needs them (`trikubelet.node.devices.manager`)."""

    def problem(self, pod: Pod) -> str | None:
        """Why the pod cannot get the devices that it asks for, as far as that is known without asking plugins."""
        ...

    def allocatable_for(self, pod: Pod, allocatable: Mapping[str, Quantity]) -> Mapping[str, Quantity]:
        """The node's resources for the pod; `allocatable`: those of the node object."""
        ...


class NoDevices:
    """For a node without plugins."""

    def problem(self, _: Pod) -> str | None:
        return None

    def allocatable_for(self, _: Pod, allocatable: Mapping[str, Quantity]) -> Mapping[str, Quantity]:
        return allocatable


class Admission(Protocol):
    """Decides; does nothing itself."""

    def admit(self, pod: Pod, others: Sequence[Pod], *, node: Node, fresh: bool) -> Verdict:
        """May `pod` run beside `others`, the active and held pods without it?

        `fresh`: the node has just been fetched, or could not be; NeedsFreshNode is then no answer. Pods that have run
        here before the agent started are asked about as those that arrive, so they should be the first.
        """
        ...


@frozen
class AllocationError(Exception):
    """A container does not get the devices that it asks for, or cannot be started with them. The text is the
    kubelet's."""

    problem: str

    def __str__(self) -> str:
        return self.problem

    @property
    def refusal(self) -> str:
        """The message of a pod that is not admitted for it."""
        return f"Allocate failed due to {self.problem}, which is unexpected"
