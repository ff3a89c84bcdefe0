"""A certificate is renewed in time, and whenever it does not say what is wanted."""

from __future__ import annotations

import itertools
import random
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.captured_logs import capture_logs
from tests.kube_client.certificates.signer import EPOCH, NODE, Signer, decided
from tests.kube_client.scripted_client import ScriptedClient, status_error
from trikubelet.clock import TrioClock
from trikubelet.kube_client.certificates.requests import CLIENT_AUTH, CLIENT_SIGNER, Wanted
from trikubelet.kube_client.certificates.rotation import CertificateManager, missing, rotation_time
from trikubelet.kube_client.certificates.store import CertificateError, CertificateStore, CertifiedKey, certified_key
from trikubelet.kube_client.tls import KeyPair
from trikubelet.kube_client.types import SIGNING_REQUESTS

if TYPE_CHECKING:
    from pathlib import Path

HOUR = timedelta(hours=1)
SERVED = Wanted("system:node:n1", ("system:nodes",), ("a.example.com",), ("192.168.1.1",))


@pytest.mark.parametrize(
    ("certificate", "wanted", "lack"),
    [
        pytest.param(SERVED, SERVED, "", id="the same"),
        pytest.param(Wanted("system:node:n2"), Wanted("system:node:n1"), "CN system:node:n1", id="another name"),
        pytest.param(Wanted("x", ("a",)), Wanted("x", ("a", "b")), "organizations b", id="an organization is missing"),
        pytest.param(Wanted("x", ("a", "b")), Wanted("x", ("a",)), "", id="an organization too many"),
        pytest.param(
            Wanted("x", (), ("foo.com",)),
            Wanted("x", (), ("foo.com", "bar.com")),
            "DNS names bar.com",
            id="a name is missing",
        ),
        pytest.param(Wanted("x", (), ("foo.com", "bar.com")), Wanted("x", (), ("foo.com",)), "", id="a name too many"),
        pytest.param(
            Wanted("x", (), (), ("10.0.0.1",)),
            Wanted("x", (), (), ("10.0.0.1", "fd00::1")),
            "IP addresses fd00::1",
            id="an address is missing",
        ),
        pytest.param(
            Wanted("x", (), (), ("10.0.0.1", "fd00::1")),
            Wanted("x", (), (), ("fd00::1",)),
            "",
            id="an address too many",
        ),
    ],
)
def test_what_a_certificate_lacks(certificate: Wanted, wanted: Wanted, lack: str) -> None:
    assert missing(certified_key(*Signer().pair(certificate)).leaf, wanted) == lack


@pytest.mark.parametrize(("chance", "percent"), [(0.0, 70), (0.5, 80), (1.0, 90)])
def test_a_certificate_is_renewed_after_most_of_its_life(chance: float, percent: int) -> None:
    assert rotation_time(EPOCH, EPOCH + 100 * HOUR, chance) == EPOCH + percent * HOUR


@attrs.define
class Stage:
    """A manager, and who signs for it. `wanted` may be changed."""

    store: CertificateStore
    clock: TrioClock
    client: ScriptedClient
    signer: Signer
    wanted: Wanted | None = NODE
    asked_with: list[CertifiedKey | None] = attrs.Factory(list)
    changes: int = 0

    def manager(self, initial: KeyPair | None = None) -> CertificateManager:
        def client(current: CertifiedKey | None) -> Any:
            self.asked_with.append(current)
            return nullcontext(self.client)

        manager = CertificateManager(
            self.store,
            client=client,
            wanted=lambda: self.wanted,
            signer=CLIENT_SIGNER,
            purpose=CLIENT_AUTH,
            clock=self.clock,
            rng=random.Random(1),
            initial=initial,
        )
        manager.on_change(self._changed)
        return manager

    def _changed(self) -> None:
        self.changes += 1

    def has_pair(self, begin: timedelta = timedelta(), life: timedelta | None = None, wanted: Wanted = NODE) -> bytes:
        """Put a pair into the store; its certificate."""
        certificate, key = self.signer.pair(wanted, EPOCH + begin, life)
        self.store.update(certificate, key)
        return certificate

    @property
    def asked(self) -> int:
        return len(self.client.called("create", SIGNING_REQUESTS))

    async def sign(self) -> None:
        """Sign what comes, each certificate beginning when it is signed."""
        await self.signer.run(self.client, self.clock)


def has_one(manager: CertificateManager) -> bool:
    return manager.current is not None


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    clock = TrioClock(EPOCH)
    store = CertificateStore(tmp_path / "pki", "kubelet-client", clock=clock)
    return Stage(store, clock, ScriptedClient(clock=clock), Signer())


async def test_without_a_certificate_one_is_asked_for_at_once(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    manager = stage.manager()
    assert not has_one(manager)
    nursery.start_soon(stage.sign)
    await nursery.start(manager.run)
    await trio.sleep(1)
    assert manager.current is not None
    assert stage.store.current().leaf == manager.current.leaf
    assert (stage.asked, stage.asked_with, stage.changes) == (1, [None], 1)


async def test_a_certificate_is_renewed_with_itself_and_a_new_key(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage.has_pair()
    manager = stage.manager()
    first = manager.current
    assert first is not None
    nursery.start_soon(stage.sign)
    await nursery.start(manager.run)
    await trio.sleep(69.9 * 3600)
    assert manager.current is first
    await trio.sleep(21 * 3600)
    second = manager.current
    assert second is not None
    assert second.pair.key != first.pair.key
    assert stage.asked_with == [first]
    due = manager.statistics().next_renewal
    assert due is not None
    assert due > second.leaf.not_before + 69 * HOUR


async def test_nodes_do_not_renew_together(stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery) -> None:
    stage.signer.life = 10 * HOUR
    stage.has_pair()
    nursery.start_soon(stage.sign)
    manager = stage.manager()
    await nursery.start(manager.run)
    times = set()
    for _ in range(300):
        await trio.sleep(360)
        current = manager.current
        assert current is not None
        times.add(current.leaf.not_before)
    lives = [(later - earlier) / (10 * HOUR) for earlier, later in zip(sorted(times), sorted(times)[1:], strict=False)]
    assert len(set(lives)) == len(lives) >= 3
    assert all(0.69 < life < 0.91 for life in lives)


async def test_a_machine_that_slept_notices(stage: Stage, nursery: trio.Nursery, jumping_clock: MockClock) -> None:
    stage.has_pair()
    manager = stage.manager()
    nursery.start_soon(stage.sign)
    await nursery.start(manager.run)
    await trio.sleep(10)
    stage.clock._epoch += 95 * HOUR
    await trio.sleep(61)
    assert stage.asked == 1


async def test_an_expired_certificate_is_not_used_and_replaced(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage.has_pair(begin=-2 * HOUR, life=HOUR)
    manager = stage.manager()
    assert not has_one(manager)
    nursery.start_soon(stage.sign)
    await nursery.start(manager.run)
    await trio.sleep(1)
    assert manager.current is not None
    assert stage.asked_with == [None]


async def test_the_first_certificate_of_kubeadm_is_kept_and_renewed_at_once(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    powerful = Signer().pair(Wanted("system:node:n1", ("system:nodes", "system:masters")))
    manager = stage.manager(KeyPair(*powerful))
    assert stage.store.current().pair.certificate == powerful[0]
    begun_with = manager.current
    nursery.start_soon(stage.sign)
    await nursery.start(manager.run)
    await trio.sleep(1)
    assert stage.asked_with == [begun_with]
    assert manager.current is not None
    assert manager.current.pair.certificate != powerful[0]


async def test_a_valid_pair_of_the_store_goes_before_the_first_one(stage: Stage, jumping_clock: MockClock) -> None:
    stored = stage.has_pair()
    manager = stage.manager(KeyPair(*Signer().pair()))
    assert manager.current is not None
    assert manager.current.pair.certificate == stored


async def test_a_store_with_something_else_in_it_is_an_error(stage: Stage, jumping_clock: MockClock) -> None:
    stage.has_pair()
    stage.store.current_path.write_text("nothing")
    with pytest.raises(CertificateError):
        stage.manager()


async def test_a_refusal_is_tried_again_seldom(stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery) -> None:
    stage.client.fail("create", SIGNING_REQUESTS, status_error(403, "Forbidden"), times=8)
    nursery.start_soon(stage.sign)
    manager = stage.manager()
    await nursery.start(manager.run)
    await trio.sleep(600)
    times = [call.at for call in stage.client.called("create")]
    gaps = [round(later - earlier) for earlier, later in itertools.pairwise(times)]
    assert [gap // 2 for gap in gaps[:4]] == [1, 2, 4, 8]
    assert all(32 <= gap <= 36 for gap in gaps[4:])
    assert manager.current is not None
    assert manager.statistics().last_problem == ""
    assert manager.statistics().failed == 8


async def test_a_request_that_nobody_signs_is_made_anew(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    manager = stage.manager()
    await nursery.start(manager.run)
    await trio.sleep(16 * 60)
    assert stage.asked == 2
    assert "was not signed within 15 minutes" in manager.statistics().last_problem


async def test_a_certificate_that_expired_while_its_request_waits_says_so(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage.has_pair(begin=-2 * HOUR, life=HOUR)
    with capture_logs() as lines:
        await nursery.start(stage.manager().run)
        await trio.sleep(61)
    [*_, last] = [line for line in lines if line["log_level"] == "error"]
    assert (stage.asked, last["problem"]) == (1, "nobody has approved its request yet")


async def test_a_denied_request_is_made_anew(stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery) -> None:
    manager = stage.manager()
    await nursery.start(manager.run)
    await wait_all_tasks_blocked()
    name = next(key[2] for key in stage.client._server.objects)
    found = stage.client.stored(SIGNING_REQUESTS, name)
    assert found is not None
    stage.client.put(decided(found, "Denied", "No", "not you"))
    await trio.sleep(5)
    assert stage.asked == 2


async def test_a_disk_that_is_full_does_not_end_it(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tries = stage.store.update, 0

    def update(certificate: bytes, key: bytes) -> CertifiedKey:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError(28, "No space left on device")
        return real(certificate, key)

    monkeypatch.setattr(stage.store, "update", update)
    nursery.start_soon(stage.sign)
    manager = stage.manager()
    await nursery.start(manager.run)
    await trio.sleep(5)
    assert manager.current is not None


async def test_nothing_is_asked_for_until_it_is_known_what(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage.wanted = None
    manager = stage.manager()
    await nursery.start(manager.run)
    await trio.sleep(600)
    assert stage.asked == 0
    stage.wanted = NODE
    manager.check_soon()
    await wait_all_tasks_blocked()
    assert stage.asked == 1


async def test_another_address_is_another_certificate(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage.has_pair(wanted=SERVED)
    stage.wanted = SERVED
    nursery.start_soon(stage.sign)
    manager = stage.manager()
    await nursery.start(manager.run)
    await trio.sleep(3600)
    assert stage.asked == 0
    stage.wanted = attrs.evolve(SERVED, ip_addresses=("10.9.9.9",))
    manager.check_soon()
    await trio.sleep(1)
    assert manager.current is not None
    assert missing(manager.current.leaf, stage.wanted) == ""


async def test_a_request_that_is_no_longer_wanted_is_not_waited_for(
    stage: Stage, jumping_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage.wanted = SERVED
    manager = stage.manager()
    await nursery.start(manager.run)
    await trio.sleep(1)
    manager.check_soon()
    await trio.sleep(1)
    assert stage.asked == 1
    stage.wanted = attrs.evolve(SERVED, dns_names=("b.example.com",))
    manager.check_soon()
    await trio.sleep(1)
    assert stage.asked == 2
    nursery.start_soon(stage.sign)
    await trio.sleep(1)
    assert manager.current is not None
    assert missing(manager.current.leaf, stage.wanted) == ""
