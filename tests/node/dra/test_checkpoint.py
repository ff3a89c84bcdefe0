"""The kubelet's file (`state/checkpointer_test.go`)."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.formats.go_checkpoint import GoCheckpointError
from trikubelet.linux.checkpoint import BrokenCheckpointError, CheckpointError
from trikubelet.node.dra.checkpoint import ClaimCheckpoint, from_bytes, read_claims, to_bytes
from trikubelet.node.dra.model import ClaimDevice, ClaimState

if TYPE_CHECKING:
    from pathlib import Path

CLAIM_UID = "067798be-454e-4be4-9047-1aa06aea63f7"
POD_UID = "139cdb46-f989-4f17-9561-ca10cfb509a6"
DRIVER = "test-driver.cdi.k8s.io"
ONE = ClaimDevice("worker-1", "dev-1", ("test request",), ("example.com/example=cdi-example",))


def claim(*devices: ClaimDevice, name: str = "example", uid: str = CLAIM_UID) -> ClaimState:
    return ClaimState(uid, name, "default", frozenset({POD_UID}), {DRIVER: devices})


SHARED = ClaimDevice(ONE.pool, ONE.name, ONE.requests, ONE.cdi_ids, "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa")
SECOND = ClaimDevice("worker-1", "dev-2", ONE.requests, ONE.cdi_ids)
BARE = ClaimDevice("worker-1", "dev-2")


def wire(name: str, share: str = "null", requests: str = '["test request"]', cdi: str = "") -> str:
    cdi = cdi or '["example.com/example=cdi-example"]'
    return (
        f'{{"PoolName":"worker-1","DeviceName":"{name}","ShareID":{share},"RequestNames":{requests},'
        f'"CDIDeviceIDs":{cdi}}}'
    )


def state(devices: str, name: str = "example", uid: str = CLAIM_UID) -> str:
    return (
        f'{{"ClaimUID":"{uid}","ClaimName":"{name}","Namespace":"default","PodUIDs":{{"{POD_UID}":{{}}}},'
        f'"DriverState":{{"{DRIVER}":{{"Devices":[{devices}]}}}}}}'
    )


def file(states: str, checksum: int, version: str = "v1", name: str = "ClaimInfoStateList") -> bytes:
    """As the kubelet's tests have it."""
    data = f'{{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/{version}","{name}":[{states}]}}'
    return json.dumps({"Data": data, "Checksum": checksum}, separators=(",", ":")).encode()


ROWS: list[tuple[bytes, list[ClaimState]]] = [
    (file(state(wire("dev-1")), 2570581864), [claim(ONE)]),
    (file(state(wire("dev-1", '"aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"')), 736302156), [claim(SHARED)]),
    (file(state(wire("dev-1") + "," + wire("dev-2")), 1223221469), [claim(ONE, SECOND)]),
    (
        file(
            ",".join(
                [
                    state(wire("dev-1"), "example-1"),
                    state(wire("dev-2", "null", "null", "null"), "example-2", "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"),
                ]
            ),
            2820117767,
        ),
        [claim(ONE, name="example-1"), claim(BARE, name="example-2", uid="4cf8db2d-06c0-7d70-1a51-e59b25b2c16c")],
    ),
]


@pytest.mark.parametrize(("content", "claims"), ROWS)
def test_the_file_is_the_kubelets_to_the_byte(content: bytes, claims: list[ClaimState]) -> None:
    assert from_bytes(content) == claims
    assert to_bytes(claims) == content


@pytest.mark.parametrize(("version", "checksum"), [("v1", 1137250765), ("v0", 1284376732)])
def test_a_file_of_another_version_is_read(version: str, checksum: int) -> None:
    """Without the field that came later."""
    device = '{"PoolName":"worker-1","DeviceName":"dev-1","CDIDeviceIDs":["example.com/example=cdi-example"]}'
    (found,) = from_bytes(file(state(device), checksum, version))
    assert found.drivers == {DRIVER: (ClaimDevice("worker-1", "dev-1", (), ONE.cdi_ids),)}


def signed(data: Any) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    return json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())}).encode()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (file(state(wire("dev-1")), 2930258365), "has the checksum 2570581864, and should have 2930258365"),
        (b"{", "expected JSON"),
        (b"", "expected JSON"),
        (b"[]", "expected an object"),
        (signed("{"), "expected JSON"),
        (signed([]), "expected an object"),
        (signed({"ClaimInfoStateList": {}}), "expected a list"),
        (signed({"ClaimInfoStateList": [1]}), "expected an object"),
        (signed({"ClaimInfoStateList": [{"ClaimUID": 1}]}), "expected a text"),
        (signed({"ClaimInfoStateList": [{"DriverState": {"x": {"Devices": [{"ShareID": 1}]}}}]}), "expected a text"),
        (b'{"Data":"\\ud800","Checksum":1}', "no text"),
    ],
)
def test_a_broken_file_is_told(tmp_path: Path, content: bytes, problem: str) -> None:
    with pytest.raises(GoCheckpointError, match=problem):
        from_bytes(content)
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BrokenCheckpointError, match="drain this node, delete the file"):
        read_claims(tmp_path / "file")


def test_no_file_is_no_claims_and_a_file_without_claims_too(tmp_path: Path) -> None:
    assert read_claims(tmp_path / "none") == []
    assert from_bytes(signed({"ClaimInfoStateList": None})) == []
    assert from_bytes(to_bytes([])) == []
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_claims(tmp_path)


texts = st.text(max_size=5)
devices = st.builds(
    ClaimDevice, texts, texts, st.lists(texts, max_size=2).map(tuple), st.lists(texts).map(tuple), st.none() | texts
)
claims = st.builds(
    ClaimState,
    texts,
    texts,
    texts,
    st.frozensets(texts, max_size=3),
    st.dictionaries(texts, st.lists(devices, max_size=2).map(tuple), max_size=2),
)


@given(st.lists(claims, max_size=3))
def test_what_is_written_is_read(written: list[ClaimState]) -> None:
    assert from_bytes(to_bytes(written)) == written


async def test_what_has_not_changed_is_not_written(tmp_path: Path) -> None:
    known: list[ClaimState] = []
    path = tmp_path / "file"
    checkpoint = ClaimCheckpoint(path, lambda: known)
    await checkpoint.durable()
    assert not path.exists(), "a node without claims has no file"
    known.append(claim(ONE))
    await checkpoint.durable()
    assert read_claims(path) == known
    path.unlink()
    await checkpoint.durable()
    assert not path.exists()
    known.clear()
    await checkpoint.durable()
    assert read_claims(path) == []
    path.unlink()
    path.mkdir()
    known.append(claim())
    with pytest.raises(CheckpointError, match="cannot be written"):
        await checkpoint.durable()
