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


def test_a_protected_repository_gives_its_images_to_those_it_knows() -> None:
    shelf = ImageShelf()
    shelf.protect("registry.test/private:1", "ann", "secret")
    shelf.protect("registry.test/private:1", "bob", "hidden")
    results = [
        shelf.pull("registry.test/private:2", *account)
        for account in [("ann", "secret"), ("bob", "hidden"), ("ann", "hidden"), ("eve", "secret"), ("", "")]
    ]
    assert [isinstance(result, SimulatedImage) for result in results] == [True, True, False, False, False]
    assert isinstance(shelf.pull("registry.test/public:1"), SimulatedImage)


def test_a_denied_pull_says_whether_credentials_were_missing_or_wrong() -> None:
    shelf = ImageShelf()
    shelf.protect("registry.test/private", "ann", "secret")
    missing, wrong = shelf.pull("registry.test/private:1"), shelf.pull("registry.test/private:1", "ann", "guess")
    assert isinstance(missing, PullError)
    assert isinstance(wrong, PullError)
    assert missing.message.endswith("authorization failed: no basic auth credentials")
    assert wrong.message.endswith("insufficient_scope: authorization failed")
    assert missing.status is wrong.status is Status.UNKNOWN
    assert shelf.present() == []


def test_what_a_protected_repository_has_not_is_told_only_to_those_it_knows() -> None:
    shelf = ImageShelf()
    shelf.protect("private:1", "ann", "secret")
    shelf.withdraw("private:1")
    known, unknown = shelf.pull("private:1", "ann", "secret"), shelf.pull("private:1")
    assert isinstance(known, PullError)
    assert isinstance(unknown, PullError)
    assert (known.status, unknown.status) == (Status.NOT_FOUND, Status.UNKNOWN)


def test_an_image_on_the_node_is_found_without_credentials() -> None:
    shelf = ImageShelf()
    shelf.protect("private:1", "ann", "secret")
    image = shelf.add("private:1")
    assert shelf.find("private:1") is image
