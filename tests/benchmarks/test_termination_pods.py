from __future__ import annotations

import pytest

from benchmarks.termination.pods import SIGNALLED, STARTED, Behaviour, PodPlan, find_processes, read_sign, sign
from trikubelet.api import pod_from_dict, set_pod_defaults, validate_pod


def shell(plan: PodPlan, container: str) -> str:
    return " ".join(plan.command(container))


@pytest.mark.parametrize("behaviour", Behaviour)
@pytest.mark.parametrize("deletion_grace", [None, 2])
def test_every_manifest_is_a_valid_pod_with_the_containers_of_its_behaviour(
    behaviour: Behaviour, deletion_grace: int | None
) -> None:
    plan = PodPlan("name", behaviour, grace=7)
    manifest = plan.manifest("image:1", "/signs", deletion_grace=deletion_grace)
    manifest["metadata"]["namespace"] = "default"  # as a kubelet adds
    pod = set_pod_defaults(pod_from_dict(manifest))
    assert validate_pod(pod) == []
    assert {one.name for one in (*pod.spec.init_containers, *pod.spec.containers)} == set(behaviour.containers)
    assert pod.spec.termination_grace_period_seconds == 7
    assert pod.metadata.deletion_grace_period_seconds == deletion_grace
    assert pod.metadata.uid == plan.uid


def test_a_shortened_grace_period_is_about_the_same_pod() -> None:
    plan = PodPlan("name", Behaviour.GRACE_SHORTENED, grace=30)
    long, short = (plan.manifest("image:1", "/signs", deletion_grace=seconds)["metadata"] for seconds in (30, 2))
    assert long["uid"] == short["uid"]
    assert long["deletionTimestamp"] == short["deletionTimestamp"]


def test_only_some_behaviours_exit_on_the_signal() -> None:
    commands = {one: shell(PodPlan("name", one, grace=1), one.containers[0]) for one in Behaviour}
    ignoring = {one for one, command in commands.items() if "exit" not in command}
    assert ignoring == {Behaviour.IGNORES_TERM, Behaviour.GRACE_SHORTENED}


def test_a_sign_tells_what_happened_to_which_container() -> None:
    assert read_sign(sign("ours-1", "main", SIGNALLED)) == ("ours-1", "main", SIGNALLED)
    assert read_sign("lost+found") is None


def test_the_processes_of_a_pod_are_found_among_those_of_others() -> None:
    plan = PodPlan("ours-1", Behaviour.SIDECARS, grace=1)
    longer = PodPlan("ours-11", Behaviour.SIDECARS, grace=1)
    lines = {20: "sleep 86400", 1: "init", 30: shell(longer, "main")}
    lines |= {40 + number: shell(plan, name) for number, name in enumerate(plan.behaviour.containers)}
    lines[99] = shell(plan, "main")  # a subshell, before it becomes another program
    assert find_processes(lines, plan) == {"main": 40, "proxy": 41, "logger": 42}


def test_all_containers_leave_signs() -> None:
    plan = PodPlan("ours-1", Behaviour.SEVERAL_CONTAINERS, grace=1)
    assert plan.signs(STARTED) == {"ours-1.first.started", "ours-1.second.started", "ours-1.third.started"}
