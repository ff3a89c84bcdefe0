"""Probes of containers on containerd, answered by servers in a container: each handler, each misbehaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.containerd_node import TEST_IMAGE, ContainerdNode
from tests.probes.real_servers import FLIPPING, QUESTIONS, ProbedPod, Question, flip_and_recover, probed_pod

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.containerd


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory, containerd: ContainerdNode) -> Iterator[ProbedPod]:
    with probed_pod(tmp_path_factory.mktemp("probed"), TEST_IMAGE, containerd) as pod:
        yield pod


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_what_comes_of_it(pod: ProbedPod, question: Question) -> None:
    pod.come_to_pass(question)


def test_the_sidecar_with_the_servers_has_started_before_anybody_was_probed(pod: ProbedPod) -> None:
    pod.servers_came_first()


@pytest.mark.night
def test_who_fails_the_liveness_probe_is_restarted_and_ready_again_later(pod: ProbedPod) -> None:
    flip_and_recover(pod, FLIPPING)
