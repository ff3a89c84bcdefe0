"""Why something could not be done for a pod. The texts end up in container statuses and events: they speak to users."""

from __future__ import annotations

from collections.abc import Sequence

from trikubelet.formats.values import frozen


@frozen
class ContainerConfigError(Exception):
    """A container cannot be configured as its pod asks: the pod waits with CreateContainerConfigError."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen
class SandboxConfigError(Exception):
    """A sandbox cannot be configured as its pod asks."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen
class KillPodError(Exception):
    """Some of a pod's containers or sandboxes did not stop. What did stop stays stopped; kill again."""

    pod: str
    """`name_namespace(uid)`."""
    failures: Sequence[tuple[str, str]]
    """What did not stop, and what the runtime said."""

    def __str__(self) -> str:
        details = "; ".join(f"{what}: {problem}" for what, problem in self.failures)
        return f"pod {self.pod} did not stop: {details}"


@frozen
class GarbageCollectionError(Exception):
    """Parts of a garbage collection could not be done; the rest is. The next one tries again."""

    problems: Sequence[str]

    def __str__(self) -> str:
        return "; ".join(self.problems)
