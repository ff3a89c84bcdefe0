"""What the agent's parts know of an API server: its resources, a client's calls, and copies of its objects.

Data goes through these types in this order. A `Resource` says where objects of a class are served. An `ApiClient` reads
and changes them there, or watches them; informers keep a `Store` current with a `Listing` and `WatchEvent`s, and
everybody else reads the store, or listens to it. A writer takes the server's answer as the newest copy.

An object that does not decode must not end the watch that brought it, nor look like an object that was deleted: a pod
that runs would be killed because of a field that this agent reads wrongly. It arrives as `Undecodable`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar
from urllib.parse import quote

from trikubelet.api import (
    CertificateSigningRequest,
    ClusterTrustBundle,
    ConfigMap,
    CSIDriver,
    CSINode,
    Event,
    KubernetesObject,
    Lease,
    Node,
    ObjectMeta,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodCertificateRequest,
    Problem,
    ResourceClaimObject,
    ResourceSlice,
    RuntimeClass,
    Secret,
    Service,
    ServiceAccount,
    VolumeAttachment,
)
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from trikubelet.kube_client.health import ConnectionHealth

T = TypeVar("T", bound=KubernetesObject)
S = TypeVar("S", bound=KubernetesObject)

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
"""Annotation of the bookmark that ends a watch's initial events."""


@frozen
class Resource(Generic[T]):
    """Where an API server serves the objects of one class."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    """The name in paths: `pods`."""
    kind: str
    namespaced: bool
    cls: type[T]

    @property
    def api_version(self) -> str:
        """As objects carry it: `v1`, `coordination.k8s.io/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, of a part of one (`subresource`), or of all objects when no name is given.

        Without a namespace it is the path of the objects of all namespaces, which can be listed and watched. Raises
        ValueError for what cannot be asked: the caller's mistake, or a name that would change the path's meaning.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self} are not in namespaces; got {namespace!r}")
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self} are in namespaces; expected that of {name!r}")
        if subresource and not name:
            raise ValueError(f"expected a name with the subresource {subresource!r} of {self}")
        segments = ["api" if not self.group else f"apis/{self.group}", self.version]
        if namespace:
            segments += ["namespaces", _segment(namespace)]
        segments.append(self.plural)
        if name:
            segments.append(_segment(name))
        if subresource:
            segments.append(subresource)
        return "/" + "/".join(segments)

    def __str__(self) -> str:
        """As the API server's messages name it: `pods`, `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def version_number(resource_version: str) -> int:
    """Versions of one resource grow, and only those may be compared; one that is no number is older than all others."""
    return int(resource_version) if resource_version.isdecimal() else -1


def _segment(text: str) -> str:
    if text in (".", ".."):
        raise ValueError(f"{text!r} cannot be part of a path")
    return quote(text, safe="")


PODS: Final = Resource("", "v1", "pods", "Pod", True, Pod)
NODES: Final = Resource("", "v1", "nodes", "Node", False, Node)
EVENTS: Final = Resource("", "v1", "events", "Event", True, Event)
SERVICES: Final = Resource("", "v1", "services", "Service", True, Service)
SECRETS: Final = Resource("", "v1", "secrets", "Secret", True, Secret)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap", True, ConfigMap)
SERVICE_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", "ServiceAccount", True, ServiceAccount)
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease", True, Lease)
RUNTIME_CLASSES: Final = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False, RuntimeClass)
CSI_NODES: Final = Resource("storage.k8s.io", "v1", "csinodes", "CSINode", False, CSINode)
SIGNING_REQUESTS: Final = Resource(
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
    "CertificateSigningRequest",
    False,
    CertificateSigningRequest,
)
CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, PersistentVolumeClaim)
PERSISTENT_VOLUMES: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume", False, PersistentVolume)
CSI_DRIVERS: Final = Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", False, CSIDriver)
VOLUME_ATTACHMENTS: Final = Resource(
    "storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", False, VolumeAttachment
)
TRUST_BUNDLES: Final = Resource(
    "certificates.k8s.io", "v1beta1", "clustertrustbundles", "ClusterTrustBundle", False, ClusterTrustBundle
)
POD_CERTIFICATE_REQUESTS: Final = Resource(
    "certificates.k8s.io", "v1beta1", "podcertificaterequests", "PodCertificateRequest", True, PodCertificateRequest
)
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True, ResourceClaimObject)
RESOURCE_SLICES: Final = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False, ResourceSlice)


class PatchType(enum.Enum):
    """How the body of a PATCH is meant; the value is its content type."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


class Urgency(enum.Enum):
    """Whether a write waits for the client's own rate limit."""

    ORDINARY = "ordinary"
    URGENT = "urgent"
    """Goes at once and overdraws the limit; ordinary writes wait until the debt is paid."""


@frozen
class RateLimit:
    """A client's own limit: `qps` calls a second on average, `burst` at once."""

    qps: float
    burst: int


@frozen
class Undecodable:
    """An object that is there but that this agent cannot read. The metadata is what could be read of it."""

    metadata: ObjectMeta
    problems: tuple[Problem, ...]
    """Never empty."""


@frozen
class Listing(Generic[T]):
    """One page of a list."""

    items: tuple[T, ...]
    resource_version: str
    """The state of the cluster that the list shows, from which a watch goes on."""
    continue_: str = ""
    """Asks for the next page; empty on the last one."""
    undecodable: tuple[Undecodable, ...] = ()


WatchEventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


@frozen
class WatchEvent(Generic[T]):
    """One change. An `ERROR` of the server is no event: the watch raises it as ApiStatusError."""

    type: WatchEventType
    object: T | Undecodable
    """The new object; of a deletion the last one; of a bookmark only metadata.resourceVersion and annotations."""

    @property
    def initial_events_end(self) -> bool:
        """All objects that existed when the watch began have been sent."""
        return self.type == "BOOKMARK" and self.object.metadata.annotations.get(INITIAL_EVENTS_END) == "true"


class ApiClient(Protocol):
    """Calls to an API server.

    Every call has a deadline (see `view`) and raises a subclass of ApiError. Every call may be cancelled; whether a
    write that was cancelled took place is then unknown. Answers are decoded without `metadata.managedFields`. A path
    that cannot be asked for raises ValueError.
    """

    @property
    def health(self) -> ConnectionHealth: ...

    async def get(self, resource: Resource[T], name: str, namespace: str = "", *, resource_version: str = "") -> T:
        """The newest object, or one at least as new as `resource_version` ("0": any that the server has at hand)."""
        ...

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> Listing[T]:
        """One page of at most `limit` objects (0: all of them in one)."""
        ...

    def watch(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str = "",
        send_initial_events: bool = False,
        timeout: float,
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[T]]]:
        """Changes since `resource_version`, with bookmarks.

        Entering waits for the server's consent, within the client's deadline. The iterator ends when the server ends
        the watch, which it is asked to do after `timeout` seconds; a server that does not is left a little later.
        Iterating raises ApiStatusError for an `ERROR` event and ApiUnreachable when the connection is lost. Leaving
        the context tells the server to stop.
        """
        ...

    async def create(self, resource: Resource[T], obj: T, *, urgency: Urgency = Urgency.ORDINARY) -> T:
        """Create the object, in the namespace of its metadata; the server's version of it."""
        ...

    async def update(
        self, resource: Resource[T], obj: T, *, subresource: str = "", urgency: Urgency = Urgency.ORDINARY
    ) -> T:
        """Replace the object; with a resourceVersion in its metadata only that version of it."""
        ...

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        namespace: str,
        patch_type: PatchType,
        body: Mapping[str, Any] | Sequence[Any],
        *,
        subresource: str = "",
        urgency: Urgency = Urgency.ORDINARY,
    ) -> T:
        """Change parts of the object. `metadata.uid` and `metadata.resourceVersion` in the body are preconditions."""
        ...

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        grace_period: int | None = None,
        uid: str | None = None,
        urgency: Urgency = Urgency.ORDINARY,
    ) -> None:
        """Ask for the object's deletion, if it is the one with `uid`. `grace_period` in seconds, None: its own."""
        ...

    async def delete_collection(self, resource: Resource[T], namespace: str = "", *, field_selector: str) -> None:
        """Ask for the deletion of all objects that the selector chooses; it must not be empty."""
        ...

    async def create_subresource(
        self,
        resource: Resource[T],
        name: str,
        namespace: str,
        subresource: str,
        body: S,
        *,
        urgency: Urgency = Urgency.ORDINARY,
    ) -> S:
        """Ask something of an object and return the answer: a token of a service account (`token`)."""
        ...

    async def get_text(self, path: str) -> str:
        """What the server says at a path that is no resource: `/healthz`, `/version`."""
        ...

    def view(self, *, limit: RateLimit | None, timeout: float) -> ApiClient:
        """A client on the same connections with a rate limit (None: unlimited) and a deadline in seconds of its own."""
        ...

    def drop_connections(self) -> None:
        """Close every connection: calls and watches in flight end as ApiUnreachable, the next call connects anew."""
        ...
