"""The registries' credentials that Docker's client keeps in files, and Kubernetes in secrets.

`config.json` has them below `auths`; the older `.dockercfg` is only that part. An entry has a user and a password, or
both in `auth`, which wins.

The node's own file is the first that can be read: `config.json` in the agent's root folder, in its working directory,
in `.docker` below its home and below `/`; then `.dockercfg` in the same folders without `.docker`. What was found is
used for five minutes, and so is not having found anything. The files are tiny and on the node's disk, so they are read
in place; nothing but a regular file is waited for.
"""

from __future__ import annotations

import binascii
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.runtime.images.credentials.keyring import Auth, Keyring
from trikubelet.runtime.images.credentials.secret_json import (
    SecretJSONError,
    as_object,
    as_text,
    parse_secret_json,
)
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

log = get_logger("credentials")

_LIFETIME: Final = 300.0
_MAX_SIZE: Final = 10 * 2**20
_BAD_AUTH: Final = "unable to parse auth field, must be formatted as base64(username:password)"

Logins = dict[str, Auth]
"""By location."""


def parse_config(raw: bytes) -> Logins:
    """Read a `config.json`. Raises SecretJSONError."""
    return _logins(_field(as_object(parse_secret_json(raw), "the configuration"), "auths"))


def parse_legacy_config(raw: bytes) -> Logins:
    """Read a `.dockercfg`. Raises SecretJSONError."""
    return _logins(parse_secret_json(raw))


class DockerConfigFiles:
    """The credentials of the node itself."""

    def __init__(self, preferred: Path, *, home: Path | None, working: Path = Path(), root: Path = Path("/")) -> None:
        """`preferred`: the agent's root folder, which is looked in first. `home`: None when there is none."""
        homes = () if home is None else (home,)
        self._configs = [folder / "config.json" for folder in (preferred, working)]
        self._configs += [folder / ".docker" / "config.json" for folder in (*homes, root)]
        self._legacy_configs = [folder / ".dockercfg" for folder in (preferred, working, *homes, root)]
        self._keyring = Keyring()
        self._expires = -1.0

    @classmethod
    def of_node(cls, preferred: Path) -> DockerConfigFiles:
        home = os.environ.get("HOME")
        return cls(preferred, home=Path(home) if home else None)

    def keyring(self) -> Keyring:
        """The content of the files, at most five minutes old."""
        now = trio.current_time()
        if now >= self._expires:
            self._keyring, self._expires = self._read(), now + _LIFETIME
        return self._keyring

    def _read(self) -> Keyring:
        keyring = Keyring()
        for paths, parse in ((self._configs, parse_config), (self._legacy_configs, parse_legacy_config)):
            logins = _first_valid(paths, parse)
            if logins is not None:
                keyring.add(logins)
                break
        for location in keyring.invalid_locations:
            log.warning("ignored an entry of the node's docker configuration: no registry location", location=location)
        return keyring


def _first_valid(paths: list[Path], parse: Callable[[bytes], Logins]) -> Logins | None:
    for path in paths:
        try:
            return parse(_read_file(path))
        except FileNotFoundError:
            continue
        except (OSError, SecretJSONError) as error:
            problem = error.strerror if isinstance(error, OSError) else str(error)
            log.warning("cannot use a docker configuration", path=str(path.absolute()), error=problem)
    return None


def _read_file(path: Path) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise SecretJSONError("no regular file")
        content = file.read(_MAX_SIZE + 1)
    if len(content) > _MAX_SIZE:
        raise SecretJSONError(f"more than {_MAX_SIZE} bytes")
    return content


def _logins(value: object) -> Logins:
    entries = as_object(value, "the list of credentials")
    return {location: _login(as_object(entry, "an entry")) for location, entry in entries.items()}


def _login(entry: dict[str, object]) -> Auth:
    username, password, email, auth = (
        as_text(_field(entry, name), name) for name in ("username", "password", "email", "auth")
    )
    login = Auth(username, password, email)
    if auth:
        username, password = decode_auth(auth)
        login = attrs.evolve(login, username=username, password=password)
    return login


def decode_auth(auth: str) -> tuple[str, str]:
    """User and password of an `auth` field: base64, padded or not, in which line ends do not count.

    Raises SecretJSONError.
    """
    encoded = auth.replace("\r", "").replace("\n", "")
    if "=" not in encoded:
        encoded += "=" * (-len(encoded) % 4)
    try:
        username, colon, password = binascii.a2b_base64(encoded, strict_mode=True).decode().partition(":")
    except ValueError:
        colon = ""
    if not colon:
        raise SecretJSONError(_BAD_AUTH)
    return username, password


def _field(entry: dict[str, object], name: str) -> object:
    """A field, whatever the case of its name: Go reads JSON so."""
    return next((value for key, value in reversed(entry.items()) if key.casefold() == name), None)
