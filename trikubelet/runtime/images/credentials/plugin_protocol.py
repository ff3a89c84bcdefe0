"""One call of a plugin: `CredentialProviderRequest` on its stdin, `CredentialProviderResponse` on its stdout."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.formats.values import frozen
from trikubelet.linux.programs import TooMuchOutputError, run_program
from trikubelet.runtime.images.credentials.keyring import Auth
from trikubelet.runtime.images.credentials.secret_json import (
    SecretJSONError,
    as_object,
    as_text,
    parse_secret_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.runtime.images.credentials.plugin_config import CredentialProvider

_REQUEST: Final = "CredentialProviderRequest"
_RESPONSE: Final = "CredentialProviderResponse"
_RESPONSE_FIELDS: Final = frozenset({"kind", "apiVersion", "cacheKeyType", "cacheDuration", "auth"})
_LOGIN_FIELDS: Final = frozenset({"username", "password"})
_PLAIN_WORD: Final = re.compile(r"[A-Za-z0-9./-]{0,63}")
_TIMEOUT: Final = 60.0
_MAX_ANSWER: Final = 2**20
_MAX_STDERR: Final = 2000
"""Bytes."""


@frozen
class PluginError(Exception):
    """No credentials from a plugin. The message quotes nothing of what the plugin printed on stdout."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen
class PluginResponse:
    """The decoded answer of a plugin."""

    cache_key_type: str
    """`Image`, `Registry` or `Global`: what else the answer holds for."""
    cache_duration: float | None
    """Seconds; None: as the plugin's configuration says."""
    logins: dict[str, Auth] = attrs.field(repr=False)


def encode_request(
    api_version: str, image: str, token: str = "", annotations: Mapping[str, str] | None = None
) -> bytes:
    """One line of JSON."""
    request: dict[str, object] = {"kind": _REQUEST, "apiVersion": api_version, "image": image}
    if token:
        request["serviceAccountToken"] = token
    if annotations:
        request["serviceAccountAnnotations"] = dict(sorted(annotations.items()))
    return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def decode_response(raw: bytes, api_version: str) -> PluginResponse:
    """Raises PluginError, which tells the shape of a wrong answer and never its contents."""
    try:
        response = as_object(parse_secret_json(raw), "the response")
        actual = as_text(response.get("apiVersion"), "apiVersion")
    except SecretJSONError as error:
        raise PluginError(f"error reading GVK from response: {error}") from None
    if actual != api_version:
        raise PluginError(
            f"apiVersion from credential plugin response did not match expected apiVersion:{api_version}, "
            f"actual apiVersion:{_word(actual)}"
        )
    try:
        return _decode(response)
    except SecretJSONError as error:
        raise PluginError(f"error decoding credential provider plugin response from stdout: {error}") from None


def _decode(response: dict[str, object]) -> PluginResponse:
    if as_text(response.get("kind"), "kind") != _RESPONSE:
        raise SecretJSONError(f"kind is not {_RESPONSE}")
    _refuse_unknown(response, _RESPONSE_FIELDS, "the response")
    cache_key_type = as_text(response.get("cacheKeyType"), "cacheKeyType")
    if cache_key_type not in ("Image", "Registry", "Global"):
        raise PluginError(f"credential provider plugin did not return a valid cacheKeyType: {_word(cache_key_type)}")
    logins: dict[str, Auth] = {}
    for location, value in as_object(response.get("auth"), "auth").items():
        entry = as_object(value, "an entry of auth")
        _refuse_unknown(entry, _LOGIN_FIELDS, "an entry of auth")
        username, password = (as_text(entry.get(name), name) for name in ("username", "password"))
        logins[location] = Auth(username, password)
    return PluginResponse(cache_key_type, _duration(response.get("cacheDuration")), logins)


def _duration(value: object) -> float | None:
    from trikubelet.formats.durations import parse_duration

    if value is None:
        return None
    try:
        return parse_duration(as_text(value, "cacheDuration")).total_seconds()
    except SecretJSONError:
        raise
    except ValueError:
        raise SecretJSONError('cacheDuration is no duration such as "1m30s"') from None


def _refuse_unknown(entry: dict[str, object], known: frozenset[str], what: str) -> None:
    if not entry.keys() <= known:
        raise SecretJSONError(f"{what} has fields besides {', '.join(sorted(known))}")


def _word(text: str) -> str:
    """A word that a plugin printed where no secret is expected; anything longer is not shown."""
    return text if _PLAIN_WORD.fullmatch(text) else "(not shown)"


async def run_plugin(provider: CredentialProvider, image: str, request: bytes) -> bytes:
    """Run the plugin and return its stdout. Raises PluginError with its stderr; cancelling kills it."""
    problem = f"error execing credential provider plugin {provider.name} for image {image}"
    with trio.move_on_after(_TIMEOUT) as timeout:
        try:
            done = await run_program(
                [str(provider.executable), *provider.args],
                env={**os.environ, **dict(provider.env)},
                stdin=request,
                most_stdout=_MAX_ANSWER,
                most_stderr=_MAX_STDERR,
            )
        except OSError as error:
            raise PluginError(f"{problem}: {provider.executable}: {error.strerror}") from error
        except TooMuchOutputError as error:
            raise PluginError(f"{problem}: {error}") from None
    if timeout.cancelled_caught:
        raise PluginError(f"{problem}: no answer within {_TIMEOUT:g} seconds: context deadline exceeded")
    if done.code:
        raise PluginError(f"{problem}: {done.ending}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
