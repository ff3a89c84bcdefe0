"""The agent's own client on the test server: who it is, and connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tests.apiserver.raw_client import client_context
from trikubelet.kube_client.errors import ApiUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.apiserver.identities import Certificate
    from tests.apiserver.server import ApiServer


class ServerAccess:
    """An `Access` (`trikubelet.kube_client.access`) on memory streams, with a certificate, a token, or neither."""

    user_agent = "trikubelet/test"

    def __init__(self, server: ApiServer, certificate: Certificate | None = None, *, token: str = "") -> None:
        self.server = server.url
        self.token = token
        self._api = server
        self._listeners: list[Callable[[], None]] = []
        self._context = client_context(server, certificate, ["h2", "http/1.1"])

    @classmethod
    def node(cls, server: ApiServer, name: str) -> ServerAccess:
        """The agent of a node."""
        return cls(server, server.node_certificate(name))

    @classmethod
    def admin(cls, server: ApiServer) -> ServerAccess:
        return cls(server, server.admin_certificate())

    async def connect(self) -> tuple[trio.abc.Stream, str]:
        try:
            raw = await self._api.connect()
            host = self.server.removeprefix("https://").partition(":")[0]
            stream = trio.SSLStream(raw, self._context, server_hostname=host, https_compatible=True)
            with trio.fail_after(10):
                await stream.do_handshake()
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            raise ApiUnreachable(f"connect to {self.server}", str(error) or repr(error), False) from error
        return stream, stream.selected_alpn_protocol() or ""

    async def headers(self) -> Mapping[str, str]:
        await trio.lowlevel.checkpoint()
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def rejected(self, headers: Mapping[str, str]) -> None:
        """Nothing newer is to be had here."""

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def change(self, certificate: Certificate | None) -> None:
        """Be somebody else from now on."""
        self._context = client_context(self._api, certificate, ["h2", "http/1.1"])
        for listener in self._listeners:
            listener()
