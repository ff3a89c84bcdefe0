"""Which runtimes can give containers the CDI devices of resource claims."""

from __future__ import annotations

import pytest

from trikubelet.agent.claims import cdi_problem
from trikubelet.rpc.cri.v1 import VersionResponse


@pytest.mark.parametrize(
    ("name", "version", "can"),
    [
        ("containerd", "1.6.20~ds1", False),
        ("containerd", "1.7.0", True),
        ("containerd", "v2.1.4", True),
        ("containerd", "unknown", True),
        ("cri-o", "1.20.0", True),
        ("trikubelet", "0.1", True),
    ],
)
def test_an_old_containerd_cannot(name: str, version: str, can: bool) -> None:
    problem = cdi_problem(VersionResponse(runtime_name=name, runtime_version=version))
    assert bool(problem) is not can
    assert not problem or problem.endswith(f"this node runs {name} {version}")


def test_of_a_runtime_that_has_not_answered_yet_nothing_is_known() -> None:
    assert cdi_problem(None) == ""
