"""`trikubelet describe pod` as text, in the layout that users of `kubectl describe` know. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trikubelet.api import to_dict
from trikubelet.api.timestamps import format_time, parse_time
from trikubelet.cli.output import column_widths
from trikubelet.cli.pod_columns import human_duration, pod_status
from trikubelet.container.host_ports import unmapped_ports
from trikubelet.embedded.images.errors import InvalidReferenceError
from trikubelet.embedded.images.reference import Reference
from trikubelet.formats.terminal_text import padded, plain

if TYPE_CHECKING:
    from datetime import datetime

    from trikubelet.api import Container, ContainerPort, ContainerState, ContainerStatus, EphemeralContainer, Pod, Probe

_LABEL_WIDTH = 22


# A container's reasons to wait while its image may be on its way. A pull that is tried again does not change them.
_BEFORE_START = frozenset({"", "ContainerCreating", "PodInitializing", "ErrImagePull", "ImagePullBackOff"})


def describe_pod(
    pod: Pod, events: Sequence[Mapping[str, Any]], now: datetime, pulls: Sequence[Mapping[str, Any]] = ()
) -> str:
    """The whole description, newline at the end. `events` and `pulls` are those of the local API."""
    lines = [*_head(pod), *_containers(pod, pulls), *_conditions(pod), *_volumes(pod), *_events(events, now)]
    return "".join(f"{plain(part)}\n" for line in lines for part in _parts(line))


def _parts(line: str) -> Iterator[str]:
    """A text of several lines goes on below its beginning, where no line of the description begins."""
    first, *others = line.split("\n")
    yield first
    yield from (" " * _LABEL_WIDTH + other for other in others)


def waits_for_images(pod: Pod) -> bool:
    """Whether a container may wait for its image to be pulled."""
    return any(map(_before_start, (*pod.status.init_container_statuses, *pod.status.container_statuses)))


def _before_start(status: ContainerStatus) -> bool:
    state = status.state
    if state.running is not None or state.terminated is not None:
        return False
    return state.waiting is None or (state.waiting.reason or "") in _BEFORE_START


def _line(label: str, value: object, indent: int = 0) -> str:
    return f"{' ' * indent}{label + ':':<{_LABEL_WIDTH - indent}}{value}".rstrip()


def _moment(moment: datetime | None) -> str:
    return "<unknown>" if moment is None else format_time(moment)


def _lines(label: str, values: Sequence[str], indent: int = 0) -> Iterator[str]:
    """Several values under one label, the first beside it."""
    for index, value in enumerate(values or ["<none>"]):
        yield _line(label, value, indent) if index == 0 else " " * _LABEL_WIDTH + value


def _head(pod: Pod) -> Iterator[str]:
    meta, status = pod.metadata, pod.status
    yield _line("Name", meta.name)
    yield _line("Namespace", meta.namespace)
    yield _line("Node", f"{pod.spec.node_name}/{status.host_ip}" if status.host_ip else pod.spec.node_name)
    yield _line("UID", meta.uid)
    if status.start_time is None and meta.creation_timestamp is not None:
        yield _line("Waits Since", _moment(meta.creation_timestamp))
    else:
        yield _line("Start Time", _moment(status.start_time))
    yield from _lines("Labels", [f"{key}={value}" for key, value in sorted(meta.labels.items())])
    yield from _lines("Annotations", [f"{key}: {value}" for key, value in sorted(meta.annotations.items())])
    word = pod_status(pod)
    yield _line("Status", status.phase if word in ("", status.phase) else f"{status.phase} ({word})")
    if meta.deletion_timestamp is not None:
        yield _line("Termination Grace", f"{meta.deletion_grace_period_seconds or 0}s")
    if status.reason:
        yield _line("Reason", status.reason)
    if status.message:
        yield _line("Message", status.message)
    yield from _lines("IPs", [ip.ip for ip in status.pod_ips])
    yield _line("QoS Class", status.qos_class or "<unknown>")


def _containers(pod: Pod, pulls: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    status = pod.status
    unmapped = unmapped_ports(pod, [ip.ip for ip in status.pod_ips], [ip.ip for ip in status.host_ips])
    for title, containers, statuses in (
        ("Init Containers", pod.spec.init_containers, status.init_container_statuses),
        ("Containers", pod.spec.containers, status.container_statuses),
        ("Ephemeral Containers", pod.spec.ephemeral_containers, status.ephemeral_container_statuses),
    ):
        if not containers:
            continue
        yield f"{title}:"
        known = {status.name: status for status in statuses}
        for container in containers:
            yield f"  {container.name}:"
            yield from _container(container, known.get(container.name), pulls, unmapped)


def _container(
    container: Container | EphemeralContainer,
    status: ContainerStatus | None,
    pulls: Sequence[Mapping[str, Any]],
    unmapped: Sequence[ContainerPort],
) -> Iterator[str]:
    indent = 4
    yield _line("Container ID", status.container_id if status else "", indent)
    yield _line("Image", container.image, indent)
    yield _line("Image ID", status.image_id if status else "", indent)
    ports = [f"{port.container_port}/{port.protocol or 'TCP'}" for port in container.ports]
    yield _line("Ports", ", ".join(ports) or "<none>", indent)
    if host_ports := [_host_port(port, unmapped) for port in container.ports if port.host_port]:
        yield from _lines("Host Ports", host_ports, indent)
    if container.command:
        yield from _lines("Command", container.command, indent)
    if container.args:
        yield from _lines("Args", container.args, indent)
    if status is not None:
        yield from _state("State", status.state)
        if _before_start(status):
            yield from _pull(container.image, pulls)
        if status.last_state.terminated is not None:
            yield from _state("Last State", status.last_state)
        yield _line("Ready", status.ready, indent)
        yield _line("Restart Count", status.restart_count, indent)
    for label, amounts in (("Limits", container.resources.limits), ("Requests", container.resources.requests)):
        if amounts:
            yield from _lines(label, [f"{name}: {amount}" for name, amount in sorted(amounts.items())], indent)
    for label, probe in (
        ("Liveness", container.liveness_probe),
        ("Readiness", container.readiness_probe),
        ("Startup", container.startup_probe),
    ):
        if probe is not None:
            yield _line(label, _probe(probe), indent)
    yield from _lines("Environment", [_variable(variable) for variable in to_dict(container).get("env", [])], indent)
    mounts = [
        f"{mount.mount_path} from {mount.name} ({'ro' if mount.read_only else 'rw'})"
        for mount in container.volume_mounts
    ]
    yield from _lines("Mounts", mounts, indent)


def _host_port(port: ContainerPort, unmapped: Sequence[ContainerPort]) -> str:
    text = f"{port.host_port}/{port.protocol or 'TCP'}"
    return f"{text} (leads nowhere: the pod is on the machine's network)" if port in unmapped else text


def _pull(image: str, pulls: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    try:
        name = str(Reference.parse(image))
    except InvalidReferenceError:
        return
    for pull in pulls:
        if pull["reference"] == name:
            yield _line("Pulling", pull["progress"], 6)


def _state(label: str, state: ContainerState) -> Iterator[str]:
    if state.running is not None:
        yield _line(label, "Running", 4)
        yield _line("Started", _moment(state.running.started_at), 6)
    elif state.terminated is not None:
        ended = state.terminated
        yield _line(label, "Terminated", 4)
        if ended.reason:
            yield _line("Reason", ended.reason, 6)
        if ended.message:
            yield _line("Message", ended.message, 6)
        yield _line("Exit Code", ended.exit_code, 6)
        if ended.signal:
            yield _line("Signal", ended.signal, 6)
        yield _line("Started", _moment(ended.started_at), 6)
        yield _line("Finished", _moment(ended.finished_at), 6)
    else:
        yield _line(label, "Waiting", 4)
        if state.waiting is not None and state.waiting.reason:
            yield _line("Reason", state.waiting.reason, 6)
        if state.waiting is not None and state.waiting.message:
            yield _line("Message", state.waiting.message, 6)


def _probe(probe: Probe) -> str:
    data = to_dict(probe)
    kind = next((name for name in ("exec", "httpGet", "tcpSocket", "grpc") if name in data), "unknown")
    numbers = (
        f"delay={data.get('initialDelaySeconds', 0)}s timeout={data.get('timeoutSeconds', 1)}s "
        f"period={data.get('periodSeconds', 10)}s #success={data.get('successThreshold', 1)} "
        f"#failure={data.get('failureThreshold', 3)}"
    )
    return f"{kind} {_flat(data.get(kind, {}))} {numbers}"


def _flat(data: Any) -> str:
    if isinstance(data, Mapping):
        return " ".join(f"{key}={_flat(value)}" for key, value in data.items())
    if isinstance(data, list):
        return "[" + " ".join(_flat(item) for item in data) + "]"
    return str(data)


def _variable(variable: Mapping[str, Any]) -> str:
    source = variable.get("valueFrom")
    return f"{variable['name']}: " + (f"<{_flat(source)}>" if source else str(variable.get("value", "")))


def _conditions(pod: Pod) -> Iterator[str]:
    if not pod.status.conditions:
        return
    yield "Conditions:"
    width = max(len(condition.type) for condition in pod.status.conditions)
    for condition in pod.status.conditions:
        why = ": ".join(part for part in (condition.reason, condition.message) if part)
        yield f"  {condition.type:<{width}}  {condition.status:<8}{plain(why)}".rstrip()


def _volumes(pod: Pod) -> Iterator[str]:
    if not pod.spec.volumes:
        return
    yield "Volumes:"
    for volume in pod.spec.volumes:
        data = {key: value for key, value in to_dict(volume).items() if key != "name"}
        kind = next(iter(data), "unknown")
        yield f"  {volume.name}:"
        yield _line("Type", f"{kind} {_flat(data.get(kind, {}))}".rstrip(), 4)


def _events(events: Sequence[Mapping[str, Any]], now: datetime) -> Iterator[str]:
    if not events:
        yield _line("Events", "<none>")
        return
    rows = [_event(event, now) for event in events]
    header = ("Type", "Reason", "Age", "Message")
    widths = column_widths(header, rows)[:3]
    yield "Events:"
    for row in (header, *rows):
        cells = "  ".join(padded(plain(cell), width) for cell, width in zip(row, widths, strict=False))
        yield f"  {cells}  {row[3]}"


def _event(event: Mapping[str, Any], now: datetime) -> tuple[str, str, str, str]:
    def age(name: str) -> str:
        moment = parse_time(str(event.get(name, "")))
        return human_duration(now - moment) if moment is not None else "<unknown>"

    count = int(event.get("count", 1))
    when = f"{age('lastSeen')} (x{count} over {age('firstSeen')})" if count > 1 else age("lastSeen")
    where = f"{event['fieldPath']}: " if event.get("fieldPath") else ""
    return str(event.get("type", "")), str(event.get("reason", "")), when, plain(where + str(event.get("message", "")))
