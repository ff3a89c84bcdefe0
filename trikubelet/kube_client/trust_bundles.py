"""ClusterTrustBundles as the one PEM file that a projected volume shows (kubelet: `clustertrustbundle` manager).

Few clusters have any, so they are read when a pod wants one for the first time, and watched from then on, all of them.
A server may serve no version of them, or only an older one; which, its refusal tells.

Trust anchors are certificates whose order means nothing. So that no client relies on one, it is another on each machine
and after each boot of it; within a boot it stays, also when the agent restarts, and files do not change for nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.formats.pem import pem_blocks
from trikubelet.kube_client.errors import ApiError, ApiStatusError
from trikubelet.kube_client.object_getter import ObjectError, object_error
from trikubelet.kube_client.reflector import Reflector
from trikubelet.kube_client.store import Store
from trikubelet.kube_client.types import TRUST_BUNDLES
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping

    from trikubelet.api import ClusterTrustBundle, ClusterTrustBundleProjection, LabelSelector, LabelSelectorRequirement
    from trikubelet.kube_client.types import ApiClient, Resource

VERSIONS: Final = (TRUST_BUNDLES, attrs.evolve(TRUST_BUNDLES, version="v1alpha1"))
"""The newer first."""
FIRST_SYNC_SECONDS: Final = 10.0
"""How long a caller waits for the first list."""
MAX_SELECTOR: Final = 100 * 1024
"""Characters of a label selector's text."""
MAX_KEPT: Final = 256


log = get_logger("cluster")


class TrustBundles:
    """Answers with PEM, which changes with the bundles."""

    def __init__(self, client: ApiClient, *, rng: random.Random, order: str = "") -> None:
        """`order` decides about the order of trust anchors: the boot id."""
        self._client = client
        self._rng = rng
        self._order = order.encode()
        self._is_wanted = False
        """A caller waits until the next attempt to follow them has begun, or failed."""
        self._wanted: Broadcast[None] = Broadcast()
        self._attempted: Broadcast[None] = Broadcast()
        self._store: Store[ClusterTrustBundle] | None = None
        self._problem: ObjectError | None = None
        self._kept: dict[tuple[str, str, str], bytes] = {}
        self.changes: Broadcast[str] = Broadcast()
        """"" when a bundle came, changed or went: that concerns all pods."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the bundles until cancelled, from when the first is wanted; never fails. Started at once."""
        task_status.started()
        while True:
            while not self._is_wanted:
                await self._wanted.wait()
            resource = await self._served()
            self._is_wanted = False
            if resource is not None:
                store = self._store = Store(resource)
                store.subscribe(self._changed)
                self._problem = None
                self._attempted.send(None)
                await Reflector(self._client, resource, store, rng=self._rng).run()
            self._attempted.send(None)

    async def get(self, source: ClusterTrustBundleProjection) -> bytes:
        """What a source of a projected volume asks for. Raises ObjectError. Cancellable."""
        store = await self._synced()
        if source.name is not None:
            key = (source.name, "", "")
        elif source.signer_name is not None:
            key = ("", source.signer_name, selector_text(source.label_selector))
        else:
            raise ObjectError("ClusterTrustBundle projection requires either name or signerName to be set", "not found")
        if len(key[2]) > MAX_SELECTOR:
            text = f"label selector length ({len(key[2])}) is larger than {MAX_SELECTOR}"
            raise ObjectError(text, "unavailable")
        if key not in self._kept:
            bundles = _chosen(source, store)
            if not bundles:
                return b""
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[key] = anchors((bundle.spec.trust_bundle for bundle in bundles), self._order)
        return self._kept[key]

    async def _synced(self) -> Store[ClusterTrustBundle]:
        with trio.move_on_after(FIRST_SYNC_SECONDS):
            if self._store is None:
                if not self._is_wanted:
                    self._is_wanted = True
                    self._wanted.send(None)
                await self._attempted.wait()
            if self._store is not None:
                await self._store.wait_synced()
        if self._store is not None and self._store.synced:
            return self._store
        if self._store is None and self._problem is not None:
            raise self._problem
        raise ObjectError("ClusterTrustBundle informer has not yet synced", "unavailable")

    async def _served(self) -> Resource[ClusterTrustBundle] | None:
        """Which version the server has; None, with the problem noted, when none or when that is unknown."""
        for resource in VERSIONS:
            try:
                await self._client.list(resource, limit=1, resource_version="0")
            except ApiError as error:
                if isinstance(error, ApiStatusError) and error.not_found:
                    continue
                self._problem = object_error(error)
                return None
            return resource
        self._problem = ObjectError(
            "ClusterTrustBundle projection is not supported: the API server has no clustertrustbundles", "unavailable"
        )
        return None

    def _changed(self, old: ClusterTrustBundle | None, new: ClusterTrustBundle | None) -> None:
        self._kept.clear()
        self.changes.send("")


def _chosen(source: ClusterTrustBundleProjection, store: Store[ClusterTrustBundle]) -> list[ClusterTrustBundle]:
    """The bundles that a source names; none only for a source that can do without."""
    if source.name is not None:
        named = store.get(source.name)
        if named is None and not source.optional:
            text = f'while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "{source.name}" not found'
            raise ObjectError(text, "not found")
        return [] if named is None else [named]
    found = [
        bundle
        for bundle in store.values()
        if bundle.spec.signer_name == source.signer_name and selects(source.label_selector, bundle.metadata.labels)
    ]
    if not found and not source.optional:
        raise ObjectError("combination of signerName and labelSelector matched zero ClusterTrustBundles", "not found")
    return found


def anchors(bundles: Iterable[str], order: bytes) -> bytes:
    """All certificates of some PEM texts, each once, as one PEM text."""
    found, problems = set(), []
    for text in bundles:
        for block in pem_blocks(text.encode(errors="replace")):
            try:
                found.add(base64.b64decode(b"".join(block.body.split()), validate=True))
            except binascii.Error as error:
                problems.append(str(error))
    if problems:
        log.warning("skipped what is no PEM in ClusterTrustBundles", blocks=len(problems), first=problems[0])
    shuffled = sorted(found, key=lambda der: hashlib.sha256(order + der).digest())
    return b"".join(_pem(der) for der in shuffled)


def _pem(der: bytes) -> bytes:
    text = base64.b64encode(der)
    lines = (text[begin : begin + 64] for begin in range(0, len(text), 64))
    return b"\n".join((b"-----BEGIN CERTIFICATE-----", *lines, b"-----END CERTIFICATE-----", b""))


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a selector picks what has these labels: None picks nothing, an empty one everything.

    Raises ObjectError for an operator that does not exist.
    """
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    return all(_holds(one, labels) for one in selector.match_expressions)


def _holds(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case operator:
            text = f'while parsing label selector: "{operator}" is not a valid label selector operator'
            raise ObjectError(text, "unavailable")


def selector_text(selector: LabelSelector | None) -> str:
    """Short and unambiguous; what picks nothing and what picks everything differ."""
    if selector is None:
        return "<nothing>"
    terms = [f"{key}={value}" for key, value in selector.match_labels.items()]
    terms += [f"{one.key} {one.operator} ({','.join(sorted(one.values))})" for one in selector.match_expressions]
    return ",".join(sorted(terms))
