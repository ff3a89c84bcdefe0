"""From an API server's JSON to objects, lists and watch events. Pure.

A single object that cannot be read is the call's failure. In a list and in a watch it is one of many: it becomes
`Undecodable`, with as much of its metadata as there is, and the others are unharmed. `metadata.managedFields` is
dropped before decoding: the agent does not need it, and it is half of a pod's bytes.

What comes again is not decoded again. The answer to a write and the watch tell of the same version, and most
versions of an object differ in its status alone: an object that somebody still has, or its spec, is used again
(`Known`). So the many who keep versions of a pod keep one spec.

What is said of something unreadable goes to logs and events, so nothing of a secret may be in it: of an answer that
could be an object nothing is shown, nor any value of a Secret or a token.
"""

from __future__ import annotations

import marshal
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

import attrs

from trikubelet.api import (
    DecodeError,
    KubernetesObject,
    ObjectMeta,
    Problem,
    Secret,
    Status,
    TokenRequest,
    from_dict,
)
from trikubelet.formats import go_json
from trikubelet.formats.values import define
from trikubelet.kube_client.errors import ApiAnswerError, error_event
from trikubelet.kube_client.types import Undecodable, WatchEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.kube_client.errors import ApiStatusError
    from trikubelet.kube_client.types import Resource, WatchEventType

T = TypeVar("T", bound=KubernetesObject)

_SHOWN: Final = 200
"""Bytes of an unreadable answer that an error shows."""
_CONFIDENTIAL: Final = (Secret, TokenRequest)
_EVENT_TYPES: Final[Mapping[str, WatchEventType]] = {
    "ADDED": "ADDED",
    "MODIFIED": "MODIFIED",
    "DELETED": "DELETED",
    "BOOKMARK": "BOOKMARK",
}


def parse_object(body: bytes, request: str) -> dict[str, Any]:
    """The JSON object that a body is. Raises ApiAnswerError."""
    try:
        data = go_json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiAnswerError(request, f"expected JSON, got {_beginning(body)} ({error})") from None
    if not isinstance(data, dict):
        raise ApiAnswerError(request, f"expected a JSON object, got a {type(data).__name__}")
    return data


def _beginning(body: bytes) -> str:
    """A page of a proxy is worth seeing."""
    if body.lstrip()[:1] == b"{":
        return f"{len(body)} bytes that begin like an object"
    return repr(body[:_SHOWN].decode("utf-8", "replace"))


@define(eq=False)
class Known:
    """Objects of one API server that somebody has, and specs of such. Nothing is kept alive by this."""

    _objects: WeakValueDictionary[tuple[type, str, str], Any] = attrs.field(factory=WeakValueDictionary)
    """By class, UID and resource version, which name one state of one object."""
    _specs: WeakValueDictionary[tuple[type, bytes], Any] = attrs.field(factory=WeakValueDictionary)
    """By class and a digest of what the spec was decoded from."""

    def decode(self, cls: type[T], data: object) -> T:
        """Raises DecodeError."""
        version = _version_of(cls, data)
        if version is None or not isinstance(data, dict):
            return from_dict(cls, data)
        known: T | None = self._objects.get(version)
        if known is None:
            known = self._objects[version] = self._decode_new(cls, data)
        return known

    def _decode_new(self, cls: type[T], data: dict[str, Any]) -> T:
        spec = data.get("spec")
        if not isinstance(spec, dict) or not hasattr(cls, "spec"):
            return from_dict(cls, data)
        # The second format of marshal says the same for the same values, and distinguishes more of them than `==`.
        digest = cls, sha256(marshal.dumps(spec, 2)).digest()
        known = self._specs.get(digest)
        if known is None:
            decoded = from_dict(cls, data)
            self._specs[digest] = getattr(decoded, "spec")  # noqa: B009 - not every object has one
            return decoded
        others = from_dict(cls, {name: value for name, value in data.items() if name != "spec"})
        return attrs.evolve(others, spec=known)  # type: ignore[call-arg]  # as above


def _version_of(cls: type[T], data: object) -> tuple[type, str, str] | None:
    """None where it is not told."""
    metadata = data.get("metadata") if isinstance(data, dict) else None
    if not isinstance(metadata, dict):
        return None
    uid, version = metadata.get("uid"), metadata.get("resourceVersion")
    if not isinstance(uid, str) or not isinstance(version, str) or not uid or not version:
        return None
    return cls, uid, version


def decode_answer(cls: type[T], body: bytes, request: str, known: Known) -> T:
    """The object that was asked for. Raises ApiAnswerError when it is another, or cannot be read."""
    data = parse_object(body, request)
    expected = cls().kind
    kind = data.get("kind")
    if kind is not None and kind != expected:
        raise ApiAnswerError(request, f"expected a {expected}, got a {kind}")
    decoded = decode_item(cls, data, known)
    if isinstance(decoded, Undecodable):
        raise ApiAnswerError(request, f"the {expected} has {_text(decoded.problems)}")
    return decoded


def decode_item(cls: type[T], data: object, known: Known) -> T | Undecodable:
    """An object of a list or of a watch."""
    try:
        return known.decode(cls, _without_managed_fields(data))
    except DecodeError as error:
        problems = error.problems if cls not in _CONFIDENTIAL else [_unseen(problem) for problem in error.problems]
        return Undecodable(_readable_metadata(data), tuple(problems))


def decode_event(
    resource: Resource[T], line: bytes, request: str, known: Known
) -> WatchEvent[T] | ApiStatusError | str:
    """A line of a watch: an event, the error that ends the watch, or why the line is to be skipped.

    Raises ApiAnswerError for a line that is no event at all.
    """
    data = parse_object(line, request)
    name, obj = data.get("type"), data.get("object")
    if not isinstance(name, str) or not isinstance(obj, dict):
        raise ApiAnswerError(request, "expected an event with a type and an object")
    if name == "ERROR":
        return error_event(request, _status(obj))
    kind = _EVENT_TYPES.get(name)
    if kind is None:
        return f"unknown type of event {name!r}"
    if obj.get("kind", resource.kind) != resource.kind:
        return f"expected a {resource.kind}, got a {obj.get('kind')}"
    if kind == "BOOKMARK":
        # Nothing else is in it, so what a whole object must have is missing.
        return WatchEvent(kind, resource.cls(metadata=_readable_metadata(obj)))
    return WatchEvent(kind, decode_item(resource.cls, obj, known))


def _status(data: dict[str, Any]) -> Status:
    try:
        return from_dict(Status, data)
    except DecodeError as error:
        return Status(message=f"the watch ended with an error that cannot be read: {error}", code=500)


def _without_managed_fields(data: object) -> object:
    if isinstance(data, dict):
        metadata = data.get("metadata")
        if isinstance(metadata, dict):
            metadata.pop("managedFields", None)
    return data


def _readable_metadata(data: object) -> ObjectMeta:
    """What can be read of an object's metadata; at least its name and version if those are texts."""
    metadata = data.get("metadata") if isinstance(data, dict) else None
    if not isinstance(metadata, dict):
        return ObjectMeta()
    try:
        return from_dict(ObjectMeta, {key: value for key, value in metadata.items() if key != "managedFields"})
    except DecodeError:
        texts = {key: value for key, value in metadata.items() if isinstance(value, str)}
        return ObjectMeta(
            name=texts.get("name", ""),
            namespace=texts.get("namespace", ""),
            uid=texts.get("uid", ""),
            resource_version=texts.get("resourceVersion", ""),
        )


def _unseen(problem: Problem) -> Problem:
    return Problem(problem.path, "expected another value than the one that came, which is not shown")


def _text(problems: tuple[Problem, ...]) -> str:
    return "; ".join(f"{problem.path}: {problem.message}" for problem in problems[:5])
