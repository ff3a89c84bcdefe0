from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cgroups.pods import best_effort, burstable, guaranteed
from trikubelet.cgroups.errors import CgroupNameError
from trikubelet.cgroups.names import (
    CGROUPFS,
    ROOT,
    SYSTEMD,
    CgroupName,
    Naming,
    cgroup_name,
    from_cgroupfs,
    from_systemd,
    names_of_uid,
    paths_of_all_pods,
    pod_name,
    systemd_unit,
    to_cgroupfs,
    to_systemd,
    uid_of,
)

UID = "6c1a4e95-6bb6-11e6-bc26-28d2444e470d"
SLICE_UID = UID.replace("-", "_")
COMPONENT = st.text(st.characters(codec="utf-8", exclude_characters="/_\0"), min_size=1).filter(
    lambda text: text not in (".", "..")
)
NAME = st.lists(COMPONENT, max_size=5).map(tuple)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        (ROOT, "-.slice"),
        (("system",), "system.slice"),
        (("system", "Burstable"), "system-Burstable.slice"),
        (("Burstable", "pod-123"), "Burstable-pod_123.slice"),
        (("test", "a", "b"), "test-a-b.slice"),
        (("test", "a", "b", "Burstable"), "test-a-b-Burstable.slice"),
        (("BestEffort", f"pod-{UID}"), f"BestEffort-pod_{SLICE_UID}.slice"),
    ],
)
def test_a_slice_is_named_after_the_whole_way(name: CgroupName, unit: str) -> None:
    assert systemd_unit(name) == unit


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (ROOT, "/"),
        (("Burstable",), "/Burstable.slice"),
        (("Burstable", "pod-123"), "/Burstable.slice/Burstable-pod_123.slice"),
        (("BestEffort", f"pod-{UID}"), f"/BestEffort.slice/BestEffort-pod_{SLICE_UID}.slice"),
        (("kubepods",), "/kubepods.slice"),
        (
            ("kubepods", "burstable", "pod1234-abcd-5678-efgh"),
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd_5678_efgh.slice",
        ),
    ],
)
def test_a_slice_lies_in_the_slices_above_it(name: CgroupName, path: str) -> None:
    assert to_systemd(name) == path


@pytest.mark.parametrize(
    ("literal", "name"), [("/test", ("test",)), ("/test.slice", ("test",)), ("/", ()), ("-.slice", ())]
)
def test_a_slice_is_read_back(literal: str, name: CgroupName) -> None:
    assert from_systemd(literal) == name


@pytest.mark.parametrize(
    ("literal", "name"),
    [("/", ()), ("", ()), ("/a/", ("a",)), ("/a//b", ("a", "b")), ("kube/pods_1", ("kube", "pods_1"))],
)
def test_a_path_is_read_as_a_name(literal: str, name: CgroupName) -> None:
    assert from_cgroupfs(literal) == name


def test_a_path_that_leads_upwards_is_no_name() -> None:
    with pytest.raises(CgroupNameError):
        from_cgroupfs("/kubepods/../system")


@pytest.mark.parametrize("component", ["a/b", "a_b", "", ".", "..", "a\0"])
def test_a_component_that_could_not_be_read_back_is_refused(component: str) -> None:
    with pytest.raises(CgroupNameError):
        cgroup_name(("kubepods",), component)


@given(NAME)
def test_a_name_survives_a_path(name: CgroupName) -> None:
    assert from_cgroupfs(to_cgroupfs(cgroup_name(ROOT, *name))) == name


@given(NAME)
def test_a_name_survives_a_slice(name: CgroupName) -> None:
    assert from_systemd(to_systemd(cgroup_name(ROOT, *name))) == name


@given(NAME, NAME)
def test_two_names_never_share_a_literal(one: CgroupName, other: CgroupName) -> None:
    for naming in (CGROUPFS, SYSTEMD):
        assert (naming.literal(one) == naming.literal(other)) == (one == other)


@given(NAME)
def test_the_group_below_lies_in_the_folder_of_the_group_above(name: CgroupName) -> None:
    for naming in (CGROUPFS, SYSTEMD):
        above = naming.literal(name).rstrip("/")
        assert naming.literal((*name, "x")).rpartition("/")[0] == above


def test_pods_lie_in_the_group_of_their_class() -> None:
    root = ("kubepods",)
    assert pod_name(root, guaranteed("u-1")) == ("kubepods", "podu-1")
    assert pod_name(root, burstable("u-1")) == ("kubepods", "burstable", "podu-1")
    assert pod_name(root, best_effort("u-1")) == ("kubepods", "besteffort", "podu-1")
    assert set(names_of_uid(root, "u-1")) == {
        pod_name(root, made("u-1")) for made in (guaranteed, burstable, best_effort)
    }


@pytest.mark.parametrize("naming", [CGROUPFS, SYSTEMD])
@pytest.mark.parametrize("root", [ROOT, ("kubepods",), ("some", "where", "kubepods")])
def test_the_pod_of_a_group_is_known_again(root: CgroupName, naming: Naming) -> None:
    table: list[tuple[CgroupName, str | None]] = [
        ((), None),
        (("pod123",), "123"),
        (("pod123", "container.scope"), None),
        (("burstable",), None),
        (("burstable", "pod123"), "123"),
        (("burstable", "pod123", "container.scope"), None),
        (("besteffort",), None),
        (("besteffort", "pod123"), "123"),
        (("besteffort", "pod123", "container.scope"), None),
        (("system",), None),
        (("system", "kubelet"), None),
        (("system", "pod123"), None),
        (("pod",), None),
        (("podthis-uid-contains-reserved-word-pod",), None),
    ]
    for name, uid in table:
        assert uid_of(naming.parse(naming.literal((*root, *name))), root) == uid, name


def test_a_pod_group_elsewhere_is_nobodys() -> None:
    assert uid_of(("other", "pod123"), ("kubepods",)) is None
    assert uid_of(("pod123",), ("kubepods",)) is None


@pytest.mark.parametrize(
    ("cgroup_root", "paths"),
    [
        ("", ("/kubepods", "/kubepods.slice")),
        ("/", ("/kubepods", "/kubepods.slice")),
        ("/a/b-c", ("/a/b-c/kubepods", "/a.slice/a-b_c.slice/a-b_c-kubepods.slice")),
    ],
)
def test_the_group_of_all_pods_lies_below_the_root_of_the_configuration(
    cgroup_root: str, paths: tuple[str, str]
) -> None:
    assert paths_of_all_pods(cgroup_root) == paths
