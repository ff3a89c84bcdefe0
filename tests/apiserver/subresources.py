"""Subresources that are created: a pod's binding to a node, its eviction, a service account's token."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tests.apiserver.documents import Document, clone, dig, items, name_of, uid_of
from tests.apiserver.errors import ApiFailure, Cause, bad_request, conflict, invalid, not_found
from tests.apiserver.registry import Attempt, Deletion, Registry, format_time
from tests.apiserver.resources import PODS, SERVICE_ACCOUNTS, ResourceInfo
from tests.apiserver.users import User, service_account_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.clock import WallClock

_HOUR: Final = 3600
_SHORTEST_TOKEN: Final = 600
_TOKEN_REQUEST: Final = ResourceInfo("authentication.k8s.io", "v1", "tokenrequests", "TokenRequest", True)


class Subresources:
    """POST to a subresource. `admit` is the registry's; tokens that are issued are told to `on_token`."""

    def __init__(
        self,
        registry: Registry,
        *,
        clock: WallClock,
        admit: Callable[[Attempt], None],
        on_token: Callable[[str, User], None],
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._admit = admit
        self._on_token = on_token

    def create(
        self, info: ResourceInfo, namespace: str, name: str, subresource: str, body: Document, user: User
    ) -> Document:
        """What the server answers. Raises ApiFailure."""
        attempt = Attempt(user, "CREATE", info, namespace, name, subresource, new=body)
        if (info, subresource) == (PODS, "binding"):
            self._admit(attempt)
            self.bind(namespace, name, str(dig(body, "target", "name") or ""), user)
            return _success()
        if (info, subresource) == (PODS, "eviction"):
            self._admit(attempt)
            options = body.get("deleteOptions") or {}
            self._registry.delete(PODS, namespace, name, deletion_in(options), user)
            return _success(201)
        assert (info, subresource) == (SERVICE_ACCOUNTS, "token"), subresource
        return self._token(attempt)

    def bind(self, namespace: str, name: str, node: str, user: User) -> Document:
        """What a scheduler does."""
        old = self._registry.find(PODS, namespace, name)
        if not node:
            raise bad_request("target.name: Required value")
        bound = dig(old, "spec", "nodeName")
        if bound:
            why = f'pod {name} is already assigned to node "{bound}"'
            raise conflict(PODS, name, why, called="pods/binding")
        new = clone(old)
        new["spec"]["nodeName"] = node
        others = [c for c in items(new, "status", "conditions") if c.get("type") != "PodScheduled"]
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
        scheduled |= {"lastTransitionTime": self._registry.now(), "observedGeneration": new["metadata"]["generation"]}
        new["status"] = {**new["status"], "conditions": [*others, scheduled]}
        return self._registry.commit(PODS, old, new, user)

    def _token(self, attempt: Attempt) -> Document:
        registry, namespace, body = self._registry, attempt.namespace, attempt.new or {}
        account = registry.find(SERVICE_ACCOUNTS, namespace, attempt.name)
        self._admit(attempt)
        spec = body.get("spec") or {}
        seconds = spec.get("expirationSeconds") or _HOUR
        if seconds < _SHORTEST_TOKEN:
            why = f"Invalid value: {seconds}: may not specify a duration less than 10 minutes"
            raise invalid(_TOKEN_REQUEST, "", [Cause("spec.expirationSeconds", why)])
        self._check_bound(namespace, spec.get("boundObjectRef"))
        now = self._clock.now()
        expires = now + timedelta(seconds=seconds)
        audiences = spec.get("audiences") or ["https://kubernetes.default.svc.cluster.local"]
        claims = {
            "iss": "https://kubernetes.default.svc.cluster.local",
            "sub": f"system:serviceaccount:{namespace}:{attempt.name}",
            "aud": audiences,
            "iat": int(now.timestamp()),
            "exp": int(expires.timestamp()),
            "jti": f"{registry.rng.getrandbits(64):016x}",
        }
        token = ".".join(_base64url(part) for part in ({"alg": "none"}, claims)) + ".test"
        self._on_token(token, service_account_user(namespace, attempt.name, uid_of(account)))
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": attempt.name,
                "namespace": namespace,
                "creationTimestamp": format_time(now),
                "managedFields": [],
            },
            "spec": {
                **spec,
                "audiences": audiences,
                "expirationSeconds": seconds,
                "boundObjectRef": spec.get("boundObjectRef"),
            },
            "status": {"token": token, "expirationTimestamp": format_time(expires)},
        }

    def _check_bound(self, namespace: str, reference: Document | None) -> None:
        if reference is None:
            return
        if reference.get("kind") != "Pod":
            raise bad_request(f"cannot bind token for serviceaccount to object type {reference.get('kind')}")
        name = str(reference.get("name") or "")
        pod = self._registry.store.get(PODS, namespace, name)
        if pod is None:
            raise not_found(PODS, name)
        uid = reference.get("uid")
        if uid and uid != uid_of(pod):
            why = (
                f"the UID in the bound object reference ({uid}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
            raise conflict(PODS, name_of(pod), why)


def deletion_in(options: Document) -> Deletion:
    """DeleteOptions as the registry wants them. Raises ApiFailure for what are none."""
    preconditions = options.get("preconditions") or {}
    grace = options.get("gracePeriodSeconds")
    if grace is not None and not isinstance(grace, int):
        raise ApiFailure(400, "BadRequest", f"gracePeriodSeconds: expected a number, got {grace!r}")
    return Deletion(grace, preconditions.get("uid"), preconditions.get("resourceVersion"))


def _success(code: int = 201) -> Document:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}


def _base64url(part: Document) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
