"""Copies of ConfigMaps and Secrets that are asked for, not watched: the strategies `Cache` and `Get`.

`Cache` keeps what it was answered for a minute, or as long as an annotation of the node says: the hundred pods of one
Deployment ask once. A pod that comes, or that changes, makes what it names stale at once, so that a pod that
is made after a ConfigMap was changed gets the new one. While the server cannot be asked, what is known is used however
old it is: a container that crashes starts again as it was.

`Get` keeps nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import define
from trikubelet.kube_client.errors import ApiError, ApiStatusError
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.types import CONFIG_MAPS, SECRETS, T, version_number
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.api import Node
    from trikubelet.kube_client.pod_references import Key
    from trikubelet.kube_client.types import ApiClient, Resource

DEFAULT_TTL: Final = 60.0
"""Seconds for which a ConfigMap or Secret is not asked for again."""
TTL_ANNOTATION: Final = "node.alpha.kubernetes.io/ttl"
"""Seconds, on the node: a controller raises it in large clusters."""
ANY_VERSION: Final = "0"
"""Whatever the server has in its memory: cheap, and for what is read once a minute new enough."""

RESOURCES: Final[dict[str, Resource[Any]]] = {one.plural: one for one in (CONFIG_MAPS, SECRETS)}
SINGULAR: Final = {CONFIG_MAPS.plural: "configmap", SECRETS.plural: "secret"}
"""As the kubelet's messages name them."""

log = get_logger("cluster")


class Copies(Protocol):
    """How copies of objects are had: one for each strategy. `uid` is that of a pod."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        ...

    def refer(self, key: Key, uid: str, *, lasting: bool) -> None:
        """The pod refers to the object from now on; `lasting`: it needs to know of changes."""
        ...

    def release(self, key: Key, uid: str) -> None: ...

    async def get(self, key: Key) -> Any:
        """The object. Raises ObjectError."""
        ...

    @property
    def changes(self) -> Broadcast[Key]:
        """Objects that came, changed or went."""
        ...


def not_found(key: Key) -> ObjectError:
    """In the kubelet's words."""
    return ObjectError(f'{SINGULAR[key[0]]} "{key[2]}" not found', "not found")


async def fetch(client: ApiClient, key: Key, *, resource_version: str = "") -> Any:
    """Ask for one now. Raises ObjectError."""
    plural, namespace, name = key
    try:
        return await client.get(RESOURCES[plural], name, namespace, resource_version=resource_version)
    except ApiError as error:
        if isinstance(error, ApiStatusError) and error.not_found:
            raise not_found(key) from error
        raise ObjectError(f"failed to sync {SINGULAR[plural]} cache: {error}", "unavailable") from error


class FetchedObjects:
    """`Get`: each question is the server's to answer."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.changes: Broadcast[Key] = Broadcast()
        """Changes are not reported."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    def refer(self, key: Key, uid: str, *, lasting: bool) -> None:
        """Nothing is kept."""

    def release(self, key: Key, uid: str) -> None:
        """Nothing is kept."""

    async def get(self, key: Key) -> Any:
        return await fetch(self._client, key)


@define
class _Entry(Generic[T]):
    """One ConfigMap or Secret. Times are Trio's."""

    users: set[str] = attrs.field(factory=set)
    """UIDs of pods."""
    lock: trio.Lock = attrs.field(factory=trio.Lock)
    obj: T | None = attrs.field(default=None, repr=False)
    error: ObjectError | None = None
    """Why the last attempt failed."""
    attempts: int = 0
    """How many have begun."""
    answered: int = 0
    """Which of them was the last to bring an answer or an error."""
    read_at: float = float("-inf")
    """When the attempt that `obj` comes from began."""
    stale_before: float = float("-inf")
    """What was read earlier than this has to be read again."""

    def fresh(self, now: float, ttl: float) -> bool:
        return self.obj is not None and self.read_at >= self.stale_before and now - self.read_at < ttl


class CachedObjects:
    """`Cache`: what pods refer to is asked for once a minute."""

    def __init__(self, client: ApiClient, *, node: Callable[[], Node | None]) -> None:
        """`node` is the node's object, None while it is not known."""
        self._client = client
        self._node = node
        self._entries: dict[Key, _Entry[Any]] = {}
        self.changes: Broadcast[Key] = Broadcast()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    def refer(self, key: Key, uid: str, *, lasting: bool) -> None:
        entry = self._entries.setdefault(key, _Entry())
        if uid not in entry.users:
            entry.users.add(uid)
            entry.stale_before = trio.current_time()

    def release(self, key: Key, uid: str) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            entry.users.discard(uid)
            if not entry.users:
                del self._entries[key]

    async def get(self, key: Key) -> Any:
        """Cancellable; another waiter for the same object then makes the request itself."""
        entry = self._entries.get(key)
        if entry is None:
            return await fetch(self._client, key)
        attempts = entry.attempts
        async with entry.lock:
            # Somebody may have begun to ask while this one waited: that answer is new enough, a failure too.
            if not entry.fresh(trio.current_time(), self._ttl()) and entry.answered <= attempts:
                await self._refresh(entry, key)
        if entry.obj is None:
            raise entry.error or not_found(key)
        return entry.obj

    async def _refresh(self, entry: _Entry[Any], key: Key) -> None:
        entry.error = None
        entry.attempts += 1
        attempt, began, old = entry.attempts, trio.current_time(), entry.obj
        known = old is not None and entry.read_at >= entry.stale_before
        try:
            new = await fetch(self._client, key, resource_version=ANY_VERSION if known else "")
        except ObjectError as error:
            entry.error = error
            if error.problem == "not found":
                entry.obj = None
            elif old is not None:
                log.warning("using an old object", objects=key[0], name=key[2], namespace=key[1], problem=str(error))
        else:
            entry.read_at = began
            # The server's memory may lag behind what it told before.
            if old is None or _version(new) >= _version(old) or new.metadata.uid != old.metadata.uid:
                entry.obj = new
        entry.answered = attempt
        if _identity(entry.obj) != _identity(old):
            self.changes.send(key)

    def _ttl(self) -> float:
        node = self._node()
        text = "" if node is None else node.metadata.annotations.get(TTL_ANNOTATION, "")
        return float(text) if text.isascii() and text.isdecimal() else DEFAULT_TTL


def _version(obj: Any) -> int:
    return version_number(obj.metadata.resource_version)


def _identity(obj: Any) -> tuple[str, str] | None:
    return None if obj is None else (obj.metadata.uid, obj.metadata.resource_version)
