"""What a flexVolume driver answers, and what it is told of a volume. Pure: JSON to and fro."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from trikubelet.formats import go_json
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import FlexPersistentVolumeSource, FlexVolumeSource, Pod

SUCCESS: Final = "Success"
NOT_SUPPORTED: Final = "Not supported"
_OPTION: Final = "kubernetes.io/"
SHOWN: Final = 500
"""Characters of an answer in an error."""


class AnswerError(Exception):
    """A driver said no, or nothing that can be understood."""


class NotSupportedError(Exception):
    """The driver leaves a command to the agent."""


@frozen
class Capabilities:
    """What a driver can. One that does not say, can all but metrics."""

    attach: bool = True
    selinux_relabel: bool = True
    supports_metrics: bool = False
    fs_group: bool = True
    requires_fs_resize: bool = True


@frozen
class Answer:
    """That of a command that succeeded."""

    message: str = ""
    device: str = ""
    attached: bool = False
    capabilities: Capabilities = Capabilities()


_CAPABILITIES: Final = {
    "attach": "attach",
    "selinuxrelabel": "selinux_relabel",
    "supportsmetrics": "supports_metrics",
    "fsgroup": "fs_group",
    "requiresfsresize": "requires_fs_resize",
}
"""Go reads keys in any case, and drivers were written for Go."""


def parse_answer(command: str, output: bytes) -> Answer:
    """Raises NotSupportedError and AnswerError."""
    try:
        return _parsed(command, _object(output))
    except RecursionError:
        raise AnswerError("expected an answer in JSON, got one that is nested too deeply") from None


def _parsed(command: str, values: Mapping[str, Any]) -> Answer:
    status, message = _text(values, "status"), _text(values, "message")
    if status == NOT_SUPPORTED:
        raise NotSupportedError(command)
    if status != SUCCESS:
        raise AnswerError(f"{command} command failed, status: {status[:SHOWN]}, reason: {message[:SHOWN]}")
    attached = values.get("attached")
    if attached is not None and not isinstance(attached, bool):
        raise AnswerError(f"expected true or false for attached, got {str(attached)[:SHOWN]!r}")
    return Answer(message, _text(values, "device"), bool(attached), _capabilities(values.get("capabilities")))


def options(
    source: FlexVolumeSource | FlexPersistentVolumeSource, name: str, *, read_only: bool, more: Mapping[str, str]
) -> str:
    """What a driver is told of a volume: what the volume itself says, and what the agent does, which wins. `name` is
    the persistent volume's, or the one in the pod."""
    told = {
        **source.options,
        f"{_OPTION}fsType": source.fs_type,
        f"{_OPTION}readwrite": "ro" if read_only else "rw",
        f"{_OPTION}pvOrVolumeName": name,
        **more,
    }
    return json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def pod_options(pod: Pod, group: int | None, secret: Mapping[str, bytes]) -> dict[str, str]:
    """What it is told of a pod; a secret's values in base64."""
    told = {
        f"{_OPTION}pod.name": pod.metadata.name,
        f"{_OPTION}pod.namespace": pod.metadata.namespace,
        f"{_OPTION}pod.uid": pod.metadata.uid,
        f"{_OPTION}serviceAccount.name": pod.spec.service_account_name,
    }
    told |= {f"{_OPTION}secret/{key}": base64.b64encode(value).decode() for key, value in secret.items()}
    return told if group is None else told | {f"{_OPTION}mounterArgs.FsGroup": str(group)}


def _capabilities(found: object) -> Capabilities:
    if found is None:
        return Capabilities()
    if not isinstance(found, dict):
        raise AnswerError(f"expected an object of capabilities, got {str(found)[:SHOWN]!r}")
    values = {}
    for key, value in found.items():
        field = _CAPABILITIES.get(key.lower())
        if field is None or value is None:
            continue
        if not isinstance(value, bool):
            raise AnswerError(f"expected true or false for the capability {key[:SHOWN]}, got {str(value)[:SHOWN]!r}")
        values[field] = value
    return Capabilities(**values)


def _object(output: bytes) -> dict[str, Any]:
    """By keys in lower case."""
    try:
        values = go_json.loads(output)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        shown = output[:SHOWN].decode(errors="replace")
        raise AnswerError(f'expected an answer in JSON, such as {{"status": "{SUCCESS}"}}, got {shown!r}')
    return {key.lower(): value for key, value in values.items()}


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if value is not None and not isinstance(value, str):
        raise AnswerError(f"expected a text for {key}, got {str(value)[:SHOWN]!r}")
    return value or ""
