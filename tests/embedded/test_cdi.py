"""Devices by names of the Container Device Interface."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from trikubelet.embedded.cdi import CDIError, read_specifications, spell_out_cdi_devices, with_cdi_devices
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from pathlib import Path

GPU: dict[str, Any] = {
    "cdiVersion": "0.6.0",
    "kind": "vendor.com/gpu",
    "containerEdits": {"env": ["DRIVER=1"], "mounts": [{"hostPath": "/opt/lib", "containerPath": "/lib/gpu"}]},
    "devices": [
        {
            "name": "0",
            "containerEdits": {
                "env": ["GPU=zero"],
                "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/null", "permissions": "rw"}],
                "additionalGids": [7, 0],
            },
        },
        {
            "name": "1",
            "containerEdits": {
                "env": ["GPU=one"],
                "deviceNodes": [{"path": "/dev/gpu1"}],
                "mounts": [
                    {"hostPath": "/run/x", "containerPath": "/x", "options": ["ro", "rslave", "rbind"], "type": "bind"}
                ],
            },
        },
    ],
}


def asks_for(*names: str, **fields: Any) -> v1.ContainerConfig:
    return v1.ContainerConfig(cdi_devices=[v1.CdiDevice(name=name) for name in names], **fields)


def write(folder: Path, name: str, specification: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(specification if isinstance(specification, str) else json.dumps(specification))


def test_a_device_is_what_its_file_says(tmp_path: Path) -> None:
    write(tmp_path, "gpu.json", GPU)
    before = asks_for(
        "vendor.com/gpu=0",
        envs=[v1.KeyValue(key="GPU", value=b"mine")],
        mounts=[v1.Mount(container_path="/lib/gpu", host_path="/mine"), v1.Mount(container_path="/y", host_path="/y")],
        linux=v1.LinuxContainerConfig(security_context=v1.LinuxContainerSecurityContext(supplemental_groups=[7, 8])),
    )
    after = with_cdi_devices(before, read_specifications([tmp_path]))
    assert after.cdi_devices == []
    assert [(one.key, one.value) for one in after.envs] == [("GPU", b"mine"), ("DRIVER", b"1"), ("GPU", b"zero")]
    assert [(one.container_path, one.host_path, one.permissions) for one in after.devices] == [
        ("/dev/gpu0", "/dev/null", "rw")
    ]
    assert [(one.container_path, one.host_path) for one in after.mounts] == [("/y", "/y"), ("/lib/gpu", "/opt/lib")]
    assert after.linux.security_context.supplemental_groups == [7, 8]
    assert [one.name for one in before.cdi_devices] == ["vendor.com/gpu=0"], "what the pod asked for stays"


def test_what_a_file_says_of_all_of_its_devices_counts_once(tmp_path: Path) -> None:
    write(tmp_path, "gpu.json", GPU)
    after = with_cdi_devices(
        asks_for("vendor.com/gpu=0", "vendor.com/gpu=1", "vendor.com/gpu=0"), read_specifications([tmp_path])
    )
    assert [one.value for one in after.envs] == [b"1", b"zero", b"one"]
    assert [(one.container_path, one.host_path, one.permissions) for one in after.devices] == [
        ("/dev/gpu0", "/dev/null", "rw"),
        ("/dev/gpu1", "/dev/gpu1", "rwm"),
    ]
    mount = after.mounts[-1]
    assert (mount.container_path, mount.readonly) == ("/x", True)
    assert mount.propagation == v1.MountPropagation.PROPAGATION_HOST_TO_CONTAINER


def test_files_may_be_yaml_and_others_are_none(tmp_path: Path) -> None:
    text = "cdiVersion: 0.5.0\nkind: a.b/c\ndevices:\n- name: d\n  containerEdits:\n    env: [X=1]\n"
    write(tmp_path, "one.yaml", text)
    write(tmp_path, "two.yml", text)
    write(tmp_path, "three.json.new", text)
    after = with_cdi_devices(asks_for("a.b/c=d"), read_specifications([tmp_path, tmp_path / "none"]))
    assert [(one.key, one.value) for one in after.envs] == [("X", b"1")]


def test_the_later_folder_counts_more_and_two_files_of_one_are_a_conflict(tmp_path: Path) -> None:
    first, second = tmp_path / "etc", tmp_path / "run"
    write(first, "a.json", {"kind": "a/b", "devices": [{"name": "d", "containerEdits": {"env": ["X=first"]}}]})
    write(second, "a.json", {"kind": "a/b", "devices": [{"name": "d", "containerEdits": {"env": ["X=second"]}}]})
    after = with_cdi_devices(asks_for("a/b=d"), read_specifications([first, second]))
    assert [one.value for one in after.envs] == [b"second"]
    write(second, "b.json", {"kind": "a/b", "devices": [{"name": "d"}]})
    with pytest.raises(CDIError, match=r"conflicting device a/b=d in .*a\.json, .*b\.json"):
        with_cdi_devices(asks_for("a/b=d"), read_specifications([first, second]))


@pytest.mark.parametrize(
    ("specification", "problem"),
    [
        ("{", "unresolvable CDI devices a/b=d"),
        ([], "unresolvable"),
        ({"kind": "a", "devices": [{"name": "d"}]}, "unresolvable"),
        ({"kind": "a/b", "devices": [{"name": "d"}, {"name": "d"}]}, "unresolvable"),
        ({"kind": "a/b", "devices": [{"name": "other"}]}, "unresolvable"),
        ({"kind": "a/b", "devices": [{"name": "d", "containerEdits": {"env": ["X"]}}]}, "unresolvable"),
        ({"kind": "a/b", "devices": [{"name": "d", "containerEdits": {"env": "X=1"}}]}, "unresolvable"),
        ({"kind": "a/b", "devices": [{"name": "d", "containerEdits": {"mounts": [{}]}}]}, "unresolvable"),
        ({"kind": "a/b", "devices": [{"name": "d", "containerEdits": {"additionalGids": [-1]}}]}, "unresolvable"),
        ({"kind": "a/b", "devices": [{"name": "d", "containerEdits": {"deviceNodes": [{"path": "x"}]}}]}, "unresolv"),
        (
            {"kind": "a/b", "devices": [{"name": "d", "containerEdits": {"hooks": [{"path": "/bin/x"}]}}]},
            "the embedded runtime cannot do what the devices want: hooks",
        ),
        (
            {"kind": "a/b", "containerEdits": {"intelRdt": {"closID": "x"}}, "devices": [{"name": "d"}]},
            "cannot do what the devices want: intelRdt",
        ),
    ],
)
def test_what_cannot_be_had_is_a_failure(tmp_path: Path, specification: Any, problem: str) -> None:
    write(tmp_path, "a.json", specification)
    with pytest.raises(CDIError, match=problem):
        with_cdi_devices(asks_for("a/b=d"), read_specifications([tmp_path]))


async def test_a_container_without_devices_reads_nothing(tmp_path: Path) -> None:
    config = v1.ContainerConfig()
    assert await spell_out_cdi_devices(config, [tmp_path / "none"]) is config
    write(tmp_path, "gpu.json", GPU)
    assert (await spell_out_cdi_devices(asks_for("vendor.com/gpu=0"), [tmp_path])).devices[0].host_path == "/dev/null"
