"""A keyring: credentials by the location of the registry that they are for.

Several credentials may fit an image, since locations may be general or special and a password may be in the middle of
being replaced. All of them are found, those of the longer location first, and the pull tries them in this order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import attrs

from trikubelet.formats.digests import sha256
from trikubelet.formats.hashing import go_json_string
from trikubelet.formats.values import define, frozen
from trikubelet.runtime.images.credentials.locations import Location, LocationError, covers, parse_location

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEFAULT_REGISTRY: Final = "index.docker.io"
_DEFAULT_REGISTRY_NAMES: Final = ("docker.io", _DEFAULT_REGISTRY)
_SCHEMES: Final = ("https://", "http://")
_API_PATHS: Final = ("/v1/", "/v2/")


@frozen(repr=False)
class Auth:
    """A login for a registry (Docker: `AuthConfig`). Files, secrets and plugins know only the first three."""

    username: str = ""
    password: str = ""
    email: str = ""
    auth: str = ""
    server_address: str = ""
    identity_token: str = ""
    registry_token: str = ""

    def __repr__(self) -> str:
        """Nothing: for some registries even the user name is a token."""
        return "Auth(…)"


@frozen
class Source:
    """The object that a credential belongs to, in the pod's namespace."""

    kind: Literal["secret", "service account"]
    uid: str
    namespace: str
    name: str


@frozen
class TrackedCredential:
    """A credential, and the object that it comes from."""

    auth: Auth
    source: Source | None = None
    """None: the node's own, which every pod may use."""

    @property
    def hash(self) -> str:
        """The kubelet's, to recognise the credential in the records of earlier pulls."""
        return credential_hash(self.auth)


@define
class Keyring:
    """Credentials by location."""

    invalid_locations: list[str] = attrs.field(factory=list)
    """Entries that were left out, for the log; without the user and password that a URL may hold."""
    _credentials: dict[str, list[TrackedCredential]] = attrs.field(factory=dict, repr=False)
    _locations: dict[str, Location | None] = attrs.field(factory=dict, repr=False)
    """Of the same keys, read once. None: nothing matches it."""

    def add(self, logins: Mapping[str, Auth], source: Source | None = None) -> None:
        """Add what a docker configuration holds, by location."""
        for location, auth in logins.items():
            try:
                key = _registry_key(location)
            except LocationError:
                self.invalid_locations.append(location.rpartition("@")[2])
                continue
            self._locations[key] = _read(key)
            self._credentials.setdefault(key, []).append(TrackedCredential(auth, source))

    def lookup(self, repository: str) -> list[TrackedCredential]:
        """The credentials for a repository such as `docker.io/library/busybox`, the most special first."""
        target = _read(repository)
        found = (
            []
            if target is None
            else [
                credential
                for key in sorted(self._credentials, reverse=True)
                if (location := self._locations[key]) is not None and covers(location, target)
                for credential in self._credentials[key]
            ]
        )
        if not found and is_in_default_registry(repository):
            found = self._credentials.get(_DEFAULT_REGISTRY, [])
        return list(found)


def _read(location: str) -> Location | None:
    try:
        return parse_location(location)
    except LocationError:
        return None


def is_in_default_registry(repository: str) -> bool:
    """Whether Docker would look in its own registry: the name begins with no host."""
    host, slash, _ = repository.partition("/")
    if not slash or host in _DEFAULT_REGISTRY_NAMES:
        return bool(host)
    return bool(host) and "." not in host and ":" not in host


def credential_hash(auth: Auth) -> str:
    """The hash by which the kubelet's pull records know a credential (Kubernetes: `hashAuthConfig`)."""
    fields = (
        ("username", auth.username),
        ("password", auth.password),
        ("auth", auth.auth),
        ("email", auth.email),
        ("serveraddress", auth.server_address),
        ("identitytoken", auth.identity_token),
        ("registrytoken", auth.registry_token),
    )
    members = ",".join(f'"{name}":{go_json_string(value)}' for name, value in fields if value)
    return sha256(f"{{{members}}}".encode()).hexdigest()


def _registry_key(location: str) -> str:
    """Host and path. `https://quay.io/v1/`, which Docker wrote once, is `quay.io`. Raises LocationError."""
    for scheme in _SCHEMES:
        if location.startswith(scheme):
            location = location.removeprefix(scheme)
            break
    parsed = parse_location(location)
    path = parsed.path[3:] if parsed.path.startswith(_API_PATHS) else parsed.path
    return parsed.authority + ("" if path == "/" else path)
