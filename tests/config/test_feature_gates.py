"""Feature gates, as `k8s.io/component-base/featuregate` sets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trikubelet.config.feature_gates import Effect, Stage, gate_enabled, gate_problems, gate_values, gate_warnings
from trikubelet.config.gate_table import DEPENDENCIES, GATES

PACKAGE = Path(__file__).parents[2] / "trikubelet"


def defaults(stage: Stage) -> dict[str, bool]:
    return {name: gate.default for name, gate in GATES.items() if gate.stage is stage}


# `TestFeatureGateFlag` and `TestVersionedFeatureGateFlag`, with gates of 1.36 in the roles of theirs.
@pytest.mark.parametrize(
    ("given", "problems"),
    [
        ({}, []),
        ({"fooBarBaz": True}, ["unrecognized feature gate: fooBarBaz"]),
        ({"AllAlpha": False}, []),
        ({"AllAlpha": True}, []),
        ({"AllBeta": False}, []),
        ({"AllBeta": True}, []),
        ({"AllAlpha": True, "AllBeta": False}, ["depends"]),
        ({"MemoryQoS": True, "AllAlpha": False}, []),
        ({"NodeSwap": True}, []),
        (
            {"NodeSwap": False},
            ["cannot set feature gate NodeSwap to false, feature is locked to true"],
        ),
        (
            {"GitRepoVolumeDriver": True},
            ["cannot set feature gate GitRepoVolumeDriver to true, feature is locked to false"],
        ),
        (
            {"nonsense": True, "NodeSwap": False},
            [
                "cannot set feature gate NodeSwap to false, feature is locked to true",
                "unrecognized feature gate: nonsense",
            ],
        ),
        (
            {"GracefulNodeShutdown": False},
            [
                "GracefulNodeShutdownBasedOnPodPriority is enabled, but depends on features that are disabled: "
                "[GracefulNodeShutdown]",
                "WindowsGracefulNodeShutdown is enabled, but depends on features that are disabled: "
                "[GracefulNodeShutdown]",
            ],
        ),
        (
            {"ClusterTrustBundleProjection": True},
            [
                "ClusterTrustBundleProjection is enabled, but depends on features that are disabled: "
                "[ClusterTrustBundle]"
            ],
        ),
        ({"ClusterTrustBundleProjection": True, "ClusterTrustBundle": True}, []),
    ],
)
def test_gates_are_refused_as_by_the_kubelet(given: dict[str, bool], problems: list[str]) -> None:
    found = list(gate_problems(given))
    if problems == ["depends"]:  # alpha features that need beta ones
        assert found
        assert all("but depends on features that are disabled" in problem for problem in found)
    else:
        assert found == problems


@pytest.mark.parametrize(
    ("given", "on", "off"),
    [
        ({}, ["ContainerCheckpoint", "EventedPLEG", "PidfdPLEG"], ["MemoryQoS", "SELinuxMount"]),
        ({"AllAlpha": True}, ["MemoryQoS", "ContainerCheckpoint"], ["SELinuxMount"]),
        ({"AllAlpha": True, "MemoryQoS": False}, ["QOSReserved"], ["MemoryQoS"]),
        ({"AllAlpha": False}, ["ContainerCheckpoint", "PidfdPLEG"], ["EventedPLEG", "MemoryQoS"]),
        ({"AllAlpha": False, "MemoryQoS": True}, ["MemoryQoS"], ["QOSReserved"]),
        ({"AllBeta": True}, ["SELinuxMount", "ContainerCheckpoint"], ["MemoryQoS"]),
        ({"AllBeta": False}, ["GenericPLEG", "PidfdPLEG", "NodeSwap"], ["ContainerCheckpoint", "MemoryQoS"]),
        ({"AllBeta": False, "ContainerCheckpoint": True}, ["ContainerCheckpoint"], ["ComponentFlagz"]),
    ],
)
def test_a_stage_is_switched_as_a_whole_but_for_what_is_named(
    given: dict[str, bool], on: list[str], off: list[str]
) -> None:
    assert {name: gate_enabled(given, name) for name in (*on, *off)} == {
        **dict.fromkeys(on, True),
        **dict.fromkeys(off, False),
    }
    values = {gate.name: value for gate, value in gate_values(given).items()}
    assert all(values[name] for name in on)
    assert not any(values[name] for name in off)
    assert values["AllAlpha"] is given.get("AllAlpha", False)


def test_a_gate_that_does_not_exist_is_a_mistake_of_the_program() -> None:
    with pytest.raises(KeyError):
        gate_enabled({}, "MemoryQos")


@pytest.mark.parametrize(
    ("given", "warnings"),
    [
        ({"ContainerCheckpoint": False}, []),
        ({"APIServerIdentity": False}, []),
        ({"CRIListStreaming": False}, []),
        (
            {"CRIListStreaming": True},
            ["featureGates[CRIListStreaming]=true has no effect: this agent has not the feature"],
        ),
        (
            {"ContextualLogging": False},
            ["featureGates[ContextualLogging]=false has no effect: this agent has the feature always"],
        ),
        (
            {"TopologyManagerPolicyBetaOptions": False},
            [
                "featureGates[TopologyManagerPolicyBetaOptions]=false has no effect: "
                "there is nothing in Kubernetes 1.36 that it would switch on a node"
            ],
        ),
        (
            {"NodeSwap": True},
            ["setting GA feature gate NodeSwap=true. It will be removed in a future release."],
        ),
        (
            {"AllowDNSOnlyNodeCSR": True},
            ["setting deprecated feature gate AllowDNSOnlyNodeCSR=true. It will be removed in a future release."],
        ),
    ],
)
def test_what_is_said_at_the_start(given: dict[str, bool], warnings: list[str]) -> None:
    assert list(gate_warnings(given)) == warnings


def test_who_switches_everything_on_is_told_what_there_is_not() -> None:
    (warning,) = gate_warnings({"AllAlpha": True, "PodsAPI": False})
    assert "CRIListStreaming" in warning
    assert "PodsAPI" not in warning
    assert "MemoryQoS" not in warning


def test_the_table_tells_where_a_gate_is_looked_at() -> None:
    switched = [name for name, gate in GATES.items() if gate.effect is Effect.SWITCHED]
    assert len(switched) > 50
    for name in switched:
        assert f'"{name}"' in (PACKAGE / GATES[name].used).read_text(encoding="utf-8"), name


def test_the_table_holds_together() -> None:
    assert {*DEPENDENCIES} <= {*GATES}
    assert {needed for all_needed in DEPENDENCIES.values() for needed in all_needed} <= {*GATES}
    assert not any(gate.on_here and gate.default for gate in GATES.values())
    assert not any(gate.locked and gate.effect is Effect.SWITCHED for gate in GATES.values())
    assert not any(defaults(Stage.ALPHA).values())
    # The numbers of 1.36: 235 of Kubernetes and its libraries, 3 of logs, 1 of metrics; and 2 of our own.
    assert len(GATES) == 235 + 4 + 2
