"""Certificates and tokens: an authority of the server's own, and what it makes of what clients show.

Whether a certificate is still valid is judged by the server's clock, so that one that ends in a test's future does so
on a mock clock too; the TLS library, which has the machine's clock, is told not to look. As with Kubernetes, a
certificate that has ended is answered with 401. One of another authority is refused by TLS already, here.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

import attrs
import trustme

from tests.apiserver.users import AUTHENTICATED, MASTERS, NODE_PREFIX, NODES, User

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from trikubelet.clock import WallClock

NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAGNO_CHECK_TIME, which the ssl module does not name."""


@attrs.frozen
class Certificate:
    """A certificate with its chain, and its key: PEM."""

    cert_pem: bytes
    key_pem: bytes = attrs.field(repr=False)


class Identities:
    """The authority of one server and the tokens that it knows."""

    def __init__(self, clock: WallClock, *hosts: str) -> None:
        self.ca = trustme.CA()
        self._clock = clock
        self._hosts = hosts
        self._tokens: dict[str, User] = {}

    @property
    def ca_pem(self) -> bytes:
        return self.ca.cert_pem.bytes()

    def server_context(self, protocols: Sequence[str]) -> ssl.SSLContext:
        """For the server's side of connections: asks for a client certificate and does without one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*self._hosts, "localhost", "127.0.0.1", "::1").configure_cert(context)
        self.ca.configure_trust(context)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= NO_CHECK_TIME
        context.set_alpn_protocols(list(protocols))
        return context

    def certificate(
        self, name: str, group: str = "", *, begin: datetime | None = None, end: datetime | None = None
    ) -> Certificate:
        """A client certificate for the user `name` in `group`."""
        leaf = self.ca.issue_cert(common_name=name, organization_name=group or None, not_before=begin, not_after=end)
        chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
        return Certificate(chain, leaf.private_key_pem.bytes())

    def node_certificate(self, name: str) -> Certificate:
        return self.certificate(f"{NODE_PREFIX}{name}", NODES)

    def admin_certificate(self) -> Certificate:
        return self.certificate("kubernetes-admin", MASTERS)

    def add_token(self, token: str, user: User) -> None:
        """Requests with this token are the user's."""
        self._tokens[token] = user

    def remove_token(self, token: str) -> None:
        """Requests with this token are answered 401 from now on."""
        del self._tokens[token]

    def of_token(self, token: str) -> User | None:
        return self._tokens.get(token)

    def of_certificate(self, peer: dict[str, Any] | None) -> tuple[User | None, float]:
        """Whom the client's certificate names and until when, in seconds since 1970."""
        if not peer:
            return None, 0.0
        parts = [pair for relative in peer["subject"] for pair in relative]
        name = next((value for key, value in parts if key == "commonName"), "")
        groups = tuple(value for key, value in parts if key == "organizationName")
        return User(name, (*groups, AUTHENTICATED)), float(ssl.cert_time_to_seconds(peer["notAfter"]))
