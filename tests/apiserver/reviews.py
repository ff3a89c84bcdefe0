"""TokenReview and SubjectAccessReview: what a node asks about those who ask it.

A token is known or it is not (`Identities.add_token`). Administrators may do everything, others what `grant` says. As
with Kubernetes a token that is not good comes with an error's text, and a review is answered and kept nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.apiserver.documents import Document, dig
from tests.apiserver.errors import bad_request
from tests.apiserver.resources import ACCESS_REVIEWS, TOKEN_REVIEWS, ResourceInfo
from tests.apiserver.users import MASTERS

if TYPE_CHECKING:
    from tests.apiserver.identities import Identities

REVIEWS = (TOKEN_REVIEWS, ACCESS_REVIEWS)


class Reviews:
    """Answers reviews."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        self._grants: set[tuple[str, str, str]] = set()

    def grant(self, subject: str, verb: str, resource: str) -> None:
        """A user, or a group, may do this: `grant("ann", "get", "nodes/metrics")`."""
        self._grants.add((subject, verb, resource))

    def revoke(self, subject: str, verb: str, resource: str) -> None:
        self._grants.remove((subject, verb, resource))

    def answer(self, info: ResourceInfo, review: Document) -> Document:
        """The review with its status. Raises ApiFailure 400."""
        spec = review.get("spec")
        if not isinstance(spec, dict):
            raise bad_request("expected a spec")
        status = self._token(spec) if info is TOKEN_REVIEWS else self._access(spec)
        return {**review, "kind": info.kind, "apiVersion": info.api_version, "status": status}

    def _token(self, spec: Document) -> Document:
        if not spec.get("token"):
            raise bad_request("token is required for TokenReview in authentication")
        user = self._identities.of_token(spec["token"])
        if user is None:
            return {"user": {}, "error": "invalid bearer token"}
        who: dict[str, Any] = {"username": user.name, "uid": user.uid, "groups": list(user.groups)}
        return {"authenticated": True, "user": who, "audiences": ["https://kubernetes.default.svc"]}

    def _access(self, spec: Document) -> Document:
        what = spec.get("resourceAttributes") or {}
        resource = "/".join(part for part in (what.get("resource"), what.get("subresource")) if part)
        subjects = [spec.get("user", ""), *(dig(spec, "groups") or [])]
        allowed = MASTERS in subjects or any((who, what.get("verb"), resource) in self._grants for who in subjects)
        return {"allowed": allowed} if allowed else {"allowed": False, "reason": "no grant was found"}
