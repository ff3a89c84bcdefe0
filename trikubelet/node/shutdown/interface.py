"""What the shutdown manager needs of logind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager


class LogindError(Exception):
    """Logind does not answer, or cannot do what it is asked for."""


class Inhibitor(Protocol):
    """Delays a shutdown for as long as somebody holds it."""

    def keep(self) -> None:
        """Have the service manager hold it too, if it does such things: it outlives this process then."""
        ...

    def leave(self) -> None:
        """This process does not hold it any more."""
        ...

    def release(self) -> None:
        """Release it. May be called again."""
        ...


class LogindSession(Protocol):
    """Logind, until it is started anew or the message bus is. All methods raise LogindError."""

    async def is_shutting_down(self) -> bool:
        """Whether a shutdown is being prepared now. False again when all inhibitors are released."""
        ...

    async def longest_delay(self) -> float:
        """Seconds for which a shutdown can be delayed."""
        ...

    async def allow_delay(self, seconds: int) -> None:
        """Have logind accept such a delay; whether it does, shows a little later."""
        ...

    async def inhibit(self) -> Inhibitor:
        """Delay shutdowns from now on. Refused while one is being prepared."""
        ...

    async def next_change(self) -> bool:
        """Wait until a shutdown begins (True), or has been called off (False). Cancelling it loses nothing."""
        ...


class Logind(Protocol):
    def inherited(self) -> Inhibitor | None:
        """The one that an earlier agent had kept. To be asked once."""
        ...

    def session(self) -> AbstractAsyncContextManager[LogindSession]:
        """Find logind. Entering raises LogindError when it is not there."""
        ...
