from __future__ import annotations

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
