"""Pods' networks made by CNI plugins.

One sandbox is attached or detached by one task at a time, different ones at once; garbage is collected while no other
plugin runs, as the specification demands. What was begun is on disk before a plugin is run (`cache.py`), so a later
agent finds it; what this agent began is never garbage to it.
"""

from __future__ import annotations

import os
import weakref
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from trikubelet.embedded.network.cni.arguments import capability_arguments, cni_arguments
from trikubelet.embedded.network.cni.cache import (
    DEFAULT_CACHE,
    CachedAttachment,
    ResultCache,
    attachment_from_json,
)
from trikubelet.embedded.network.cni.chain import PluginChain
from trikubelet.embedded.network.cni.configuration import parse_list
from trikubelet.embedded.network.cni.documents import printable
from trikubelet.embedded.network.cni.folder import DEFAULT_FOLDER, DEFAULT_PLUGIN_FOLDERS, read_networks
from trikubelet.embedded.network.cni.namespaces import DEFAULT_NAMESPACES, NamespaceMounts
from trikubelet.embedded.network.cni.plugin import end_left_plugins
from trikubelet.embedded.network.cni.results import pod_addresses, result_to_json
from trikubelet.embedded.network.model import Attachment, NetworkError
from trikubelet.formats.values import frozen
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from trikubelet.embedded.network.cni.configuration import NetworkConfiguration
    from trikubelet.embedded.network.model import NetworkNamespace, PodNetworkSpec

log = get_logger("network")

ATTACH_TIMEOUT: Final = 120.0
"""Seconds for all plugins of a pod. The kubelet gives a sandbox four minutes; there has to be time to undo it."""
DETACH_TIMEOUT: Final = 90.0
"""The kubelet gives the end of a sandbox two minutes."""
STATUS_TIMEOUT: Final = 10.0
GC_TIMEOUT: Final = 60.0
_QUIET_TIMEOUT: Final = 10.0
"""How long new attachments wait so that garbage can be collected while none is made."""
_STATE: Final = "cni"
_FIRST_INTERFACE: Final = "eth0"


@frozen(kw_only=True)
class CniFolders:
    """Where things are on this machine."""

    configuration: Path = DEFAULT_FOLDER
    plugins: tuple[Path, ...] = DEFAULT_PLUGIN_FOLDERS
    cache: Path = DEFAULT_CACHE
    namespaces: Path = DEFAULT_NAMESPACES


class CniNetwork:
    """A `PodNetwork` whose plugins are the network's own."""

    def __init__(self, root: Path, folders: CniFolders | None = None, *, most_networks: int = 1) -> None:
        """`root` is the runtime's folder, which tells its attachments from those of other runtimes.

        Pods are attached to so many of the first configured networks: as eth0, eth1 and so on.
        """
        self._folders = folders or CniFolders()
        self._most_networks = most_networks
        self._chain = PluginChain(self._folders.plugins)
        self._cache = ResultCache(self._folders.cache)
        self._mounts = NamespaceMounts.of_runtime(root, self._folders.namespaces)
        self._mounting = trio.Lock()
        self._locks: weakref.WeakValueDictionary[str, trio.Lock] = weakref.WeakValueDictionary()
        self._attached: set[str] = set()
        """Sandboxes whose attachment this agent began and did not begin to take down."""
        self._own: set[str] = set()
        """Sandboxes that this agent attached: an earlier one has left no plugin and no unfinished file of them."""
        self._gate = trio.Lock()
        self._working = 0
        self._rested = trio.Event()

    async def problem(self) -> str:
        """Why no pod can be attached now; empty when one can."""
        deadline = trio.current_time() + STATUS_TIMEOUT
        if os.geteuid() != 0:
            return "a CNI network is configured, and its plugins need root, which the agent is not"
        try:
            for network in await self._networks():
                await self._chain.status(network, deadline)
        except NetworkError as error:
            return printable(str(error))
        return ""

    async def set_subnets(self, subnets: Sequence[str]) -> None:
        """See `PodNetwork`."""
        await trio.lowlevel.checkpoint()

    def sandbox_out_of_reach(self, address: str) -> str | None:
        """See `PodNetwork`: the plugins make a way."""
        return None

    async def attach(self, spec: PodNetworkSpec, namespace: NetworkNamespace) -> Attachment:
        """Run ADD. When it fails or is cancelled, DEL undoes it, for up to `DETACH_TIMEOUT`. Raises NetworkError."""
        sandbox_id = spec.sandbox_id
        async with self._alone(sandbox_id):
            await self._take_down(sandbox_id)  # of an attempt that was cut off
            self._attached.add(sandbox_id)
            self._own.add(sandbox_id)
            try:
                return await self._attach(spec, namespace)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._undo(sandbox_id)
                raise

    async def detach(
        self, spec: PodNetworkSpec, attachment: Attachment | None, namespace: NetworkNamespace | None
    ) -> None:
        """Run DEL with what was cached. Idempotent. Raises NetworkError where something is left, then ask again."""
        sandbox_id = spec.sandbox_id
        async with self._alone(sandbox_id):
            self._attached.discard(sandbox_id)
            state = {} if attachment is None else attachment.state
            await self._take_down(sandbox_id, state=state, namespace=namespace)

    async def reconcile(self, pods: Mapping[str, tuple[PodNetworkSpec, Attachment | None]]) -> frozenset[str]:
        """Take down what belongs to no pod, and half attachments of an earlier agent; then collect garbage.

        The folder of namespaces is made ready too, for plugins' daemons that start before the first pod. What is
        configured in pods is the plugins' own to keep. Raises NetworkError when all was tried.
        """
        errors = []
        try:
            async with self._mounting:
                await trio.to_thread.run_sync(self._mounts.prepare)
        except NetworkError as error:
            errors.append(str(error))
        whole = {sandbox_id for sandbox_id, (_, attachment) in pods.items() if attachment is not None}
        for sandbox_id in await self._known_sandboxes():
            if sandbox_id in whole or sandbox_id in self._attached:
                continue
            async with self._alone(sandbox_id):
                if sandbox_id in self._attached:
                    continue
                try:
                    await self._take_down(sandbox_id)
                    log.info("took down a CNI attachment that no pod has", sandbox=sandbox_id)
                except NetworkError as error:
                    errors.append(str(error))
        try:
            await self._collect_garbage(pods)
        except NetworkError as error:
            errors.append(str(error))
        if errors:
            raise NetworkError("; ".join(errors))
        return frozenset()

    async def close(self) -> None:
        """Take everything down. Raises NetworkError."""
        self._attached.clear()
        await self.reconcile({})
        async with self._mounting:
            await trio.to_thread.run_sync(self._mounts.remove_folder)

    async def _networks(self) -> list[NetworkConfiguration]:
        return await trio.to_thread.run_sync(read_networks, self._folders.configuration, self._most_networks)

    async def _attach(self, spec: PodNetworkSpec, namespace: NetworkNamespace) -> Attachment:
        deadline = trio.current_time() + ATTACH_TIMEOUT
        networks = await self._networks()
        arguments, capabilities = cni_arguments(spec), capability_arguments(spec)
        path = await self._bind(spec.sandbox_id, namespace)
        results, attachments = [], []
        for number, network in enumerate(networks):
            version = await self._chain.version_for(network)
            attachment = CachedAttachment(
                network=network.name,
                container_id=spec.sandbox_id,
                interface=f"eth{number}",
                namespace_path=path,
                config=network.source,
                arguments=arguments,
                capability_arguments=capabilities,
            )
            await trio.to_thread.run_sync(self._cache.write, attachment)
            result = await self._chain.add(network, version, attachment, deadline)
            whole = result_to_json(result, version, f"CNI network {network.name}")
            attachment = attrs.evolve(attachment, result=whole)
            await trio.to_thread.run_sync(self._cache.write, attachment)
            results.append(result)
            attachments.append(attachment)
        addresses = pod_addresses(results[0], _FIRST_INTERFACE, f"CNI network {networks[0].name}")
        state = {_STATE: [attachment.to_json() for attachment in attachments]}
        return Attachment(ips=addresses, interface=_FIRST_INTERFACE, state=state)

    async def _undo(self, sandbox_id: str) -> None:
        """After a failed ADD, whose error is what the caller gets; what is left is found by `detach` and later."""
        self._attached.discard(sandbox_id)
        try:
            await self._take_down(sandbox_id)
        except NetworkError as error:
            log.warning("a failed CNI attachment is not undone yet", sandbox=sandbox_id, error=str(error))

    async def _take_down(
        self,
        sandbox_id: str,
        *,
        state: Mapping[str, Any] | None = None,
        namespace: NetworkNamespace | None = None,
    ) -> None:
        """Everything of a sandbox: attachments, the last first, then the namespace's name. Raises NetworkError."""
        deadline = trio.current_time() + DETACH_TIMEOUT
        attachments = await self._attachments_of(sandbox_id, state or {})
        errors = []
        if attachments:
            if sandbox_id not in self._own:
                # What a finished ADD started for good, a daemon, stays.
                unfinished = any(attachment.result is None for attachment in attachments)
                await end_left_plugins(sandbox_id, ("ADD", "DEL") if unfinished else ("DEL",))
            path = await self._namespace_path(sandbox_id, namespace)
            for attachment in reversed(attachments):
                try:
                    network = parse_list(attachment.config, f"the cached network {attachment.network}")
                    await self._chain.delete(network, attachment, path, deadline)
                    await trio.to_thread.run_sync(self._cache.remove, attachment)
                except NetworkError as error:
                    errors.append(str(error))
        if errors:
            raise NetworkError("; ".join(errors))
        if sandbox_id not in self._own:
            await trio.to_thread.run_sync(self._cache.remove_unfinished, sandbox_id)
        async with self._mounting:
            await trio.to_thread.run_sync(self._mounts.release, sandbox_id)
        self._own.discard(sandbox_id)

    async def _attachments_of(self, sandbox_id: str, state: Mapping[str, Any]) -> list[CachedAttachment]:
        """From the cache; and from what the runtime kept, where somebody emptied the cache."""
        cached = await trio.to_thread.run_sync(self._cache.of, sandbox_id)
        found = {each.key: each for each in cached if self._mounts.is_ours(each.namespace_path)}
        for kept in _kept(sandbox_id, state):
            found.setdefault(kept.key, kept)
        return sorted(found.values(), key=lambda each: each.interface)

    async def _namespace_path(self, sandbox_id: str, namespace: NetworkNamespace | None) -> str:
        """Where the namespace is; empty when it is gone."""
        if await trio.to_thread.run_sync(self._mounts.mounted, sandbox_id):
            return str(self._mounts.path_of(sandbox_id))
        return "" if namespace is None else await self._bind(sandbox_id, namespace)

    async def _bind(self, sandbox_id: str, namespace: NetworkNamespace) -> str:
        async with self._mounting:
            return str(await trio.to_thread.run_sync(self._mounts.bind, sandbox_id, namespace.path))

    async def _known_sandboxes(self) -> Sequence[str]:
        """Those of which there is anything of ours."""
        async with self._mounting:
            mounted = await trio.to_thread.run_sync(self._mounts.sandboxes)
        cached = await trio.to_thread.run_sync(self._cache.all)
        return sorted({*mounted, *(each.container_id for each in cached if self._mounts.is_ours(each.namespace_path))})

    async def _collect_garbage(self, pods: Mapping[str, tuple[PodNetworkSpec, Attachment | None]]) -> None:
        """Others use the cache and maybe the same network: what is cached is valid too, whosever it is."""
        try:
            networks = [network for network in await self._networks() if await self._chain.knows_garbage(network)]
        except NetworkError:
            return  # `problem` says it, and nobody can be asked
        if not networks:
            return
        async with self._gate:
            with trio.move_on_after(_QUIET_TIMEOUT):
                while self._working:
                    self._rested = trio.Event()
                    await self._rested.wait()
            if self._working:
                log.info("no garbage of CNI networks is collected now, since attachments take long")
                return
            deadline = trio.current_time() + GC_TIMEOUT
            valid = {each.key: each for each in await trio.to_thread.run_sync(self._cache.all)}
            for sandbox_id, (_, attachment) in pods.items():
                valid |= {each.key: each for each in _kept(sandbox_id, attachment.state if attachment else {})}
            for network in networks:
                of_network = [each for each in valid.values() if each.network == network.name]
                await self._chain.collect_garbage(network, of_network, deadline)

    @asynccontextmanager
    async def _alone(self, sandbox_id: str) -> AsyncIterator[None]:
        """Nobody else changes this sandbox's network, and no garbage is collected."""
        lock = self._locks.setdefault(sandbox_id, trio.Lock())
        async with lock:
            async with self._gate:
                self._working += 1
            try:
                yield
            finally:
                self._working -= 1
                self._rested.set()


def _kept(sandbox_id: str, state: Mapping[str, Any]) -> list[CachedAttachment]:
    """What the runtime kept of a pod's attachments. Raises NetworkError."""
    return [attachment_from_json(each, f"the attachment of sandbox {sandbox_id}") for each in state.get(_STATE, ())]
