"""Certificates in files, whatever happens to whoever writes them."""

from __future__ import annotations

import stat
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from tests.kube_client.certificates.signer import EPOCH, Signer
from trikubelet.kube_client.certificates.signing import key_pem, load_key, new_key
from trikubelet.kube_client.certificates.store import (
    CertificateError,
    CertificateStore,
    NoPairError,
    certified_key,
    load_files,
)
from trikubelet.kube_client.tls import KeyPair

if TYPE_CHECKING:
    from trikubelet.kube_client.certificates.signing import PrivateKey

SIGNER = Signer()


@attrs.define
class Clock:
    seconds: int = 0

    def now(self):  # type: ignore[no-untyped-def]
        return EPOCH + timedelta(seconds=self.seconds)


@attrs.define
class Folder:
    path: Path
    clock: Clock = attrs.Factory(Clock)

    def store(self, **files: Path) -> CertificateStore:
        return CertificateStore(self.path, "kubelet-client", clock=self.clock, **files)

    def update(self, second: int) -> bytes:
        """A new pair at this second; its certificate."""
        self.clock.seconds = second
        certificate, key = SIGNER.pair()
        self.store().update(certificate, key)
        return certificate

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "pki")


def test_an_empty_store_says_where_it_looked(folder: Folder) -> None:
    with pytest.raises(NoPairError) as caught:
        folder.store().current()
    pki = folder.path
    assert str(caught.value) == (
        f'no cert/key files read at "{pki}/kubelet-client-current.pem", ("", "") or '
        f'("{pki}/kubelet-client.crt", "{pki}/kubelet-client.key")'
    )


def test_a_pair_is_one_file_that_only_its_owner_reads_and_a_link_to_it(folder: Folder) -> None:
    certificate = folder.update(second=1)
    assert folder.names() == ["kubelet-client-2026-01-01-00-00-01.pem", "kubelet-client-current.pem"]
    current = folder.store().current_path
    assert current.readlink() == folder.path / "kubelet-client-2026-01-01-00-00-01.pem"
    assert stat.S_IMODE(current.stat().st_mode) == 0o600
    assert current.read_bytes().startswith(certificate)
    assert b"EC PRIVATE KEY" in current.read_bytes()
    assert folder.store().current().pair.certificate == certificate


def test_the_newest_pair_is_the_current_one_also_within_one_second(folder: Folder) -> None:
    folder.update(second=1)
    folder.update(second=2)
    newest = folder.update(second=2)
    assert folder.store().current().pair.certificate == newest


def test_a_chain_is_kept_whole_and_begins_with_the_nodes_own(folder: Folder) -> None:
    certificate, key = SIGNER.pair()
    other, _ = SIGNER.pair()
    held = folder.store().update(b"for people\n" + certificate + other, key)
    assert held.pair.certificate == certificate + other
    assert folder.store().current().leaf == held.leaf


@pytest.mark.parametrize(
    ("certificate", "key", "words"),
    [
        pytest.param(b"", None, "invalid certificate data", id="no certificate"),
        pytest.param(
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", None, "invalid certificate", id="junk"
        ),
        pytest.param(None, b"", "invalid key data", id="no key"),
        pytest.param(
            None, b"-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n", "invalid key", id="bad key"
        ),
        pytest.param(None, key_pem(new_key()), "does not belong", id="key of another certificate"),
    ],
)
def test_what_is_no_pair_changes_nothing(
    folder: Folder, certificate: bytes | None, key: bytes | None, words: str
) -> None:
    before = folder.update(second=1)
    good = SIGNER.pair()
    with pytest.raises(CertificateError, match=words):
        folder.store().update(good[0] if certificate is None else certificate, good[1] if key is None else key)
    assert folder.store().current().pair.certificate == before
    assert len(folder.names()) == 2


@pytest.mark.parametrize("kill_at", ["symlink_to", "replace"])
def test_a_crash_leaves_the_old_pair_or_the_new_one(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, kill_at: str
) -> None:
    before = folder.update(second=1)
    real = getattr(Path, kill_at)

    def die_at_the_link(path: Path, *arguments: object) -> object:
        if path.name == "kubelet-client-updated.pem":
            raise KeyboardInterrupt
        return real(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Path, kill_at, die_at_the_link)
        with pytest.raises(KeyboardInterrupt):
            folder.update(second=2)
    assert folder.store().current().pair.certificate == before
    after = folder.update(second=3)
    assert folder.store().current().pair.certificate == after


def test_a_change_that_a_kubelet_did_not_finish_is_finished(folder: Folder) -> None:
    certificate = folder.update(second=1)
    folder.store().current_path.rename(folder.path / "kubelet-client-updated.pem")
    assert folder.store().current().pair.certificate == certificate


@pytest.mark.parametrize("name", ["current", "updated"])
def test_a_file_where_a_link_belongs_is_left_alone(folder: Folder, name: str) -> None:
    folder.path.mkdir()
    (folder.path / f"kubelet-client-{name}.pem").write_text("mine")
    with pytest.raises(CertificateError, match="to be a symlink but it is a file"):
        folder.store().update(*SIGNER.pair())
    assert (folder.path / f"kubelet-client-{name}.pem").read_text() == "mine"


def test_without_a_link_other_files_are_taken_those_that_were_named_first(folder: Folder, tmp_path: Path) -> None:
    named, own = SIGNER.pair(), SIGNER.pair()
    folder.path.mkdir()
    for path, (certificate, key) in ((tmp_path / "given", named), (folder.path / "kubelet-client", own)):
        path.with_suffix(".crt").write_bytes(certificate)
        path.with_suffix(".key").write_bytes(key)
    given = folder.store(certificate_file=tmp_path / "given.crt", key_file=tmp_path / "given.key")
    assert given.current().pair.certificate == named[0]
    assert folder.store().current().pair.certificate == own[0]


def test_a_file_that_is_no_pair_is_named(folder: Folder) -> None:
    folder.update(second=1)
    folder.store().current_path.write_text("nothing")
    with pytest.raises(CertificateError, match=r'could not convert data from ".*current.pem" into cert/key pair'):
        folder.store().current()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"absent\.crt: No such file"):
        load_files(tmp_path / "absent.crt", tmp_path / "absent.key")


@pytest.mark.parametrize(
    "key", [rsa.generate_private_key(65537, 2048), ed25519.Ed25519PrivateKey.generate(), new_key()]
)
def test_keys_of_other_kinds_are_read_too(key: PrivateKey) -> None:
    certificate, pem = SIGNER.pair(key=key)
    assert certified_key(certificate, pem).pair == KeyPair(certificate, pem)
    assert type(load_key(pem)) is type(key)


def test_a_key_is_not_shown(folder: Folder) -> None:
    folder.update(second=1)
    assert "PRIVATE" not in repr(folder.store().current())


def test_a_pair_expires() -> None:
    held = certified_key(*SIGNER.pair(life=timedelta(hours=1)))
    assert not held.expired(EPOCH + timedelta(minutes=59))
    assert held.expired(EPOCH + timedelta(minutes=61))
