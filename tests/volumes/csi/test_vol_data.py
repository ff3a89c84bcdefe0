"""vol_data.json, as another kubelet reads and writes it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trikubelet.volumes.csi import paths, vol_data
from trikubelet.volumes.csi.vol_data import VolumeData, VolumeDataError

FULL = VolumeData(
    driver="d.example.com",
    handle="vol/1",
    spec_name="pv-1",
    node="node-1",
    lifecycle="Persistent",
    attachment="csi-abc",
)
OF_A_KUBELET = {
    "attachmentID": "csi-abc",
    "driverName": "d.example.com",
    "nodeName": "node-1",
    "specVolID": "pv-1",
    "volumeHandle": "vol/1",
    "volumeLifecycleMode": "Persistent",
}


def test_names_are_the_kubelets(tmp_path: Path) -> None:
    vol_data.save(tmp_path, FULL)
    assert json.loads((tmp_path / "vol_data.json").read_text()) == OF_A_KUBELET
    assert vol_data.load(tmp_path) == FULL
    assert [file.name for file in tmp_path.iterdir()] == ["vol_data.json"]


def test_a_staged_volume_has_its_driver_and_handle(tmp_path: Path) -> None:
    vol_data.save(tmp_path, VolumeData("d.example.com", "vol/1"))
    assert json.loads((tmp_path / "vol_data.json").read_text()) == {
        "driverName": "d.example.com",
        "volumeHandle": "vol/1",
    }


def test_what_a_kubelet_has_more_is_ignored(tmp_path: Path) -> None:
    content = {**OF_A_KUBELET, "somethingNew": "x"}
    (tmp_path / "vol_data.json").write_text(json.dumps(content))
    assert vol_data.load(tmp_path) == FULL


def test_there_may_be_none(tmp_path: Path) -> None:
    assert vol_data.load(tmp_path) is None
    assert vol_data.load(tmp_path / "missing") is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"driverName": "d"}', '{"volumeHandle": "v", "driverName": ""}'])
def test_half_a_file_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "vol_data.json").write_text(content)
    with pytest.raises(VolumeDataError, match=r"vol_data\.json"):
        vol_data.load(tmp_path)


def test_writing_never_leaves_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vol_data.save(tmp_path, FULL)

    def fails(self: Path, target: Path) -> Path:
        raise OSError("killed here")

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="killed here"):
        vol_data.save(tmp_path, VolumeData("other", "handle"))
    assert vol_data.load(tmp_path) == FULL
    monkeypatch.undo()
    vol_data.forget(tmp_path)
    assert not tmp_path.exists(), "what was being written goes too"


def test_folders_are_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        vol_data.make_folder(tmp_path / "a" / "b")
    finally:
        os.umask(old)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o750, 0o750]


def test_a_folder_with_data_is_never_removed(tmp_path: Path) -> None:
    target = tmp_path / "mount"
    target.mkdir()
    (target / "precious").touch()
    with pytest.raises(OSError, match="not empty"):
        vol_data.remove_target(target)
    vol_data.remove_if_empty(target)
    assert (target / "precious").exists()


def test_paths_are_the_kubelets(tmp_path: Path) -> None:
    assert paths.target(tmp_path, "u1", "pv-1") == tmp_path / "pods/u1/volumes/kubernetes.io~csi/pv-1/mount"
    digest = "bd393b4bcbb185a91d2dd75f962319ac0082bc9ff7a4bea49d06c9259e985e71"
    staged = tmp_path / "plugins/kubernetes.io/csi/d.example.com" / digest / "globalmount"
    assert paths.staging(tmp_path, "d.example.com", "vol/1") == staged
    block = paths.BlockPaths.of(tmp_path, "u1", "pv-1")
    devices = tmp_path / "plugins/kubernetes.io/csi/volumeDevices"
    assert block.staging == devices / "staging/pv-1"
    assert block.publish == devices / "publish/pv-1/u1"
    assert block.mapped == devices / "pv-1/dev/u1"
    assert block.data == devices / "pv-1/data"
    assert block.link == tmp_path / "pods/u1/volumeDevices/kubernetes.io~csi/pv-1"


@pytest.mark.parametrize("name", ["", "..", "a/b", "volumeDevices"])
def test_a_driver_is_one_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="expected the name of a CSI driver"):
        paths.staging(tmp_path, name, "v")
