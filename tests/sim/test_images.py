from __future__ import annotations

import pytest
from grpclib.const import Status

from trikubelet.sim.images import ImageShelf, PullError, SimulatedImage, normalize


@pytest.mark.parametrize(
    ("reference", "full"),
    [
        ("nginx", "docker.io/library/nginx:latest"),
        ("nginx:1.27", "docker.io/library/nginx:1.27"),
        ("bitnami/redis", "docker.io/bitnami/redis:latest"),
        ("docker.io/nginx", "docker.io/library/nginx:latest"),
        ("localhost/host", "localhost/host:latest"),
        ("registry:5000/app", "registry:5000/app:latest"),
        ("registry.k8s.io/pause:3.9", "registry.k8s.io/pause:3.9"),
        ("nginx:1.27@sha256:abc", "docker.io/library/nginx@sha256:abc"),
    ],
)
def test_references_are_completed(reference: str, full: str) -> None:
    assert normalize(reference) == full


def test_an_image_is_found_by_tag_id_and_digest() -> None:
    shelf = ImageShelf()
    image = shelf.add("nginx:1.27")
    for name in ("nginx:1.27", "docker.io/library/nginx:1.27", image.id, image.digest_reference):
        assert shelf.find(name) is image
    assert shelf.find("nginx:1.28") is None
    assert shelf.find("") is None


def test_a_pull_puts_the_image_on_the_node_and_a_removal_takes_it_away() -> None:
    shelf = ImageShelf()
    offered = shelf.offer("app:1", size=123)
    assert shelf.present() == []
    assert shelf.pull("app:1") is offered
    assert shelf.used_bytes() == 123
    shelf.remove("app:1")
    assert shelf.present() == []


def test_a_withdrawn_image_is_not_found_until_it_is_offered_again() -> None:
    shelf = ImageShelf()
    shelf.withdraw("app:1")
    error = shelf.pull("app:1")
    assert isinstance(error, PullError)
    assert error.status is Status.NOT_FOUND
    shelf.offer("app:1")
    assert isinstance(shelf.pull("app:1"), SimulatedImage)


def test_pulls_fail_as_often_as_asked() -> None:
    shelf = ImageShelf()
    shelf.fail_pulls("app:1", PullError("registry is down"), times=2)
    results = [shelf.pull("app:1") for _ in range(3)]
    assert [isinstance(result, PullError) for result in results] == [True, True, False]
