"""Claims of pods, from their first preparation to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.csi_driver.faults import Fault, Faults
from tests.dra_driver import ToyDriver, a_device
from tests.kube_client.scripted_client import lost
from tests.node.dra.situations import TOY, extended_pod, make_claim, make_pod
from tests.node.dra.stage import claim_stage, settle
from trikubelet.kube_client.types import RESOURCE_CLAIMS
from trikubelet.node.dra.book import ANY_DRIVER
from trikubelet.node.dra.checkpoint import FILE, read_claims
from trikubelet.node.dra.plugin import CALL_SECONDS
from trikubelet.runtime.sandboxes.sandbox import ResourceClaimError

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.api import ResourceClaimObject

PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
POD = make_pod("p", "c")


async def test_a_claim_is_prepared_and_undone_with_its_pod(tmp_path: Path, autojump_clock: MockClock) -> None:
    driver = ToyDriver()
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c")
        await stage.manager.prepare(POD)
        assert driver.calls == [(PREPARE, ("c",))]
        assert stage.manager.holds("p")
        assert stage.manager.cdi_devices(POD, POD.spec.containers[0]) == [f"{TOY}/claim=c-uid"]
        assert stage.manager.claims_in_use() == {TOY: 1, ANY_DRIVER: 1}
        await stage.manager.prepare(POD)  # a second sandbox of the pod
        assert driver.names() == [PREPARE]
        await stage.manager.unprepare("p")
        assert driver.names() == [PREPARE, UNPREPARE]
        assert driver.prepared == set()
        assert not stage.manager.holds("p")
        assert read_claims(tmp_path / FILE) == []
        await stage.manager.unprepare("p")
        assert driver.names() == [PREPARE, UNPREPARE]
        assert stage.manager.claims_in_use() == {ANY_DRIVER: 0}


async def test_the_pod_is_on_the_disk_before_a_driver_is_asked(tmp_path: Path, autojump_clock: MockClock) -> None:
    driver = ToyDriver(faults=Faults({PREPARE: Fault("hang")}))
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c")
        stage.nursery.start_soon(stage.manager.prepare, POD)
        await driver.begun(PREPARE)
        (known,) = read_claims(tmp_path / FILE)
        assert (known.name, known.pods) == ("c", frozenset({"p"}))
        assert known.drivers == {TOY: ()}


async def test_pods_that_share_a_claim_have_it_prepared_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    driver = ToyDriver()
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c", pods=("p", "q"))
        async with trio.open_nursery() as pods:
            pods.start_soon(stage.manager.prepare, POD)
            pods.start_soon(stage.manager.prepare, make_pod("q", "c"))
        assert driver.names() == [PREPARE]
        await stage.manager.unprepare("p")
        await stage.manager.unprepare("p")  # again, since something else of the pod failed
        assert driver.names() == [PREPARE]
        assert driver.prepared == {"c-uid"}
        await stage.manager.unprepare("q")
        assert driver.names() == [PREPARE, UNPREPARE]


async def test_claims_go_to_each_driver_in_one_call(tmp_path: Path, autojump_clock: MockClock) -> None:
    one, other = ToyDriver(), ToyDriver("other.example.com")
    async with claim_stage(tmp_path) as stage:
        await stage.register(one)
        await stage.register(other, "other.sock")
        stage.claims("a")
        stage.client.put(make_claim("b", "p", drivers=(TOY, other.name)))
        pod = make_pod("p", "a", "b")
        await stage.manager.prepare(pod)
        assert one.calls == [(PREPARE, ("a", "b"))]
        assert other.calls == [(PREPARE, ("b",))]
        assert stage.manager.claims_in_use() == {TOY: 2, other.name: 1, ANY_DRIVER: 2}
        assert stage.manager.cdi_devices(pod, pod.spec.containers[0]) == [
            f"{TOY}/claim=a-uid",
            f"{other.name}/claim=b-uid",
            f"{TOY}/claim=b-uid",
        ]
        await stage.manager.unprepare("p")
        assert one.calls[1:] == [(UNPREPARE, ("a", "b"))]


async def test_a_claim_that_a_pod_names_twice_is_one(tmp_path: Path, autojump_clock: MockClock) -> None:
    driver = ToyDriver()
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c")
        await stage.manager.prepare(
            make_pod("p", resourceClaims=[{"name": name, "resourceClaimName": "c"} for name in ("one", "two")])
        )
        assert driver.calls == [(PREPARE, ("c",))]


@pytest.mark.parametrize(
    ("claim", "problem"),
    [
        (None, 'fetch ResourceClaim c: resourceclaims.resource.k8s.io "c" not found'),
        (make_claim("c", "other"), "pod pod-p (p) is not allowed to use ResourceClaim c (c-uid)"),
        (make_claim("c", "p", drivers=("unknown",)), "DRA driver unknown is not registered"),
        (make_claim("c", "p", allocation=None), "ResourceClaim c: not allocated"),
    ],
)
async def test_what_cannot_be_used_changes_nothing(
    tmp_path: Path, autojump_clock: MockClock, claim: ResourceClaimObject | None, problem: str
) -> None:
    driver = ToyDriver()
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        if claim is not None:
            stage.client.put(claim)
        with pytest.raises(ResourceClaimError) as error:
            await stage.manager.prepare(POD)
        assert str(error.value) == f"prepare dynamic resources: {problem}"
        assert driver.calls == []
        assert not stage.manager.holds("p")
        assert stage.writes == []


async def test_an_api_server_that_is_away_is_a_failure(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with claim_stage(tmp_path) as stage:
        await stage.register(ToyDriver())
        stage.claims("c")
        stage.client.fail("get", RESOURCE_CLAIMS, lost())
        with pytest.raises(ResourceClaimError, match=r"fetch ResourceClaim c: .*connection reset"):
            await stage.manager.prepare(POD)
        await stage.manager.prepare(POD)


async def test_a_claim_made_anew_waits_for_the_old_one_to_go(tmp_path: Path, autojump_clock: MockClock) -> None:
    driver = ToyDriver()
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c")
        await stage.manager.prepare(POD)
        stage.client.put(make_claim("c", "q", uid="newer"))
        stage.claims("d", pods=("q",))
        with pytest.raises(
            ResourceClaimError, match="old ResourceClaim with same name c and different UID c-uid still"
        ):
            await stage.manager.prepare(make_pod("q", "d", "c"))
        assert not stage.manager.holds("q")
        await stage.manager.unprepare("p")
        await stage.manager.prepare(make_pod("q", "d", "c"))
        assert driver.prepared == {"d-uid", "newer"}


@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        (ToyDriver(skips={"c"}), "NodePrepareResources skipped 1 ResourceClaims"),
        (ToyDriver(errors={"c": "no power"}), "NodePrepareResources failed for ResourceClaim c: no power"),
        (
            ToyDriver(faults=Faults({PREPARE: Fault("error")})),
            "NodePrepareResources: rpc error: code = Internal desc = the test wants it so",
        ),
        (
            ToyDriver(faults=Faults({PREPARE: Fault("hang")})),
            "NodePrepareResources: rpc error: code = DeadlineExceeded desc = ",
        ),
    ],
)
async def test_a_driver_that_fails_is_asked_again_and_undone(
    tmp_path: Path, autojump_clock: MockClock, driver: ToyDriver, problem: str
) -> None:
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c")
        began = trio.current_time()
        with pytest.raises(ResourceClaimError) as error:
            await stage.manager.prepare(POD)
        assert str(error.value).startswith(f"prepare dynamic resources: {problem}")
        assert trio.current_time() - began <= CALL_SECONDS + 1
        assert stage.manager.holds("p")
        assert stage.manager.claims_in_use() == {ANY_DRIVER: 0}
        driver.skips, driver.errors, driver.faults = set(), {}, Faults()
        await stage.manager.prepare(POD)
        await stage.manager.unprepare("p")
        assert driver.names() == [PREPARE, PREPARE, UNPREPARE]
        assert driver.prepared == set()


async def test_a_driver_that_dies_while_it_prepares_is_asked_when_it_is_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    driver = ToyDriver(faults=Faults({PREPARE: Fault("hang", times=1)}))
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c")
        problem: list[ResourceClaimError] = []

        async def prepare() -> None:
            try:
                await stage.manager.prepare(POD)
            except ResourceClaimError as error:
                problem.append(error)

        stage.nursery.start_soon(prepare)
        await driver.begun(PREPARE)
        stage.kill(driver)
        await settle()
        assert "code = Unavailable" in str(problem[0])
        assert stage.told == []
        stage.listen(driver)
        await trio.sleep(5)
        assert stage.told == ["p"], "the pod's next sync need not wait"
        await stage.manager.prepare(POD)
        assert driver.prepared == {"c-uid"}


async def test_an_answer_about_a_stranger_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    class Confused(ToyDriver):
        def prepare(self, claims):  # type: ignore[no-untyped-def]
            reply = super().prepare(claims)
            reply.claims["stranger"] = reply.claims.pop(claims[0].uid)
            return reply

    async with claim_stage(tmp_path) as stage:
        await stage.register(Confused())
        stage.claims("c")
        with pytest.raises(ResourceClaimError, match="returned result for unknown claim UID stranger"):
            await stage.manager.prepare(POD)


@pytest.mark.parametrize("version", ["v1.DRAPlugin", "v1beta1.DRAPlugin"])
async def test_each_version_of_the_interface_works(tmp_path: Path, autojump_clock: MockClock, version: str) -> None:
    driver = ToyDriver(versions=(version,))
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c")
        await stage.manager.prepare(POD)
        await stage.manager.unprepare("p")
        methods = {path for _, path, _ in stage.manager.metrics.calls}
        assert methods == {f"/k8s.io.kubelet.pkg.apis.dra.{version}/{method}" for method in (PREPARE, UNPREPARE)}


async def test_devices_are_those_of_the_last_answer(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Not of all answers together, as it would be with each agent that asks again."""
    driver = ToyDriver(devices={"c": [a_device("one", cdi=["a/b=1"], share_id="half")]})
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c", pods=("p", "q"))
        await stage.manager.prepare(POD)
        await stage.restart()
        await stage.register(driver)
        assert stage.manager.cdi_devices(POD, POD.spec.containers[0]) == ["a/b=1"]
        await stage.manager.prepare(make_pod("q", "c"))
        assert driver.names() == [PREPARE, PREPARE]
        (claim,) = stage.manager.claims(POD, POD.spec.containers[0])
        assert [(one.name, one.cdi_ids, one.share_id) for one in claim.devices] == [("one", ("a/b=1",), "half")]


async def test_containers_get_what_their_requests_name(tmp_path: Path, autojump_clock: MockClock) -> None:
    devices = [
        a_device("one", requests=["gpu"], cdi=["a/b=1", "a/b=1x"]),
        a_device("two", requests=["nic"], cdi=["a/b=2"]),
        a_device("both", requests=["gpu", "nic"], cdi=["a/b=3"]),
        a_device("any", cdi=["a/b=4"]),
    ]
    rows = {
        "all": ([{"name": "c"}], ["a/b=1", "a/b=1x", "a/b=2", "a/b=3", "a/b=4"]),
        "gpu": ([{"name": "c", "request": "gpu"}], ["a/b=1", "a/b=1x", "a/b=3", "a/b=4"]),
        "nic": ([{"name": "c", "request": "nic"}], ["a/b=2", "a/b=3", "a/b=4"]),
        "twice": (
            [{"name": "c", "request": "gpu"}, {"name": "c", "request": "nic"}],
            ["a/b=1", "a/b=1x", "a/b=3", "a/b=4", "a/b=2"],
        ),
        "none": ([], []),
    }
    containers = [{"name": name, "image": "x", "resources": {"claims": claims}} for name, (claims, _) in rows.items()]
    pod = make_pod("p", "c", containers=containers)
    async with claim_stage(tmp_path) as stage:
        await stage.register(ToyDriver(devices={"c": devices}))
        stage.claims("c")
        with pytest.raises(ResourceClaimError, match="unable to get claim info for ResourceClaim c in namespace ns"):
            stage.manager.cdi_devices(pod, pod.spec.containers[0])
        await stage.manager.prepare(pod)
        for container in pod.spec.containers:
            assert stage.manager.cdi_devices(pod, container) == rows[container.name][1], container.name


async def test_extended_resources_come_from_a_claim_of_the_scheduler(tmp_path: Path, autojump_clock: MockClock) -> None:
    driver = ToyDriver(devices={"e": [a_device("one", requests=["container-0-request-0"], cdi=["a/b=1"])]})
    pod = extended_pod("p", "e")
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("e")
        await stage.manager.prepare(pod)
        assert driver.calls == [(PREPARE, ("e",))]
        main, other = pod.spec.containers
        assert stage.manager.cdi_devices(pod, main) == ["a/b=1"]
        assert stage.manager.cdi_devices(pod, other) == []
        assert [claim.name for claim in stage.manager.claims(pod, main)] == ["e"]
        assert list(stage.manager.claims(pod, other)) == []
        await stage.manager.unprepare("p")
        assert driver.prepared == set()


@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        (ToyDriver(skips={"c"}), "NodeUnprepareResources skipped 1 ResourceClaims"),
        (ToyDriver(errors={"c": "stuck"}), "NodeUnprepareResources failed for ResourceClaim c: stuck"),
        (
            ToyDriver(faults=Faults({UNPREPARE: Fault("hang")})),
            "NodeUnprepareResources: rpc error: code = DeadlineExceeded",
        ),
    ],
)
async def test_a_claim_that_cannot_be_undone_stays(
    tmp_path: Path, autojump_clock: MockClock, driver: ToyDriver, problem: str
) -> None:
    async with claim_stage(tmp_path) as stage:
        skips, errors = driver.skips, driver.errors
        driver.skips, driver.errors = set(), {}
        await stage.register(driver)
        stage.claims("c")
        await stage.manager.prepare(POD)
        driver.skips, driver.errors = skips, errors
        with pytest.raises(ResourceClaimError) as error:
            await stage.manager.unprepare("p")
        assert str(error.value).startswith(f"unprepare dynamic resources: {problem}")
        assert stage.manager.holds("p")
        driver.skips, driver.errors, driver.faults = set(), {}, Faults()
        await stage.manager.unprepare("p")
        assert not stage.manager.holds("p")


async def test_whether_a_claim_is_prepared_is_open_once_it_was_to_be_undone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The driver may have done it, and only its answer was lost: the next pod has it prepared again."""
    driver = ToyDriver(faults=Faults({UNPREPARE: Fault("lost", times=1)}))
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c", pods=("p", "q"))
        await stage.manager.prepare(POD)
        with pytest.raises(ResourceClaimError, match="Unavailable"):
            await stage.manager.unprepare("p")
        await stage.manager.prepare(make_pod("q", "c"))
        assert driver.prepared == {"c-uid"}
        await stage.manager.unprepare("p")
        assert driver.prepared == {"c-uid"}


async def test_without_its_driver_a_claim_cannot_be_undone(tmp_path: Path, autojump_clock: MockClock) -> None:
    driver = ToyDriver()
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c")
        await stage.manager.prepare(POD)
        await stage.deregister(driver)
        stage.needed = set()
        with pytest.raises(ResourceClaimError, match=f"unprepare dynamic resources: DRA driver {TOY} is not reg"):
            await stage.manager.unprepare("p")
        await stage.register(driver)
        assert driver.prepared == set(), "the pod is gone, and the driver is back"


async def test_a_full_disk_keeps_pods_from_starting_and_from_nothing_else(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    driver = ToyDriver()
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c")
        stage.disk_is_full = True
        with pytest.raises(ResourceClaimError, match=r"checkpoint ResourceClaim cache: .*No space left"):
            await stage.manager.prepare(POD)
        assert driver.calls == []
        stage.disk_is_full = False
        await stage.manager.prepare(POD)
        assert driver.names() == [PREPARE]


async def test_pods_that_are_gone_when_the_agent_starts_are_taken_off(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    driver = ToyDriver()
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c", pods=("p", "q"))
        stage.claims("d", pods=("p",))
        await stage.manager.prepare(make_pod("p", "c", "d"))
        await stage.manager.prepare(make_pod("q", "c"))
        stage.sources_ready, stage.needed = False, set()
        await stage.restart()
        await stage.register(driver)
        await trio.sleep(5)
        assert driver.prepared == {"c-uid", "d-uid"}, "whether the pods are gone is not known yet"
        stage.sources_ready, stage.needed = True, {"q"}
        await trio.sleep(5)
        assert driver.prepared == {"c-uid"}
        stage.needed = set()
        await trio.sleep(61)
        assert driver.prepared == set()


async def test_a_driver_that_hangs_does_not_keep_other_pods(tmp_path: Path, autojump_clock: MockClock) -> None:
    good, bad = ToyDriver(), ToyDriver("bad.example.com", faults=Faults({PREPARE: Fault("hang")}))
    async with claim_stage(tmp_path) as stage:
        await stage.register(good)
        await stage.register(bad, "bad.sock")
        stage.client.put(make_claim("b", "q", drivers=(bad.name,)))
        stage.claims("c")
        began = trio.current_time()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as pods:
                pods.start_soon(stage.manager.prepare, make_pod("q", "b"))
                await bad.begun(PREPARE)
                await stage.manager.prepare(POD)
                assert trio.current_time() - began < 1
                scope.cancel()
        await settle()
        assert stage.manager.holds("q"), "it was cancelled, and may be prepared"


async def test_operations_and_calls_are_counted(tmp_path: Path, autojump_clock: MockClock) -> None:
    driver = ToyDriver(faults=Faults({PREPARE: Fault("error", times=1)}))
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c")
        with pytest.raises(ResourceClaimError):
            await stage.manager.prepare(POD)
        await stage.manager.prepare(POD)
        await stage.manager.unprepare("p")
        metrics = stage.manager.metrics
        service = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
        assert {labels: one.count for labels, one in metrics.operations.items()} == {
            ("PrepareResources", "true"): 1,
            ("PrepareResources", "false"): 1,
            ("UnprepareResources", "false"): 1,
        }
        assert {labels: one.count for labels, one in metrics.calls.items()} == {
            (TOY, service + PREPARE, "Internal"): 1,
            (TOY, service + PREPARE, "OK"): 1,
            (TOY, service + UNPREPARE, "OK"): 1,
        }
