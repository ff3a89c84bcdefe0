"""A node gets an identity, keeps it, and finds it again."""

from __future__ import annotations

import random
import stat
from base64 import b64encode
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import yaml
from trio.testing import wait_all_tasks_blocked

from tests.kube_client.certificates.signer import EPOCH, NODE, Signer, decided
from tests.kube_client.scripted_client import ScriptedClient, status_error
from trikubelet.clock import TrioClock
from trikubelet.kube_client.certificates.bootstrap import (
    BootstrapOptions,
    NodeIdentity,
    bootstrap,
    invalid_because,
    prepare_identity,
)
from trikubelet.kube_client.certificates.reading import Certificate
from trikubelet.kube_client.certificates.requests import SigningError, Wanted
from trikubelet.kube_client.certificates.store import CertificateStore
from trikubelet.kube_client.kubeconfig import ClusterAccess, CredentialSettings, KubeconfigError, read_kubeconfig
from trikubelet.kube_client.types import SIGNING_REQUESTS

if TYPE_CHECKING:
    from trio.testing import MockClock

HOUR = timedelta(hours=1)
EXPIRED = {"begin": EPOCH - 2 * HOUR, "life": HOUR}


def kubeconfig(path: Path, user: dict[str, Any]) -> Path:
    """A kubeconfig for the server of the node."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://cluster.example.com"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
    return path


@attrs.define
class Stage:
    folder: Path
    clock: TrioClock = attrs.Factory(lambda: TrioClock(EPOCH))
    signer: Signer = attrs.Factory(Signer)
    opened: list[ClusterAccess] = attrs.Factory(list)
    client: ScriptedClient = attrs.field()

    @client.default
    def _client(self) -> ScriptedClient:
        return ScriptedClient(clock=self.clock)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubelet.conf"

    @property
    def store(self) -> CertificateStore:
        return CertificateStore(self.folder / "pki", "kubelet-client", clock=self.clock)

    @property
    def by_store(self) -> CredentialSettings:
        """Credentials that are the store's newest pair, and nothing else."""
        return CredentialSettings(certificate=self.store.current_path, key=self.store.current_path)

    def options(self, *, newcomer: bool = True, rotate: bool = False) -> BootstrapOptions:
        file = kubeconfig(self.folder / "bootstrap.conf", {"token": "secret"}) if newcomer else None
        return BootstrapOptions(self.kubeconfig, self.folder / "pki", "n1", file, rotate)

    def open(self, access: ClusterAccess) -> Any:
        self.opened.append(access)
        return nullcontext(self.client)

    def prepare(self, **options: bool) -> NodeIdentity:
        return prepare_identity(self.options(**options), self.open, clock=self.clock, rng=random.Random(1))

    async def bootstrap(self) -> None:
        options = self.options()
        assert options.bootstrap_kubeconfig is not None
        newcomer = read_kubeconfig(options.bootstrap_kubeconfig)
        await bootstrap(options, newcomer, self.open, clock=self.clock, rng=random.Random(1))

    def own_files(self, **pair: Any) -> bytes:
        """A kubeconfig that names certificate and key; the certificate."""
        certificate, key = self.signer.pair(**pair)
        (self.folder / "node.crt").write_bytes(certificate)
        (self.folder / "node.key").write_bytes(key)
        kubeconfig(self.kubeconfig, {"client-certificate": "node.crt", "client-key": "node.key"})
        return certificate

    def own_data(self, wanted: Wanted = NODE, **pair: Any) -> bytes:
        """A kubeconfig with certificate and key in it; the certificate."""
        certificate, key = self.signer.pair(wanted, **pair)
        names = ("client-certificate-data", "client-key-data")
        user = {name: b64encode(pem).decode() for name, pem in zip(names, (certificate, key), strict=True)}
        kubeconfig(self.kubeconfig, user)
        return certificate

    def requests(self) -> list[str]:
        return [call.body.metadata.name for call in self.client.called("create", SIGNING_REQUESTS)]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_kubeconfig_with_a_valid_certificate_is_valid(stage: Stage) -> None:
    stage.own_files()
    assert invalid_because(stage.kubeconfig, EPOCH) == ""
    stage.own_data()
    assert invalid_because(stage.kubeconfig, EPOCH) == ""


def absent(stage: Stage) -> None:
    pass


def not_yaml(stage: Stage) -> None:
    stage.kubeconfig.write_text("{")


def with_a_token(stage: Stage) -> None:
    kubeconfig(stage.kubeconfig, {"token": "t"})


def without_its_files(stage: Stage) -> None:
    stage.own_files()
    (stage.folder / "node.crt").unlink()


def with_the_key_of_another(stage: Stage) -> None:
    stage.own_files()
    (stage.folder / "node.key").write_bytes(stage.signer.pair()[1])


def expired(stage: Stage) -> None:
    stage.own_files(**EXPIRED)


@pytest.mark.parametrize(
    ("situation", "words"),
    [
        (absent, "does not exist"),
        (not_yaml, "unable to use the existing"),
        (with_a_token, "has no client certificate"),
        (without_its_files, "No such file"),
        (with_the_key_of_another, "the client certificate and its key cannot be used"),
        (expired, "part of the existing bootstrap client certificate in .* is expired: 2025-12-31 23:00:00"),
    ],
)
def test_other_kubeconfigs_are_not(stage: Stage, situation: Any, words: str) -> None:
    situation(stage)
    with pytest.raises(AssertionError, match=words):
        assert not invalid_because(stage.kubeconfig, EPOCH)


async def test_without_a_bootstrap_kubeconfig_the_kubeconfig_is_used_whatever_is_in_it(stage: Stage) -> None:
    with_a_token(stage)
    identity = stage.prepare(newcomer=False)
    assert identity.access == read_kubeconfig(stage.kubeconfig)
    assert identity.manager is None
    await identity.run()


async def test_without_any_kubeconfig_there_is_no_identity(stage: Stage) -> None:
    with pytest.raises(KubeconfigError):
        stage.prepare(newcomer=False)


@pytest.mark.parametrize("rotate", [False, True])
async def test_a_valid_kubeconfig_needs_no_bootstrap(stage: Stage, rotate: bool) -> None:
    stage.own_files()
    before = stage.kubeconfig.read_text()
    identity = stage.prepare(rotate=rotate)
    assert stage.kubeconfig.read_text() == before
    expected = stage.by_store if rotate else read_kubeconfig(stage.kubeconfig).credentials
    assert identity.access.credentials == expected


async def test_a_newcomer_asks_with_the_bootstrap_credentials_and_is_told_when_it_has_a_certificate(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    nursery.start_soon(stage.signer.run, stage.client, stage.clock)
    identity, told = stage.prepare(), list[Certificate]()
    assert identity.access.credentials == stage.by_store
    identity.on_change(lambda: told.append(stage.store.current().leaf))
    await identity.run()
    [leaf] = told
    assert leaf.common_names == {"system:node:n1"}
    assert leaf.organizations == {"system:nodes"}
    assert [access.credentials.token for access in stage.opened] == ["secret"]
    assert sorted(path.name for path in (stage.folder / "pki").iterdir()) == [
        "kubelet-client-2026-01-01-00-00-00.pem",
        "kubelet-client-current.pem",
    ]


async def test_the_kubeconfig_that_is_written_is_valid_and_names_the_store(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    nursery.start_soon(stage.signer.run, stage.client, stage.clock)
    await stage.bootstrap()
    assert invalid_because(stage.kubeconfig, EPOCH) == ""
    written = read_kubeconfig(stage.kubeconfig)
    assert written.server == "https://cluster.example.com"
    assert written.credentials == stage.by_store
    assert stat.S_IMODE(stage.kubeconfig.stat().st_mode) == 0o600
    before = len(stage.requests())
    await stage.prepare().run()
    assert len(stage.requests()) == before


async def test_a_node_that_restarts_finds_its_request_again(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    for _ in range(3):
        with trio.move_on_after(60):
            await stage.prepare().run()
    key_file = stage.folder / "pki" / "kubelet-client.key.tmp"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert not stage.kubeconfig.exists()
    (name,) = set(stage.requests())
    assert name.startswith("node-csr-")
    key = key_file.read_bytes()
    nursery.start_soon(stage.signer.run, stage.client, stage.clock)
    await stage.prepare().run()
    assert stage.store.current().pair.key == key
    assert not key_file.exists()


async def test_a_node_whose_kubeconfig_was_lost_asks_with_the_key_that_it_has(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    certificate, key = stage.signer.pair()
    stage.store.update(certificate, key)
    nursery.start_soon(stage.signer.run, stage.client, stage.clock)
    await trio.sleep(1)
    await stage.bootstrap()
    assert stage.store.current().pair.key == key
    assert stage.store.current().pair.certificate != certificate


async def test_an_api_server_that_is_starting_is_waited_for(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage.client.fail("text", None, status_error(503), times=5)
    nursery.start_soon(stage.signer.run, stage.client, stage.clock)
    await stage.bootstrap()
    calls = [call.verb for call in stage.client.calls if call.verb in ("text", "create")]
    assert calls == ["text"] * 6 + ["create"]


async def test_a_server_without_health_is_asked_after_a_minute(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage.client.fail("text", None, status_error(403), times=1000)
    nursery.start_soon(stage.signer.run, stage.client, stage.clock)
    await stage.bootstrap()
    assert 60 <= trio.current_time() <= 61


async def test_a_denied_node_is_told_so(stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery) -> None:
    async def deny() -> None:
        await wait_all_tasks_blocked()
        found = stage.client.stored(SIGNING_REQUESTS, stage.requests()[0])
        assert found is not None
        stage.client.put(decided(found, "Denied", "No", "not you"))

    nursery.start_soon(deny)
    with pytest.raises(SigningError, match="certificate signing request is denied, reason: No, message: not you"):
        await stage.bootstrap()


async def test_a_failed_bootstrap_is_tried_again_seldom(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage.client.fail("create", SIGNING_REQUESTS, status_error(403, "Forbidden"), times=8)
    nursery.start_soon(stage.signer.run, stage.client, stage.clock)
    await stage.prepare().run()
    assert 30 + 3 * 32 <= trio.current_time() <= 200
    assert invalid_because(stage.kubeconfig, EPOCH) == ""


async def test_with_rotation_the_kubeconfig_is_written_before_there_is_a_certificate(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    identity, told = stage.prepare(rotate=True), list[bool]()
    identity.on_change(lambda: told.append(True))
    assert read_kubeconfig(stage.kubeconfig).credentials == stage.by_store
    assert identity.access.credentials == stage.by_store
    await nursery.start(identity.run)
    nursery.start_soon(stage.signer.run, stage.client, stage.clock)
    await trio.sleep(1)
    assert told == [True]
    assert [access.credentials.token for access in stage.opened] == ["secret"]
    await trio.sleep(91 * 3600)
    assert stage.opened[-1].credentials == stage.by_store
    assert len(told) == 2


async def test_an_identity_that_expired_while_the_node_was_off_is_asked_for_with_the_bootstrap_credentials(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage.own_files(**EXPIRED)
    identity = stage.prepare(rotate=True)
    nursery.start_soon(stage.signer.run, stage.client, stage.clock)
    await nursery.start(identity.run)
    await trio.sleep(1)
    assert [access.credentials.token for access in stage.opened] == ["secret"]
    assert identity.manager is not None
    assert identity.manager.current is not None


async def test_an_identity_that_expires_while_the_node_runs_is_too(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage.own_files(life=HOUR)
    await nursery.start(stage.prepare(rotate=True).run)
    stage.client.unreachable()
    await trio.sleep(2 * 3600)
    stage.client.back()
    nursery.start_soon(stage.signer.run, stage.client, stage.clock)
    await trio.sleep(60)
    assert stage.opened[0].credentials == stage.by_store
    assert stage.opened[-1].credentials.token == "secret"
    assert not stage.store.current().expired(stage.clock.now())


async def test_a_certificate_in_the_kubeconfig_is_renewed_at_once_with_itself(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    first = stage.own_data(Wanted("system:node:n1", ("system:nodes", "system:masters")))
    identity = stage.prepare(newcomer=False, rotate=True)
    assert identity.access.credentials == stage.by_store
    assert stage.store.current().pair.certificate == first
    nursery.start_soon(stage.signer.run, stage.client, stage.clock)
    await nursery.start(identity.run)
    await trio.sleep(1)
    assert [access.credentials for access in stage.opened] == [stage.by_store]
    assert stage.store.current().pair.certificate != first


async def test_a_certificate_that_the_kubeconfig_names_is_renewed_in_its_time(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    first = stage.own_files()
    identity = stage.prepare(newcomer=False, rotate=True)
    assert stage.store.current().pair.certificate == first
    nursery.start_soon(stage.signer.run, stage.client, stage.clock)
    await nursery.start(identity.run)
    await trio.sleep(3600)
    assert stage.requests() == []
    await trio.sleep(90 * 3600)
    assert len(stage.requests()) == 1
