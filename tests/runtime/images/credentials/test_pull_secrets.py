"""Pull secrets: fetching those of a pod, and what they unlock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from tests.runtime.conftest import make_pod
from tests.runtime.objects import FakeObjects
from trikubelet.api import LocalObjectReference, ObjectMeta, Secret
from trikubelet.clock import TrioClock
from trikubelet.kube_client.object_getter import NoObjects
from trikubelet.runtime.images.credentials.lookup import fetch_pull_secrets, keyring_of
from trikubelet.runtime.images.pull_credentials import CredentialsError
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import Pod

NEW, OLD = "kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"
ENTRY = '{"test.registry.io": {"auth": "dXNlcjpwYXNzd29yZA=="}}'
PLAIN_ENTRY = '{"test.registry.io": {"username": "user", "password": "password"}}'


def secret(type_: str, key: str, content: str, name: str = "s1") -> Secret:
    metadata = ObjectMeta(name=name, namespace="ns1", uid=f"uid-{name}")
    return Secret(metadata=metadata, type=type_, data={key: content.encode()})


def naming(*names: str) -> Pod:
    pod = make_pod(name="web")
    references = tuple(LocalObjectReference(name=name) for name in names)
    return attrs.evolve(pod, spec=attrs.evolve(pod.spec, image_pull_secrets=references))


@pytest.mark.parametrize(
    "given",
    [
        secret(NEW, ".dockerconfigjson", f'{{"auths": {ENTRY}}}'),
        secret(NEW, ".dockerconfigjson", f'{{"auths": {PLAIN_ENTRY}}}'),
        secret(OLD, ".dockercfg", ENTRY),
        secret(OLD, ".dockercfg", PLAIN_ENTRY),
    ],
)
def test_a_pull_secret_unlocks_its_registry(given: Secret) -> None:
    (found,) = keyring_of([given]).lookup("test.registry.io")
    assert (found.auth.username, found.auth.password) == ("user", "password")
    assert found.hash == "a55436fc140d516560d072c5fe8700385ce9f41629abf65c1edcbcb39fac691d"
    assert found.source is not None
    assert attrs.astuple(found.source) == ("secret", "uid-s1", "ns1", "s1")


@pytest.mark.parametrize(
    "given",
    [
        secret(OLD, ".dockerconfigjson", f'{{"auths": {ENTRY}}}'),
        secret(NEW, ".dockercfg", ENTRY),
        secret("Opaque", ".dockercfg", ENTRY),
        secret("", "", ENTRY),
        secret(NEW, ".dockerconfigjson", ""),
        secret(NEW, ".dockerconfigjson", '{"auths": {"foobar.io": {"auth": "dXNlcjpwYXNzd29yZA=="}}}'),
    ],
)
def test_other_secrets_unlock_nothing(given: Secret) -> None:
    assert keyring_of([given]).lookup("test.registry.io") == []


def test_two_secrets_for_one_registry_are_both_tried_in_order() -> None:
    secrets = [secret(OLD, ".dockercfg", f'{{"a.io": {{"username": "{name}"}}}}', name) for name in ("b", "a")]
    assert [found.auth.username for found in keyring_of(secrets).lookup("a.io/x")] == ["b", "a"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (secret(NEW, ".dockerconfigjson", '{"auths": {"hush'), "no JSON at line 1 column 12"),
        (secret(OLD, ".dockercfg", '{"hush": {"username": "hush", "password": 5}}'), "password is no string"),
        (
            secret(OLD, ".dockercfg", '{"a.io": {"auth": "hush"}}'),
            "unable to parse auth field, must be formatted as base64(username:password)",
        ),
    ],
)
def test_a_broken_secret_is_an_error_that_names_it_and_nothing_in_it(given: Secret, problem: str) -> None:
    good = secret(OLD, ".dockercfg", ENTRY, "good")
    with pytest.raises(CredentialsError) as caught:
        keyring_of([good, given])
    (key,) = given.data
    assert str(caught.value) == f"cannot read {key} of the pull secret ns1/s1: {problem}"


async def test_secrets_are_fetched_in_the_order_of_the_pod(autojump_clock: MockClock) -> None:
    one, two = secret(OLD, ".dockercfg", ENTRY, "one"), secret(OLD, ".dockercfg", ENTRY, "two")
    objects = FakeObjects(secrets={("default", "one"): one, ("default", "two"): two})
    recorder = EventRecorder(TrioClock())
    pod = naming("two", "", "one")
    assert await fetch_pull_secrets(objects, pod, recorder) == (two, one)
    assert objects.asked == ["secret default/two", "secret default/one"]
    assert recorder.events_of(pod.metadata.uid) == []


async def test_one_event_tells_of_all_missing_secrets(autojump_clock: MockClock) -> None:
    one = secret(OLD, ".dockercfg", ENTRY, "one")
    recorder = EventRecorder(TrioClock())
    pod = naming("a", "one", "b")
    objects = FakeObjects(secrets={("default", "one"): one})
    assert await fetch_pull_secrets(objects, pod, recorder) == (one,)
    (event,) = recorder.events_of(pod.metadata.uid)
    assert (event.type.value, event.reason, event.message, event.field_path) == (
        "Warning",
        "FailedToRetrieveImagePullSecret",
        "Unable to retrieve some image pull secrets (a, b); attempting to pull the image may not succeed.",
        "",
    )


async def test_a_node_without_an_api_server_has_no_secrets(autojump_clock: MockClock) -> None:
    recorder = EventRecorder(TrioClock())
    pod = naming("a")
    assert await fetch_pull_secrets(NoObjects(), pod, recorder) == ()
    assert len(recorder.events_of(pod.metadata.uid)) == 1
