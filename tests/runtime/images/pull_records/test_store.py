"""The files, as the kubelet writes and reads them."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from trikubelet.runtime.images.pull_records.model import ImageCredentials, PulledRecord, PullSecret, PullServiceAccount
from trikubelet.runtime.images.pull_records.store import BrokenRecordError, RecordStore

if TYPE_CHECKING:
    from pathlib import Path

# The kubelet's names for the files of these keys.
INTENT = "docker.io/testing/test:latest"
INTENT_FILE = "image_manager/pulling/sha256-aef2af226629a35d5f3ef0fdbb29fdbebf038d0acd8850590e8c48e1e283aa56"
REF = "testimageref"
RECORD_FILE = "image_manager/pulled/sha256-b3c0cc4278800b03a308ceb2611161430df571ca733122f0a40ac8b9792a9064"

WIRE: dict[str, Any] = {
    "kind": "ImagePulledRecord",
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "lastUpdatedTime": "2024-10-21T12:26:40Z",
    "imageRef": REF,
    "credentialMapping": {
        "docker.io/testing/test": {
            "kubernetesSecrets": [{"uid": "u", "namespace": "default", "name": "s", "credentialHash": ""}],
            "kubernetesServiceAccounts": [{"uid": "u", "namespace": "default", "name": "a"}],
        },
        "open": {"nodePodsAccessible": True},
    },
}
RECORD = PulledRecord(
    last_updated_time=datetime(2024, 10, 21, 12, 26, 40, tzinfo=UTC),
    image_ref=REF,
    credential_mapping={
        "docker.io/testing/test": ImageCredentials(
            (PullSecret("u", "default", "s", ""),), (PullServiceAccount("u", "default", "a"),)
        ),
        "open": ImageCredentials(node_pods_accessible=True),
    },
)


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(tmp_path)


def put(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_record_is_the_kubelets(store: RecordStore, tmp_path: Path) -> None:
    store.write(RECORD)
    path = tmp_path / RECORD_FILE
    assert json.loads(path.read_text()) == WIRE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert store.read(REF) == RECORD
    assert store.records() == [RECORD]
    store.remove(REF)
    store.remove(REF)
    assert store.read(REF) is None


def test_an_intent_is_the_kubelets(store: RecordStore, tmp_path: Path) -> None:
    store.write_intent(INTENT)
    assert json.loads((tmp_path / INTENT_FILE).read_text()) == {
        "kind": "ImagePullIntent",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "image": INTENT,
    }
    assert store.has_intent(INTENT)
    assert store.intents() == [INTENT]
    store.remove_intent(INTENT)
    store.remove_intent(INTENT)
    assert not store.has_intent(INTENT)


def test_the_kubelets_earlier_version_is_read_and_written_as_the_present_one(
    store: RecordStore, tmp_path: Path
) -> None:
    put(tmp_path / RECORD_FILE, {**WIRE, "apiVersion": "kubelet.config.k8s.io/v1alpha1"})
    record = store.read(REF)
    assert record is not None
    assert record.credential_mapping == RECORD.credential_mapping
    store.write(record)
    assert json.loads((tmp_path / RECORD_FILE).read_text()) == WIRE


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"kind":"ImagePulledRecord"',
        "[]",
        {**WIRE, "kind": "ImagePullIntent"},
        {key: value for key, value in WIRE.items() if key != "kind"},
        {**WIRE, "apiVersion": "kubelet.config.k8s.io/v2"},
        {**WIRE, "imageRef": 3},
        {**WIRE, "lastUpdatedTime": "yesterday"},
        {**WIRE, "expires": "tomorrow"},
        {**WIRE, "credentialMapping": {"image": {"onlyOnMondays": True}}},
        {**WIRE, "credentialMapping": {"image": {"kubernetesSecrets": [{"key": "x"}]}}},
    ],
)
def test_a_broken_record_is_an_error_and_is_left_out_of_lists(store: RecordStore, tmp_path: Path, content: Any) -> None:
    put(tmp_path / RECORD_FILE, content)
    with pytest.raises(BrokenRecordError):
        store.read(REF)
    assert store.records() == []


def test_a_file_in_the_place_of_another_is_as_none(store: RecordStore, tmp_path: Path) -> None:
    put(tmp_path / RECORD_FILE, {**WIRE, "imageRef": "another"})
    put(
        tmp_path / INTENT_FILE,
        {"kind": "ImagePullIntent", "apiVersion": "kubelet.config.k8s.io/v1beta1", "image": "another"},
    )
    assert store.read(REF) is None
    assert not store.has_intent(INTENT)


def test_what_is_unfinished_or_foreign_is_not_listed(store: RecordStore, tmp_path: Path) -> None:
    store.write(RECORD)
    put(tmp_path / f"{RECORD_FILE}.tmp", "half")
    put((tmp_path / RECORD_FILE).with_name("README"), "hello")
    assert store.records() == [RECORD]
    store.write(RECORD)
    assert not (tmp_path / f"{RECORD_FILE}.tmp").exists()


def test_a_write_that_fails_leaves_the_old_record(
    store: RecordStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(RECORD)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", fail)
    with pytest.raises(OSError, match="No space left"):
        store.write(PulledRecord(image_ref=REF))
    monkeypatch.undo()
    assert store.read(REF) == RECORD
    assert [entry.name for entry in (tmp_path / RECORD_FILE).parent.iterdir()] == [(tmp_path / RECORD_FILE).name]


def test_nothing_there_is_nothing(store: RecordStore) -> None:
    assert (store.intents(), store.records(), store.read(REF), store.has_intent(INTENT)) == ([], [], None, False)
