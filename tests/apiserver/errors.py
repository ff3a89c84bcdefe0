"""Refusals, in the API server's words: clients and users know them, and some clients decide by them.

Kubernetes makes them in `apimachinery/pkg/api/errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.apiserver.resources import ResourceInfo

OBJECT_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


@attrs.frozen
class Cause:
    """One of several reasons, of a field."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def as_document(self) -> dict[str, str]:
        return {"reason": self.reason, "message": self.message, "field": self.field}


@attrs.frozen
class ApiFailure(Exception):  # noqa: N818 - of the request, not of this server
    """Answers a request with a Status."""

    code: int
    reason: str
    message: str
    details: dict[str, Any] | None = None
    retry_after: int | None = None

    def status(self) -> dict[str, Any]:
        """The body of the answer."""
        body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        body["message"] = self.message
        if self.reason:
            body["reason"] = self.reason
        details = dict(self.details or {})
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        if details:
            body["details"] = details
        body["code"] = self.code
        return body


def _details(info: ResourceInfo, name: str) -> dict[str, Any]:
    details = {"name": name, "group": info.group, "kind": info.plural}
    return {key: value for key, value in details.items() if value}


def not_found(info: ResourceInfo, name: str) -> ApiFailure:
    return ApiFailure(404, "NotFound", f'{info} "{name}" not found', _details(info, name))


def already_exists(info: ResourceInfo, name: str) -> ApiFailure:
    return ApiFailure(409, "AlreadyExists", f'{info} "{name}" already exists', _details(info, name))


def conflict(info: ResourceInfo, name: str, why: str, *, called: str = "") -> ApiFailure:
    """`called` stands for the resource where the server names the kind instead."""
    message = f'Operation cannot be fulfilled on {called or info} "{name}": {why}'
    details = _details(info, name)
    if called:
        details["kind"] = called.partition(".")[0]
    return ApiFailure(409, "Conflict", message, details)


def forbidden(info: ResourceInfo, name: str, why: str) -> ApiFailure:
    about = f'{info} "{name}"' if name else str(info)
    return ApiFailure(403, "Forbidden", f"{about} is forbidden: {why}", _details(info, name))


def namespace_terminating(info: ResourceInfo, name: str, namespace: str) -> ApiFailure:
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    failure = forbidden(info, name, why)
    cause = Cause("metadata.namespace", f"namespace {namespace} is being terminated", "NamespaceTerminating")
    return attrs.evolve(failure, details={**(failure.details or {}), "causes": [cause.as_document()]})


def invalid(info: ResourceInfo, name: str, causes: Sequence[Cause]) -> ApiFailure:
    texts = [f"{cause.field}: {cause.message}" for cause in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details: dict[str, Any] = {"name": name, "group": info.group, "kind": info.kind}
    details = {key: value for key, value in details.items() if value}
    details["causes"] = [cause.as_document() for cause in causes]
    return ApiFailure(422, "Invalid", f'{info.qualified_kind} "{name}" is invalid: {text}', details)


def bad_request(message: str) -> ApiFailure:
    return ApiFailure(400, "BadRequest", message)


def unprocessable(message: str) -> ApiFailure:
    return ApiFailure(422, "Invalid", message)


def expired(message: str) -> ApiFailure:
    return ApiFailure(410, "Expired", message)


def too_old(asked: int, oldest: int) -> ApiFailure:
    return expired(f"too old resource version: {asked} ({oldest})")


def too_large(asked: int, current: int) -> ApiFailure:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return ApiFailure(504, "Timeout", message, {"causes": [cause]}, retry_after=1)


def unauthorized() -> ApiFailure:
    return ApiFailure(401, "Unauthorized", "Unauthorized")


def no_such_path() -> ApiFailure:
    return ApiFailure(404, "NotFound", "the server could not find the requested resource", {})


def not_allowed() -> ApiFailure:
    message = "the server does not allow this method on the requested resource"
    return ApiFailure(405, "MethodNotAllowed", message, {})


def unsupported_media(supported: Sequence[str]) -> ApiFailure:
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(supported)
    return ApiFailure(415, "UnsupportedMediaType", message)
