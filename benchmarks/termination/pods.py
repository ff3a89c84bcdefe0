"""The pods whose end is measured: how they behave when they are asked to end, as manifests.

Every container runs a shell that leaves an empty file when it runs, and one when SIGTERM reaches it: both without
starting a process, so that whoever watches the folder knows the moment. The names of the files stand in the shell's
command line, by which its process is found.
"""

from __future__ import annotations

import enum
import uuid
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

SIGN: Final = "/sign"
"""Where containers see the folder of their signs."""
STARTED: Final = "started"
SIGNALLED: Final = "signalled"
HOOK_SECONDS: Final = 0.2
HOOK: Final = ("sh", "-c", f"sleep {HOOK_SECONDS}")
LEAST_GRACE: Final = 2
"""Seconds: what a grace period is shortened to. A kubelet gives no container less."""
LONG_AGO: Final = "2020-01-01T00:00:00Z"


class Behaviour(enum.StrEnum):
    """What a pod does when it is to end."""

    EXITS_ON_TERM = "exits-on-term"
    IGNORES_TERM = "ignores-term"
    PRE_STOP = "pre-stop"
    SEVERAL_CONTAINERS = "several-containers"
    SIDECARS = "sidecars"
    GRACE_SHORTENED = "grace-shortened"

    @property
    def exits(self) -> bool:
        """Whether its processes end by themselves when they get SIGTERM."""
        return self not in (Behaviour.IGNORES_TERM, Behaviour.GRACE_SHORTENED)

    @property
    def containers(self) -> tuple[str, ...]:
        """The names of its containers."""
        return {
            Behaviour.SEVERAL_CONTAINERS: ("first", "second", "third"),
            Behaviour.SIDECARS: ("main", "proxy", "logger"),
        }.get(self, ("main",))

    @property
    def sidecars(self) -> tuple[str, ...]:
        """Those of its containers that start before and end after the others, in the order of their starts."""
        return ("proxy", "logger") if self is Behaviour.SIDECARS else ()


@attrs.frozen
class PodPlan:
    """One pod to be."""

    name: str
    behaviour: Behaviour
    grace: int
    """Seconds."""

    @property
    def uid(self) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name))

    def signs(self, what: str) -> frozenset[str]:
        """The files that all its containers leave."""
        return frozenset(sign(self.name, container, what) for container in self.behaviour.containers)

    def command(self, container: str) -> tuple[str, ...]:
        """What a container runs."""
        handler = f": > {SIGN}/{sign(self.name, container, SIGNALLED)}"
        if self.behaviour.exits:
            handler += "; exit 0"
        started = f": > {SIGN}/{sign(self.name, container, STARTED)}"
        return ("sh", "-c", f"trap '{handler}' TERM; {started}; sleep 86400 & while :; do wait $!; done")

    def manifest(self, image: str, sign_folder: str, *, deletion_grace: int | None = None) -> dict[str, Any]:
        """A static pod; with `deletion_grace` it is one that was asked to end within so many seconds."""
        metadata: dict[str, Any] = {"name": self.name, "uid": self.uid}
        if deletion_grace is not None:
            metadata |= {"deletionTimestamp": LONG_AGO, "deletionGracePeriodSeconds": deletion_grace}
        containers = {name: self._container(name, image) for name in self.behaviour.containers}
        sidecars = [{**containers.pop(name), "restartPolicy": "Always"} for name in self.behaviour.sidecars]
        spec: dict[str, Any] = {
            "terminationGracePeriodSeconds": self.grace,
            "automountServiceAccountToken": False,
            "dnsPolicy": "Default",
            "volumes": [{"name": "sign", "hostPath": {"path": sign_folder}}],
            "containers": list(containers.values()),
        }
        if sidecars:
            spec["initContainers"] = sidecars
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _container(self, name: str, image: str) -> dict[str, Any]:
        container: dict[str, Any] = {
            "name": name,
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": list(self.command(name)),
            "volumeMounts": [{"name": "sign", "mountPath": SIGN}],
        }
        if self.behaviour is Behaviour.PRE_STOP:
            container["lifecycle"] = {"preStop": {"exec": {"command": list(HOOK)}}}
        return container


def sign(pod: str, container: str, what: str) -> str:
    """The name of the file by which a container tells what happened to it."""
    return f"{pod}.{container}.{what}"


def read_sign(file: str) -> tuple[str, str, str] | None:
    """Pod, container and what happened; None for another file."""
    parts = file.split(".")
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else None


def find_processes(command_lines: Mapping[int, str], plan: PodPlan) -> dict[str, int]:
    """The pids of a pod's first processes by container, among those that run the containers' shells."""
    found: dict[str, int] = {}
    for pid in sorted(command_lines):
        for container in plan.behaviour.containers:
            if f"{SIGN}/{sign(plan.name, container, STARTED)};" in command_lines[pid]:
                found.setdefault(container, pid)
    return found
