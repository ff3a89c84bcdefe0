"""What the node declares."""

from __future__ import annotations

from trikubelet.node.declared_features import declared_features


def test_only_what_is_done_is_declared() -> None:
    assert declared_features({}) == (
        "ExtendWebSocketsToKubelet",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "RestartAllContainersOnContainerExits",
    )


def test_a_feature_gate_takes_a_feature_away() -> None:
    assert declared_features({"RestartAllContainersOnContainerExits": False}) == (
        "ExtendWebSocketsToKubelet",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
    )
    assert declared_features({"NodeDeclaredFeatures": False}) == ()
