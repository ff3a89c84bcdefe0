"""Which pods and containers are measured: the kubelet's cases."""

from __future__ import annotations

from tests.node.stats.fake_runtime import EXITED, GONE, container_of, sandbox_of
from trikubelet.node.stats.choice import measured_pods


def test_only_running_containers_count() -> None:
    sandbox = sandbox_of("a")
    containers = [container_of(sandbox, "ended", state=EXITED), container_of(sandbox, "runs")]
    assert [[one.name for one in pod.containers] for pod in measured_pods([sandbox], containers)] == [["runs"]]


def test_of_a_restarted_container_the_running_instance_counts() -> None:
    sandbox = sandbox_of("a")
    containers = [
        container_of(sandbox, "c", id="second", created=5),
        container_of(sandbox, "c", id="first", created=3, state=EXITED),
    ]
    (pod,) = measured_pods([sandbox], containers)
    assert [one.id for one in pod.containers] == ["second"]


def test_of_two_running_instances_the_newest_counts() -> None:
    sandbox = sandbox_of("a")
    containers = [container_of(sandbox, "c", id="new", created=5), container_of(sandbox, "c", id="old", created=3)]
    (pod,) = measured_pods([sandbox], containers)
    assert [one.id for one in pod.containers] == ["new"]


def test_a_pod_without_a_running_container_is_left_out() -> None:
    sandbox = sandbox_of("a")
    assert measured_pods([sandbox], [container_of(sandbox, "c", state=EXITED)]) == ()
    assert measured_pods([sandbox], []) == ()


def test_an_ended_sandbox_does_not_hide_the_ready_one_of_the_same_name() -> None:
    ended, ready = sandbox_of("a", uid="1", created=9, state=GONE), sandbox_of("a", uid="2", created=1)
    containers = [container_of(ended, "c"), container_of(ready, "c")]
    assert [pod.uid for pod in measured_pods([ended, ready], containers)] == ["2"]


def test_of_several_ended_sandboxes_the_newest_counts() -> None:
    old, new = sandbox_of("a", uid="1", created=1, state=GONE), sandbox_of("a", uid="2", created=9, state=GONE)
    containers = [container_of(old, "c"), container_of(new, "c")]
    assert [pod.uid for pod in measured_pods([new, old], containers)] == ["2"]


def test_a_single_ended_sandbox_counts_while_a_container_runs() -> None:
    sandbox = sandbox_of("a", state=GONE)
    assert len(measured_pods([sandbox], [container_of(sandbox, "c")])) == 1


def test_two_ready_pods_of_one_name_both_count_but_a_pod_only_once() -> None:
    leaving, coming = sandbox_of("a", uid="1"), sandbox_of("a", uid="2", created=3)
    again = sandbox_of("a", uid="2", created=4, id="again")
    containers = [container_of(one, "c") for one in (leaving, coming, again)]
    pods = measured_pods([leaving, coming, again], containers)
    assert [(pod.uid, pod.sandbox_id) for pod in pods] == [("1", leaving.id), ("2", "again")]


def test_a_container_without_our_label_goes_by_the_runtimes_name() -> None:
    sandbox = sandbox_of("a")
    container = container_of(sandbox, "c")
    container.labels = {}
    (pod,) = measured_pods([sandbox], [container])
    assert pod.containers[0].name == "c"
    assert (pod.created_at, pod.containers[0].created_at) == (1_000_000_000, 2_000_000_000)
