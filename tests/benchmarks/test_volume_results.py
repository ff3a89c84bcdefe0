"""What follows from measured volumes."""

from __future__ import annotations

import pytest

from benchmarks.termination.pods import Behaviour
from benchmarks.volumes.kinds import Kind, VolumePlan
from benchmarks.volumes.results import Case, Round, aims, rows
from trikubelet.api import pod_from_dict, set_pod_defaults, validate_pod


def case(kind: Kind, count: int, *starts: tuple[float, float]) -> Case:
    return Case(kind, count, [Round(*both, 0.09, 0.07, 0.012, 0.002, 0.001) for both in starts])


def test_what_volumes_add_is_compared_within_each_turn() -> None:
    measured = case(Kind.SECRET, 10, (0.15, 0.1), (1.02, 1.0), (0.13, 0.1))
    assert measured.added == pytest.approx(0.03)
    assert measured.per_volume == pytest.approx(0.003)
    assert list(rows([measured])) == [["10 secret", "150.0", "100.0", "3.0", "2.0", "10.0", "1.0"]]


def test_only_config_maps_and_secrets_have_an_aim() -> None:
    cases = [case(kind, 10, (0.2, 0.1)) for kind in Kind]
    found = aims("embedded", cases)
    assert [result.aim.split()[4] for result in found] == ["configMap", "secret"]
    assert [(round(result.value), result.goal, result.met) for result in found] == [(10, 5, False)] * 2


@pytest.mark.parametrize("kind", list(Kind))
def test_every_pod_that_is_started_is_valid(kind: Kind) -> None:
    document = VolumePlan("pod", Behaviour.EXITS_ON_TERM, 5, kind, 2).manifest("image", "/signs")
    document["metadata"] |= {"namespace": "default", "uid": "1"}
    document["spec"]["serviceAccountName"] = "default"
    pod = set_pod_defaults(pod_from_dict(document))
    assert len(pod.spec.volumes) == 3
    assert [mount.name for mount in pod.spec.containers[0].volume_mounts] == ["sign", "volume-0", "volume-1"]
    assert validate_pod(pod) == []
