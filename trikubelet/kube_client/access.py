"""What a client needs to reach an API server: new connections, and credentials.

The client asks for a stream when it has no connection to send a request on, and for headers with every request. It
tells `rejected` when the server answers 401, so that the next headers are fresh ones. It learns through `on_change`
that its connections were made with an identity, or with trust, that is no longer the current one: those finish what is
in flight and are used for nothing new.

Everything else stays behind this: kubeconfigs, files that are rotated, plugins, proxies. `open_access` in dialing.py
makes one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import trio


class Access(Protocol):
    """A way to one API server, with credentials that stay current."""

    @property
    def server(self) -> str:
        """The base URL, without a slash at its end: `https://10.0.0.1:6443`. It may have a path."""
        ...

    @property
    def user_agent(self) -> str:
        """For the header of that name."""
        ...

    async def connect(self) -> tuple[trio.abc.Stream, str]:
        """A new connection and the protocol that TLS agreed on: `h2`, `http/1.1`, or "" (none, or no TLS).

        It goes through the proxy if there is one, and TLS is established. Raises ApiUnreachable (`sent` is False) and
        CredentialsError. It has a deadline of its own; when it is cancelled nothing is left open.
        """
        ...

    async def headers(self) -> Mapping[str, str]:
        """What identifies us in a request: `Authorization`, or nothing when the connection's certificate does.

        Usually returns without waiting; may run a plugin. Raises CredentialsError.
        """
        ...

    def rejected(self, headers: Mapping[str, str]) -> None:
        """The server answered 401 to a request with these headers. What is newer already is kept."""
        ...

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called synchronously when connections must be made anew. It must not block.

        Synchronously, since the request that found the change must not go out on an old connection.
        """
        ...
