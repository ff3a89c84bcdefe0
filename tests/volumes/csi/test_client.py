"""Calls to a driver, how they fail, and what nobody gets to read."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, cast

import pytest
import trio
from grpclib import Status

from tests.csi_driver import Fault, Faults
from tests.volumes.csi.stage import NAME, csi_stage
from trikubelet.rpc.csi import v1
from trikubelet.volumes.csi.client import CSIError, NodeClient
from trikubelet.volumes.csi.drivers import Driver, Drivers
from trikubelet.volumes.csi.rules import TOKENS_KEY, Capability
from trikubelet.volumes.errors import UncertainVolumeError, VolumeError

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

CAPABILITY = v1.VolumeCapability(mount=v1.VolumeCapabilityMountVolume())


async def publish(
    client: NodeClient, *, secrets: dict[str, str] | None = None, context: dict[str, str] | None = None
) -> None:
    await client.publish(
        "vol/1",
        "/nowhere/mount",
        CAPABILITY,
        staging_path="",
        read_only=False,
        publish_context={},
        volume_context=context or {},
        secrets=secrets or {},
    )


@pytest.mark.parametrize(
    ("status", "code", "uncertain"),
    [
        (Status.CANCELLED, "Canceled", True),
        (Status.DEADLINE_EXCEEDED, "DeadlineExceeded", True),
        (Status.UNAVAILABLE, "Unavailable", True),
        (Status.RESOURCE_EXHAUSTED, "ResourceExhausted", True),
        (Status.ABORTED, "Aborted", True),
        (Status.UNKNOWN, "Unknown", False),
        (Status.INVALID_ARGUMENT, "InvalidArgument", False),
        (Status.NOT_FOUND, "NotFound", False),
        (Status.ALREADY_EXISTS, "AlreadyExists", False),
        (Status.PERMISSION_DENIED, "PermissionDenied", False),
        (Status.FAILED_PRECONDITION, "FailedPrecondition", False),
        (Status.OUT_OF_RANGE, "OutOfRange", False),
        (Status.UNIMPLEMENTED, "Unimplemented", False),
        (Status.INTERNAL, "Internal", False),
        (Status.UNAUTHENTICATED, "Unauthenticated", False),
    ],
)
async def test_the_status_tells_whether_the_outcome_is_known(
    tmp_path: Path, autojump_clock: MockClock, status: Status, code: str, uncertain: bool
) -> None:
    faults = Faults({"NodePublishVolume": Fault("error", status, "out of luck")})
    async with csi_stage(tmp_path, faults=faults) as stage, stage.drivers.client(NAME) as client:
        with pytest.raises(CSIError) as caught:
            await publish(client)
    error = caught.value.for_volume("data")
    assert type(error) is (UncertainVolumeError if uncertain else VolumeError)
    assert error.volume == "data"
    assert error.problem == f"rpc error: code = {code} desc = out of luck"


async def test_a_driver_that_hangs_has_two_minutes(tmp_path: Path, autojump_clock: MockClock) -> None:
    faults = Faults({"NodePublishVolume": Fault("hang")})
    async with csi_stage(tmp_path, faults=faults) as stage, stage.drivers.client(NAME) as client:
        start = trio.current_time()
        with pytest.raises(CSIError, match="code = DeadlineExceeded desc = the driver did not answer within 120 s"):
            await publish(client)
        assert trio.current_time() - start == pytest.approx(120, abs=1)
        await trio.testing.wait_all_tasks_blocked()
        assert stage.driver.calls[-1].outcome == "cancelled", "the driver is told"


async def test_cancelling_a_call_tells_the_driver(tmp_path: Path, autojump_clock: MockClock) -> None:
    faults = Faults({"NodePublishVolume": Fault("hang")})
    async with csi_stage(tmp_path, faults=faults) as stage, stage.drivers.client(NAME) as client:
        with trio.move_on_after(5):
            await publish(client)
        await trio.testing.wait_all_tasks_blocked()
        assert stage.driver.calls[-1].outcome == "cancelled"


async def test_a_driver_that_is_not_there_is_unavailable(tmp_path: Path, autojump_clock: MockClock) -> None:
    drivers = Drivers()
    drivers.add(Driver(NAME, str(tmp_path / "no.sock")))
    async with drivers.client(NAME) as client:
        with pytest.raises(CSIError, match="code = Unavailable desc = connection error: "):
            await client.capabilities()


TOKEN = "t0ken-t0ken"
SECRETS = {"password": "pa55word-of-the-store", "longer": "pa55word-of-the-store-and-more"}


async def test_what_a_driver_repeats_of_its_secrets_is_not_seen(tmp_path: Path, autojump_clock: MockClock) -> None:
    told = f"login as admin with {SECRETS['longer']} or {SECRETS['password']} and {TOKEN} failed"
    faults = Faults({"NodePublishVolume": Fault("error", Status.INTERNAL, told)})
    async with csi_stage(tmp_path, faults=faults) as stage, stage.drivers.client(NAME) as client:
        with pytest.raises(CSIError) as caught:
            await publish(client, secrets=SECRETS, context={TOKENS_KEY: TOKEN})
    assert caught.value.message == ("login as admin with ***stripped*** or ***stripped*** and ***stripped*** failed")
    shown = "".join(traceback.format_exception(caught.value))
    assert "pa55word" not in shown
    assert "t0ken" not in shown


async def test_staging_and_growing_hide_their_secrets_too(tmp_path: Path, autojump_clock: MockClock) -> None:
    fault = Fault("error", Status.INTERNAL, "no: pa55word-of-the-store")
    faults = Faults({"NodeStageVolume": fault, "NodeExpandVolume": fault})
    async with csi_stage(tmp_path, faults=faults) as stage, stage.drivers.client(NAME) as client:
        with pytest.raises(CSIError, match=r"^rpc error: code = Internal desc = no: \*\*\*stripped\*\*\*$"):
            await client.stage("v", "/s", CAPABILITY, publish_context={}, volume_context={}, secrets=SECRETS)
        with pytest.raises(CSIError, match=r"^rpc error: code = Internal desc = no: \*\*\*stripped\*\*\*$"):
            await client.expand("v", "/v", CAPABILITY, staging_path="", size=1, secrets=SECRETS)


async def test_a_driver_tells_of_its_node(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with csi_stage(tmp_path, node_id="i-0815", max_volumes=7, topology={"zone": "z1"}) as stage:
        async with stage.drivers.client(NAME) as client:
            info = await client.info()
    assert (info.node_id, info.max_volumes, dict(info.topology)) == ("i-0815", 7, {"zone": "z1"})


async def test_capabilities_from_the_future_do_no_harm(tmp_path: Path, autojump_clock: MockClock) -> None:
    known = {Capability.GET_VOLUME_STATS}
    async with csi_stage(tmp_path, capabilities={*known, cast("Capability", 99)}) as stage:
        async with stage.drivers.client(NAME) as client:
            capabilities = await client.capabilities()
    assert Capability.GET_VOLUME_STATS in capabilities
    assert Capability.STAGE_UNSTAGE_VOLUME not in capabilities
