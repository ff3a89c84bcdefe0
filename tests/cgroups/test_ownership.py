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
    one, two, link = tmp_path / "one", tmp_path / "two", tmp_path / "link"
    one.mkdir()
    link.symlink_to(one)
    assert own_cgroup_root(USUAL_ROOT_DIR) == "/trikubelet"
    assert own_cgroup_root(one) == own_cgroup_root(link)
    assert owner_mark(link) == str(one)
    assert len({own_cgroup_root(folder) for folder in (USUAL_ROOT_DIR, one, two)}) == 3
