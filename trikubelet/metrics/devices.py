"""Families about device plugins and resource claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.telemetry.families import counter, gauge, histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.node.devices.metrics import DeviceMetrics
    from trikubelet.node.dra.manager import ClaimManager
    from trikubelet.telemetry.families import AnyFamily


def collect_devices(metrics: DeviceMetrics) -> Iterator[AnyFamily]:
    labels = ("resource_name",)
    text = "Registrations of device plugins."
    yield counter("kubelet_device_plugin_registration_total", text, metrics.registrations, labels)
    text = "How long device plugins took to answer Allocate."
    yield histogram("kubelet_device_plugin_alloc_duration_seconds", text, metrics.allocations, labels)


def collect_claims(manager: ClaimManager) -> Iterator[AnyFamily]:
    text = "How long preparing all ResourceClaims of a pod took, or undoing it."
    labels = ("operation_name", "is_error")
    yield histogram("dra_operations_duration_seconds", text, manager.metrics.operations, labels)
    text = "How long plugins of dynamic resource allocation took to answer."
    of_calls = ("driver_name", "method_name", "grpc_status_code")
    yield histogram("dra_grpc_operations_duration_seconds", text, manager.metrics.calls, of_calls)
    text = "ResourceClaims that are prepared, by driver; `<any>`: all of them."
    in_use = {(driver,): number for driver, number in manager.claims_in_use().items()}
    yield gauge("dra_resource_claims_in_use", text, in_use, ("driver_name",))
