"""`started` and `ready` by the tables of the kubelet's TestUpdatePodStatus: a probe worker there is a probe here."""

from __future__ import annotations

import attrs
import pytest

from tests.status.builders import ended, running, waiting
from trikubelet.api import Container, ContainerStatus, Probe
from trikubelet.status.container_statuses import NO_OUTCOMES, ProbeOutcomes, with_probe_outcomes

ID = "test://c"
UNPROBED = Container(name="c", liveness_probe=Probe())
READINESS = Container(name="c", readiness_probe=Probe())
STARTUP = Container(name="c", startup_probe=Probe())
BOTH = Container(name="c", startup_probe=Probe(), readiness_probe=Probe())
RUNNING = running("c", container_id=ID)
ENDED = ended("c", 0, container_id=ID)
READY, UNREADY = ProbeOutcomes(readiness={ID: True}), ProbeOutcomes(readiness={ID: False})
HAS_STARTED = ProbeOutcomes(startup={ID: True})


def told(
    container: Container,
    status: ContainerStatus,
    outcomes: ProbeOutcomes = NO_OUTCOMES,
    previous: ContainerStatus | None = None,
    *,
    runs_to_completion: bool = False,
) -> tuple[bool | None, bool]:
    """`started` and `ready`."""
    told = with_probe_outcomes(container, status, previous, outcomes, runs_to_completion=runs_to_completion)
    return told.started, told.ready


@pytest.mark.parametrize(
    ("container", "status", "outcomes", "started", "ready"),
    [
        pytest.param(UNPROBED, RUNNING, NO_OUTCOMES, True, True, id="without readiness probe"),
        pytest.param(READINESS, RUNNING, READY, True, True, id="ready"),
        pytest.param(READINESS, RUNNING, NO_OUTCOMES, True, False, id="not asked yet"),
        pytest.param(READINESS, RUNNING, UNREADY, True, False, id="not ready"),
        pytest.param(STARTUP, RUNNING, NO_OUTCOMES, False, False, id="not started"),
        pytest.param(STARTUP, RUNNING, HAS_STARTED, True, True, id="started"),
        pytest.param(READINESS, ENDED, READY, False, False, id="ended"),
        pytest.param(READINESS, waiting("c", container_id=ID), READY, False, False, id="waiting"),
        pytest.param(UNPROBED, ENDED, NO_OUTCOMES, False, False, id="ended, without readiness probe"),
    ],
)
def test_a_container_is_what_its_probes_say(
    container: Container, status: ContainerStatus, outcomes: ProbeOutcomes, started: bool, ready: bool
) -> None:
    assert told(container, status, outcomes) == (started, ready)


@pytest.mark.parametrize(
    ("container", "status", "outcomes", "started", "ready"),
    [
        pytest.param(STARTUP, RUNNING, NO_OUTCOMES, False, False, id="not started"),
        pytest.param(STARTUP, RUNNING, HAS_STARTED, True, False, id="started"),
        pytest.param(UNPROBED, ENDED, NO_OUTCOMES, False, True, id="ended well"),
        pytest.param(UNPROBED, ended("c", 1, container_id=ID), NO_OUTCOMES, False, False, id="failed"),
        pytest.param(UNPROBED, RUNNING, NO_OUTCOMES, True, False, id="running"),
    ],
)
def test_an_init_container_is_ready_when_it_ended_well(
    container: Container, status: ContainerStatus, outcomes: ProbeOutcomes, started: bool, ready: bool
) -> None:
    assert told(container, status, outcomes, runs_to_completion=True) == (started, ready)


@pytest.mark.parametrize(
    ("status", "outcomes", "started", "ready"),
    [
        pytest.param(RUNNING, NO_OUTCOMES, False, False, id="not started"),
        pytest.param(RUNNING, HAS_STARTED, True, True, id="started"),
        pytest.param(ENDED, NO_OUTCOMES, False, False, id="ended well"),
    ],
)
def test_a_sidecar_is_asked_like_any_container(
    status: ContainerStatus, outcomes: ProbeOutcomes, started: bool, ready: bool
) -> None:
    sidecar = attrs.evolve(STARTUP, restart_policy="Always")
    assert told(sidecar, status, outcomes) == (started, ready)


SERVED = attrs.evolve(RUNNING, started=True, ready=True)


@pytest.mark.parametrize(
    ("previous", "outcomes", "started", "ready"),
    [
        pytest.param(SERVED, NO_OUTCOMES, True, True, id="nothing asked yet"),
        pytest.param(SERVED, UNREADY, True, False, id="not ready now"),
        pytest.param(SERVED, ProbeOutcomes(startup={ID: False}), False, False, id="starts again"),
        pytest.param(attrs.evolve(SERVED, ready=False), NO_OUTCOMES, True, False, id="was not ready"),
        pytest.param(attrs.evolve(SERVED, started=False), NO_OUTCOMES, False, False, id="had not started"),
        pytest.param(attrs.evolve(SERVED, started=None), NO_OUTCOMES, False, False, id="nobody said that it had"),
        pytest.param(attrs.evolve(SERVED, container_id="test://old"), NO_OUTCOMES, False, False, id="was another one"),
        pytest.param(None, NO_OUTCOMES, False, False, id="was not there"),
    ],
)
def test_a_container_that_outlived_the_agent_stays_what_it_was_until_its_probes_speak(
    previous: ContainerStatus | None, outcomes: ProbeOutcomes, started: bool, ready: bool
) -> None:
    assert told(BOTH, RUNNING, outcomes, previous) == (started, ready)
