"""Which pods' cgroups and sandboxes are an agent's, by their marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trikubelet.cgroups.ownership import USUAL_ROOT_DIR, Ownership, own_cgroup_root, owner_mark

if TYPE_CHECKING:
    from pathlib import Path

OWN, OTHER = "/var/lib/trikubelet", "/var/lib/kubelet"
ALONE = Ownership(mark=OWN, alone=True, earlier=frozenset({"older"}))
IN_CLUSTER = Ownership(mark=OWN, alone=False)


@pytest.mark.parametrize(
    ("marks", "uid", "alone", "in_cluster"),
    [
        ((OWN,), "new", True, True),
        ((OTHER,), "new", False, False),
        ((OTHER,), "older", False, False),
        ((OWN, OTHER), "new", False, False),
        ((), "new", False, True),
        ((), "older", True, True),
        (("",), "new", False, True),
        (("",), "older", True, True),
    ],
)
def test_marks_and_uids_say_whose_a_pod_is(marks: tuple[str, ...], uid: str, alone: bool, in_cluster: bool) -> None:
    assert ALONE.owns(marks, uid) is alone
    assert IN_CLUSTER.owns(marks, uid) is in_cluster


def test_each_root_folder_has_a_cgroup_root_of_its_own(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert own_cgroup_root(USUAL_ROOT_DIR) == "/trikubelet"
    assert own_cgroup_root(one) == own_cgroup_root(tmp_path / "two/../one/")
    assert len({own_cgroup_root(folder) for folder in (USUAL_ROOT_DIR, one, two)}) == 3


def test_a_root_folder_that_moves_behind_a_symlink_keeps_its_pods(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    before, group = owner_mark(root), own_cgroup_root(root)
    root.rename(data)
    root.symlink_to(data)
    after = Ownership(mark=owner_mark(root), alone=True)
    assert after.mark == str(data)
    assert after.owns((before,), "new")
    assert after.owns((before, str(data)), "new")
    assert own_cgroup_root(root) == group
    root.unlink()
    assert not after.owns((before,), "new"), "another agent may have that folder now"


@pytest.mark.parametrize("mark", ["", ".", "\0", "/\0", "/\ud800", "/proc/self/root/..."])
def test_marks_that_are_no_paths_are_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert not Ownership(mark=str(tmp_path), alone=True).owns((mark, str(tmp_path)), "new")
    assert not Ownership(mark="").owns((mark, "/x"), "new")
