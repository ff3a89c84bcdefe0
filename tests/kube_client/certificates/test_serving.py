"""The certificate that a node serves with."""

from __future__ import annotations

import shutil
import stat
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import trio
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.kube_client.certificates.signer import EPOCH, Signer
from tests.kube_client.scripted_client import ScriptedClient
from trikubelet.api import NodeAddress
from trikubelet.clock import TrioClock
from trikubelet.kube_client.certificates.requests import wanted_for_node
from trikubelet.kube_client.certificates.self_signed import self_signed_files, write_pair
from trikubelet.kube_client.certificates.serving import (
    WatchedPair,
    names_and_addresses,
    serving_manager,
    wanted_for_serving,
)
from trikubelet.kube_client.certificates.signing import self_signed
from trikubelet.kube_client.certificates.store import CertificateError, certified_key, load_files
from trikubelet.kube_client.types import SIGNING_REQUESTS

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

HOST, INTERNAL, EXTERNAL, INTERNAL_DNS, EXTERNAL_DNS = (
    "Hostname",
    "InternalIP",
    "ExternalIP",
    "InternalDNS",
    "ExternalDNS",
)


def addresses(*pairs: tuple[str, str]) -> list[NodeAddress]:
    return [NodeAddress(type=type_, address=address) for type_, address in pairs]


@pytest.mark.parametrize(
    ("given", "names", "ips"),
    [
        pytest.param([], [], [], id="none"),
        pytest.param([(HOST, "")], [], [], id="empty"),
        pytest.param([(INTERNAL, "1.2"), (EXTERNAL, "3.4")], [], [], id="no addresses"),
        pytest.param(
            [(HOST, "h"), (EXTERNAL_DNS, "h"), (INTERNAL_DNS, "h"), (INTERNAL, "1.1.1.1"), (EXTERNAL, "1.1.1.1")],
            ["h"],
            ["1.1.1.1"],
            id="each once",
        ),
        pytest.param(
            [
                (HOST, "h-2"),
                (EXTERNAL_DNS, "h-1"),
                (INTERNAL_DNS, "h-3"),
                (INTERNAL, "2.2.2.2"),
                (EXTERNAL, "1.1.1.1"),
                (INTERNAL, "3.3.3.3"),
            ],
            ["h-1", "h-2", "h-3"],
            ["1.1.1.1", "2.2.2.2", "3.3.3.3"],
            id="sorted",
        ),
        pytest.param([(HOST, "h"), (HOST, "1.1.1.1")], ["h"], ["1.1.1.1"], id="a host name that is an address"),
    ],
)
def test_names_and_addresses(given: list[tuple[str, str]], names: list[str], ips: list[str]) -> None:
    assert names_and_addresses(addresses(*given)) == (tuple(names), tuple(ips))


def test_a_node_without_an_address_wants_no_certificate() -> None:
    assert wanted_for_serving("n1", addresses((HOST, "n1"))) is None
    assert wanted_for_serving("n1", addresses((HOST, "n1")), names_suffice=True) == wanted_for_node("n1", ("n1",), ())
    assert wanted_for_serving("n1", addresses(), names_suffice=True) is None
    assert wanted_for_serving("n1", addresses((INTERNAL, "10.0.0.1"))) == wanted_for_node("n1", (), ("10.0.0.1",))


async def test_a_serving_certificate_is_asked_for_when_there_are_addresses_and_again_when_they_change(
    tmp_path: Path, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    clock, known = TrioClock(EPOCH), list[NodeAddress]()
    client = ScriptedClient(clock=clock)
    manager = serving_manager(client, "n1", tmp_path, lambda: known, clock=clock)
    nursery.start_soon(Signer().run, client, clock)
    await nursery.start(manager.run)
    await trio.sleep(60)
    assert client.called("create") == []
    known += addresses((HOST, "n1"), (INTERNAL, "10.0.0.1"))
    manager.check_soon()
    await trio.sleep(1)
    (call,) = client.called("create", SIGNING_REQUESTS)
    assert call.body.spec.signer_name == "kubernetes.io/kubelet-serving"
    assert call.body.spec.usages == ("digital signature", "server auth")
    assert (tmp_path / "kubelet-server-current.pem").is_symlink()
    known += addresses((EXTERNAL, "203.0.113.7"))
    manager.check_soon()
    await trio.sleep(1)
    current = manager.current
    assert current is not None
    assert current.leaf.ip_addresses == {"10.0.0.1", "203.0.113.7"}


@pytest.mark.parametrize("host", ["n1.example.com", "10.0.0.1"])
def test_a_self_signed_certificate_is_for_the_host_and_a_year(host: str) -> None:
    chain, key = self_signed(host, EPOCH)
    own, authority = x509.load_pem_x509_certificates(chain)
    own.verify_directly_issued_by(authority)
    stamp = int(EPOCH.timestamp())
    (name,) = own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == f"{host}@{stamp}"
    (issuer,) = own.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert issuer.value == f"{host}-ca@{stamp}"
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(entry.value) for entry in names] == [host]
    usage = own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    held = certified_key(chain, key)
    assert not held.expired(EPOCH + timedelta(days=364))
    assert held.expired(EPOCH + timedelta(days=366))


async def test_self_signed_files_are_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    files = await self_signed_files(folder, "n1", EPOCH)
    assert files == (folder / "kubelet.crt", folder / "kubelet.key")
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o644, 0o600]
    before = load_files(*files).pair
    assert load_files(*await self_signed_files(folder, "n2", EPOCH)).pair == before


@pytest.mark.parametrize("lost", ["kubelet.crt", "kubelet.key"])
async def test_half_a_pair_is_an_error_and_stays(tmp_path: Path, lost: str) -> None:
    write_pair(tmp_path, *self_signed("n1", EPOCH))
    (tmp_path / lost).unlink()
    with pytest.raises(
        CertificateError, match=f"error reading .*{lost}, certificate and key must be supplied as a pair"
    ):
        await self_signed_files(tmp_path, "n1", EPOCH)


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "pki").write_text("in the way")
    with pytest.raises(OSError, match="pki"):
        await self_signed_files(tmp_path / "pki", "n1", EPOCH)


class Files:
    """A pair that somebody else writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write()

    def write(self, *, into: str = "identity") -> bytes:
        folder = self.folder / into
        folder.mkdir(parents=True, exist_ok=True)
        certificate, key = Signer().pair()
        for name, content in (("tls.crt", certificate), ("tls.key", key)):
            (folder / name).unlink(missing_ok=True)
            (folder / name).write_bytes(content)
        return certificate

    def rename(self) -> bytes:
        certificate = self.write(into="identity.tmp")
        shutil.rmtree(self.folder / "identity")
        (self.folder / "identity.tmp").rename(self.folder / "identity")
        return certificate

    def watched(self, *, watches: bool = True) -> WatchedPair:
        folder = self.folder / "identity"
        return WatchedPair(folder / "tls.crt", folder / "tls.key", watches=watches)


@pytest.mark.parametrize("way", ["write", "rename"])
async def test_replaced_files_are_read_again(
    tmp_path: Path, autojump_clock: MockClock, nursery: trio.Nursery, way: str
) -> None:
    files = Files(tmp_path)
    watched, told = files.watched(), list[bytes]()
    watched.on_change(lambda: told.append(watched.current.pair.certificate))
    await nursery.start(watched.run)
    before = watched.current
    await trio.sleep(60)
    assert watched.current is before
    new = getattr(files, way)()
    await trio.sleep(11)
    assert told == [new]


async def test_without_the_gate_the_first_pair_is_the_only_one(
    tmp_path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    files = Files(tmp_path)
    watched = files.watched(watches=False)
    await nursery.start(watched.run)
    before = watched.current
    files.write()
    await trio.sleep(60)
    assert watched.current is before


async def test_what_is_no_pair_is_not_taken(tmp_path: Path) -> None:
    files = Files(tmp_path)
    watched = files.watched()
    before = watched.current
    (tmp_path / "identity" / "tls.crt").write_bytes(Signer().pair()[0])
    watched.reload()
    assert watched.current is before
    (tmp_path / "identity" / "tls.crt").unlink()
    watched.reload()
    assert watched.current is before
    new = files.write()
    watched.reload()
    assert watched.current.pair.certificate == new


def test_files_that_are_no_pair_are_an_error_at_the_start(tmp_path: Path) -> None:
    files = Files(tmp_path)
    (tmp_path / "identity" / "tls.key").write_text("nothing")
    with pytest.raises(CertificateError):
        files.watched()
