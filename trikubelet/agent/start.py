"""What `run.py` has before it imports the parts of an agent, and `service.py` after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.formats.values import frozen
from trikubelet.rpc.grpc import Channel

if TYPE_CHECKING:
    from trikubelet.embedded.runtime import EmbeddedRuntime  # noqa: TC004 - only agents that use it import it


class StartError(Exception):
    """Something that the agent needs could not be started. The text says what, and what to do."""


@frozen
class ConnectedRuntime:
    """A runtime to work with; the embedded one also as it is, for what CRI has no calls for."""

    channel: Channel
    image_channel: Channel
    embedded: EmbeddedRuntime | None = None

    def pull_progress(self, image: str) -> str:
        """How far the pull of an image is, for people; empty where the runtime does not tell, or is not pulling it."""
        return "" if self.embedded is None else self.embedded.puller.progress_of(image)
