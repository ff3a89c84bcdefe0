"""Looks at the node while the agent runs, so that its facts are at hand whenever somebody asks.

What the kernel answers at once (addresses) is asked for when it is wanted. What takes time (the name server, the
runtime's images) is asked for here, now and then, and kept.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import frozen
from trikubelet.node.address_choice import HostAddresses, IPAddress
from trikubelet.node.addresses import read_host_addresses
from trikubelet.node.conditions import Pressure
from trikubelet.node.devices.model import DeviceResources
from trikubelet.node.facts import NodeFacts
from trikubelet.node.status import image_list
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.rpc.cri.v1 import VersionResponse
from trikubelet.supervision import contain, supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trio_typing import TaskStatus

    from trikubelet.api import ContainerImage
    from trikubelet.linux.machine import Machine
    from trikubelet.node.address_choice import AddressSettings
    from trikubelet.rpc.cri.client import ImageClient
    from trikubelet.runtime.state import RuntimeState

log = get_logger("node")

IMAGES_PERIOD: Final = 30.0
LOOKUP_PERIOD: Final = 10.0
FIRST_LOOK: Final = 1.0
LOOKUP_TIMEOUT: Final = 5.0
"""Seconds: between lists of images, between lookups of the node's name, for the first of both, for one lookup."""


Lookup: TypeAlias = Callable[[str], Awaitable[tuple[IPAddress, ...] | None]]
"""What a name server says of a name; None when it does not say anything in time."""


async def look_up(name: str) -> tuple[IPAddress, ...] | None:
    """What the name server, or the hosts file, says of a name. None when it does not say anything in time."""
    with trio.move_on_after(LOOKUP_TIMEOUT):
        try:
            found = await trio.socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            return None if error.errno == socket.EAI_AGAIN else ()
        except OSError:
            return None
        texts = dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)
        return tuple(ipaddress.ip_address(text) for text in texts)
    return None


@frozen(kw_only=True)
class FactSources:
    """Which parts know the facts of the node. What a part that is missing would say is left out."""

    runtime_version: Callable[[], VersionResponse | None]
    pressure: Callable[[], Pressure] = Pressure
    shutdown_problem: Callable[[], str | None] = lambda: None
    warnings: Callable[[], tuple[str, ...]] = tuple
    volumes_in_use: Callable[[], tuple[str, ...] | None] = lambda: None
    devices: Callable[[], DeviceResources] = DeviceResources
    host: Callable[[], HostAddresses] = read_host_addresses
    """May raise OSError; then what it said last counts on."""
    lookup: Lookup | None = look_up
    """None: nobody but this machine has to find the node, so no name server is asked."""
    changed: Broadcast[None] = attrs.field(factory=Broadcast)
    """Sent by the owners of facts when they change."""


class NodeObserver:
    """Knows the facts of the node."""

    def __init__(
        self,
        machine: Machine | None,
        addresses: AddressSettings,
        state: RuntimeState,
        images: ImageClient,
        sources: FactSources,
    ) -> None:
        self._machine = machine
        self._addresses = addresses
        self._state = state
        self._image_client = images
        self._sources = sources
        self._host = HostAddresses()
        self._resolved: tuple[IPAddress, ...] = ()
        self._images: tuple[ContainerImage, ...] = ()
        self.changed = sources.changed
        """Some fact is another one, perhaps one that is known elsewhere too."""

    @property
    def boot_id(self) -> str:
        """Of the machine; empty when it cannot be read."""
        return "" if self._machine is None else self._machine.boot_id

    def facts(self) -> NodeFacts:
        """As they are now."""
        version = self._sources.runtime_version()
        try:
            self._host = attrs.evolve(self._sources.host(), resolved=self._resolved)
        except OSError as error:
            self._host = attrs.evolve(self._host, resolved=self._resolved, problem=str(error))
        return NodeFacts(
            machine=self._machine,
            host=self._host,
            runtime_name="" if version is None else version.runtime_name,
            runtime_version=None if version is None else version.runtime_version,
            abilities=self._state.abilities,
            images=self._images,
            pressure=self._sources.pressure(),
            runtime_problems=self._state.problems(),
            network_problem=self._state.conditions.network_problem,
            shutdown_problem=self._sources.shutdown_problem(),
            warnings=self._sources.warnings(),
            devices=self._sources.devices(),
            volumes_in_use=self._sources.volumes_in_use(),
        )

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Observe until cancelled. Started after the first round, or soon: slow facts delay no one."""
        with trio.move_on_after(FIRST_LOOK):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(contain, self._inspect_images)
                nursery.start_soon(contain, self._resolve_name)
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, _repeat, self._inspect_images, IMAGES_PERIOD)
            nursery.start_soon(supervise, _repeat, self._resolve_name, LOOKUP_PERIOD)

    async def _inspect_images(self) -> None:
        try:
            images = image_list(await self._image_client.list_images())
        except CRIError as error:
            log.warning("the runtime does not list its images", error=str(error))
            return
        if images != self._images:
            self._images = images
            self.changed.send(None)

    async def _resolve_name(self) -> None:
        """Where no address of the node is given; an answer that does not come leaves the last one."""
        lookup = self._sources.lookup
        if lookup is None or not self._addresses.needs_lookup:
            return
        resolved = await lookup(self._addresses.node_name)
        if resolved is not None and resolved != self._resolved:
            self._resolved = resolved
            self.changed.send(None)


async def _repeat(look: Callable[[], Awaitable[None]], period: float) -> None:
    while True:
        await trio.sleep(period)
        await look()
