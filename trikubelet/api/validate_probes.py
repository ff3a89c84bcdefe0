"""Checks of probes and lifecycle hooks."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from trikubelet.api.name_formats import header_name, port_name, port_number

if TYPE_CHECKING:
    from trikubelet.api.container import Container
    from trikubelet.api.field_errors import Place
    from trikubelet.api.probes import ExecAction, HTTPGetAction, Lifecycle, LifecycleHandler, Probe, TCPSocketAction

_SIGNALS: Final = tuple(
    sorted(
        {name for name in signal.Signals.__members__ if name.startswith("SIG")}
        | {"SIGCLD", "SIGIOT", "SIGPOLL", "SIGRTMIN", "SIGRTMAX"}
        | {f"SIGRTMIN+{offset}" for offset in range(1, 16)}
        | {f"SIGRTMAX-{offset}" for offset in range(1, 15)}
    )
)


def validate_probes(container: Container, place: Place) -> None:
    for name, probe in (
        ("livenessProbe", container.liveness_probe),
        ("readinessProbe", container.readiness_probe),
        ("startupProbe", container.startup_probe),
    ):
        if probe is None:
            continue
        where = place.at(name)
        _validate_probe(probe, where)
        if name == "readinessProbe":
            if probe.termination_grace_period_seconds is not None:
                where.at("terminationGracePeriodSeconds").invalid(
                    probe.termination_grace_period_seconds, "must not be set for readinessProbes"
                )
        elif probe.success_threshold != 1:
            where.at("successThreshold").invalid(probe.success_threshold, "must be 1")


def validate_lifecycle(
    lifecycle: Lifecycle | None, grace_period: int | None, os_name: str | None, place: Place
) -> None:
    """Hooks and the stop signal; `os_name` is None when the pod names no operating system."""
    if lifecycle is None:
        return
    for name, handler in (("postStart", lifecycle.post_start), ("preStop", lifecycle.pre_stop)):
        if handler is not None:
            _validate_hook(handler, grace_period, place.at(name))
    if lifecycle.stop_signal is not None:
        where = place.at("stopSignal")
        if os_name is None:
            where.forbidden("may not be set for containers with empty `spec.os.name`")
        elif os_name == "linux" and lifecycle.stop_signal not in _SIGNALS:
            where.unsupported(lifecycle.stop_signal, _SIGNALS)


def _validate_probe(probe: Probe, place: Place) -> None:
    handlers = ("exec", "httpGet", "tcpSocket", "grpc")
    present = [
        name
        for name, handler in zip(handlers, (probe.exec, probe.http_get, probe.tcp_socket, probe.grpc), strict=True)
        if handler is not None
    ]
    _check_one_handler(present, bool(probe.unknown_fields), place)
    _validate_actions(probe.exec, probe.http_get, probe.tcp_socket, place)
    if probe.grpc is not None:
        place.at("grpc", "port").invalid(probe.grpc.port, *port_number(probe.grpc.port))
    place.at("initialDelaySeconds").not_negative(probe.initial_delay_seconds)
    place.at("timeoutSeconds").not_negative(probe.timeout_seconds)
    place.at("periodSeconds").not_negative(probe.period_seconds)
    place.at("successThreshold").not_negative(probe.success_threshold)
    place.at("failureThreshold").not_negative(probe.failure_threshold)
    grace_period = probe.termination_grace_period_seconds
    if grace_period is not None and grace_period <= 0:
        place.at("terminationGracePeriodSeconds").invalid(grace_period, "must be greater than 0")


def _validate_hook(handler: LifecycleHandler, grace_period: int | None, place: Place) -> None:
    handlers = ("exec", "httpGet", "tcpSocket", "sleep")
    present = [
        name
        for name, action in zip(
            handlers, (handler.exec, handler.http_get, handler.tcp_socket, handler.sleep), strict=True
        )
        if action is not None
    ]
    _check_one_handler(present, bool(handler.unknown_fields), place)
    _validate_actions(handler.exec, handler.http_get, handler.tcp_socket, place)
    if handler.sleep is not None and grace_period is not None and not 0 <= handler.sleep.seconds <= grace_period:
        detail = f"must be non-negative and less than terminationGracePeriodSeconds ({grace_period})"
        place.at("sleep").invalid(handler.sleep.seconds, detail)


def _check_one_handler(present: list[str], unknown: bool, place: Place) -> None:
    if not present and not unknown:
        place.required("must specify a handler type")
    for name in present[1:]:
        place.at(name).forbidden("may not specify more than 1 handler type")


def _validate_actions(
    command: ExecAction | None, http: HTTPGetAction | None, tcp: TCPSocketAction | None, place: Place
) -> None:
    if command is not None and not command.command:
        place.at("exec", "command").required()
    if http is not None:
        where = place.at("httpGet")
        if not http.path:
            where.at("path").required()
        _check_port(http.port, where.at("port"))
        if http.scheme not in ("HTTP", "HTTPS"):
            where.at("scheme").unsupported(http.scheme, ("HTTP", "HTTPS"))
        for header in http.http_headers:
            where.at("httpHeaders").invalid(header.name, *header_name(header.name))
    if tcp is not None:
        _check_port(tcp.port, place.at("tcpSocket", "port"))


def _check_port(port: int | str, place: Place) -> None:
    place.invalid(port, *(port_name(port) if isinstance(port, str) else port_number(port)))
