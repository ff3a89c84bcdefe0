"""What containers are started with: the rows of `TestDeviceRunContainerOptions`, and who wins."""

from __future__ import annotations

from typing import Any

import pytest

from tests.node.devices.situations import R1, R2
from trikubelet.node.devices.extras import NO_EXTRAS, Conflict, container_extras
from trikubelet.node.devices.model import DeviceFile, DeviceMount, Grant, Needs
from trikubelet.rpc.cri import v1


def grant(**needs: Any) -> Grant:
    return Grant({"a": ()}, Needs(**needs))


def test_who_needs_nothing_gets_nothing() -> None:
    assert container_extras({R1: grant()})[0].environment == {}
    assert container_extras({}) == (container_extras({R1: grant()})[0], [])
    assert not NO_EXTRAS.devices


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (["v1.com/c=1", "v2.com/c=2"], [], ["v1.com/c=1", "v2.com/c=2"]),
        (["v1.com/c=1", "v2.com/c=2"], ["v3.com/c=3"], ["v1.com/c=1", "v2.com/c=2", "v3.com/c=3"]),
        (["v1.com/c=1", "v2.com/c=2"], ["v2.com/c=2", "v3.com/c=3"], ["v1.com/c=1", "v2.com/c=2", "v3.com/c=3"]),
    ],
)
def test_a_cdi_device_is_named_once(first: list[str], second: list[str], expected: list[str]) -> None:
    extras, conflicts = container_extras({R1: grant(cdi_devices=tuple(first)), R2: grant(cdi_devices=tuple(second))})
    assert (extras.cdi_devices, conflicts) == (expected, [])


def test_everything_that_plugins_ask_for_is_there() -> None:
    extras, conflicts = container_extras(
        {
            R2: grant(environment={"B": "2"}, files=(DeviceFile("/dev/b", "/dev/sdb", "rw"),)),
            R1: grant(
                environment={"A": "1"},
                mounts=(DeviceMount("/lib1", "/home/lib1", read_only=True),),
                files=(DeviceFile("/dev/a", "/dev/sda", "mrw"),),
                annotations={"x": "y"},
            ),
        }
    )
    assert extras.environment == {"A": "1", "B": "2"}
    assert extras.annotations == {"x": "y"}
    assert list(extras.mounts) == [v1.Mount(container_path="/lib1", host_path="/home/lib1", readonly=True)]
    assert list(extras.devices) == [
        v1.Device(container_path="/dev/a", host_path="/dev/sda", permissions="mrw"),
        v1.Device(container_path="/dev/b", host_path="/dev/sdb", permissions="rw"),
    ]
    assert conflicts == []


def test_the_first_resource_by_name_has_its_way() -> None:
    one = grant(
        environment={"A": "1", "SAME": "s"},
        mounts=(DeviceMount("/lib", "/one"),),
        files=(DeviceFile("/dev/a", "/dev/one", "r"),),
        annotations={"x": "one"},
    )
    two = grant(
        environment={"A": "2", "SAME": "s"},
        mounts=(DeviceMount("/lib", "/two"),),
        files=(DeviceFile("/dev/a", "/dev/two", "rw"),),
        annotations={"x": "two"},
    )
    extras, conflicts = container_extras({R2: two, R1: one})
    assert extras.environment == {"A": "1", "SAME": "s"}
    assert extras.annotations == {"x": "one"}
    assert [mount.host_path for mount in extras.mounts] == ["/one"]
    assert [(device.host_path, device.permissions) for device in extras.devices] == [("/dev/one", "r")]
    assert conflicts == [
        Conflict("device", "/dev/a", "/dev/one", "/dev/two"),
        Conflict("mount", "/lib", "/one", "/two"),
        Conflict("variable", "A", "1", "2"),
        Conflict("annotation", "x", "one", "two"),
    ]


def test_each_start_has_messages_of_its_own() -> None:
    """Whoever makes a container changes them."""
    grants = {R1: grant(mounts=(DeviceMount("/lib", "/one"),))}
    (one,), (other,) = container_extras(grants)[0].mounts, container_extras(grants)[0].mounts
    assert one is not other
