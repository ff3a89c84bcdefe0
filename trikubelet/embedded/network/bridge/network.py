"""The life of a pod's network on the bridge.

    reconcile   looks at the machine, and makes bridge, rules and forwarding as they have to be
    attach      an address and a veth pair, then addresses within the pod, then its host ports
    detach      host ports, then the veth pair; only then another pod may have the address

One after the other, but for the deletion of links: what one has begun no other sees half done. Nothing is lost with
this process: a pod that was being attached has no attachment on disk, so the next `reconcile` deletes its link and
makes the rules without it.
"""

from __future__ import annotations

import errno
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.embedded.network.bridge import host as machine_side
from trikubelet.embedded.network.bridge import rules
from trikubelet.embedded.network.bridge.addresses import parse_subnets
from trikubelet.embedded.network.bridge.forwarding import (
    ProcFiles,
    has_ipv6,
    is_iptables_forward,
    plans,
    wanted_sysctls,
    warning,
)
from trikubelet.embedded.network.bridge.leases import Lease, new_lease, recorded_lease
from trikubelet.embedded.network.bridge.names import Names
from trikubelet.embedded.network.bridge.pod_link import connect
from trikubelet.embedded.network.bridge.ports import conflict
from trikubelet.embedded.network.model import NetworkError
from trikubelet.linux.netlink import conntrack, links, nftables
from trikubelet.linux.netlink.client import NETLINK_NETFILTER, NETLINK_ROUTE, NetlinkError, NetlinkSocket
from trikubelet.linux.netlink.messages import MalformedMessageError
from trikubelet.linux.netlink.nftables import NFNL_SUBSYS_NFTABLES
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

    from trikubelet.embedded.network.bridge.host import Host
    from trikubelet.embedded.network.bridge.ports import Binding
    from trikubelet.embedded.network.model import Attachment, NetworkNamespace, PodNetworkSpec
    from trikubelet.linux.netlink.messages import Request
    from trikubelet.linux.netlink.routes import Address, Network

log = get_logger("embedded")

_DEADLINE: Final = 30.0
"""Seconds for each method; the kernel takes milliseconds."""


async def open_here(family: int, kind: int, protocol: int = 0) -> socket.socket:
    """A socket in the network namespace of this process."""
    return socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)


class BridgeNetwork:
    """`PodNetwork` by a bridge of the runtime's own. `reconcile` comes first: only then it knows who has what."""

    def __init__(
        self,
        root: str,
        *,
        subnets: Sequence[str] = (),
        cluster: Sequence[str] = (),
        open_socket: Callable[[int, int, int], Awaitable[socket.socket]] = open_here,
        proc: ProcFiles | None = None,
    ) -> None:
        """`root`: the runtime's folder, which names what is made. `subnets`: one or two CIDRs, else they are chosen.

        `cluster`: CIDRs of all pods of the cluster, to which pods go by their own addresses. `open_socket` and `proc`
        lead to the machine's network namespace. Raises NetworkError for bad subnets.
        """
        self.warnings: tuple[str, ...] = ()
        """What may keep pods from others although they have a network, as of the last `reconcile`."""
        self._lost: frozenset[str] = frozenset()
        """Sandboxes whose link was not there at the last look: nothing but another sandbox gives it back."""
        self._names = Names(root)
        self._wanted = parse_subnets(subnets)
        self._cluster = parse_subnets(cluster, "cluster CIDR")
        self._open_socket = open_socket
        self._proc = ProcFiles() if proc is None else proc
        self._leases: dict[str, Lease] = {}
        self._ending: set[str] = set()
        """Sandboxes that are being detached."""
        self._detached: set[str] = set()
        """Sandboxes that were detached: what the runtime has recorded of them does not count any more."""
        self._last: dict[Network, Address] = {}
        """The address that was given last, of each subnet."""
        self._host: Host | None = None
        self._problem: str | None = None
        self._lock = trio.Lock()

    async def problem(self) -> str:
        """What the last `reconcile` said; before it, whether the kernel can do it and this process may."""
        if self._problem is not None:
            return self._problem
        try:
            with _deadline("make pods' networks"):
                (await self._open_nf_tables()).close()
        except NetworkError as error:
            return str(error)
        return ""

    async def plans(self) -> tuple[Sequence[str], Sequence[str]]:
        """What of the machine's would be changed, and what would keep pods from others all the same.

        Changes nothing. Raises NetworkError.
        """
        with _deadline("look at the machine's network"):
            with await self._open(NETLINK_NETFILTER) as netfilter:
                chains = await machine_side.dropping_chains(netfilter)
            ipv6 = any(each.version == 6 for each in self._wanted) if self._wanted else has_ipv6(self._proc)
            warnings = [warning(each, self._names) for each in chains if not is_iptables_forward(each)]
            warnings += await machine_side.legacy_chains(self._open_socket, self._names, self._proc)
            return plans(wanted_sysctls(self._proc, ipv6=ipv6), chains, self._names), warnings

    def sandbox_out_of_reach(self, address: str) -> str | None:
        """See `PodNetwork`: the machine is on the bridge itself."""
        return None

    async def set_subnets(self, subnets: Sequence[str]) -> None:
        """See `PodNetwork` (`podCIDR`). Who has an address keeps it."""
        wanted = parse_subnets(subnets)
        with _deadline("change the pods' subnets"):
            async with self._lock:
                self._wanted = wanted
                if self._host is not None:
                    await self._bring_about()

    async def attach(self, spec: PodNetworkSpec, namespace: NetworkNamespace) -> Attachment:
        """See `PodNetwork`."""
        with _deadline(f"attach pod {spec.namespace}/{spec.name} to the network"):
            async with self._lock:
                if self._host is None:
                    raise NetworkError(self._problem or "the network was not looked at yet")
                lease = await self._take_lease(spec, self._host)
                try:
                    await self._connect(lease, namespace, self._host)
                    await self._open_ports(lease)
                except BaseException:
                    with trio.CancelScope(shield=True):
                        await self._give_up(lease)
                    raise
                lease.attached = True
        return lease.attachment()

    async def detach(
        self, spec: PodNetworkSpec, attachment: Attachment | None, namespace: NetworkNamespace | None
    ) -> None:
        """See `PodNetwork`. A link goes with its namespace, which the caller lets go next: deleting it takes the kernel
        20 to 40 ms, and no pod that ends needs to wait for that. Where somebody else holds the namespace `reconcile`
        deletes it. Until then nobody gets its address."""
        with _deadline(f"detach pod {spec.namespace}/{spec.name} from the network"):
            self._ending.add(spec.sandbox_id)
            self._detached.add(spec.sandbox_id)
            try:
                async with self._lock:
                    lease = self._leases.get(spec.sandbox_id)
                    if lease is not None:
                        lease.attached = False
                        await self._close_ports(lease)
                if namespace is None:
                    await self._disconnect(spec.sandbox_id)
            finally:
                self._ending.discard(spec.sandbox_id)

    async def reconcile(self, pods: Mapping[str, tuple[PodNetworkSpec, Attachment | None]]) -> frozenset[str]:
        """See `PodNetwork`. A pod that was attached here and is not among these is kept: it is being recorded."""
        # Before anything is waited for: what is detached meanwhile must not come back.
        for sandbox_id, (spec, attachment) in pods.items():
            if attachment is not None and sandbox_id not in self._leases and sandbox_id not in self._detached:
                self._know(spec, attachment)
        self._detached &= pods.keys() | self._ending
        with _deadline("reconcile the pods' network"):
            async with self._lock:
                self._forget_detached()
                await self._bring_about()
                return self._lost

    async def close(self) -> None:
        """See `PodNetwork`."""
        with _deadline("take the pods' network down"):
            async with self._lock:
                with await self._open(NETLINK_ROUTE) as route:
                    machine = await machine_side.look(route)
                    try:
                        netfilter = await self._open_nf_tables()
                    except NetworkError:
                        if machine.bridge(self._names) is None:
                            return  # it never came so far as to make anything
                        raise
                    with netfilter:
                        await machine_side.take_back(route, netfilter, self._names, machine, self._proc)
                self._host = None
                self._problem = None
                self._leases.clear()

    # --- With the lock held -------------------------------------------------------------------------------------------

    async def _bring_about(self) -> None:
        """Make the machine what the leases need."""
        try:
            with _reported("make the pods' network"):
                await self._bring_about_now()
        except NetworkError as error:
            self._problem = str(error)
            raise
        self._problem = ""

    async def _bring_about_now(self) -> None:
        leased = tuple({each.network: None for lease in self._leases.values() for each in lease.interfaces})
        with await self._open_nf_tables() as netfilter, await self._open(NETLINK_ROUTE) as route:
            machine = await machine_side.look(route)
            host = await machine_side.make_bridge(
                route, self._names, machine, self._proc, wanted=self._wanted, leased=leased
            )
            ipv6 = any(each.version == 6 for each in (*host.subnets, *leased))
            await machine_side.forward(route, self._names, machine, self._proc, ipv6=ipv6)
            chains = await machine_side.dropping_chains(netfilter)
            warnings = await machine_side.open_chains(netfilter, chains, self._names)
            warnings += await machine_side.legacy_chains(self._open_socket, self._names, self._proc)
            self._host = host
            await self._replace_table(netfilter)
            veths = {self._names.veth(name): name for name, lease in self._leases.items() if lease.attached}
            missing = await machine_side.make_ports(route, self._names, machine, host, veths)
        self._lost = frozenset(veths[each] for each in missing)
        warnings += machine_side.collisions(machine, host)
        for text in warnings:
            if text not in self.warnings:
                log.warning("pods may not reach others", reason=text)
        self.warnings = warnings

    async def _take_lease(self, spec: PodNetworkSpec, host: Host) -> Lease:
        """Raises NetworkError."""
        if spec.sandbox_id in self._leases:
            raise NetworkError("it is attached already, or was not taken down")
        try:
            lease = new_lease(spec, host.subnets, self._leases.values(), self._last)
        except NetworkError:
            if not self._forget_detached():
                raise
            await self._bring_about()  # deletes what is left of their links
            lease = new_lease(spec, host.subnets, self._leases.values(), self._last)
        self._last |= {each.network: each.ip for each in lease.interfaces}
        self._leases[spec.sandbox_id] = lease
        return lease

    def _forget_detached(self) -> bool:
        """Whether there were any."""
        known = len(self._leases)
        self._leases = {name: lease for name, lease in self._leases.items() if lease.attached or name in self._ending}
        return len(self._leases) < known

    def _know(self, spec: PodNetworkSpec, attachment: Attachment) -> None:
        """Take up a pod that was attached by an earlier process."""
        pod = f"{spec.namespace}/{spec.name}"
        try:
            lease = recorded_lease(spec, attachment)
        except NetworkError as error:
            log.warning("a pod's network is not known here", pod=pod, error=str(error))
            return
        if problem := conflict(lease.bindings, self._bindings()):
            log.warning("a pod is left without its host ports", pod=pod, error=problem)
            lease.bindings = ()
        self._leases[spec.sandbox_id] = lease

    def _bindings(self) -> list[Binding]:
        return [each for lease in self._leases.values() for each in lease.bindings]

    async def _connect(self, lease: Lease, namespace: NetworkNamespace, host: Host) -> None:
        inside = NetlinkSocket(await namespace.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE))
        with inside, await self._open(NETLINK_ROUTE) as route:
            await connect(route, inside, namespace.path, lease, host, self._names)

    async def _open_ports(self, lease: Lease) -> None:
        if not lease.bindings:
            return
        with await self._open(NETLINK_NETFILTER) as netfilter:
            await self._change_ports(netfilter, rules.open_ports(self._names, lease.bindings))
            await _forget(
                netfilter,
                {
                    conntrack.forget_udp_to_port(each.target.version, each.host_port)
                    for each in lease.bindings
                    if each.protocol == "udp"
                },
            )

    async def _close_ports(self, lease: Lease) -> None:
        closing, lease.bindings = lease.bindings, ()
        if not closing:
            return
        with await self._open(NETLINK_NETFILTER) as netfilter:
            await self._change_ports(netfilter, rules.close_ports(self._names, closing))
            await _forget(
                netfilter,
                {
                    conntrack.forget_udp_answered_by(each.target, each.target_port)
                    for each in closing
                    if each.protocol == "udp"
                },
            )

    async def _disconnect(self, sandbox_id: str) -> None:
        with await self._open(NETLINK_ROUTE) as route:
            (error,) = await route.try_each([links.delete_link(self._names.veth(sandbox_id))])
        if error is not None and error.errno != errno.ENODEV:
            raise error
        self._leases.pop(sandbox_id, None)

    async def _give_up(self, lease: Lease) -> None:
        """Take half an attachment down. What cannot be is for the next `reconcile`, and its address is not given."""
        try:
            with _reported("take down what was made"), trio.fail_after(_DEADLINE):
                await self._close_ports(lease)
                await self._disconnect(lease.spec.sandbox_id)
        except (NetworkError, trio.TooSlowError) as error:
            log.warning("a pod's half made network is left", sandbox=lease.spec.sandbox_id, error=str(error))

    async def _change_ports(self, netfilter: NetlinkSocket, requests: Sequence[Request]) -> None:
        """Change the table's maps; where it lacks what it should have, make all of it anew, as the leases are now."""
        try:
            await netfilter.transact(NFNL_SUBSYS_NFTABLES, requests)
        except NetlinkError as error:
            if error.errno not in (errno.ENOENT, errno.EEXIST):
                raise
            await self._replace_table(netfilter)

    async def _replace_table(self, netfilter: NetlinkSocket) -> None:
        assert self._host is not None
        leased = [each.network for lease in self._leases.values() for each in lease.interfaces]
        subnets = tuple(dict.fromkeys((*self._host.subnets, *leased)))
        table = rules.table(self._names, subnets, self._bindings(), self._cluster)
        await netfilter.transact(NFNL_SUBSYS_NFTABLES, table)

    async def _open_nf_tables(self) -> NetlinkSocket:
        """Raises NetworkError where the kernel has none or this process may not use it."""
        netfilter = None
        try:
            netfilter = await self._open(NETLINK_NETFILTER)
            await netfilter.get(nftables.get_generation())
        except OSError as error:
            if netfilter is not None:
                netfilter.close()
            if error.errno == errno.EPERM:
                raise NetworkError("to make pods' networks takes root, or CAP_NET_ADMIN") from error
            raise NetworkError(
                "the kernel has no nf_tables (CONFIG_NF_TABLES, module nf_tables), by which pods reach other machines "
                f"and are reached at host ports: {error.strerror}"
            ) from error
        return netfilter

    async def _open(self, protocol: int) -> NetlinkSocket:
        return NetlinkSocket(await self._open_socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol))


async def _forget(netfilter: NetlinkSocket, requests: Collection[Request]) -> None:
    """Have connections forgotten. A kernel before 6.8 cannot choose them so: they are forgotten when they are idle."""
    for error in await netfilter.try_each(list(requests)):
        if error is not None:
            log.debug("connections of a host port are not forgotten", error=str(error))


@contextmanager
def _reported(what: str) -> Iterator[None]:
    """Say what was being done when the system refused."""
    try:
        yield
    except OSError as error:
        raise NetworkError(f"cannot {what}: {error.strerror or error}") from error
    except MalformedMessageError as error:
        raise NetworkError(f"cannot {what}: an answer of the kernel that cannot be read: {error}") from error


@contextmanager
def _deadline(what: str) -> Iterator[None]:
    """One for a whole method."""
    try:
        with _reported(what), trio.fail_after(_DEADLINE):
            yield
    except trio.TooSlowError:
        raise NetworkError(f"cannot {what}: it takes more than {_DEADLINE:g} s") from None
