"""The size of an emptyDir in memory."""

from __future__ import annotations

from typing import Any

import pytest

from trikubelet.api import Quantity, pod_from_dict
from trikubelet.volumes.tmpfs_size import tmpfs_size

MI = 2**20


def container(name: str, memory: str = "", **more: Any) -> dict[str, Any]:
    limits = {"limits": {"memory": memory}} if memory else {}
    return {"name": name, "image": "app", "resources": limits, **more}


@pytest.mark.parametrize(
    ("spec", "size_limit", "size"),
    [
        ({"containers": [container("a")]}, None, None),
        ({"containers": [container("a")]}, "64Mi", 64 * MI),
        ({"containers": [container("a")]}, "0", None),
        ({"containers": [container("a", "10Mi"), container("b", "20Mi")]}, None, 30 * MI),
        ({"containers": [container("a", "10Mi"), container("b", "20Mi")]}, "64Mi", 30 * MI),
        ({"containers": [container("a", "10Mi")]}, "1Mi", MI),
        ({"containers": [container("a", "10Mi"), container("b")]}, None, None),
        ({"containers": [container("a", "10Mi")], "overhead": {"memory": "2Mi"}}, None, 12 * MI),
        ({"containers": [container("a")], "overhead": {"memory": "2Mi"}}, None, None),
        (
            {"containers": [container("a", "10Mi")], "initContainers": [container("i", "50Mi")]},
            None,
            50 * MI,
        ),
        (
            {"containers": [container("a", "10Mi")], "initContainers": [container("s", "5Mi", restartPolicy="Always")]},
            None,
            15 * MI,
        ),
        ({"containers": [container("a", "10Mi")], "initContainers": [container("i")]}, None, None),
        ({"containers": [container("a")], "resources": {"limits": {"memory": "7Mi"}}}, None, 7 * MI),
    ],
)
def test_the_least_limit_is_the_size(spec: dict[str, Any], size_limit: str | None, size: int | None) -> None:
    pod = pod_from_dict({"metadata": {"name": "p"}, "spec": spec})
    assert tmpfs_size(pod, None if size_limit is None else Quantity(size_limit)) == size


@pytest.mark.parametrize(
    ("memory_limit", "size_limit", "size"),
    [
        ("", None, 32 * MI),
        ("10Mi", None, 10 * MI),
        ("", "20Mi", 20 * MI),
        ("10Mi", "20Mi", 10 * MI),
        ("20Mi", "10Mi", 10 * MI),
        ("64Mi", "128Mi", 32 * MI),
        ("0", "0", 32 * MI),
    ],
)
def test_nothing_is_larger_than_what_the_node_gives_to_pods(
    memory_limit: str, size_limit: str | None, size: int
) -> None:
    pod = pod_from_dict({"metadata": {"name": "p"}, "spec": {"containers": [container("a", memory_limit)]}})
    wanted = None if size_limit is None else Quantity(size_limit)
    assert tmpfs_size(pod, wanted, allocatable={"memory": Quantity("32Mi"), "cpu": Quantity("1")}) == size
