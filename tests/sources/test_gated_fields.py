"""What pods lose when a feature is switched off, on their way in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from trikubelet.api import Pod, pod_from_dict, to_dict
from trikubelet.sources.gated_fields import without_disabled_fields
from trikubelet.sources.mux import PodOperation, merge_source

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RESTART = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
RESTART_ALL = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [43]}}
FROM_FILE = {"fileKeyRef": {"volumeName": "v", "path": "env", "key": "K"}}
FROM_FIELD = {"fieldRef": {"fieldPath": "metadata.name"}}
TAKEN_FROM_DRIVERS = {
    "extendedResourceClaimStatus": {
        "resourceClaimName": "extended",
        "requestMappings": [{"containerName": "main", "resourceName": "vendor.com/gpu", "requestName": "r"}],
    }
}


def pod(
    container: dict[str, Any] | None = None,
    *,
    init: tuple[dict[str, Any], ...] = (),
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> Pod:
    main = {"name": "main", "image": "i", **(container or {})}
    others = [{"name": f"init{index}", "image": "i", **one} for index, one in enumerate(init)]
    return pod_from_dict(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [main], **({"initContainers": others} if init else {}), **spec},
            "status": status or {},
        }
    )


CASES = [
    ("HostnameOverride", pod(hostnameOverride="other"), pod()),
    (
        "ContainerStopSignals",
        pod({"lifecycle": {"stopSignal": "SIGUSR1", "preStop": {"sleep": {"seconds": 1}}}}),
        pod({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}),
    ),
    (
        "EnvFiles",
        pod({"env": [{"name": "A", "valueFrom": FROM_FILE}, {"name": "B", "valueFrom": FROM_FIELD}]}),
        pod({"env": [{"name": "A"}, {"name": "B", "valueFrom": FROM_FIELD}]}),
    ),
    (
        "ContainerRestartRules",
        pod(
            {"restartPolicy": "Never", "restartPolicyRules": [RESTART, RESTART_ALL]},
            init=(
                {"restartPolicy": "Always"},
                {"restartPolicy": "Never", "restartPolicyRules": [RESTART]},
                {},
            ),
        ),
        pod(init=({"restartPolicy": "Always"}, {}, {})),
    ),
    ("DRAExtendedResource", pod(status=TAKEN_FROM_DRIVERS), pod()),
]


@pytest.mark.parametrize(("gate", "given", "left"), CASES)
def test_a_feature_that_is_off_is_not_in_any_pod(gate: str, given: Pod, left: Pod) -> None:
    change = without_disabled_fields({gate: False})
    assert change is not None
    merged = merge_source("api", None, [given], now=NOW, change=change)
    ((update,),) = (merged.updates,)
    (arrived,) = update.pods
    assert to_dict(arrived.spec) == to_dict(left.spec)
    assert arrived.status == left.status
    # The same pod again is no news, and neither is one that differs in such a field alone.
    assert merge_source("api", merged, [given], now=NOW, change=change).updates == ()
    assert merge_source("api", merged, [left], now=NOW, change=change).updates == ()
    as_it_came = merge_source("api", None, [given], now=NOW)
    op = PodOperation.UPDATE if given.spec != left.spec else PodOperation.RECONCILE
    assert merge_source("api", as_it_came, [left], now=NOW).updates[0].op is op


def test_whoever_switches_nothing_off_pays_nothing() -> None:
    assert without_disabled_fields({}) is None
    assert without_disabled_fields({"HostnameOverride": True, "MemoryQoS": True}) is None


@pytest.mark.parametrize(
    ("gates", "rules"),
    [
        ({"RestartAllContainersOnContainerExits": False, "NodeDeclaredFeatures": False}, [RESTART]),
        # Then admission refuses the pod.
        ({"RestartAllContainersOnContainerExits": False, "HostnameOverride": False}, [RESTART, RESTART_ALL]),
    ],
)
def test_restarts_of_all_containers_are_ignored_where_admission_does_not_refuse_them(
    gates: dict[str, bool], rules: list[dict[str, Any]]
) -> None:
    change = without_disabled_fields(gates)
    assert change is not None
    given = pod({"restartPolicy": "Never", "restartPolicyRules": [RESTART, RESTART_ALL]})
    assert change(given).spec == pod({"restartPolicy": "Never", "restartPolicyRules": rules}).spec
