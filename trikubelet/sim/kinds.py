"""The pods of a programmed life: some kinds, each with images whose programs live as the kind's name says.

A program belongs to an image, not to a pod: so ten thousand pods need as many rules as there are kinds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.api import Pod, pod_from_dict, set_pod_defaults
from trikubelet.formats.values import frozen
from trikubelet.sim.programs import Life, Program

if TYPE_CHECKING:
    from random import Random

    from trikubelet.sim.runtime import SimulatedRuntime

VERSIONS: Final = ("1", "2", "3")
"""Tags of each image: a pod is updated by giving it another one."""


@frozen
class Kind:
    """How one sort of pod lives."""

    name: str
    program: Program
    share: float
    """How common it is, against the others."""
    graces: tuple[int, ...] = (1, 5, 30)
    restart_policy: str = "Always"
    sidecar: bool = False
    init: bool = False

    @property
    def keeps_running(self) -> bool:
        """Whether such a pod runs all the time, once it has started."""
        return self.restart_policy == "Always" and all(life.duration is None for life in self.program.lives)

    def image(self, version: str) -> str:
        return f"sim/{self.name}:{version}"

    def pod(self, name: str, uid: str, random: Random) -> Pod:
        """A pod of this kind."""
        spec: dict[str, Any] = {
            "containers": [{"name": "main", "image": self.image(random.choice(VERSIONS))}],
            "terminationGracePeriodSeconds": random.choice(self.graces),
            "restartPolicy": self.restart_policy,
        }
        inits = []
        if self.init:
            inits.append({"name": "init", "image": "sim/prepare:1"})
        if self.sidecar:
            inits.append({"name": "proxy", "image": "sim/service:1", "restartPolicy": "Always"})
        if inits:
            spec["initContainers"] = inits
        metadata = {"name": name, "namespace": "default", "uid": uid}
        body = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
        return set_pod_defaults(pod_from_dict(body))


KINDS: Final = (
    Kind("service", Program.runs_forever(sigterm=0.3), share=5),
    Kind("stubborn", Program.runs_forever(sigterm=None), share=1, graces=(1, 2, 10)),
    Kind("slow", Program((Life(sigterm=4.0, sigkill=0.5),)), share=1, graces=(2, 10)),
    Kind("crasher", Program.crashes(3, after=2.0), share=1),
    Kind("flapping", Program.crashes(1, after=900.0), share=1),
    Kind("batch", Program.exits(after=45.0), share=1, restart_policy="Never"),
    Kind("retrying", Program.crashes(2, after=5.0, then=Life(duration=20.0)), share=1, restart_policy="OnFailure"),
    Kind("staged", Program.runs_forever(sigterm=0.1), share=1, init=True),
    Kind("meshed", Program.runs_forever(sigterm=0.1), share=1, sidecar=True),
)


def install(sim: SimulatedRuntime) -> None:
    """Teach the runtime the programs of all kinds' images."""
    sim.program(Program.exits(after=1.5), image="sim/prepare:1")
    for kind in KINDS:
        for version in VERSIONS:
            sim.program(kind.program, image=kind.image(version))


def with_image(pod: Pod, image: str) -> Pod:
    """The pod with another image in its main container."""
    main = attrs.evolve(pod.spec.containers[0], image=image)
    return attrs.evolve(pod, spec=attrs.evolve(pod.spec, containers=(main,)))


def with_uid(pod: Pod, uid: str) -> Pod:
    """The same pod created anew."""
    return attrs.evolve(pod, metadata=attrs.evolve(pod.metadata, uid=uid))
