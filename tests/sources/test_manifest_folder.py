from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trikubelet.sources.manifest_folder import ManifestFolder, ManifestFolderError

if TYPE_CHECKING:
    from pathlib import Path


def manifest(*names: str, image: str = "x:1") -> bytes:
    return "---\n".join(
        f"# the pod {name}\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n"
        f"spec: {{containers: [{{name: main, image: {image}}}]}}\n"
        for name in names
    ).encode()


@pytest.fixture
def folder(tmp_path: Path) -> ManifestFolder:
    return ManifestFolder(tmp_path / "manifests", "node")


def test_a_new_manifest_is_a_new_file_byte_for_byte(folder: ManifestFolder, tmp_path: Path) -> None:
    applied = folder.apply(manifest("web"), "web.yaml")
    assert (applied.file, applied.pods, applied.before) == (
        tmp_path / "manifests/web.yaml",
        ("default/web-node",),
        None,
    )
    assert applied.file.read_bytes() == manifest("web")
    assert applied.file.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in applied.file.parent.iterdir()] == ["web.yaml"], "nothing else is left"


def test_a_changed_manifest_replaces_the_file_that_holds_its_pod(folder: ManifestFolder) -> None:
    first = folder.apply(manifest("web"), "web.yaml")
    again = folder.apply(manifest("web", image="x:2"), "other-name.yaml")
    assert again.file == first.file
    assert again.before == manifest("web")
    assert again.file.read_bytes() == manifest("web", image="x:2")


def test_a_dry_run_writes_nothing(folder: ManifestFolder) -> None:
    assert not folder.apply(manifest("web"), "web.yaml", dry_run=True).file.exists()


def test_what_is_wrong_with_a_manifest_is_told_in_whole_and_nothing_is_written(
    folder: ManifestFolder, tmp_path: Path
) -> None:
    with pytest.raises(ManifestFolderError) as caught:
        folder.apply(
            b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: m, imge: x}]}\n", "web.yaml"
        )
    assert str(caught.value).splitlines() == [
        "web.yaml:4: spec.containers[0].imge: unknown field, it has no effect (warning)",
        "web.yaml:4: spec.containers[0].image: Required value",
    ]
    assert not (tmp_path / "manifests").exists()


@pytest.mark.parametrize("name", ["../web.yaml", ".web.yaml", "", "a/b", "a\0b"])
def test_a_file_stays_in_the_folder_and_is_seen(folder: ManifestFolder, name: str) -> None:
    with pytest.raises(ManifestFolderError, match="in the file's name"):
        folder.apply(manifest("web"), name)


def test_two_inputs_of_one_name_are_two_files(folder: ManifestFolder) -> None:
    folder.apply(manifest("web"), "pod.yaml")
    second = folder.apply(manifest("db"), "pod.yaml")
    assert second.file.name == "default-db-node.yaml"
    assert second.before is None


def test_pods_that_lie_beside_others_are_not_taken_from_them(folder: ManifestFolder) -> None:
    folder.apply(manifest("web", "db"), "both.yaml")
    with pytest.raises(ManifestFolderError, match=r"both\.yaml holds default/db-node, default/web-node"):
        folder.apply(manifest("web"), "web.yaml")
    with pytest.raises(ManifestFolderError, match=r"also holds default/db-node"):
        folder.delete("default/web-node")
    assert folder.apply(manifest("web", "db", "more"), "all.yaml").file.name == "both.yaml"


def test_a_pod_goes_with_its_file(folder: ManifestFolder) -> None:
    applied = folder.apply(manifest("web"), "web.yaml")
    assert folder.delete("default/web-node") == applied.file
    assert not applied.file.exists()
    with pytest.raises(ManifestFolderError, match=r"no manifest in .* holds the pod default/web-node"):
        folder.delete("default/web-node")


def test_a_single_file_of_pods_is_left_to_people(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_bytes(manifest("web"))
    folder = ManifestFolder(tmp_path / "one.yaml", "node")
    with pytest.raises(ManifestFolderError, match="is one manifest, and no folder"):
        folder.apply(manifest("web"), "web.yaml")
    with pytest.raises(ManifestFolderError, match="is one manifest, and no folder"):
        folder.delete("default/web-node")
