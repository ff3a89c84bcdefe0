"""What is done on the thread for one collection: the runtime's replies are read, and files, and a summary is made.

Blocking. Rates are noted as a collection goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from trikubelet.formats.values import define
from trikubelet.node.stats.compose import Facts, compose
from trikubelet.node.stats.rates import FORGET
from trikubelet.node.stats.runtime_replies import read_container_stats, read_sandbox_stats

if TYPE_CHECKING:
    from trikubelet.node.stats.choice import MeasuredPod
    from trikubelet.node.stats.measure import Measured, Meter
    from trikubelet.node.stats.model import Summary
    from trikubelet.node.stats.rates import RateBook
    from trikubelet.node.stats.storage import PodVolumeStats
    from trikubelet.rpc.cri import v1


@define
class Answers:
    """What the runtime and the volume manager said."""

    pods: tuple[MeasuredPod, ...] = ()
    container_stats: bytes = b""
    sandbox_stats: bytes = b""
    images: v1.ImageFsInfoResponse | None = None
    volumes: dict[str, PodVolumeStats] = attrs.field(factory=dict)
    problems: list[str] = attrs.field(factory=list)


def read_all(
    answers: Answers, facts: Facts, meter: Meter, rates: RateBook, at: int, *, full: bool
) -> tuple[Facts, Measured, Summary]:
    """Everything that is done on the thread."""
    facts = _with_reported(answers, facts)
    disks = {reported.layer_path for reported in facts.containers.values() if reported.layer_path} | _image_disks(facts)
    measured = meter.measure(facts.pods, at, full=full, disks=sorted(disks))
    summary = compose(facts, measured, rates, full=full)
    rates.forget_before(at - FORGET)
    return facts, measured, summary


def read_node(
    answers: Answers, facts: Facts, meter: Meter, rates: RateBook, at: int
) -> tuple[Facts, Measured, Summary]:
    """The same for what a node may run out of."""
    facts = _with_reported(answers, facts)
    measured = meter.measure_node(at, sorted(_image_disks(facts)), facts.pods)
    return facts, measured, compose(facts, measured, rates, full=True)


def _image_disks(facts: Facts) -> set[str]:
    return {reported.path for reported in (facts.image_fs, facts.container_fs) if reported is not None}


def _with_reported(answers: Answers, facts: Facts) -> Facts:
    """The facts with what the runtime's statistics tell."""
    problems = list(facts.problems)
    try:
        sandboxes = read_sandbox_stats(answers.sandbox_stats)
        containers = read_container_stats(answers.container_stats)
    except ValueError as error:
        sandboxes, containers = {}, {}
        problems.append(f"statistics: {error}")
    for sandbox in sandboxes.values():
        containers.update({container.id: container for container in sandbox.containers})
    return attrs.evolve(facts, containers=containers, sandboxes=sandboxes, problems=tuple(problems))
