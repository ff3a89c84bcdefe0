"""What is written on sandboxes and containers, and read back from them.

Labels and annotations are the agent's memory. An agent that starts beside running containers knows from them which pod
each belongs to, what it was made from, how often it was restarted and how it is to be killed, even when the pod's
manifest is gone. Names and formats are the kubelet's (`kuberuntime/labels.go`), so that either can take over from the
other. What cannot be read is treated as missing: an unreadable annotation must not make a container unkillable.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trikubelet.api import APIObject, ContainerPort, DecodeError, LifecycleHandler, from_dict, to_dict
from trikubelet.container.hashing import hash_container
from trikubelet.formats.values import frozen
from trikubelet.rpc.cri import v1
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import Container, Pod
    from trikubelet.cgroups.ownership import Ownership

log = get_logger("runtime")

POD_NAME: Final = "io.kubernetes.pod.name"
POD_NAMESPACE: Final = "io.kubernetes.pod.namespace"
POD_UID: Final = "io.kubernetes.pod.uid"
CONTAINER_NAME: Final = "io.kubernetes.container.name"

POD_DELETION_GRACE_PERIOD: Final = "io.kubernetes.pod.deletionGracePeriod"
POD_TERMINATION_GRACE_PERIOD: Final = "io.kubernetes.pod.terminationGracePeriod"
CONTAINER_HASH: Final = "io.kubernetes.container.hash"
CONTAINER_RESTART_COUNT: Final = "io.kubernetes.container.restartCount"
CONTAINER_TERMINATION_MESSAGE_PATH: Final = "io.kubernetes.container.terminationMessagePath"
CONTAINER_TERMINATION_MESSAGE_POLICY: Final = "io.kubernetes.container.terminationMessagePolicy"
CONTAINER_PRE_STOP_HANDLER: Final = "io.kubernetes.container.preStopHandler"
CONTAINER_PORTS: Final = "io.kubernetes.container.ports"

OWNER: Final = "io.trikubelet.owner"
"""The owner's mark (`cgroups.ownership`). The kubelet ignores annotations that it does not know."""

T = TypeVar("T")
Object = TypeVar("Object", bound=APIObject)


@frozen
class PodIdentity:
    """Which pod a sandbox or container belongs to."""

    uid: str
    name: str
    namespace: str


@frozen
class ContainerRecord:
    """What a container's annotations remember of its making."""

    hash: int = 0
    restart_count: int = 0
    termination_message_path: str = ""
    termination_message_policy: str = ""
    deletion_grace_period: int | None = None
    """Seconds."""
    termination_grace_period: int | None = None
    pre_stop: LifecycleHandler | None = None
    ports: tuple[ContainerPort, ...] = ()


def sandbox_labels(pod: Pod) -> dict[str, str]:
    """The pod's own labels and its identity."""
    return {**pod.metadata.labels, **_identity(pod)}


def sandbox_annotations(pod: Pod, owner: str = "") -> dict[str, str]:
    """The pod's own annotations, and the mark of the sandbox's owner where that is not empty."""
    return {**pod.metadata.annotations, **_mark(owner)}


def container_labels(container: Container, pod: Pod) -> dict[str, str]:
    return {**_identity(pod), CONTAINER_NAME: container.name}


def container_annotations(container: Container, pod: Pod, restart_count: int, owner: str = "") -> dict[str, str]:
    """All that a later agent has to know of the container, and the mark of its owner where that is not empty."""
    annotations = {
        **_mark(owner),
        CONTAINER_HASH: f"{hash_container(container):x}",
        CONTAINER_RESTART_COUNT: str(restart_count),
        CONTAINER_TERMINATION_MESSAGE_PATH: container.termination_message_path,
        CONTAINER_TERMINATION_MESSAGE_POLICY: container.termination_message_policy,
    }
    if pod.metadata.deletion_grace_period_seconds is not None:
        annotations[POD_DELETION_GRACE_PERIOD] = str(pod.metadata.deletion_grace_period_seconds)
    if pod.spec.termination_grace_period_seconds is not None:
        annotations[POD_TERMINATION_GRACE_PERIOD] = str(pod.spec.termination_grace_period_seconds)
    if container.lifecycle is not None and container.lifecycle.pre_stop is not None:
        annotations[CONTAINER_PRE_STOP_HANDLER] = _go_json(container.lifecycle.pre_stop)
    if container.ports:
        annotations[CONTAINER_PORTS] = "[" + ",".join(_go_json(port) for port in container.ports) + "]"
    return annotations


def owned_by(ownership: Ownership, entry: v1.PodSandbox | v1.Container) -> bool:
    """True if a sandbox or container, as the runtime lists it, is the agent's."""
    uid = entry.metadata.uid if isinstance(entry, v1.PodSandbox) else read_identity(entry.labels).uid
    return ownership.owns((entry.annotations.get(OWNER, ""),), uid)


def read_identity(labels: Mapping[str, str]) -> PodIdentity:
    """Whose it is; empty strings for what is not labelled."""
    return PodIdentity(labels.get(POD_UID, ""), labels.get(POD_NAME, ""), labels.get(POD_NAMESPACE, ""))


def read_container_record(annotations: Mapping[str, str]) -> ContainerRecord:
    """The annotations of a container, with defaults for what is missing or unreadable."""
    ports = _json(annotations, CONTAINER_PORTS, list) or []
    return ContainerRecord(
        hash=_integer(annotations, CONTAINER_HASH, base=16) or 0,
        restart_count=_integer(annotations, CONTAINER_RESTART_COUNT) or 0,
        termination_message_path=annotations.get(CONTAINER_TERMINATION_MESSAGE_PATH, ""),
        termination_message_policy=annotations.get(CONTAINER_TERMINATION_MESSAGE_POLICY, ""),
        deletion_grace_period=_integer(annotations, POD_DELETION_GRACE_PERIOD),
        termination_grace_period=_integer(annotations, POD_TERMINATION_GRACE_PERIOD),
        pre_stop=_object(LifecycleHandler, annotations, CONTAINER_PRE_STOP_HANDLER),
        ports=tuple(
            port for port in (_decode(ContainerPort, entry, CONTAINER_PORTS) for entry in ports) if port is not None
        ),
    )


def _mark(owner: str) -> dict[str, str]:
    return {OWNER: owner} if owner else {}


def _identity(pod: Pod) -> dict[str, str]:
    return {POD_NAME: pod.metadata.name, POD_NAMESPACE: pod.metadata.namespace, POD_UID: pod.metadata.uid}


def _go_json(value: Any) -> str:
    """JSON as Go writes it: no spaces, and the characters that HTML cares about escaped."""
    text = json.dumps(to_dict(value), separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _integer(annotations: Mapping[str, str], key: str, *, base: int = 10) -> int | None:
    text = annotations.get(key)
    if text is None:
        return None
    try:
        return int(text, base)
    except ValueError:
        log.warning("container annotation is unreadable", annotation=key, value=text, expected="an integer")
        return None


def _json(annotations: Mapping[str, str], key: str, kind: type[T]) -> T | None:
    text = annotations.get(key)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        log.warning("container annotation is unreadable", annotation=key, expected="JSON", problem=str(error))
        return None
    if not isinstance(value, kind):
        log.warning("container annotation is unreadable", annotation=key, expected=f"a JSON {kind.__name__}")
        return None
    return value


def _object(kind: type[Object], annotations: Mapping[str, str], key: str) -> Object | None:
    value = _json(annotations, key, dict)
    return None if value is None else _decode(kind, value, key)


def _decode(kind: type[Object], value: Any, key: str) -> Object | None:
    try:
        return from_dict(kind, value)
    except DecodeError as error:
        log.warning("container annotation is unreadable", annotation=key, problem=str(error))
        return None
