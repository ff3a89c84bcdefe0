"""What pods ask of the kernel and the runtime."""

from __future__ import annotations

from typing import Any

import pytest

from trikubelet.admission.handlers import apparmor_problem, wants_strict_groups
from trikubelet.api import AppArmorProfile, Container, ObjectMeta, Pod, PodSecurityContext, PodSpec, SecurityContext
from trikubelet.linux.machine_facts import MachineFacts

PLAIN = MachineFacts(2**30)
ARMORED = MachineFacts(2**30, apparmor=True)
DISABLED = "AppArmor is not enabled on the host"
ANNOTATION = "container.apparmor.security.beta.kubernetes.io/main"


def pod(*, own: AppArmorProfile | None = None, annotations: dict[str, str] | None = None, **shared: Any) -> Pod:
    container = Container(name="main", security_context=SecurityContext(app_armor_profile=own))
    return Pod(
        metadata=ObjectMeta(annotations=annotations or {}),
        spec=PodSpec(containers=(container,), security_context=PodSecurityContext(**shared)),
    )


@pytest.mark.parametrize(
    ("asked", "strict"),
    [
        (Pod(), False),
        (pod(), False),
        (pod(supplemental_groups_policy="Merge"), False),
        (pod(supplemental_groups_policy="Strict"), True),
    ],
)
def test_only_the_strict_groups_policy_needs_a_runtime_that_knows_it(asked: Pod, strict: bool) -> None:
    assert wants_strict_groups(asked) is strict


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
    assert apparmor_problem(asked, PLAIN) == DISABLED
    assert apparmor_problem(asked, ARMORED) is None


@pytest.mark.parametrize(
    "asked",
    [
        Pod(),
        pod(),
        pod(own=AppArmorProfile(type="Unconfined")),
        pod(app_armor_profile=AppArmorProfile(type="Unconfined")),
        pod(annotations={ANNOTATION: "unconfined"}),
        pod(annotations={"note": "x"}),
    ],
)
def test_no_profile_needs_nothing(asked: Pod) -> None:
    assert apparmor_problem(asked, PLAIN) is None


@pytest.mark.parametrize(
    "asked",
    [
        pod(own=AppArmorProfile(type="Localhost")),
        pod(own=AppArmorProfile(type="Localhost", localhost_profile=" ")),
        pod(annotations={ANNOTATION: "localhost/"}),
    ],
)
def test_a_profile_without_a_name_is_refused(asked: Pod) -> None:
    problem = apparmor_problem(asked, ARMORED)
    assert problem is not None
    assert problem.startswith("invalid empty AppArmor profile name: ")
