"""What a call to an API server raises when it did not do what was asked.

Four things can happen, and callers treat them differently: the server refused (`ApiStatusError`: what to do depends on
the refusal), no answer came (`ApiUnreachable`: try again later, and a write may have happened), something else came
than asked for (`ApiAnswerError`), and there was nothing to identify ourselves with (`CredentialsError`).

A refusal comes as a `Status` object, with words that users of kubectl know. Proxies between agent and server refuse
too, in HTML or plain text.
"""

from __future__ import annotations

import http
from typing import Final

from trikubelet.api import DecodeError, Status, StatusDetails, from_dict
from trikubelet.formats import go_json
from trikubelet.formats.values import frozen

MESSAGE_LIMIT: Final = 1024
"""Bytes kept of an answer that is no Status."""
_OTHER_UID: Final = ("UID in precondition", "the UID in the precondition")


@frozen
class ApiError(Exception):
    """A call failed."""

    request: str
    """Method and path, as in `GET /api/v1/nodes/a`."""


@frozen
class ApiStatusError(ApiError):
    """The server, or something before it, refused."""

    code: int
    """The HTTP status."""
    reason: str
    """The server's word for programs: `NotFound`, `AlreadyExists`, `Expired`. Empty when a proxy answered."""
    message: str
    """The server's words for people; of an answer that is no Status the beginning of its text."""
    details: StatusDetails | None = None
    retry_after: float | None = None
    """Seconds that the server asks to wait before the next attempt, None when it does not say."""

    @property
    def not_found(self) -> bool:
        return self.code == 404

    @property
    def already_exists(self) -> bool:
        return self.code == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """The object is another version, or another object, than the request expected."""
        return self.code == 409 and self.reason != "AlreadyExists"

    @property
    def uid_differs(self) -> bool:
        """The object with this name is another one now than the request's UID says.

        API servers say so in three ways: for a DELETE, for a PUT (and a PATCH that lost a race), and for a PATCH, where
        the UID is a field that must not change.
        """
        if self.invalid and self.details is not None:
            return any(cause.field == "metadata.uid" for cause in self.details.causes)
        return self.conflict and any(words in self.message for words in _OTHER_UID)

    @property
    def unauthorized(self) -> bool:
        """The credentials are not, or no longer, accepted."""
        return self.code == 401

    @property
    def forbidden(self) -> bool:
        return self.code == 403

    @property
    def namespace_terminating(self) -> bool:
        """The namespace is being deleted and takes no new objects. It is also `forbidden`."""
        return self.has_cause("NamespaceTerminating")

    @property
    def invalid(self) -> bool:
        """The object breaks the server's rules; `details.causes` says which, by field."""
        return self.code == 422

    @property
    def expired(self) -> bool:
        """The server no longer has the version that a watch or a page was to continue from: list again."""
        return self.code == 410 or self.reason in ("Expired", "Gone")

    @property
    def version_too_large(self) -> bool:
        """The server has not yet seen the version that was asked for, as after a restore from a backup."""
        return self.has_cause("ResourceVersionTooLarge") or "Too large resource version" in self.message

    @property
    def too_many(self) -> bool:
        return self.code == 429

    @property
    def server_fault(self) -> bool:
        return self.code >= 500

    def has_cause(self, reason: str) -> bool:
        """Whether one of the detailed causes has this reason."""
        return self.details is not None and any(cause.reason == reason for cause in self.details.causes)

    def __str__(self) -> str:
        text = f"{self.request}: {self.code} {self.reason or _phrase(self.code)}".rstrip()
        return f"{text}: {self.message}" if self.message else text


@frozen
class ApiUnreachable(ApiError):  # noqa: N818 - a state of the world more than an error
    """No connection, or it was lost, or no answer came in time."""

    cause: str
    """In the words of the operating system, of TLS, or of the deadline."""
    sent: bool
    """The request may have reached the server: whether a write happened is unknown."""

    def __str__(self) -> str:
        text = f"{self.request}: no answer from the API server: {self.cause}"
        if self.sent and not self.request.startswith("GET "):
            text += " (the change may have been made)"
        return text


@frozen
class ApiAnswerError(ApiError):
    """The server agreed, but its answer is not the object that was asked for. A write has happened."""

    problem: str

    def __str__(self) -> str:
        return f"{self.request}: cannot read the API server's answer: {self.problem}"


@frozen
class CredentialsError(ApiError):
    """There are no credentials to make the request with: a plugin or a file failed. Nothing was sent."""

    message: str

    def __str__(self) -> str:
        return f"{self.request}: {self.message}"


def refusal(request: str, code: int, body: bytes, retry_after: str = "") -> ApiStatusError:
    """The error for an HTTP response that is no success, from its status, its body and its Retry-After header."""
    status = _status_in(body)
    if status is None:
        message = body[:MESSAGE_LIMIT].decode("utf-8", "replace").strip()
        return ApiStatusError(request, code, "", message, retry_after=_seconds(retry_after))
    return _from_status(request, code, status, _seconds(retry_after))


def error_event(request: str, status: Status) -> ApiStatusError:
    """The error for an `ERROR` event of a watch. Its code is in the object, since the response itself was a success."""
    return _from_status(request, status.code or 500, status, None)


def _from_status(request: str, code: int, status: Status, retry_after: float | None) -> ApiStatusError:
    if retry_after is None and status.details is not None and status.details.retry_after_seconds > 0:
        retry_after = float(status.details.retry_after_seconds)
    return ApiStatusError(request, code, status.reason, status.message, status.details, retry_after)


def _status_in(body: bytes) -> Status | None:
    try:
        data = go_json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("kind") != "Status":
        return None
    try:
        return from_dict(Status, data)
    except DecodeError:
        return None


def _seconds(header: str) -> float | None:
    """A Retry-After in seconds; the form with a date, which API servers do not use, is ignored."""
    text = header.strip()
    return float(text) if text.isascii() and text.isdecimal() else None


def _phrase(code: int) -> str:
    try:
        return http.HTTPStatus(code).phrase
    except ValueError:
        return ""
