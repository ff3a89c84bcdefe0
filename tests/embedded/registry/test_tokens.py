"""Token servers, TLS and passwords."""

from __future__ import annotations

import base64
import gc
import json
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest
import trio
import trustme

from tests.embedded.images.archives import layer
from tests.embedded.registry.scripted_registry import Answer, Asked, ScriptedRegistry, scripted_registry
from tests.examples import IS_NIGHT
from tests.oci_image import OciImage
from tests.registry_node import PASSWORD, USER, RegistryNode, needs_registry
from trikubelet.embedded.registry.credentials import Credentials
from trikubelet.embedded.registry.errors import PullError, PullFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.embedded.registry.conftest import PullFixture


def asking_for_token(
    registry: ScriptedRegistry, gives: Callable[[Asked], Answer], realm: str = ""
) -> Callable[[Asked], Answer | None]:
    """A registry that lets in who shows `good`, and its token server."""

    def guard(asked: Asked) -> Answer | None:
        if asked.path == "/token":
            return gives(asked)
        if asked.headers.get("authorization") == "Bearer good":
            return None
        challenge = (
            f'Bearer realm="{realm or f"http://{registry.host}/token"}",service="tests",scope="repository:app:pull"'
        )
        return Answer(401, {"WWW-Authenticate": challenge})

    return guard


def token(value: object = "good", key: str = "token") -> Answer:
    return Answer(body=json.dumps({key: value}).encode())


async def test_a_token_is_fetched_once_for_a_whole_pull(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    registry.put_image("app", "1")
    registry.guard = asking_for_token(registry, lambda asked: token())
    await pulls.pull(f"{registry.host}/app:1")
    (asked,) = registry.requests("/token")
    assert parse_qs(asked.target.partition("?")[2]) == {"service": ["tests"], "scope": ["repository:app:pull"]}
    assert "authorization" not in asked.headers


async def test_a_password_is_shown_to_the_token_server_and_not_to_the_registry(
    pulls: PullFixture, registry: ScriptedRegistry
) -> None:
    registry.put_image("app", "1")
    registry.guard = asking_for_token(registry, lambda asked: token(key="access_token"))
    await pulls.pull(f"{registry.host}/app:1", Credentials("ali", "secret"))
    (asked,) = registry.requests("/token")
    assert base64.b64decode(asked.headers["authorization"].removeprefix("Basic ")) == b"ali:secret"
    shown = {asked.headers.get("authorization") for asked in registry.asked if asked.path != "/token"}
    assert shown == {None, "Bearer good"}


async def test_a_token_that_ends_during_a_pull_is_renewed(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    registry.put_image("app", "1", [layer("one"), layer("two")])
    tokens: dict[str, int] = {}

    def guard(asked: Asked) -> Answer | None:
        if asked.path == "/token":
            tokens[f"Bearer {len(tokens)}"] = 2
            return token(str(len(tokens) - 1))
        shown = asked.headers.get("authorization", "")
        if tokens.get(shown, 0):
            tokens[shown] -= 1
            return None
        return Answer(401, {"WWW-Authenticate": f'Bearer realm="http://{registry.host}/token"'})

    registry.guard = guard
    await pulls.pull(f"{registry.host}/app:1")
    assert len(tokens) > 1


async def test_an_identity_token_is_exchanged(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    registry.put_image("app", "1")
    registry.guard = asking_for_token(registry, lambda asked: token(key="access_token"))
    await pulls.pull(f"{registry.host}/app:1", Credentials(identity_token="refresh"))
    assert len(registry.requests("/token", "POST")) == 1


async def test_a_registry_token_is_shown_as_it_is(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    registry.put_image("app", "1")
    registry.guard = asking_for_token(registry, lambda asked: token("other"))
    await pulls.pull(f"{registry.host}/app:1", Credentials(registry_token="good"))
    assert registry.requests("/token") == []


@pytest.mark.parametrize(
    ("answer", "failure", "words"),
    [
        (Answer(401), PullFailure.DENIED, "authentication with the given credentials failed"),
        (Answer(403), PullFailure.DENIED, "authentication with the given credentials failed"),
        (Answer(503), PullFailure.UNREACHABLE, "answered 503"),
        (Answer(body=b"no token"), PullFailure.DENIED, "gave none"),
        (Answer(body=b'{"token": "a\\r\\nb"}'), PullFailure.DENIED, "gave none"),
        (Answer(body=b'{"token": 7}'), PullFailure.DENIED, "gave none"),
        (Answer(body=b" " * 2**20), PullFailure.WRONG_CONTENT, "more than"),
        (token("bad"), PullFailure.DENIED, "pull access denied"),
    ],
)
async def test_a_token_server_that_gives_none_is_told(
    pulls: PullFixture, registry: ScriptedRegistry, answer: Answer, failure: PullFailure, words: str
) -> None:
    registry.put_image("app", "1")
    registry.guard = asking_for_token(registry, lambda asked: answer)
    with pytest.raises(PullError) as caught:
        await pulls.pull(f"{registry.host}/app:1", Credentials("ali", "secret"))
    assert caught.value.failure is failure
    assert words in caught.value.reason
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "realm", ["http://[", "ftp://host/token", "token", "http://", "http://h:99999999/", "http://\x7f/"]
)
async def test_a_token_server_that_cannot_be_is_told(
    pulls: PullFixture, registry: ScriptedRegistry, realm: str
) -> None:
    registry.guard = asking_for_token(registry, lambda asked: token(), realm=realm)
    with pytest.raises(PullError):
        await pulls.pull(f"{registry.host}/app:1", Credentials("ali", "secret"))


@pytest.mark.parametrize("location", ["http://[", "http://h:99999999/", "http://", "//", "?", "http://a b/", "\x7f"])
async def test_a_redirect_to_nowhere_is_told(pulls: PullFixture, registry: ScriptedRegistry, location: str) -> None:
    registry.guard = lambda asked: Answer(302, {"Location": location})
    with pytest.raises(PullError):
        await pulls.pull(f"{registry.host}/app:1")


# -- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, *, ask_for_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    if ask_for_certificate:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_a_private_authority_is_trusted_where_the_configuration_names_it(
    pulls: PullFixture, authority: trustme.CA
) -> None:
    async with scripted_registry(server_context(authority)) as registry:
        put = registry.put_image("app", "1")
        pulls.configure(registry.host, 'ca = "ca.crt"')
        trustme.CA().cert_pem.write_to_path(str(pulls.path / "certs.d" / registry.host / "ca.crt"))
        with pytest.raises(PullError, match="CERTIFICATE_VERIFY_FAILED"):
            await pulls.pull(f"{registry.host}/app:1")
        authority.cert_pem.write_to_path(str(pulls.path / "certs.d" / registry.host / "ca.crt"))
        assert (await pulls.pull(f"{registry.host}/app:1")).id == put.id


async def test_a_client_certificate_is_shown(pulls: PullFixture, authority: trustme.CA) -> None:
    async with scripted_registry(server_context(authority, ask_for_certificate=True)) as registry:
        registry.put_image("app", "1")
        with pytest.raises(PullError):
            await pulls.pull(f"{registry.host}/app:1")
        pulls.configure(registry.host, 'client = "both.pem"')
        ours = authority.issue_cert("node")
        ours.private_key_and_cert_chain_pem.write_to_path(str(pulls.path / "certs.d" / registry.host / "both.pem"))
        await pulls.pull(f"{registry.host}/app:1")


async def test_a_certificate_that_cannot_be_read_is_told(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    pulls.configure(registry.host, 'ca = "absent.crt"')
    with pytest.raises(PullError, match=r"absent\.crt: expected an authority's certificate") as caught:
        await pulls.pull(f"{registry.host}/app:1")
    assert caught.value.failure is PullFailure.CONFIGURATION


async def test_a_password_is_not_shown_to_a_token_server_over_plain_http(
    pulls: PullFixture, authority: trustme.CA, registry: ScriptedRegistry
) -> None:
    async with scripted_registry(server_context(authority)) as secure:
        secure.guard = asking_for_token(secure, lambda asked: token(), realm=f"http://{registry.host}/token")
        with pytest.raises(PullError, match="over plain HTTP"):
            await pulls.pull(f"{secure.host}/app:1", Credentials("ali", "secret"))
    assert registry.asked == []


async def test_a_tag_is_not_looked_up_over_plain_http_when_tls_was_asked_for(
    pulls: PullFixture, authority: trustme.CA, registry: ScriptedRegistry
) -> None:
    async with scripted_registry(server_context(authority)) as secure:
        secure.guard = lambda asked: Answer(302, {"Location": f"http://{registry.host}{asked.target}"})
        with pytest.raises(PullError, match="redirects to plain HTTP"):
            await pulls.pull(f"{secure.host}/app:1")
    assert registry.asked == []


# -- a real registry


@needs_registry
@pytest.mark.parametrize("protected", [False, True])
async def test_an_image_comes_from_a_real_registry(pulls: PullFixture, tmp_path: Path, protected: bool) -> None:
    (tmp_path / "rootfs").mkdir()
    (tmp_path / "rootfs" / "file").write_text("content")
    image = OciImage.from_folder(tmp_path / "rootfs", {"Cmd": ["sh"]})
    node = RegistryNode(tmp_path / "registry", protected=protected)
    node.start()
    try:
        name = node.push("team/app:1", image)
        credentials = Credentials(USER, PASSWORD)
        if protected:
            with pytest.raises(PullError, match="asks for credentials"):
                await pulls.pull(name)
        assert (await pulls.pull(name, credentials)).id == image.id
        with pytest.raises(PullError) as caught:
            await pulls.pull(f"{node.host}/team/app:2", credentials)
        assert caught.value.failure is PullFailure.NOT_FOUND
    finally:
        node.stop()


@needs_registry
async def test_a_pull_takes_a_few_buffers_of_memory(pulls: PullFixture, tmp_path: Path) -> None:
    """Less than 32 MiB, however large the image is: here 48 MiB in one layer, and 96 MiB at night."""
    (tmp_path / "rootfs").mkdir()
    (tmp_path / "rootfs" / "small").touch()
    node = RegistryNode(tmp_path / "registry", protected=False)
    node.start()
    try:
        await pulls.pull(node.push("app:1", OciImage.from_folder(tmp_path / "rootfs", {})))  # imports what it needs
        (tmp_path / "rootfs" / "large").write_bytes(os.urandom(2**20) * (96 if IS_NIGHT else 48))
        name = node.push("app:2", OciImage.from_folder(tmp_path / "rootfs", {}))
        gc.collect()
        before, most = resident_bytes(), 0
        pulled = trio.Event()
        async with trio.open_nursery() as nursery:

            async def pull() -> None:
                await pulls.pull(name)
                pulled.set()

            nursery.start_soon(pull)
            while not pulled.is_set():
                most = max(most, resident_bytes())
                await trio.sleep(0.005)
        assert most - before < 32 * 2**20
    finally:
        node.stop()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@needs_registry
async def test_an_image_comes_from_a_real_registry_with_tls(pulls: PullFixture, tmp_path: Path) -> None:
    (tmp_path / "rootfs").mkdir()
    image = OciImage.from_folder(tmp_path / "rootfs", {})
    authority = trustme.CA()
    node = RegistryNode(tmp_path / "registry", authority=authority)
    node.start()
    try:
        name = node.push("app:1", image)
        pulls.configure(node.host, 'ca = "ca.crt"')
        authority.cert_pem.write_to_path(str(pulls.path / "certs.d" / node.host / "ca.crt"))
        assert (await pulls.pull(name, Credentials(USER, PASSWORD))).id == image.id
    finally:
        node.stop()
