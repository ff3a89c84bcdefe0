from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import attrs
import pytest

import trikubelet.sources.manifest_folder as module
from trikubelet.linux.durable_files import write_atomically
from trikubelet.sources.manifest_folder import ManifestFolder, ManifestFolderError, NotHeldError
from trikubelet.sources.manifests import read_manifest


def manifest(*names: str, image: str = "x:1") -> bytes:
    return "---\n".join(
        f"# the pod {name}\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n"
        f"spec: {{containers: [{{name: main, image: {image}}}]}}\n"
        for name in names
    ).encode()


def written(file: Path, content: bytes) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> ManifestFolder:
    return ManifestFolder(root_dir=tmp_path, node_name="node", persons=tmp_path / "mine")


@pytest.fixture
def in_cluster(folder: ManifestFolder) -> ManifestFolder:
    return attrs.evolve(folder, in_cluster=True)


def test_a_new_manifest_is_a_new_file_byte_for_byte(folder: ManifestFolder, tmp_path: Path) -> None:
    applied = folder.apply(manifest("web"), "web.yaml")
    assert (applied.file, applied.pods, applied.before) == (tmp_path / "applied/web.yaml", ("default/web-node",), None)
    assert applied.file.read_bytes() == manifest("web")
    assert applied.file.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in applied.file.parent.iterdir()] == ["web.yaml"], "nothing else is left"


def test_a_changed_manifest_replaces_the_file_that_holds_its_pod(folder: ManifestFolder) -> None:
    first = folder.apply(manifest("web"), "web.yaml")
    again = folder.apply(manifest("web", image="x:2"), "other-name.yaml")
    assert again.file == first.file
    assert again.before == manifest("web")
    assert again.file.read_bytes() == manifest("web", image="x:2")


def test_a_replaced_file_keeps_one_backup(folder: ManifestFolder) -> None:
    for image in ("x:1", "x:2", "x:3"):
        file = folder.apply(manifest("web", image=image), "web.yaml").file
    assert sorted(entry.name for entry in file.parent.iterdir()) == [".web.yaml.before", "web.yaml"]
    assert file.with_name(".web.yaml.before").read_bytes() == manifest("web", image="x:2")
    folder.delete("default/web-node")
    assert list(file.parent.iterdir()) == []


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
    assert not (tmp_path / "applied").exists()


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
    with pytest.raises(ManifestFolderError, match=r"also holds default/db-node: give --with-others"):
        folder.delete("default/web-node")
    assert folder.apply(manifest("web", "db", "more"), "all.yaml").file.name == "both.yaml"
    assert folder.delete("default/web-node", with_others=True).others == ("default/db-node", "default/more-node")


def test_a_pod_goes_with_its_file(folder: ManifestFolder) -> None:
    applied = folder.apply(manifest("web"), "web.yaml")
    assert folder.delete("default/web-node").files == ((applied.file, None),)
    assert not applied.file.exists()
    with pytest.raises(NotHeldError, match=r"no manifest holds the pod default/web-node"):
        folder.delete("default/web-node")


def test_a_pod_that_must_be_new_is(folder: ManifestFolder) -> None:
    folder.apply(manifest("web"), "web.yaml", must_be_new=True)
    with pytest.raises(ManifestFolderError, match=r"default/web-node exists, in .*/applied/web\.yaml: --replace"):
        folder.apply(manifest("web", image="x:2"), "web.yaml", must_be_new=True)
    folder.apply(manifest("web", image="x:2"), "web.yaml")


# A person's files.


@pytest.mark.parametrize("must_be_new", [False, True])
def test_a_persons_pod_is_not_replaced(folder: ManifestFolder, tmp_path: Path, must_be_new: bool) -> None:
    mine = written(tmp_path / "mine/site.yaml", manifest("web"))
    with pytest.raises(
        ManifestFolderError, match=r"the pod default/web-node is in .*/mine/site\.yaml, a file of yours"
    ):
        folder.apply(manifest("web", "db", image="x:2"), "web.yaml", must_be_new=must_be_new)
    assert mine.read_bytes() == manifest("web")
    assert not (tmp_path / "applied").exists()


def test_a_persons_broken_file_still_holds_the_pods_that_run_of_it(folder: ManifestFolder, tmp_path: Path) -> None:
    mine = written(tmp_path / "mine/site.yaml", manifest("web"))
    last_good = [entry.pod for entry in read_manifest(mine, "node").pods]
    folder = attrs.evolve(folder, last_good=lambda file: last_good if file == mine else ())
    mine.write_bytes(b"kind: [")
    with pytest.raises(ManifestFolderError, match="a file of yours"):
        folder.apply(manifest("web", image="x:2"), "web.yaml")
    with pytest.raises(ManifestFolderError, match="give --remove-file to move the file"):
        folder.delete("default/web-node")
    folder.delete("default/web-node", remove_file=True)
    assert (tmp_path / "removed/site.yaml").read_bytes() == b"kind: ["


def test_a_persons_file_that_was_never_well_holds_the_pods_that_it_defines(
    folder: ManifestFolder, tmp_path: Path
) -> None:
    written(tmp_path / "mine/site.yaml", manifest("web").replace(b"image", b"imge"))
    with pytest.raises(ManifestFolderError, match=r"mine/site\.yaml, a file of yours"):
        folder.apply(manifest("web"), "web.yaml")


def test_a_persons_file_is_moved_when_told_to_and_never_over_another(folder: ManifestFolder, tmp_path: Path) -> None:
    for number in range(3):
        mine = written(tmp_path / "mine/web.yaml", manifest("web", image=f"x:{number}"))
        with pytest.raises(ManifestFolderError, match=f"give --remove-file to move the file to {tmp_path}/removed"):
            folder.delete("default/web-node")
        assert mine.exists()
        ((file, moved),) = folder.delete("default/web-node", remove_file=True).files
        assert file == mine
        assert moved == tmp_path / ("removed/web.yaml" + (f".{number}" if number else ""))
        assert not mine.exists()
    contents = [file.read_bytes() for file in sorted((tmp_path / "removed").iterdir())]
    assert contents == [manifest("web", image=f"x:{number}") for number in range(3)]


def test_other_pods_of_a_persons_file_end_only_when_told_to(folder: ManifestFolder, tmp_path: Path) -> None:
    mine = written(tmp_path / "mine/all.yaml", manifest("web", "db"))
    with pytest.raises(ManifestFolderError, match=r"all\.yaml also holds default/db-node: give --with-others"):
        folder.delete("default/web-node", remove_file=True)
    assert mine.exists()
    assert folder.delete("default/web-node", remove_file=True, with_others=True).others == ("default/db-node",)
    assert not mine.exists()


def test_a_pod_in_both_folders_goes_with_both_files(folder: ManifestFolder, tmp_path: Path) -> None:
    applied = folder.apply(manifest("web"), "web.yaml").file
    mine = written(tmp_path / "mine/web.yaml", manifest("web"))
    with pytest.raises(ManifestFolderError, match="--remove-file"):
        folder.delete("default/web-node")
    assert folder.delete("default/web-node", remove_file=True).files == (
        (mine, tmp_path / "removed/web.yaml"),
        (applied, None),
    )


def test_a_single_file_of_pods_is_a_persons(tmp_path: Path) -> None:
    one = written(tmp_path / "one.yaml", manifest("web"))
    folder = ManifestFolder(root_dir=tmp_path, node_name="node", persons=one)
    with pytest.raises(ManifestFolderError, match=r"one\.yaml, a file of yours"):
        folder.apply(manifest("web"), "web.yaml")
    assert folder.apply(manifest("db"), "db.yaml").file == tmp_path / "applied/db.yaml"
    folder.delete("default/web-node", remove_file=True)
    assert (tmp_path / "removed/one.yaml").read_bytes() == manifest("web")


def test_a_link_to_a_persons_file_is_removed_and_its_target_stays(folder: ManifestFolder, tmp_path: Path) -> None:
    target = written(tmp_path / "repository/web.yaml", manifest("web"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/web.yaml").symlink_to("../repository/web.yaml")
    folder.delete("default/web-node", remove_file=True)
    assert (target.read_bytes(), list((tmp_path / "mine").iterdir())) == (manifest("web"), [])
    assert (tmp_path / "removed/web.yaml").read_bytes() == manifest("web")


def test_a_link_in_the_folder_of_commands_is_a_persons(folder: ManifestFolder, tmp_path: Path) -> None:
    target = written(tmp_path / "repository/web.yaml", manifest("web"))
    (tmp_path / "applied").mkdir()
    (tmp_path / "applied/web.yaml").symlink_to(target)
    with pytest.raises(ManifestFolderError, match="a file of yours"):
        folder.apply(manifest("web", image="x:2"), "web.yaml")
    assert target.read_bytes() == manifest("web")


def test_a_file_on_another_file_system_is_copied_with_its_permissions(
    folder: ManifestFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = written(tmp_path / "mine/web.yaml", manifest("web"))
    mine.chmod(0o640)
    os.utime(mine, (1000, 2000))

    on_another_file_system(monkeypatch, mine)
    written(tmp_path / "removed/web.yaml", b"from before")
    folder.delete("default/web-node", remove_file=True)
    moved = tmp_path / "removed/web.yaml.1"
    assert (moved.read_bytes(), moved.stat().st_mode & 0o777, moved.stat().st_mtime) == (manifest("web"), 0o640, 2000)
    assert not mine.exists()
    assert (tmp_path / "removed/web.yaml").read_bytes() == b"from before"


@pytest.mark.parametrize("by_rename", [False, True])
def test_a_file_that_changes_while_it_is_copied_stays(
    folder: ManifestFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_rename: bool
) -> None:
    mine = written(tmp_path / "mine/web.yaml", manifest("web"))
    real = shutil.copystat

    def copystat(*paths: Path) -> None:
        real(*paths)
        if by_rename:
            written(tmp_path / "mine/.web.swp", manifest("web", image="x:2")).replace(mine)
        else:
            mine.write_bytes(manifest("web", image="x:two"))

    on_another_file_system(monkeypatch, mine)
    monkeypatch.setattr(shutil, "copystat", copystat)
    with pytest.raises(ManifestFolderError, match=r"was changed .* the version before is in .*removed/web\.yaml"):
        folder.delete("default/web-node", remove_file=True)
    assert mine.read_bytes() == manifest("web", image="x:2" if by_rename else "x:two")
    assert (tmp_path / "removed/web.yaml").read_bytes() == manifest("web")


@pytest.mark.parametrize("system_call", ["link", "rename", "replace", "unlink"])
def test_what_an_editor_saves_while_a_file_is_moved_is_not_lost(
    folder: ManifestFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system_call: str
) -> None:
    """An editor saves by renaming a new file over the old one."""
    mine = written(tmp_path / "mine/web.yaml", manifest("web"))
    real, rename = getattr(os, system_call), os.rename
    saved = written(tmp_path / "mine/.web.swp", manifest("web", image="x:2"))

    def call(path: Path, *others: object, **how: object) -> None:
        if Path(path) == mine and saved.exists():
            rename(saved, mine)
        real(path, *others, **how)

    monkeypatch.setattr(os, system_call, call)
    folder.delete("default/web-node", remove_file=True)
    left = [*(tmp_path / "mine").iterdir(), *(tmp_path / "removed").iterdir()]
    wanted = manifest("web") if saved in left else manifest("web", image="x:2")
    assert wanted in [file.read_bytes() for file in left if file != saved]


def test_a_file_that_cannot_be_moved_leaves_no_empty_one(
    folder: ManifestFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = written(tmp_path / "mine/web.yaml", manifest("web"))
    on_another_file_system(monkeypatch, mine, errno.EPERM)
    with pytest.raises(PermissionError):
        folder.delete("default/web-node", remove_file=True)
    assert mine.exists()
    assert list((tmp_path / "removed").iterdir()) == []


def on_another_file_system(monkeypatch: pytest.MonkeyPatch, file: Path, code: int = errno.EXDEV) -> None:
    """Make moves of this file fail as between file systems."""
    real = os.replace

    def replace(path: Path, *others: object) -> None:
        if Path(path) == file:
            raise OSError(code, os.strerror(code))
        real(path, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "replace", replace)


# In a cluster.


def test_in_a_cluster_files_have_names_of_their_own(in_cluster: ManifestFolder, tmp_path: Path) -> None:
    api_server = written(tmp_path / "mine/web.yaml", manifest("api-server"))
    applied = in_cluster.apply(manifest("web"), "web.yaml")
    assert applied.file == tmp_path / "mine/trikubelet-web.yaml"
    assert in_cluster.apply(manifest("web", image="x:2"), "x.yaml").file == applied.file
    assert in_cluster.apply(manifest("db"), "web.yaml").file == tmp_path / "mine/trikubelet-default-db-node.yaml"
    in_cluster.delete("default/web-node")
    assert sorted(file.name for file in (tmp_path / "mine").iterdir()) == [
        "trikubelet-default-db-node.yaml",
        "web.yaml",
    ]
    assert [file.name for file in (tmp_path / "written").iterdir()] == ["trikubelet-default-db-node.yaml"]
    assert api_server.read_bytes() == manifest("api-server")


def test_in_a_cluster_a_file_that_no_command_wrote_is_left_alone(in_cluster: ManifestFolder, tmp_path: Path) -> None:
    theirs = written(tmp_path / "mine/trikubelet-web.yaml", manifest("web"))
    with pytest.raises(ManifestFolderError, match=r"trikubelet-web\.yaml, a file that no command wrote as it is now"):
        in_cluster.apply(manifest("web", image="x:2"), "web.yaml")
    with pytest.raises(ManifestFolderError, match="--remove-file"):
        in_cluster.delete("default/web-node")
    assert in_cluster.apply(manifest("db"), "web.yaml").file.name == "trikubelet-default-db-node.yaml"
    assert theirs.read_bytes() == manifest("web")


def test_in_a_cluster_a_file_that_was_edited_is_the_persons(in_cluster: ManifestFolder, tmp_path: Path) -> None:
    file = in_cluster.apply(manifest("web"), "web.yaml").file
    file.write_bytes(edited := manifest("web", image="x:9"))
    with pytest.raises(ManifestFolderError, match="no command wrote as it is now"):
        in_cluster.apply(manifest("web", image="x:2"), "web.yaml")
    in_cluster.delete("default/web-node", remove_file=True)
    assert (tmp_path / "removed/trikubelet-web.yaml").read_bytes() == edited
    assert in_cluster.apply(manifest("web"), "web.yaml").file == file


def test_in_a_cluster_a_writer_that_is_killed_leaves_a_file_that_commands_know(
    in_cluster: ManifestFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = write_atomically

    class Killed(BaseException):
        """The process ends here."""

    for survives in range(3):
        file = in_cluster.apply(manifest("web"), "web.yaml").file
        left = [survives]

        def dies(path: Path, content: bytes, *, mode: int, left: list[int] = left) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            write(path, content, mode=mode)

        with monkeypatch.context() as patch:
            patch.setattr(module, "write_atomically", dies)
            with pytest.raises(Killed):
                in_cluster.apply(manifest("web", image="x:2"), "web.yaml")
        in_cluster.apply(manifest("web", image="x:3"), "web.yaml")
        assert file.read_bytes() == manifest("web", image="x:3")
        in_cluster.delete("default/web-node")


def test_in_a_cluster_a_copy_that_could_not_be_kept_leaves_a_file_that_commands_know(
    in_cluster: ManifestFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_cluster.apply(manifest("web"), "web.yaml")

    def rename(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomically", lambda file, raw, mode: file.write_bytes(raw))
        patch.setattr("pathlib.Path.rename", rename)
        with pytest.raises(OSError, match="Input/output"):
            in_cluster.apply(manifest("web", image="x:2"), "web.yaml")
    assert in_cluster.apply(manifest("web", image="x:3"), "web.yaml").before == manifest("web", image="x:2")


def test_in_a_cluster_a_backup_that_a_person_put_back_is_the_persons(
    in_cluster: ManifestFolder, tmp_path: Path
) -> None:
    in_cluster.apply(manifest("web"), "web.yaml")
    file = in_cluster.apply(manifest("web", image="x:2"), "web.yaml").file
    file.write_bytes((tmp_path / "written/.trikubelet-web.yaml.before").read_bytes())
    with pytest.raises(ManifestFolderError, match="no command wrote as it is now"):
        in_cluster.apply(manifest("web", image="x:3"), "web.yaml")


def test_in_a_cluster_a_file_that_appears_meanwhile_is_not_written_over(
    in_cluster: ManifestFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "mine/trikubelet-web.yaml"
    place = ManifestFolder._place

    def placed(*arguments: object) -> Path:
        file: Path = place(*arguments)  # type: ignore[arg-type]
        written(theirs, b"theirs")
        return file

    monkeypatch.setattr(ManifestFolder, "_place", placed)
    with pytest.raises(FileExistsError):
        in_cluster.apply(manifest("web"), "web.yaml")
    assert theirs.read_bytes() == b"theirs"


def test_in_a_cluster_there_must_be_a_folder_of_static_pods(in_cluster: ManifestFolder, tmp_path: Path) -> None:
    with pytest.raises(ManifestFolderError, match="start it with --manifests FOLDER"):
        attrs.evolve(in_cluster, persons=None).apply(manifest("web"), "web.yaml")
    one = written(tmp_path / "one.yaml", manifest("web"))
    with pytest.raises(ManifestFolderError, match="is one manifest, and no folder"):
        attrs.evolve(in_cluster, persons=one).apply(manifest("db"), "db.yaml")
