"""Credentials from a program: the `exec` of a kubeconfig's user (KEP-541).

The program gets what is wanted in the environment variable KUBERNETES_EXEC_INFO and prints an ExecCredential: a
token, or a certificate with its key, or both, and until when they hold. `exec_info` and `decode_credential` are pure;
`run_exec_plugin` runs the program. Keeping the answer, and asking again, is up to `credentials.py`.

The sentences are kubectl's and the kubelet's. Nothing that a program prints on stdout is ever shown: it is a secret.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from trikubelet.api import DecodeError, from_dict
from trikubelet.api.schema import APIObject
from trikubelet.formats import go_json
from trikubelet.formats.values import frozen
from trikubelet.kube_client.kubeconfig_schema import ALWAYS, EXEC_VERSIONS
from trikubelet.kube_client.tls import KeyPair
from trikubelet.linux.programs import Finished, TooMuchOutputError, run_program
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.kube_client.kubeconfig import ClusterAccess, ExecSettings

TIMEOUT: Final = 60.0
"""Seconds that a program has for its answer."""
MAX_ANSWER: Final = 2**20
"""Bytes that a program may print: a token and a chain of certificates are some thousand."""
_KIND: Final = "ExecCredential"
_MAX_STDERR: Final = 2000
"""Bytes."""

log = get_logger("credentials")


@frozen
class ExecPluginError(Exception):
    """A program gave no credentials."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen
class ExecCredential:
    """What a program answered."""

    token: str = attrs.field(default="", repr=False)
    pair: KeyPair | None = None
    expires: datetime | None = None
    """None: it holds until the server refuses it."""


@frozen(repr=False)
class _Status(APIObject):
    expiration_timestamp: datetime | None = None
    token: str = attrs.field(default="", repr=False)
    client_certificate_data: str = ""
    client_key_data: str = attrs.field(default="", repr=False)


@frozen(repr=False)
class _Answer(APIObject):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


def exec_info(plugin: ExecSettings, access: ClusterAccess, authority: bytes | None, proxy_url: str) -> str:
    """The value of KUBERNETES_EXEC_INFO. `authority` is the PEM of the cluster's authority, if there is one."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        cluster = {
            "server": access.server,
            "tls-server-name": access.tls.server_name,
            "insecure-skip-tls-verify": access.tls.insecure,
            "certificate-authority-data": b64encode(authority or b"").decode(),
            "proxy-url": proxy_url,
            "disable-compression": access.disable_compression,
        }
        spec["cluster"] = {name: value for name, value in cluster.items() if value}
        if plugin.cluster_config is not None:
            spec["cluster"]["config"] = plugin.cluster_config
    return json.dumps({"kind": _KIND, "apiVersion": plugin.api_version, "spec": spec}, separators=(",", ":"))


def decode_credential(stdout: bytes, api_version: str) -> ExecCredential:
    """What a program printed. Raises ExecPluginError."""
    try:
        data = go_json.loads(stdout)
    except (ValueError, RecursionError):
        raise ExecPluginError("decoding stdout: expected one JSON object") from None
    if not isinstance(data, dict) or data.get("kind") != _KIND or not isinstance(data.get("apiVersion"), str):
        raise ExecPluginError(f"decoding stdout: expected an object with apiVersion and the kind {_KIND}")
    if data["apiVersion"] != api_version:
        returned = data["apiVersion"] if data["apiVersion"] in EXEC_VERSIONS else "(unknown)"
        raise ExecPluginError(
            f"exec plugin is configured to use API version {api_version}, plugin returned version {returned}"
        )
    try:
        status = from_dict(_Answer, data).status
    except DecodeError as error:
        fields = ", ".join(problem.path for problem in error.problems)
        raise ExecPluginError(f"decoding stdout: these fields are not of the type expected: {fields}") from None
    if status is None:
        raise ExecPluginError("exec plugin didn't return a status field")
    certificate, key = status.client_certificate_data, status.client_key_data
    if not (status.token or certificate or key):
        raise ExecPluginError("exec plugin didn't return a token or cert/key pair")
    if bool(certificate) != bool(key):
        raise ExecPluginError("exec plugin returned only certificate or key, not both")
    if not status.token.isascii() or not status.token.isprintable() or " " in status.token:
        raise ExecPluginError("exec plugin returned a token with characters that no header can carry")
    pair = KeyPair(certificate.encode(), key.encode()) if key else None
    return ExecCredential(status.token, pair, status.expiration_timestamp)


async def run_exec_plugin(plugin: ExecSettings, info: str, environment: Mapping[str, str]) -> ExecCredential:
    """Ask the program once. Raises ExecPluginError; cancelling kills it.

    It has `TIMEOUT` seconds, and is killed too when it prints more than `MAX_ANSWER` bytes. What it says on stderr is
    logged when it fails.
    """
    if plugin.interactive_mode == ALWAYS:
        raise ExecPluginError("exec plugin cannot support interactive mode: standard input is not a terminal")
    env = {**environment, **dict(plugin.env), "KUBERNETES_EXEC_INFO": info}
    done: Finished | None = None
    command = [plugin.command, *plugin.args]
    try:
        with trio.move_on_after(TIMEOUT):
            done = await run_program(command, env=env, most_stdout=MAX_ANSWER, most_stderr=_MAX_STDERR)
    except FileNotFoundError as error:
        hint = f" ({_printable(plugin.install_hint)})" if plugin.install_hint else ""
        raise ExecPluginError(f"exec: executable {plugin.command} not found{hint}") from error
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else str(error)
        raise ExecPluginError(f"exec: {plugin.command}: {reason}") from error
    except TooMuchOutputError:
        expected = f"expected one {_KIND} of at most {MAX_ANSWER >> 20} MiB"
        problem = f"exec: executable {plugin.command} was killed, since it went on printing: {expected}"
        raise ExecPluginError(problem) from None
    if done is None:
        raise ExecPluginError(f"exec: executable {plugin.command} gave no answer within {TIMEOUT:g} seconds")
    if done.code != 0:
        said = done.stderr.decode(errors="replace").strip()
        log.warning("a credential plugin failed", command=plugin.command, code=done.code, stderr=said)
        code = done.code if done.code > 0 else -1
        raise ExecPluginError(f"exec: executable {plugin.command} failed with exit code {code}")
    return decode_credential(done.stdout, plugin.api_version)


def _printable(text: str) -> str:
    """On one line, without characters that do something to a terminal."""
    words = " ".join(text.split())
    return "".join(char if char.isprintable() else f"U+{ord(char):04X}" for char in words)
