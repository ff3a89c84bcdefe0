from __future__ import annotations

import pytest
from grpclib.const import Status

from trikubelet.sim.faults import Fault, FaultKind, FaultPlan


def drawn(plan: FaultPlan, rpc: str, times: int) -> list[FaultKind | None]:
    faults = [plan.draw(rpc) for _ in range(times)]
    return [fault.kind if fault else None for fault in faults]


def test_faults_asked_for_come_in_order_and_then_no_more() -> None:
    plan = FaultPlan()
    plan.fail_next("StartContainer", times=2)
    plan.lose_next_reply("StartContainer")
    assert drawn(plan, "StartContainer", 4) == [FaultKind.ERROR, FaultKind.ERROR, FaultKind.LOST_REPLY, None]


def test_a_fault_for_one_call_leaves_the_others_alone() -> None:
    plan = FaultPlan()
    plan.hang_next("Status")
    assert plan.draw("Version") is None
    assert plan.draw("Status") is not None


def test_a_fault_for_anything_meets_the_next_call() -> None:
    plan = FaultPlan()
    plan.fail_next("*", status=Status.INTERNAL)
    fault = plan.draw("Version")
    assert fault is not None
    assert fault.status is Status.INTERNAL
    assert plan.draw("Version") is None


def test_one_seed_gives_the_same_faults() -> None:
    def run(seed: int) -> list[FaultKind | None]:
        plan = FaultPlan(seed)
        plan.fail_randomly("*", 0.3, Fault(FaultKind.LOST_REPLY))
        return drawn(plan, "StartContainer", 50)

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert 5 < sum(kind is not None for kind in run(1)) < 25


def test_calls_of_one_name_do_not_change_the_faults_of_another() -> None:
    alone, together = FaultPlan(3), FaultPlan(3)
    for plan in (alone, together):
        plan.fail_randomly("*", 0.5)
    drawn(together, "ListContainers", 17)
    assert drawn(alone, "StartContainer", 20) == drawn(together, "StartContainer", 20)


def test_after_stop_there_are_no_faults() -> None:
    plan = FaultPlan()
    plan.fail_next("Status")
    plan.fail_randomly("*", 1.0)
    plan.stop()
    assert plan.draw("Status") is None


def test_a_restart_comes_at_the_call_it_was_planned_for_whatever_came_before() -> None:
    plan = FaultPlan()
    drawn(plan, "Status", 3)
    plan.restart_at("Status", 2, when="after", downtime=7)
    assert drawn(plan, "Status", 3) == [None, FaultKind.RESTART, None]
    assert plan.met == {FaultKind.RESTART: 1}


def test_a_restart_at_any_call_counts_all_of_them() -> None:
    plan = FaultPlan()
    plan.restart_at("*", 3, downtime=7)
    assert plan.draw("Status") is None
    assert plan.draw("Version") is None
    fault = plan.draw("Status")
    assert fault is not None
    assert (fault.kind, fault.when, fault.seconds) == (FaultKind.RESTART, "before", 7)


def test_there_is_no_call_before_the_next_one() -> None:
    with pytest.raises(ValueError, match="the next call is number 1"):
        FaultPlan().restart_at("Status", 0)
