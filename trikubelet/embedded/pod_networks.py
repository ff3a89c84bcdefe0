"""The networks of this runtime's pods: which one a new pod gets, and who takes down that of an old one.

Each pod's record names the network that made its own. So after a restart with other options, or when a configuration of
CNI plugins appears, the pods that run keep what they have, and it is taken down by who made it.
"""

from __future__ import annotations

import errno
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import trio

from trikubelet.embedded.keeper_client import KeeperError
from trikubelet.embedded.network.choice import BRIDGE, HOST, Choice, NetworkOptions, choose
from trikubelet.embedded.network.model import NetworkError
from trikubelet.embedded.network.ways import subnets
from trikubelet.embedded.pod_namespace import make_socket, open_namespace
from trikubelet.linux.resolver import RESOLV_CONF, leads_nowhere, resolv_conf_for_pods
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Mapping

    from trikubelet.embedded.keeper_client import KeeperAbilities, KeeperClient
    from trikubelet.embedded.network.model import Attachment, PodNetwork, PodNetworkSpec
    from trikubelet.embedded.records import RecordStore, SandboxNetwork, SandboxRecord

log = get_logger("embedded")


class PodNetworks:
    """The networks by name, in the order in which they are tried. The records are the lifecycle's."""

    def __init__(
        self, keeper: KeeperClient, networks: Mapping[str, PodNetwork], options: NetworkOptions, store: RecordStore
    ) -> None:
        self._keeper = keeper
        self._networks = networks
        self._options = options
        self._store = store
        self._made = set(store.networks_made())
        """Those of which something may be on the machine, of this process or of an earlier one; written down."""
        self._reconciled: set[str] = set()
        """Those of them that this process has seen to be as they should be."""
        self._preparing = trio.Lock()
        self._waits_for_addresses = options.in_cluster and not options.pod_cidr
        """Until the cluster has said which addresses this node's pods have; only the bridge wants to know."""
        self.chosen = Choice(HOST, "not chosen yet")
        """As it was last."""

    async def choose(self, abilities: KeeperAbilities | None) -> Choice:
        """The network that a new pod gets; every change of it is logged."""
        choice = await choose(self._options, self._networks, _impossible(abilities), self.chosen.way)
        if choice != self.chosen:
            self.chosen = choice
            if choice.way == HOST:
                log.warning("pods are on the machine's network", reason=choice.why)
            else:
                log.info("pods have networks of their own", network=choice.way)
                _warn_of_resolver()
        return choice

    async def problem(self, choice: Choice) -> str:
        """Why no pod can have the chosen network now; empty when one can."""
        if choice.way == HOST:
            return ""
        if choice.way == BRIDGE and self._waits_for_addresses:
            return "the cluster has not given this node a podCIDR yet"
        return await self._network(choice.way).problem()

    async def set_pod_cidr(self, pod_cidr: str) -> None:
        """What the cluster says of this node's pods. Those that run keep their addresses. Raises NetworkError."""
        if pod_cidr and BRIDGE in {self._options.way, self.chosen.way, *self._reconciled}:
            await self._network(BRIDGE).set_subnets(subnets(pod_cidr))
            self._waits_for_addresses = False

    async def attach(self, network: SandboxNetwork, known: Collection[SandboxRecord]) -> Attachment:
        """Make a pod's network. `known`: all pods. Raises NetworkError, KeeperError, KeeperLostError.

        When it fails or is cancelled something may be left for `detach`.
        """
        maker = self._network(network.kind)
        async with self._preparing:
            if network.kind not in self._reconciled:
                await self._reconcile(network.kind, known)
        async with open_namespace(self._keeper, network.spec.sandbox_id) as namespace:
            return await maker.attach(network.spec, namespace)

    async def detach(self, network: SandboxNetwork, *, held: bool) -> None:
        """Take it down. `held`: the keeper has the namespace. Raises NetworkError, KeeperError, KeeperLostError."""
        maker = self._network(network.kind)
        async with AsyncExitStack() as stack:
            namespace = None
            if held:
                try:
                    namespace = await stack.enter_async_context(open_namespace(self._keeper, network.spec.sandbox_id))
                except KeeperError as error:
                    if error.kind != "unknown":  # else the keeper has just become another one
                        raise
            await maker.detach(network.spec, network.attachment, namespace)

    def enter(self, address: str) -> Awaitable[socket.socket] | None:
        """A TCP socket in the network of the pod with this address, if this machine has no way there.

        None for all others. What it waits for raises OSError.
        """
        for kind in self._reconciled:
            sandbox = self._networks[kind].sandbox_out_of_reach(address)
            if sandbox is not None:
                return self._socket_in(sandbox)
        return None

    async def _socket_in(self, sandbox_id: str) -> socket.socket:
        try:
            return await make_socket(self._keeper, sandbox_id, socket.AF_INET, socket.SOCK_STREAM)
        except NetworkError as error:
            raise OSError(errno.EHOSTUNREACH, str(error)) from error

    async def reconcile(self, known: Collection[SandboxRecord], choice: Choice) -> frozenset[str]:
        """Bring every network that pods have to what they need. Failures are logged, and tried again.

        The one that new pods get is made with the first of them. What is left of it until then is an earlier process's
        that was killed, and goes, as does one of which no pod is left once new pods get another. Returns the sandboxes
        whose network is gone for good.
        """
        gone: frozenset[str] = frozenset()
        for kind in self._networks:
            try:
                async with self._preparing:
                    if _pods_of(kind, known) or (kind == choice.way and kind in self._reconciled):
                        gone |= await self._reconcile(kind, known)
                    elif kind in self._made:
                        await self._take_down(kind)
            except NetworkError as error:
                log.error("the pods' network is not as it should be", network=kind, error=str(error))
        return gone

    async def _reconcile(self, kind: str, known: Collection[SandboxRecord]) -> frozenset[str]:
        network = self._network(kind)
        self._note(self._made | {kind})
        gone = await network.reconcile(_pods_of(kind, known))
        self._reconciled.add(kind)
        return gone

    async def _take_down(self, kind: str) -> None:
        self._reconciled.discard(kind)
        await self._network(kind).close()
        self._note(self._made - {kind})

    def _note(self, made: set[str]) -> None:
        """Before something is made, and after it is gone. A full disk does not hold it up."""
        if made != self._made:
            self._made = made
            try:
                self._store.save_networks_made(made)
            except OSError as error:
                log.warning("cannot write which networks are on the machine", error=str(error))

    async def close(self) -> None:
        """No pod has a network, and none is wanted for now: nothing of them stays on the machine."""
        async with self._preparing:
            for kind in sorted(self._made):
                try:
                    await self._take_down(kind)
                except NetworkError as error:
                    log.error("the pods' network was not taken down", network=kind, error=str(error))

    def _network(self, kind: str) -> PodNetwork:
        """Raises NetworkError: a record of another release may name one that this does not know."""
        try:
            return self._networks[kind]
        except KeyError:
            raise NetworkError(f"expected a network among {', '.join(self._networks)}, got {kind!r}") from None


def _pods_of(kind: str, known: Collection[SandboxRecord]) -> dict[str, tuple[PodNetworkSpec, Attachment | None]]:
    return {
        record.id: (record.network.spec, record.network.attachment)
        for record in known
        if record.network is not None and record.network.kind == kind and record.holds_network
    }


def _warn_of_resolver() -> None:
    try:
        nowhere = leads_nowhere(resolv_conf_for_pods())
    except OSError:
        return  # then pods have no such file either
    if nowhere:
        log.warning("pods cannot reach the machine's name servers, which are on its loopback", file=str(RESOLV_CONF))


def _impossible(abilities: KeeperAbilities | None) -> str:
    if abilities is None or abilities.network:
        return ""
    if abilities.outdated:
        return "the keeper is of an earlier release; it is replaced when the agent starts and no pod is left"
    if not abilities.isolated:
        return "this machine lets the runtime make no namespaces"
    return next((problem for problem in abilities.problems if "network" in problem), "no network namespaces")
