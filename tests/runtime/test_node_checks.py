"""Pods that this node cannot run as they ask."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from trikubelet.api import (
    AppArmorProfile,
    Container,
    ObjectMeta,
    Pod,
    PodSecurityContext,
    PodSpec,
    PodStatus,
    SecurityContext,
    Sysctl,
)
from trikubelet.node.runtime_state import RuntimeAbilities
from trikubelet.runtime.node_checks import rejection
from trikubelet.runtime.options import MachineFacts
from trikubelet.runtime.sysctls import SysctlAllowList

POOR = RuntimeAbilities()
ABLE = RuntimeAbilities(supplemental_groups_policy=True)
PLAIN = MachineFacts(2**30)
ARMORED = MachineFacts(2**30, apparmor=True)
SYSCTLS = SysctlAllowList.of_node()
DISABLED = ("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host")
ANNOTATION = "container.apparmor.security.beta.kubernetes.io/main"


def pod(*, own: AppArmorProfile | None = None, annotations: dict[str, str] | None = None, **shared: Any) -> Pod:
    container = Container(name="main", security_context=SecurityContext(app_armor_profile=own))
    return Pod(
        metadata=ObjectMeta(annotations=annotations or {}),
        spec=PodSpec(containers=(container,), security_context=PodSecurityContext(**shared)),
    )


def verdict(
    situation: Pod, abilities: RuntimeAbilities = POOR, machine: MachineFacts = PLAIN
) -> tuple[str, str] | None:
    return rejection(situation, abilities, machine, SYSCTLS)


def test_a_pod_that_asks_for_nothing_special_runs_everywhere() -> None:
    assert verdict(Pod()) is None
    assert verdict(pod()) is None
    assert verdict(pod(supplemental_groups_policy="Merge")) is None


def test_a_forbidden_sysctl_is_a_reason() -> None:
    asked = pod(sysctls=(Sysctl(name="kernel/msgmax", value="1"),))
    assert verdict(asked) == ("SysctlForbidden", 'forbidden sysctl: "kernel.msgmax" not allowlisted')
    allowed = SysctlAllowList.of_node(("kernel.msg*",))
    assert rejection(asked, POOR, PLAIN, allowed) is None


def test_the_strict_groups_policy_needs_a_runtime_that_knows_it() -> None:
    strict = pod(supplemental_groups_policy="Strict")
    assert verdict(strict) == (
        "SupplementalGroupsPolicyNotSupported",
        "SupplementalGroupsPolicy=Strict is not supported in this node",
    )
    assert verdict(strict, ABLE) is None


@pytest.mark.parametrize(
    "asked",
    [
        pod(own=AppArmorProfile(type="RuntimeDefault")),
        pod(app_armor_profile=AppArmorProfile(type="Localhost", localhost_profile="strict")),
        pod(annotations={ANNOTATION: "runtime/default"}),
        pod(annotations={ANNOTATION: "unconfined", ANNOTATION + "2": "localhost/strict"}),
    ],
)
def test_a_profile_needs_a_machine_that_enforces_it(asked: Pod) -> None:
    assert verdict(asked) == DISABLED
    assert verdict(asked, machine=ARMORED) is None
    running = attrs.evolve(asked, status=PodStatus(phase="Running"))
    assert verdict(running) is None


@pytest.mark.parametrize(
    "asked",
    [
        pod(own=AppArmorProfile(type="Unconfined")),
        pod(app_armor_profile=AppArmorProfile(type="Unconfined")),
        pod(annotations={ANNOTATION: "unconfined"}),
        pod(annotations={"note": "x"}),
    ],
)
def test_no_profile_needs_nothing(asked: Pod) -> None:
    assert verdict(asked) is None


@pytest.mark.parametrize(
    "asked",
    [
        pod(own=AppArmorProfile(type="Localhost")),
        pod(own=AppArmorProfile(type="Localhost", localhost_profile=" ")),
        pod(annotations={ANNOTATION: "localhost/"}),
    ],
)
def test_a_profile_without_a_name_is_refused(asked: Pod) -> None:
    found = verdict(asked, machine=ARMORED)
    assert found is not None
    assert found[0] == "AppArmor"
    assert found[1].startswith("Cannot enforce AppArmor: invalid empty AppArmor profile name: ")


def test_of_several_reasons_the_kubelets_first_is_given() -> None:
    asked = pod(
        own=AppArmorProfile(type="RuntimeDefault"),
        supplemental_groups_policy="Strict",
        sysctls=(Sysctl(name="kernel.msgmax", value="1"),),
    )
    reasons = []
    for situation in (
        asked,
        attrs.evolve(
            asked,
            spec=attrs.evolve(asked.spec, security_context=PodSecurityContext(supplemental_groups_policy="Strict")),
        ),
    ):
        found = verdict(situation)
        assert found is not None
        reasons.append(found[0])
    assert reasons == ["SysctlForbidden", "SupplementalGroupsPolicyNotSupported"]
