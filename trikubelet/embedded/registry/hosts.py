"""Which servers to ask for a registry's images: containerd's layout of `hosts.toml` files.

A registry `HOST:PORT` is configured by the first folder that exists of `HOST_PORT_`, `HOST:PORT` and `_default` below
each of the roots. Its `hosts.toml` names mirrors, in order, and may change how the registry itself is reached. A
folder without that file may hold certificates in Docker's way (`*.crt`, and `*.cert` with `*.key`).

Other than containerd, which then goes on without the file, a file that cannot be used is an error: a mirror or an
authority that is silently left out is a puzzle.
"""

from __future__ import annotations

import ipaddress
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import attrs

from trikubelet.embedded.registry.errors import HostsFileError
from trikubelet.formats.durations import parse_duration
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_HOSTS_DIRS: Final = (
    Path("/etc/trikubelet/certs.d"),
    Path("/etc/containerd/certs.d"),
    Path("/etc/docker/certs.d"),
)
_DOCKER_HUB: Final = ("docker.io", "registry-1.docker.io")
_CAPABILITIES: Final = frozenset({"pull", "resolve", "push"})


@frozen
class RegistryHost:
    """One server that has a registry's images, and how to talk to it."""

    scheme: str
    host: str
    """With a port where it is not the scheme's own."""
    path: str = "/v2"
    resolves: bool = True
    """May say what a tag means."""
    pulls: bool = True
    """May bring what a digest names."""
    authorities: tuple[Path, ...] = ()
    client_certificates: tuple[tuple[Path, Path | None], ...] = ()
    """Certificate and key; None: the key is in the certificate's file."""
    skip_verify: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    dial_timeout: float | None = None
    namespace: str = ""
    """Sent to a mirror as `?ns=`: the registry whose image is meant. Empty for the registry itself."""
    plain_http_fallback: bool = False
    """Try TLS first, and then plain HTTP where the server speaks none."""

    @property
    def base(self) -> str:
        return f"{self.scheme}://{self.host}{self.path}"


def find_hosts(registry: str, roots: Sequence[Path]) -> list[RegistryHost]:
    """The hosts to ask for a registry's images, in order. Blocking: reads files. Raises HostsFileError."""
    for root in roots:
        for name in _folder_names(registry):
            folder = root / name
            try:
                if folder.is_dir():
                    return _read_folder(registry, folder)
            except OSError as error:
                raise HostsFileError(f"{folder} cannot be read: {error}") from error
    return [default_host(registry)]


def default_host(registry: str) -> RegistryHost:
    """The registry itself, without any configuration.

    A registry on this machine's loopback need not prove its identity, and may speak plain HTTP.
    """
    if registry == _DOCKER_HUB[0]:
        return RegistryHost("https", _DOCKER_HUB[1])
    if not is_loopback(registry):
        return RegistryHost("https", registry)
    port = _port(registry)
    if port == 80:
        return RegistryHost("http", registry)
    return RegistryHost("https", registry, skip_verify=True, plain_http_fallback=port not in (None, 443))


def is_loopback(host: str) -> bool:
    """Whether `HOST[:PORT]` is this machine itself."""
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def parse_hosts_file(registry: str, text: str, folder: Path) -> list[RegistryHost]:
    """The hosts that a `hosts.toml` tells of, the registry itself last. Relative paths are in `folder`.

    Raises HostsFileError.
    """
    import tomllib  # loaded only where there are such files

    place = str(folder / "hosts.toml")
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise HostsFileError(f"{place}: expected TOML: {error}") from error
    reader = _Reader(place, folder, registry)
    mirrors = document.get("host", {})
    if not isinstance(mirrors, dict):
        raise HostsFileError(f"{place}: expected tables [host.\"URL\"], got 'host' = {mirrors!r}")
    hosts = [reader.host(url, reader.table(settings, url)) for url, settings in mirrors.items()]
    server = document.get("server", "")
    if not isinstance(server, str):
        raise HostsFileError(f"{place}: expected a URL in 'server', got {server!r}")
    return [*hosts, reader.host(server, document)]


def _folder_names(registry: str) -> list[str]:
    host, colon, port = registry.rpartition(":")
    return [*([f"{host}_{port}_"] if colon else []), registry, "_default"]


def _read_folder(registry: str, folder: Path) -> list[RegistryHost]:
    try:
        text = (folder / "hosts.toml").read_text()
    except FileNotFoundError:
        text = ""
    except ValueError as error:
        raise HostsFileError(f"{folder / 'hosts.toml'}: expected UTF-8: {error}") from error
    if text:
        return parse_hosts_file(registry, text, folder)
    host = default_host(registry)
    authorities = tuple(sorted(folder.glob("*.crt")))
    pairs = tuple((path, path.with_suffix(".key")) for path in sorted(folder.glob("*.cert")))
    return [_with_tls(host, authorities, pairs, skip_verify=None)]


def _with_tls(
    host: RegistryHost,
    authorities: tuple[Path, ...],
    pairs: tuple[tuple[Path, Path | None], ...],
    *,
    skip_verify: bool | None,
) -> RegistryHost:
    """The host with settings for TLS. With any, TLS is tried first also where the URL says plain HTTP."""
    if authorities and skip_verify is None:
        skip_verify = False  # an authority is named to be checked, also for a loopback registry
    host = attrs.evolve(
        host,
        authorities=authorities,
        client_certificates=pairs,
        skip_verify=host.skip_verify if skip_verify is None else skip_verify,
    )
    if host.scheme == "http" and (authorities or pairs or skip_verify is not None) and _port(host.host) != 80:
        return attrs.evolve(host, scheme="https", plain_http_fallback=True)
    return host


@frozen
class _Reader:
    """Reads one hosts file's tables."""

    place: str
    folder: Path
    registry: str

    def table(self, value: object, name: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(name, "a table", value)
        return value

    def host(self, url: str, settings: Mapping[str, Any]) -> RegistryHost:
        """`url` empty: the registry itself, as it is reached by default."""
        host = self._at(url, self._flag(settings, "override_path") or False) if url else default_host(self.registry)
        capabilities = self._strings(settings, "capabilities")
        if unknown := {word.lower() for word in capabilities} - _CAPABILITIES:
            raise self._wrong("capabilities", "pull, resolve or push", sorted(unknown))
        if url and capabilities:
            host = attrs.evolve(host, resolves="resolve" in capabilities, pulls="pull" in capabilities)
        host = attrs.evolve(host, headers=self._headers(settings), dial_timeout=self._dial_timeout(settings))
        authorities = tuple(self.folder / name for name in self._strings(settings, "ca"))
        return _with_tls(host, authorities, self._pairs(settings), skip_verify=self._flag(settings, "skip_verify"))

    def _at(self, url: str, override_path: bool) -> RegistryHost:
        try:
            parts = urlsplit(url if "://" in url else f"https://{url}")
            _ = parts.port
        except ValueError as error:
            raise self._wrong("host", "a URL", url) from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in url:
            raise self._wrong("host", "http://HOST[:PORT][/PATH] or https://…", url)
        path = posixpath.normpath(parts.path) if parts.path else ""
        path = "" if path in ("/", ".") else path
        if not override_path and not path.endswith("/v2"):
            path = f"{path}/v2"
        own = parts.netloc == self.registry or (self.registry, parts.netloc) == _DOCKER_HUB
        return RegistryHost(parts.scheme, parts.netloc, path, namespace="" if own else self.registry)

    def _strings(self, settings: Mapping[str, Any], key: str) -> list[str]:
        value = settings.get(key, [])
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise self._wrong(key, "a string or a list of strings", value)
        return values

    def _pairs(self, settings: Mapping[str, Any]) -> tuple[tuple[Path, Path | None], ...]:
        value = settings.get("client", [])
        pairs: list[tuple[Path, Path | None]] = []
        for item in [value] if isinstance(value, str) else value if isinstance(value, list) else [None]:
            if isinstance(item, str):
                pairs.append((self.folder / item, None))
            elif isinstance(item, list) and len(item) == 2 and all(isinstance(part, str) for part in item):
                pairs.append((self.folder / item[0], self.folder / item[1]))
            else:
                raise self._wrong("client", "a file, a list of files, or a list of [certificate, key]", value)
        return tuple(pairs)

    def _headers(self, settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        value = self.table(settings.get("header", {}), "header")
        headers = [(name, text) for name in value for text in self._strings(value, name)]
        for name, text in headers:
            if not name.isascii() or not name or any(char in name + text for char in "\r\n\0"):
                raise self._wrong("header", "a name and a value of one line", name)
        return tuple(headers)

    def _flag(self, settings: Mapping[str, Any], key: str) -> bool | None:
        value = settings.get(key)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def _dial_timeout(self, settings: Mapping[str, Any]) -> float | None:
        value = settings.get("dial_timeout", "")
        if value == "":
            return None
        try:
            return parse_duration(value).total_seconds()
        except (ValueError, TypeError) as error:
            raise self._wrong("dial_timeout", 'a duration such as "10s"', value) from error

    def _wrong(self, key: str, expected: str, value: object) -> HostsFileError:
        return HostsFileError(f"{self.place}: expected {expected} in {key!r}, got {value!r}")


def _port(host: str) -> int | None:
    try:
        return urlsplit(f"//{host}").port
    except ValueError:
        return None
