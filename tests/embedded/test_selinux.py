"""SELinux labels of containers, as containerd makes them: its own tables of what is asked for, and what comes of it."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.embedded.test_container_spec import IMAGE, PLAIN, ROOT, around
from trikubelet.clock import SystemClock
from trikubelet.embedded import selinux
from trikubelet.embedded.confinement import ConfinementError, pod_level, selinux_labels
from trikubelet.embedded.container_spec import container_spec
from trikubelet.embedded.inventory import Inventory
from trikubelet.embedded.records import ContainerImage, ContainerRecord, RecordStore, SandboxRecord
from trikubelet.linux.selinux import ContainerLabels, LabelError
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from pathlib import Path

DEFAULTS = ContainerLabels("system_u:system_r:container_t:s0", "system_u:object_r:container_file_t:s0")
NO_LEVELS = ContainerLabels("system_u:system_r:container_t", "system_u:object_r:container_file_t")
NOTHING = v1.SeLinuxOption()
OWN = "s0:c3,c4"


@pytest.mark.parametrize(
    ("level", "is_one"),
    [
        ("s0", True),
        ("s0-s0", True),
        ("s0:c0", True),
        ("s0:c0.c3", True),
        ("s0:c0,c3", True),
        ("s0-s0:c0,c3", True),
        ("s0-s0:c0,c3.c6", True),
        ("s0-s0:c0,c3.c6,c8.c10", True),
        ("s0-s0:c0,c3.c6,c8,c10", True),
        ("s0,c0,c3", False),
        ("s0:c0.c3.c6", False),
        ("s0-s0,c0,c3", False),
        ("s0-s0:c0.c3.c6", False),
        ("s0-s0:c0,c3.c6.c8", False),
        ("s0:c1\n", False),
        ('s0:c1",size=1', False),
        ("s0:c\u0661", False),
    ],
)
def test_levels_are_those_that_containerd_takes(level: str, is_one: bool) -> None:
    if is_one:
        selinux.check_options(v1.SeLinuxOption(level=level))
    else:
        with pytest.raises(LabelError, match="invalid level"):
            selinux.check_options(v1.SeLinuxOption(level=level))


@pytest.mark.parametrize(
    ("options", "process", "files"),
    [
        ({}, f"system_u:system_r:container_t:{OWN}", f"system_u:object_r:container_file_t:{OWN}"),
        (
            {"role": "user_r", "level": "s0:c1,c2"},
            "system_u:user_r:container_t:s0:c1,c2",
            "system_u:object_r:container_file_t:s0:c1,c2",
        ),
        (
            {"user": "user_u", "role": "user_r", "type": "user_t", "level": "s0:c1,c2"},
            "user_u:user_r:user_t:s0:c1,c2",
            "user_u:object_r:container_file_t:s0:c1,c2",
        ),
        (
            {"user": "user_u", "role": "user_r", "type": "user_t"},
            f"user_u:user_r:user_t:{OWN}",
            f"user_u:object_r:container_file_t:{OWN}",
        ),
    ],
)
def test_what_is_asked_for_takes_the_place_of_defaults(options: dict[str, str], process: str, files: str) -> None:
    assert selinux.labels(DEFAULTS, v1.SeLinuxOption(**options), OWN) == (process, files)


def test_a_policy_without_levels_gives_none() -> None:
    assert selinux.labels(NO_LEVELS, NOTHING, "") == (NO_LEVELS.process, NO_LEVELS.file)
    assert selinux.labels(NO_LEVELS, NOTHING, OWN) == (NO_LEVELS.process, NO_LEVELS.file)
    assert selinux.privileged_label(NO_LEVELS) == "system_u:system_r:spc_t"


@given(st.sampled_from(["user", "role", "type"]), st.text(min_size=1))
def test_no_name_is_more_than_a_name(what: str, name: str) -> None:
    """A label becomes an option of mounts."""
    try:
        made = selinux.labels(DEFAULTS, v1.SeLinuxOption(**{what: name}), OWN)
    except LabelError:
        return
    assert all(re.fullmatch(r"[A-Za-z0-9_.:,-]+", label) for label in made)


def test_a_level_is_a_pair_that_no_other_pod_has() -> None:
    drawn = iter(chain([5, 5], [9, 1], [1022, 1023], [1, 9], [7, 2]))
    assert selinux.new_level({"s0:c1,c9", ""}, lambda _: next(drawn)) == "s0:c2,c7"
    used: set[str] = set()
    for _ in range(500):
        used.add(selinux.new_level(used))
    assert len(used) == 500
    for level in used:
        selinux.check_options(v1.SeLinuxOption(level=level))


def machine(root: Path, **more: str) -> Path:
    """One with SELinux, which knows every label."""
    files = {
        "sys/fs/selinux/enforce": "0",
        "sys/fs/selinux/context": "",
        "proc/self/attr/current": "system_u:system_r:unconfined_t:s0\0",
        "proc/1/attr/current": "system_u:system_r:unconfined_service_t:s0\0",
        "etc/selinux/config": "SELINUXTYPE=targeted\n",
        "etc/selinux/targeted/contexts/lxc_contexts": f'process = "{DEFAULTS.process}"\nfile = "{DEFAULTS.file}"\n',
        **more,
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def test_labels_need_a_kernel_a_policy_and_a_runtime_that_can_give_them(tmp_path: Path) -> None:
    assert "not enabled" in selinux.why_not(ROOT, tmp_path)
    assert "not enabled" in selinux.why_not(ROOT, machine(tmp_path, **{"proc/self/attr/current": "kernel\0"}))
    root = machine(tmp_path)
    assert selinux.why_not(ROOT, root) == ""
    assert "as root" in selinux.why_not(PLAIN, root)
    assert "older version" in selinux.why_not(attrs.evolve(ROOT, selinux=False), root)
    # The access that nobody grants here: what is written there is what comes back.
    machine(root, **{"sys/fs/selinux/enforce": "1", "sys/fs/selinux/access": ""})
    found = selinux.why_not(ROOT, root)
    assert "does not let system_u:system_r:unconfined_service_t:s0 start containers as" in found
    assert "SELinuxContext=system_u:system_r:container_runtime_t:s0" in found
    machine(root)
    (root / "sys/fs/selinux/context").unlink()  # the kernel takes no label
    (root / "sys/fs/selinux/context").mkdir()
    assert "no policy for containers is loaded" in selinux.why_not(ROOT, root)


def labels(root: Path, of_pod: v1.SeLinuxOption = NOTHING, **security: Any) -> dict[str, str] | None:
    return selinux_labels(v1.LinuxContainerSecurityContext(**security), of_pod, OWN, ROOT, root)


def test_a_container_that_asks_for_nothing_gets_what_its_pod_asks_for(tmp_path: Path) -> None:
    root, of_pod = machine(tmp_path), v1.SeLinuxOption(type="pod_t")
    assert labels(root) == {
        "process": f"system_u:system_r:container_t:{OWN}",
        "files": f"system_u:object_r:container_file_t:{OWN}",
    }
    assert (labels(root, of_pod) or {})["process"] == f"system_u:system_r:pod_t:{OWN}"
    own = (labels(root, of_pod, selinux_options=v1.SeLinuxOption(level="s0")) or {})["process"]
    assert own == "system_u:system_r:container_t:s0"


def test_a_privileged_container_is_free_and_its_files_are_its_pods(tmp_path: Path) -> None:
    assert labels(machine(tmp_path), privileged=True, selinux_options=v1.SeLinuxOption(type="strict_t")) == {
        "process": "system_u:system_r:spc_t:s0",
        "files": f"system_u:object_r:container_file_t:{OWN}",
    }


def test_without_selinux_only_what_asks_for_it_is_refused(tmp_path: Path) -> None:
    assert labels(tmp_path) is None
    for of_pod, own in ((v1.SeLinuxOption(type="x_t"), NOTHING), (NOTHING, v1.SeLinuxOption(level="s0"))):
        with pytest.raises(ConfinementError, match="seLinuxOptions: SELinux is not enabled on this machine"):
            labels(tmp_path, of_pod, selinux_options=own)


def test_the_level_of_a_pod_is_the_one_that_it_asks_for_or_a_new_one(tmp_path: Path) -> None:
    assert pod_level(NOTHING, set, ROOT, tmp_path) == ""
    with pytest.raises(ConfinementError, match="not enabled"):
        pod_level(v1.SeLinuxOption(level="s0"), set, ROOT, tmp_path)
    root = machine(tmp_path)
    assert re.fullmatch(r"s0:c[0-9]+,c[0-9]+", pod_level(NOTHING, set, ROOT, root))
    assert pod_level(v1.SeLinuxOption(level="s0:c1,c2"), lambda: {"s0:c1,c2"}, ROOT, root) == "s0:c1,c2"
    with pytest.raises(ConfinementError, match="seLinuxOptions: invalid type 'a b'"):
        pod_level(v1.SeLinuxOption(type="a b"), set, ROOT, root)
    contexts = 'process = "u:r:t"\nfile = "u:r:f"\n'
    machine(root, **{"etc/selinux/targeted/contexts/lxc_contexts": contexts})
    assert pod_level(NOTHING, set, ROOT, root) == ""


def test_what_is_in_the_place_of_the_runtimes_files_is_not_relabelled(tmp_path: Path) -> None:
    """CVE-2021-43816: a file of the host that a volume puts there would get the label of a container."""
    for name in ("hosts", "hostname", "resolv.conf"):
        (tmp_path / name).touch()
    context = attrs.evolve(around(), sandbox_folder=tmp_path)
    mounts = [
        v1.Mount(container_path="/etc/hosts", host_path="/etc/shadow"),
        v1.Mount(container_path="/volume", host_path="/srv/volume", selinux_relabel=True),
    ]
    spec = container_spec(context, v1.ContainerConfig(mounts=mounts), IMAGE)
    assert {mount["source"]: mount["relabel"] for mount in spec["mounts"]} == {
        "/etc/shadow": False,
        "/srv/volume": True,
        str(tmp_path / "hostname"): True,
        str(tmp_path / "resolv.conf"): True,
    }


def test_levels_are_kept_with_pods_and_containers(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    now = int(SystemClock().now().timestamp())
    store.save_sandbox(SandboxRecord("pod", v1.PodSandboxConfig(), now, selinux_level=OWN))
    image = ContainerImage("image", "image", "sha256:1")
    spec = {"selinux": {"process": "u:r:t:s0:c8,c9", "files": "u:r:f:s0:c8,c9"}}
    for name, its in (("one", spec), ("two", {"selinux": None}), ("old", {})):
        store.save_container(ContainerRecord(name, "pod", v1.ContainerConfig(), image, its, now))
    inventory = Inventory()
    inventory.sandboxes.update({record.id: record for record in store.load_sandboxes()})
    inventory.containers.update({record.id: record for record in store.load_containers()})
    assert inventory.sandboxes["pod"].selinux_level == OWN
    assert inventory.selinux_levels() == {OWN, "s0:c8,c9"}
