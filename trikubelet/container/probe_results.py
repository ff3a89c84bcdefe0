"""What probes last said of containers: made by `probes`, and one of the things that a pod's plan goes by."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from trikubelet.container.model import ContainerID
from trikubelet.formats.values import frozen


class ProbeResult(enum.Enum):
    """What a probe last said of a container."""

    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


@frozen
class ProbeResults:
    """The latest probe results by container id. A container that is not in a mapping has not been probed yet."""

    liveness: Mapping[ContainerID, ProbeResult] = attrs.field(factory=dict)
    startup: Mapping[ContainerID, ProbeResult] = attrs.field(factory=dict)
