"""Plugins: when they are asked, whose answers are kept and for whom, and what their failures cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.runtime.conftest import make_pod
from trikubelet.api import ObjectMeta
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.runtime.images.credentials.accounts import NoServiceAccounts, ServiceAccounts
from trikubelet.runtime.images.credentials.plugin_config import CredentialProvider, TokenAttributes
from trikubelet.runtime.images.credentials.plugin_protocol import PluginError
from trikubelet.runtime.images.credentials.plugins import Plugins

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import Pod

V1 = "credentialprovider.kubelet.k8s.io/v1"
ANYWHERE = ("*.registry.io",)


@attrs.define
class FakePlugin:
    """A plugin that takes a second to answer, and gives everybody a login with a number."""

    location: str = "*.registry.io"
    cache_key_type: str = "Image"
    cache_duration: str | None = "1h"
    password: str | None = None
    problem: str = ""
    asked: list[dict[str, object]] = attrs.field(factory=list)

    async def run(self, provider: CredentialProvider, image: str, request: bytes) -> bytes:
        self.asked.append(json.loads(request))
        number = len(self.asked)
        await trio.sleep(1)
        if self.problem:
            raise PluginError(self.problem)
        login = {"username": f"user-{number}", "password": self.password or f"hush-{number}"}
        answer = {
            "kind": "CredentialProviderResponse",
            "apiVersion": V1,
            "cacheKeyType": self.cache_key_type,
            "cacheDuration": self.cache_duration,
            "auth": {self.location: login},
        }
        return json.dumps(answer).encode()


@attrs.define
class FakeAccounts:
    """One account for every name, with a token for each pod."""

    annotations: dict[str, str] = attrs.field(factory=dict)
    problem: str = ""
    token_problem: str = ""

    async def service_account(self, namespace: str, name: str) -> ObjectMeta:
        if self.problem:
            raise ObjectError(self.problem, "unavailable")
        return ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}", annotations=self.annotations)

    async def service_account_token(self, pod: Pod, audience: str, *, account_uid: str = "") -> str:
        assert account_uid == f"uid-{pod.spec.service_account_name}"
        if self.token_problem:
            raise ObjectError(self.token_problem, "unavailable")
        return f"token-{audience}-{pod.metadata.name}"


TOKENS = TokenAttributes("audience", "ServiceAccount", require_account=True)


def provider(images: tuple[str, ...] = ANYWHERE, **more: object) -> CredentialProvider:
    settings = {"default_cache_duration": 600.0, "api_version": V1, **more}
    return CredentialProvider("ecr", Path("/bin/ecr"), images, **settings)  # type: ignore[arg-type]


def plugins(
    fake: FakePlugin,
    images: tuple[str, ...] = ANYWHERE,
    accounts: ServiceAccounts | None = None,
    **more: object,
) -> Plugins:
    return Plugins([provider(images, **more)], accounts or NoServiceAccounts(), fake.run)


def pod_of(name: str = "web", account: str = "") -> Pod:
    pod = make_pod(name=name)
    return attrs.evolve(pod, spec=attrs.evolve(pod.spec, service_account_name=account))


async def users(plugins: Plugins, image: str, pod: Pod | None = None) -> list[str]:
    return [found.auth.username for found in await plugins.lookup(image, pod or pod_of())]


@pytest.mark.parametrize(
    ("pattern", "location", "image"),
    [
        ("test.registry.io", "test.registry.io", "test.registry.io/foo/bar"),
        ("test.registry.io/foo/bar", "test.registry.io/foo/bar", "test.registry.io/foo/bar"),
        ("test.registry.io", "test.registry.io", "test.registry.io"),
        ("*.registry.io:8080", "*.registry.io:8080", "test.registry.io:8080/foo"),
        ("*.*.registry.io", "*.*.registry.io", "foo.bar.registry.io/foo/bar"),
        ("*.registry.io", "*.registry.io", "test.registry.io"),
    ],
)
@pytest.mark.parametrize("cache_key_type", ["Image", "Registry", "Global"])
async def test_a_plugin_answers_for_its_images(
    autojump_clock: MockClock, pattern: str, location: str, image: str, cache_key_type: str
) -> None:
    fake = FakePlugin(location, cache_key_type)
    (found,) = await plugins(fake, (pattern,)).lookup(image, pod_of())
    assert (found.auth.username, found.auth.password, found.source) == ("user-1", "hush-1", None)
    assert fake.asked == [{"kind": "CredentialProviderRequest", "apiVersion": V1, "image": image}]


async def test_a_plugin_is_not_asked_for_other_images(autojump_clock: MockClock) -> None:
    fake = FakePlugin()
    assert await users(plugins(fake), "registry.io/foo") == []
    assert fake.asked == []


async def test_an_answer_for_another_registry_is_of_no_use(autojump_clock: MockClock) -> None:
    assert await users(plugins(FakePlugin("other.io")), "a.registry.io/foo") == []


@pytest.mark.parametrize(("cache_key_type", "runs"), [("Image", 3), ("Registry", 2), ("Global", 1)])
async def test_an_answer_holds_as_far_as_it_says(autojump_clock: MockClock, cache_key_type: str, runs: int) -> None:
    fake = FakePlugin(cache_key_type=cache_key_type)
    known = plugins(fake)
    for _ in range(2):
        for image in ("a.registry.io/one", "a.registry.io/two", "b.registry.io/one"):
            assert await users(known, image)
    assert len(fake.asked) == runs


@pytest.mark.parametrize(
    ("cache_duration", "default", "seconds"),
    [("1m", 600.0, 60), (None, 600.0, 600), ("0", 600.0, 0), (None, 0.0, 0), ("-1m", 600.0, 0)],
)
async def test_an_answer_holds_as_long_as_it_says(
    autojump_clock: MockClock, cache_duration: str | None, default: float, seconds: int
) -> None:
    fake = FakePlugin(cache_duration=cache_duration)
    known = plugins(fake, default_cache_duration=default)
    assert await users(known, "a.registry.io/foo") == ["user-1"]
    if seconds:
        await trio.sleep(seconds)
        assert await users(known, "a.registry.io/foo") == ["user-1"]
        await trio.sleep(1)
    assert await users(known, "a.registry.io/foo") == ["user-2"]


async def test_answers_that_hold_no_longer_are_forgotten(autojump_clock: MockClock) -> None:
    known = plugins(FakePlugin(cache_duration="2m"))
    for number in range(3):
        await users(known, f"a.registry.io/{number}")
    assert known.kept_answers == 3
    await trio.sleep(16 * 60)
    await users(known, "a.registry.io/3")
    assert known.kept_answers == 1


async def test_pods_that_want_the_same_image_share_one_run(autojump_clock: MockClock) -> None:
    fake = FakePlugin(cache_duration="0")
    known = plugins(fake)
    found: list[list[str]] = []

    async def ask(name: str) -> None:
        found.append(await users(known, "a.registry.io/foo", pod_of(name)))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(ask, f"pod-{number}")
    assert found == [["user-1"]] * 5
    assert len(fake.asked) == 1


async def test_pods_that_share_a_run_share_its_failure(autojump_clock: MockClock) -> None:
    fake = FakePlugin(problem="no network")
    known = plugins(fake)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(users, known, "a.registry.io/foo")
    assert len(fake.asked) == 1
    fake.problem = ""
    assert await users(known, "a.registry.io/foo") == ["user-2"]


async def test_a_pod_that_goes_away_takes_no_answer_from_the_others(autojump_clock: MockClock) -> None:
    fake = FakePlugin()
    known = plugins(fake)
    found: list[list[str]] = []

    async def leave() -> None:
        with trio.move_on_after(0.5):
            await users(known, "a.registry.io/foo")

    async def stay() -> None:
        await trio.sleep(0.1)
        found.append(await users(known, "a.registry.io/foo"))

    async with trio.open_nursery() as nursery:
        for each in (leave, stay, stay):
            nursery.start_soon(each)
    assert found == [["user-2"]] * 2
    assert len(fake.asked) == 2


async def test_a_failing_plugin_gives_nothing_and_the_others_still_do(
    autojump_clock: MockClock, logged: list[Any]
) -> None:
    good, bad = FakePlugin(), FakePlugin(problem="no network")

    async def run(which: CredentialProvider, image: str, request: bytes) -> bytes:
        return await (bad if which.name == "bad" else good).run(which, image, request)

    known = Plugins([attrs.evolve(provider(), name="bad"), provider()], NoServiceAccounts(), run)
    assert await users(known, "a.registry.io/foo") == ["user-1"]
    printed = str(logged)
    assert "no network" in printed
    assert "hush" not in printed


async def test_runs_and_those_that_fail_are_counted(autojump_clock: MockClock) -> None:
    fake = FakePlugin(cache_duration="0s")
    known = plugins(fake)
    await users(known, "a.registry.io/foo")
    assert known.metrics.durations["ecr",].count == 1
    assert known.metrics.durations["ecr",].sum == 1
    assert not known.metrics.errors
    fake.problem = "no network"
    await users(known, "a.registry.io/foo")
    assert known.metrics.durations["ecr",].count == 2
    assert known.metrics.errors == {("ecr",): 1}
    with trio.move_on_after(0.5):
        await users(known, "a.registry.io/foo")
    assert known.metrics.durations["ecr",].sum == 2.5
    assert known.metrics.errors == {("ecr",): 1}, "the plugin is not to blame for a pull that nobody wants any more"


async def test_two_plugins_for_one_image_are_both_used(autojump_clock: MockClock) -> None:
    fake = FakePlugin()
    known = Plugins([provider(), provider()], NoServiceAccounts(), fake.run)
    assert await users(known, "a.registry.io/foo") == ["user-1", "user-2"]


async def test_a_plugin_gets_the_token_of_the_pods_account(autojump_clock: MockClock) -> None:
    fake = FakePlugin()
    tokens = attrs.evolve(TOKENS, required_annotations=("a.io/id",), optional_annotations=("a.io/type", "a.io/none"))
    accounts = FakeAccounts({"a.io/id": "1", "a.io/type": "x", "a.io/other": "y"})
    known = plugins(fake, accounts=accounts, tokens=tokens)
    (found,) = await known.lookup("a.registry.io/foo", pod_of("web", "builder"))
    assert found.source is not None
    assert attrs.astuple(found.source) == ("service account", "uid-builder", "default", "builder")
    assert fake.asked == [
        {
            "kind": "CredentialProviderRequest",
            "apiVersion": V1,
            "image": "a.registry.io/foo",
            "serviceAccountToken": "token-audience-web",
            "serviceAccountAnnotations": {"a.io/id": "1", "a.io/type": "x"},
        }
    ]


@pytest.mark.parametrize(("require", "expected"), [(True, []), (False, ["user-1"])])
async def test_a_pod_without_an_account_may_do_without(
    autojump_clock: MockClock, require: bool, expected: list[str]
) -> None:
    fake = FakePlugin()
    tokens = attrs.evolve(TOKENS, require_account=require)
    assert await users(plugins(fake, accounts=FakeAccounts(), tokens=tokens), "a.registry.io/foo") == expected
    assert [asked.get("serviceAccountToken") for asked in fake.asked] == [None] * len(expected)


async def test_an_account_without_a_required_annotation_is_not_used(autojump_clock: MockClock) -> None:
    fake = FakePlugin()
    tokens = attrs.evolve(TOKENS, required_annotations=("a.io/id",))
    known = plugins(fake, accounts=FakeAccounts(), tokens=tokens)
    assert await users(known, "a.registry.io/foo", pod_of("web", "builder")) == []
    assert fake.asked == []


@pytest.mark.parametrize(
    ("accounts", "problem"),
    [
        (
            NoServiceAccounts(),
            "failed to get service account: cannot get ServiceAccounts when kubelet is in standalone mode",
        ),
        (FakeAccounts(problem="gone"), "failed to get service account: gone"),
        (FakeAccounts(token_problem="failed to get token"), "failed to get service account token: failed to get token"),
    ],
)
async def test_without_a_token_the_plugin_is_not_asked(
    autojump_clock: MockClock, accounts: ServiceAccounts, problem: str, logged: list[Any]
) -> None:
    fake = FakePlugin()
    known = plugins(fake, accounts=accounts, tokens=TOKENS)
    assert await users(known, "a.registry.io/foo", pod_of("web", "builder")) == []
    assert fake.asked == []
    assert problem in str(logged)


@pytest.mark.parametrize(
    ("cache_type", "account", "found"),
    [
        ("ServiceAccount", "builder", "user-1"),
        ("ServiceAccount", "other", "user-2"),
        ("Token", "builder", "user-2"),
    ],
)
async def test_an_answer_is_kept_for_its_account_or_its_token(
    autojump_clock: MockClock, cache_type: str, account: str, found: str
) -> None:
    fake = FakePlugin(cache_key_type="Global")
    known = plugins(fake, accounts=FakeAccounts(), tokens=attrs.evolve(TOKENS, cache_type=cache_type))
    assert await users(known, "a.registry.io/foo", pod_of("one", "builder")) == ["user-1"]
    assert await users(known, "a.registry.io/foo", pod_of("one", "builder")) == ["user-1"]
    assert await users(known, "a.registry.io/foo", pod_of("two", account)) == [found]


async def test_an_answer_is_kept_for_the_accounts_annotations(autojump_clock: MockClock) -> None:
    fake, accounts = FakePlugin(), FakeAccounts({"a.io/id": "1"})
    tokens = attrs.evolve(TOKENS, required_annotations=("a.io/id",))
    known = plugins(fake, accounts=accounts, tokens=tokens)
    pod = pod_of("web", "builder")
    assert await users(known, "a.registry.io/foo", pod) == ["user-1"]
    accounts.annotations = {"a.io/id": "2"}
    assert await users(known, "a.registry.io/foo", pod) == ["user-2"]


async def test_pods_with_different_tokens_share_no_run(autojump_clock: MockClock) -> None:
    fake = FakePlugin()
    known = plugins(fake, accounts=FakeAccounts(), tokens=TOKENS)
    async with trio.open_nursery() as nursery:
        for name in ("one", "two", "two"):
            nursery.start_soon(users, known, "a.registry.io/foo", pod_of(name, "builder"))
    assert sorted(str(asked["serviceAccountToken"]) for asked in fake.asked) == [
        "token-audience-one",
        "token-audience-two",
    ]


@pytest.mark.parametrize(("cache_type", "expected"), [("ServiceAccount", []), ("Token", ["user-1"])])
async def test_a_token_may_come_back_as_a_password_only_when_it_is_not_shared(
    autojump_clock: MockClock, cache_type: str, expected: list[str], logged: list[Any]
) -> None:
    fake = FakePlugin(password="token-audience-web")
    known = plugins(fake, accounts=FakeAccounts(), tokens=attrs.evolve(TOKENS, cache_type=cache_type))
    assert await users(known, "a.registry.io/foo", pod_of("web", "builder")) == expected
    assert "token-audience-web" not in str(logged)


async def test_a_token_that_a_plugin_prints_is_not_logged(autojump_clock: MockClock, logged: list[Any]) -> None:
    fake = FakePlugin(problem="exit status 1: + echo token-audience-web")
    known = plugins(fake, accounts=FakeAccounts(), tokens=TOKENS)
    assert await users(known, "a.registry.io/foo", pod_of("web", "builder")) == []
    printed = str(logged)
    assert "exit status 1: + echo (token)" in printed
    assert "token-audience-web" not in printed
