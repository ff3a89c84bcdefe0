"""Credentials for a registry: CRI's AuthConfig, read as containerd does. Pure."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import urlsplit

import attrs

from trikubelet.formats.values import frozen

_DOCKER_HUB = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})


class CredentialsFormatError(ValueError):
    """Credentials that cannot be read. The text does not repeat them."""


@frozen
class Credentials:
    """A password, a token to exchange, or a token to show; all empty: none."""

    username: str = ""
    password: str = attrs.field(default="", repr=False)
    identity_token: str = attrs.field(default="", repr=False)
    """Exchanged at the token server (OAuth2's refresh token)."""
    registry_token: str = attrs.field(default="", repr=False)
    """Shown to the registry as it is."""

    @property
    def basic(self) -> str:
        """The Authorization header for a password; empty without one."""
        if not self.username and not self.password:
            return ""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


NO_CREDENTIALS = Credentials()


def read_credentials(
    registry: str,
    *,
    username: str = "",
    password: str = "",
    auth: str = "",
    server_address: str = "",
    identity_token: str = "",
    registry_token: str = "",
) -> Credentials:
    """Those for `registry` (a host as it stands in references); none when they are for another server.

    `auth` is base64 of `name:password`, as in Docker's configuration. Raises CredentialsFormatError.
    """
    if server_address and _host(server_address) != _host(registry):
        return NO_CREDENTIALS
    if auth and not username:
        username, password = _decode(auth)
    return Credentials(username, password, identity_token, registry_token)


def _decode(auth: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(auth, validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise CredentialsFormatError("the credentials' 'auth' is not base64 of NAME:PASSWORD") from error
    name, colon, password = text.partition(":")
    if not colon:
        raise CredentialsFormatError("the credentials' 'auth' holds no colon between name and password")
    return name, password.rstrip("\0")


def _host(address: str) -> str:
    host = urlsplit(address if "://" in address else f"//{address}").netloc.rpartition("@")[2].lower()
    return "docker.io" if host in _DOCKER_HUB else host
