"""Families about the API server: requests to it, and the certificates by which node and server know each other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trikubelet.telemetry.families import counter, gauge, histogram

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from trikubelet.kube_client.certificates.rotation import CertificateManager
    from trikubelet.kube_client.certificates.store import CertifiedKey
    from trikubelet.kube_client.metrics import RequestMetrics
    from trikubelet.kube_client.pod_certificates import PodCertificates
    from trikubelet.telemetry.families import AnyFamily


def collect_requests(metrics: RequestMetrics) -> Iterator[AnyFamily]:
    """Under client-go's names."""
    host = metrics.host
    answers = {(*labels, host): number for labels, number in metrics.answers.items()}
    text = "Requests to the API server that were answered, or not."
    yield counter("rest_client_requests_total", text, answers, ("code", "method", "host"))
    for name, text, histograms in (
        ("request_duration_seconds", "How long requests to the API server took.", metrics.durations),
        ("rate_limiter_duration_seconds", "How long requests waited for the agent's own limit.", metrics.waits),
        ("request_size_bytes", "Bodies of requests to the API server.", metrics.sent),
        ("response_size_bytes", "Bodies of the API server's answers.", metrics.received),
    ):
        by_host = {(*labels, host): one for labels, one in histograms.items()}
        yield histogram(f"rest_client_{name}", text, by_host, ("verb", "host"))


def collect_client_certificate(manager: CertificateManager, now: datetime) -> Iterator[AnyFamily]:
    text = "Time until the certificate ends that the agent shows to the API server; infinite without one."
    yield gauge("kubelet_certificate_manager_client_ttl_seconds", text, _time_left(manager.current, now))
    text = "Requests for the agent's client certificate that failed."
    yield counter("kubelet_certificate_manager_client_expiration_renew_errors", text, manager.statistics().failed)


def collect_server_certificate(manager: CertificateManager, now: datetime) -> Iterator[AnyFamily]:
    """Of a certificate that the API server signs."""
    text = "Time until the certificate ends that the node shows to its clients; infinite without one."
    yield gauge("kubelet_certificate_manager_server_ttl_seconds", text, _time_left(manager.current, now))
    text = "Requests for the node's serving certificate that failed."
    yield counter("kubelet_server_expiration_renew_errors", text, manager.statistics().failed)
    text = "How long the node's serving certificates had been valid when the next one took their place."
    yield histogram("kubelet_certificate_manager_server_rotation_seconds", text, manager.ages)


def collect_pod_certificates(certificates: PodCertificates) -> Iterator[AnyFamily]:
    text = "Certificates that pods asked for, by who signs them and how far they are."
    yield gauge("kubelet_podcertificate_states", text, certificates.report(), ("signer_name", "state"))


def _time_left(pair: CertifiedKey | None, now: datetime) -> float:
    """Seconds."""
    if pair is None:
        return math.inf
    return float(math.trunc((pair.leaf.not_after - now).total_seconds()))
