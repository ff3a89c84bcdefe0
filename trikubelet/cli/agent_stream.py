"""Connections to the agent's socket that carry more than questions and answers. Imports Trio: import it when needed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from trikubelet.cli.client import lost_agent
from trikubelet.cli.failures import CommandError
from trikubelet.http.streaming.upgrade import UpgradeError
from trikubelet.linux.socket_address import socket_address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


async def connect(socket: Path) -> trio.SocketStream:
    """A connection to the agent. Raises CommandError."""
    try:
        with socket_address(str(socket)) as address:
            return await trio.open_unix_socket(address)
    except OSError as error:
        raise lost_agent(socket, error) from None


@contextmanager
def stream_errors(socket: Path) -> Iterator[None]:
    """Around the use of a stream to the agent: failures of its are CommandErrors. Goes outside of all nurseries."""
    try:
        yield
    except BaseExceptionGroup as group:
        # Which of several tasks was the first to notice that something is gone is of no interest to anybody.
        error = first_of(group)
        raise _command_error(error, socket) from None
    except (UpgradeError, trio.BrokenResourceError, trio.TooSlowError) as error:
        raise _command_error(error, socket) from None


def first_of(group: BaseException) -> BaseException:
    """The first error in a group and in the groups in it; a cancellation only where there is nothing else."""
    if not isinstance(group, BaseExceptionGroup):
        return group
    errors = [first_of(error) for error in group.exceptions]
    return next((error for error in errors if not isinstance(error, trio.Cancelled)), errors[0])


def _command_error(error: BaseException, socket: Path) -> BaseException:
    if isinstance(error, UpgradeError):
        return CommandError(error.message)
    if isinstance(error, trio.TooSlowError):
        return CommandError(f"the agent on {socket} did not answer in time")
    if isinstance(error, trio.BrokenResourceError):
        return lost_agent(socket, error)
    return error
