"""The file of allocations (facts: `state_checkpoint_test.go`)."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.allocation.situations import Amounts, amounts, requirements
from tests.captured_logs import capture_logs
from tests.killed_writer import kill_at_every_step
from trikubelet.allocation import store as store_module
from trikubelet.allocation.model import PodAllocation
from trikubelet.allocation.store import ACTUATED_FILE, ALLOCATED_FILE, AllocationStore
from trikubelet.linux.checkpoint import BrokenCheckpointError, CheckpointError, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

SUFFIXES = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "n", "u", "m", "k", "M", "G", "T", "P", "E", "")
FACTORS = ("1", "0.1", "0.03", "10", "100", "512", "1000", "1024", "700", "10000")
TOO_MUCH = {(factor, suffix) for factor in ("1000", "10000") for suffix in ("E", "Ei")}

SMALL = PodAllocation({"main": requirements(amounts("1", "1Gi"))})
LARGE = PodAllocation({"main": requirements(amounts("2", "2Gi"), amounts("3"))}, requirements(amounts("4")))


def of(requests: Amounts) -> PodAllocation:
    return PodAllocation({"container1": requirements(requests)}, requirements(requests))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ALLOCATED_FILE


def written(path: Path) -> dict[str, Any]:
    """The entries in the file."""
    data = read_checkpoint(path)
    assert data is not None
    entries = json.loads(data).get("entries", {})
    assert isinstance(entries, dict)
    return entries


@pytest.mark.parametrize("factor", FACTORS)
async def test_every_amount_comes_back_as_it_was(path: Path, factor: str) -> None:
    store = AllocationStore.open(path)
    for suffix in SUFFIXES:
        if (factor, suffix) not in TOO_MUCH:
            store.set(f"pod-{suffix}", of(amounts(factor + suffix, factor + suffix)))
    await store.flush()
    again = AllocationStore.open(path)
    assert set(again.uids()) == set(store.uids())
    for uid in store.uids():
        assert again.get(uid) == store.get(uid)


async def test_the_file_is_as_a_kubelet_writes_it(path: Path) -> None:
    store = AllocationStore.open(path)
    store.set("a", SMALL)
    store.set("b", LARGE)
    await store.flush()
    assert read_checkpoint(path) == (
        '{"entries":{"a":{"ContainerResources":{"main":{"requests":{"cpu":"1","memory":"1Gi"}}},'
        '"PodLevelResources":null},"b":{"ContainerResources":{"main":{"limits":{"cpu":"3"},'
        '"requests":{"cpu":"2","memory":"2Gi"}}},"PodLevelResources":{"requests":{"cpu":"4"}}}}}'
    )


def test_the_file_of_an_older_kubelet_is_read(path: Path) -> None:
    path.write_text(
        r'{"data":"{\"entries\":{\"pod1\":{\"ContainerResources\":{\"container1\":{\"requests\":{\"cpu\":\"1Ki\",'
        r'\"memory\":\"1Ki\"}}}}}}","checksum":1178570812}'
    )
    allocation = AllocationStore.open(path).get("pod1")
    assert allocation == PodAllocation({"container1": requirements(amounts("1Ki", "1Ki"))})


@pytest.mark.parametrize("data", ["{}", '{"entries":null}', '{"newer":1}'])
def test_a_file_without_pods_is_read(path: Path, data: str) -> None:
    write_checkpoint(path, data)
    assert not AllocationStore.open(path).uids()


def test_where_there_is_no_file_there_is_no_allocation(tmp_path: Path) -> None:
    store = AllocationStore.open(tmp_path / "root" / ALLOCATED_FILE)
    assert store.get("pod1") is None
    assert store.is_durable


@pytest.mark.parametrize(
    "data", ["", "[]", '{"entries":[1]}', '{"entries":{"a":1}}', '{"entries":{"a":{"ContainerResources":{"b":7}}}}']
)
def test_a_file_that_tells_nothing_is_not_taken_for_an_empty_one(path: Path, data: str) -> None:
    write_checkpoint(path, data)
    with pytest.raises(BrokenCheckpointError, match=f"{path}: .*drain this node, delete the file"):
        AllocationStore.open(path)


def test_a_broken_file_is_told_with_what_to_do(path: Path) -> None:
    path.write_text("{")
    with pytest.raises(BrokenCheckpointError, match=f"{path}: .*drain this node, delete the file"):
        AllocationStore.open(path)


def test_what_to_do_without_a_record_of_what_the_runtime_was_told(tmp_path: Path) -> None:
    path = tmp_path / ACTUATED_FILE
    path.write_text("{")
    with pytest.raises(BrokenCheckpointError) as caught:
        AllocationStore.open(path)
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith(
        "; it told what the runtime was last told of pods' resources: move the file away, then start the agent again: "
        "pods go on running, and the runtime is asked what they have"
    )


@pytest.mark.parametrize("name", [ALLOCATED_FILE, ACTUATED_FILE])
@pytest.mark.parametrize("content", [b"", b"\0" * 64, b'{"data":"{', b'{"data":"{}","checksum":1}'])
async def test_without_a_cluster_a_file_that_a_power_cut_has_broken_is_set_aside(
    tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with capture_logs() as lines:
        store = AllocationStore.open_or_begin_anew(path)
    aside = path.with_name(f"{name}.broken")
    assert (list(store.uids()), path.exists(), aside.read_bytes()) == ([], False, content)
    [line] = lines
    assert (line["log_level"], line["set_aside"]) == ("error", str(aside))
    store.set("uid", SMALL)
    await store.flush()
    with capture_logs() as lines:
        assert list(AllocationStore.open_or_begin_anew(path).uids()) == ["uid"]
    assert lines == []


async def test_what_is_the_same_is_not_written_again(path: Path) -> None:
    store = AllocationStore.open(path)
    store.set("pod1", SMALL)
    await store.flush()
    path.unlink()
    store.set("pod1", PodAllocation({"main": requirements(amounts("1000m", "1024Mi"))}))
    assert store.is_durable
    await store.flush()
    assert not path.exists()
    store.forget("pod1")
    store.set("pod1", SMALL)
    await store.flush()
    assert not path.exists(), "forgotten and set again"
    store.set("foo-bar", LARGE)
    await store.flush()
    assert path.exists()


async def test_what_was_read_is_not_written_again(path: Path) -> None:
    store = AllocationStore.open(path)
    store.set("pod1", SMALL)
    await store.flush()
    again = AllocationStore.open(path)
    path.unlink()
    again.set("pod1", SMALL)
    await again.flush()
    assert not path.exists()


async def test_until_it_is_flushed_nothing_is_written(path: Path) -> None:
    store = AllocationStore.open(path)
    store.set("pod1", SMALL)
    durable_before = store.is_durable
    assert store.get("pod1") is SMALL
    assert not path.exists()
    await store.flush()
    assert (durable_before, store.is_durable) == (False, True)
    assert written(path).keys() == {"pod1"}


async def test_what_is_forgotten_leaves_the_file_with_the_next_write(path: Path) -> None:
    store = AllocationStore.open(path)
    for uid in ("a", "b", "c", "d"):
        store.set(uid, SMALL)
    await store.flush()
    store.forget("a")
    store.forget("unknown")
    store.keep_only({"c", "d", "never seen"})
    assert set(store.uids()) == {"c", "d"}
    assert store.is_durable
    await store.flush()
    assert written(path).keys() == {"a", "b", "c", "d"}
    store.set("d", LARGE)
    await store.flush()
    assert written(path).keys() == {"c", "d"}


async def test_the_last_pod_leaves_a_file_without_entries(path: Path) -> None:
    store = AllocationStore.open(path)
    store.set("a", SMALL)
    await store.flush()
    store.forget("a")
    store.set("b", SMALL)
    store.forget("b")
    await store.flush()
    assert read_checkpoint(path) == "{}"


async def test_all_that_wait_at_one_time_share_a_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[str] = []

    def write(path: Path, data: str, *summed: Any) -> None:
        writes.append(data)
        write_checkpoint(path, data, *summed)

    monkeypatch.setattr(store_module, "write_checkpoint", write)
    store = AllocationStore.open(path)

    async def start(uid: str) -> None:
        store.set(uid, SMALL)
        await store.flush()
        assert uid in written(path)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(start, f"pod-{number}")
    assert 1 <= len(writes) <= 2


async def test_who_is_cancelled_leaves_the_others_their_write(path: Path) -> None:
    store = AllocationStore.open(path)
    store.set("pod1", SMALL)
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(store.flush)
            scope.cancel()
            await store.flush()
    assert scope.cancelled_caught
    assert written(path).keys() == {"pod1"}


async def test_a_write_that_failed_is_tried_again(path: Path) -> None:
    store = AllocationStore.open(path)
    path.mkdir()
    store.set("pod1", SMALL)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="cannot be written"):
            await store.flush()
    assert store.get("pod1") is SMALL
    path.rmdir()
    await store.flush()
    assert written(path).keys() == {"pod1"}


async def test_of_two_that_wait_for_a_write_that_fails_both_are_told(path: Path) -> None:
    store = AllocationStore.open(path)
    path.mkdir()
    store.set("pod1", SMALL)
    told = []

    async def wait() -> None:
        try:
            await store.flush()
        except CheckpointError as error:
            told.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
    assert len(told) == 2


async def test_those_that_wait_while_the_disk_is_full_wait_for_one_write(path: Path, autojump_clock: MockClock) -> None:
    writes, full = 0, True

    async def write(data: str) -> None:
        nonlocal writes
        writes += 1
        await trio.sleep(10)
        if full:
            raise CheckpointError(path, "cannot be written: No space left on device")

    store = AllocationStore({}, write)
    told = []

    async def start(number: int) -> None:
        await trio.sleep(number / 10)
        store.set(f"pod-{number}", SMALL)
        try:
            await store.flush()
        except CheckpointError as error:
            told.append(str(error))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(start, number)
    assert (writes, trio.current_time() - began) == (1, 10)
    assert told == 50 * [f"checkpoint {path}: cannot be written: No space left on device"]
    full = False
    await store.flush()
    assert (writes, store.is_durable) == (2, True)


RESIZER = """
import trio
from pathlib import Path
from trikubelet.allocation.model import from_wire
from trikubelet.allocation.store import AllocationStore
import json

async def resize():
    store = AllocationStore.open(Path(sys.argv[2]))
    store.set("pod1", from_wire(json.loads(sys.argv[3])))
    watch()
    await store.flush()

trio.run(resize)
"""


async def test_an_agent_that_is_killed_while_it_writes_knows_the_old_allocation_or_the_new(path: Path) -> None:
    store = AllocationStore.open(path)
    store.set("pod1", SMALL)
    store.set("pod2", SMALL)
    await store.flush()
    old = path.read_bytes()
    wire = json.dumps({"ContainerResources": {"main": {"requests": {"cpu": "2"}}}})
    new = PodAllocation({"main": requirements(amounts("2"))})
    seen = []
    for _ in kill_at_every_step(RESIZER, str(path), wire):
        after = AllocationStore.open(path)
        assert after.get("pod2") == SMALL
        assert after.get("pod1") in (SMALL, new)
        seen.append(after.get("pod1") == new)
        path.write_bytes(old)
    assert seen == sorted(seen)
    assert {False, True} == set(seen)
    assert AllocationStore.open(path).get("pod1") == new


async def test_a_node_with_hundreds_of_pods_has_one_valid_file(path: Path) -> None:
    store = AllocationStore.open(path)
    order = random.Random(1)
    for number in range(300):
        store.set(f"pod-{number}", order.choice((SMALL, LARGE)))
        if order.random() < 0.3:
            store.forget(f"pod-{order.randrange(number + 1)}")
    await store.flush()
    again = AllocationStore.open(path)
    assert {uid: again.get(uid) for uid in again.uids()} == {uid: store.get(uid) for uid in store.uids()}
