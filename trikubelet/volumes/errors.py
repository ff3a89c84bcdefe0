"""What can go wrong with a volume."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trikubelet.volumes.expansion import Refusal


class VolumeError(Exception):
    """A volume could not be prepared. `volume` is its name in the pod.

    Nothing of what was asked for is there.
    """

    def __init__(self, volume: str, problem: str) -> None:
        super().__init__(f'volume "{volume}": {problem}')
        self.volume = volume
        self.problem = problem


class UncertainVolumeError(VolumeError):
    """Whether the result is there, or still comes, is unknown: it is to be taken down all the same."""


@contextmanager
def uncertain(volume: str) -> Iterator[None]:
    """Have what fails in here be an UncertainVolumeError: something of the volume is there already."""
    try:
        yield
    except UncertainVolumeError:
        raise
    except VolumeError as error:
        raise UncertainVolumeError(volume, error.problem) from error


class TransientVolumeError(VolumeError):
    """Nothing was tried, since something is missing that may come: what was there before is as it was."""


class NotExpandedError(VolumeError):
    """A driver has not grown a volume, for a reason of its own."""

    def __init__(self, volume: str, problem: str, refusal: Refusal) -> None:
        super().__init__(volume, problem)
        self.refusal = refusal


class FileSystemMismatchError(VolumeError):
    """A disk cannot be mounted, and has another file system on it than is asked for."""


class VolumesNotReadyError(Exception):
    """A pod's volumes are not all there. Its text is the kubelet's."""

    def __init__(
        self,
        unmounted: Sequence[str],
        unattached: Sequence[str] = (),
        unprocessed: Sequence[str] = (),
        *,
        cause: str,
        timed_out: bool,
    ) -> None:
        """Names of volumes in the pod; `unprocessed` those of which it is not even known what they are."""
        self.unmounted = tuple(sorted(unmounted))
        self.unattached = tuple(sorted(unattached))
        self.unprocessed = tuple(sorted(unprocessed))
        self.cause = cause
        self.timed_out = timed_out
        parts = zip(
            ("unmounted", "unattached", "failed to process"),
            (self.unmounted, self.unattached, self.unprocessed),
            strict=True,
        )
        super().__init__(", ".join(f"{what} volumes=[{' '.join(names)}]" for what, names in parts) + f": {cause}")


class PodFoldersError(VolumesNotReadyError):
    """The folders that a pod's volumes lie in cannot be made."""

    def __str__(self) -> str:
        return self.cause


class AttachLimitError(VolumesNotReadyError):
    """The node can take no more volumes of a driver, so that the pod has to go elsewhere (kubelet:
    `VolumeAttachLimitExceededError`)."""

    def __str__(self) -> str:
        return f"Node has reached its volume attachment limit, rejecting pod. {super().__str__()}"
