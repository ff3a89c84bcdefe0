"""Devices, what a container was given of them, and what it needs for them: values without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from trikubelet.formats.values import frozen

HEALTHY: Final = "Healthy"
"""Of a device. Plugins may say anything else of one that is not."""
UNHEALTHY: Final = "Unhealthy"


@frozen
class PluginDevice:
    """A device, as its plugin lists it."""

    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()
    """Those that it is close to; empty where the plugin does not tell."""


@frozen
class PluginOptions:
    """What a plugin wants to be asked."""

    pre_start: bool = False
    """Before each start of a container."""
    preferred_allocation: bool = False
    """Which devices go well together."""


@frozen
class DeviceFile:
    """A device file of the node, in a container."""

    container_path: str
    host_path: str
    permissions: str
    """Of `r`, `w` and `m`."""


@frozen
class DeviceMount:
    """A file or folder of the node, in a container."""

    container_path: str
    host_path: str
    read_only: bool = False


@frozen
class Needs:
    """What a container needs to use its devices: a plugin's answer to Allocate."""

    environment: Mapping[str, str] = attrs.field(factory=dict)
    mounts: tuple[DeviceMount, ...] = ()
    files: tuple[DeviceFile, ...] = ()
    annotations: Mapping[str, str] = attrs.field(factory=dict)
    cdi_devices: tuple[str, ...] = ()
    """`vendor.com/class=name`."""


@frozen
class Grant:
    """What one container has of one resource."""

    devices: Mapping[str, tuple[int, ...]]
    """By the device's id, its NUMA nodes."""
    needs: Needs = attrs.field(factory=Needs)


Grants = Mapping[str, Mapping[str, Grant]]
"""What a pod has: by container, then by resource."""


@frozen
class DeviceResources:
    """What the node has of its plugins' resources."""

    capacity: Mapping[str, int] = attrs.field(factory=dict)
    """Devices, by resource."""
    allocatable: Mapping[str, int] = attrs.field(factory=dict)
    """Those that are healthy, used or not."""
    gone: frozenset[str] = frozenset()
    """Resources whose plugin has ended for good. The node is to have 0 of them: that tells them from resources that
    are not the node's to give."""
