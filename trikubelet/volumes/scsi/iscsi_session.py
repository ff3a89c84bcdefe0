"""Sessions with iSCSI targets, as `iscsiadm` keeps them: discovery, logging in over each portal, and logging out.

What it is told is the kubelet's (`iscsi_util.go`). Passwords are arguments of its: it has no other way to be told. They
are in no log and no error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.kinds.programs import run_program

if TYPE_CHECKING:
    from trikubelet.volumes.kinds.programs import Ended

log = get_logger("volumes")

PROGRAM: Final = "iscsiadm"
PACKAGE: Final = "open-iscsi or iscsi-initiator-utils"
CALL_DEADLINE: Final = 150.0
"""Seconds. A portal that does not answer is tried for two minutes by the program itself."""
_EXISTS: Final = 15
_NO_SESSION: Final = 2
_NOTHING_FOUND: Final = 21
"""Exit codes."""
TCP: Final = "tcp"
_TRANSPORT: Final = re.compile(r"iface\.transport_name = (.*)")
_DISCOVERY_KEYS: Final = tuple(
    f"discovery.sendtargets.auth.{key}" for key in ("username", "password", "username_in", "password_in")
)
_SESSION_KEYS: Final = tuple(
    f"node.session.auth.{key}" for key in ("username", "password", "username_in", "password_in")
)


@frozen
class Target:
    """A target, over which portals and by which interface it is reached, and how one logs in there."""

    iqn: str
    portals: tuple[str, ...]
    """With ports; the first is the one that the volume is known by."""
    interface: str
    """Of iscsiadm, as it was configured by somebody."""
    volume: str
    """The inner name of the volume."""
    initiator: str = ""
    """Another name for this node: then the interface is copied for this volume alone."""
    chap_discovery: bool = False
    chap_session: bool = False
    secret: Mapping[str, str] = attrs.field(factory=dict, repr=False)

    @property
    def own_interface(self) -> str:
        """The interface that is used."""
        return f"{self.portals[0]}:{self.volume}" if self.initiator else self.interface


@frozen
class ISCSIAdm:
    """The program, about a volume, which errors are about. Methods raise VolumeError."""

    volume: str

    async def transport(self, interface: str) -> str:
        """How an interface reaches targets: `tcp`, for example."""
        shown = await self._must("could not read iface", "-m", "iface", "-I", interface, "-o", "show")
        found = _TRANSPORT.search(shown.answer)
        if found is None or not found[1]:
            raise VolumeError(self.volume, f"could not parse iface file for {interface}")
        return TCP if found[1].strip() == "<empty>" else found[1].strip()

    async def copy_interface(self, target: Target) -> None:
        """Make the interface for a volume that has an initiator's name of its own."""
        new = ("-m", "iface", "-I", target.own_interface)
        if target.interface == target.own_interface:
            raise VolumeError(self.volume, f"iscsi: cannot clone iface with same name: {target.interface}")
        shown = await self._must("failed to show iface records", "-m", "iface", "-I", target.interface, "-o", "show")
        settings = parse_interface(shown.answer)
        if settings is None:
            raise VolumeError(self.volume, f"iscsi: failed to parse iface records: {shown.output}")
        settings["iface.initiatorname"] = target.initiator
        made = await self._run(*new, "-o", "new")
        if made.code not in (0, _EXISTS):
            raise VolumeError(self.volume, f"iscsi: failed to create new iface: {made.output} ({made.code})")
        for key, value in sorted(settings.items()):
            ended = await self._run(*new, "-o", "update", "-n", key, "-v", value)
            if ended.code != 0:
                await self.remove_interface(target)
                raise VolumeError(self.volume, f"iscsi: failed to update iface records: {ended.output} ({ended.code})")

    async def remove_interface(self, target: Target) -> None:
        """Only one that was made for the volume."""
        if target.initiator:
            ended = await self._run("-m", "iface", "-I", target.own_interface, "-o", "delete")
            self._check_gone(ended, "failed to delete iface")

    async def log_in(self, target: Target, portal: str) -> None:
        """Discover the target over a portal, and log in to it."""
        discovery = ("-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", target.own_interface)
        await self._run(*discovery, "-o", "new")
        if target.chap_discovery:
            failed = "failed to update discoverydb with CHAP"
            await self._must(failed, *discovery, *_update("discovery.sendtargets.auth.authmethod", "CHAP"))
            await self._tell_secret(failed, discovery, _DISCOVERY_KEYS, target.secret)
        found = await self._run(*discovery, "--discover")
        if found.code != 0:
            await self._run(*discovery, "-o", "delete")
            problem = f"iscsi: failed to sendtargets to portal {portal} output: {found.output} ({found.code})"
            raise VolumeError(self.volume, problem)
        await self._update_node(target, portal)
        ended = await self._run(*_node(target, portal), "--login")
        if ended.code not in (0, _EXISTS):
            await self._run("-m", "node", "-p", portal, "-I", target.own_interface, "-T", target.iqn, "-o", "delete")
            raise VolumeError(self.volume, f"iscsi: failed to attach disk: Error: {ended.output} ({ended.code})")
        # The machine must not wait for it at its next start.
        startup = await self._run("-m", "node", "-p", portal, "-T", target.iqn, *_update("node.startup", "manual"))
        if startup.code != 0:
            log.warning("an iSCSI login is not set to manual", portal=portal, target=target.iqn, output=startup.output)

    async def log_out(self, target: Target, portal: str) -> None:
        """Idempotent."""
        where = ("-m", "node", "-p", portal, "-T", target.iqn)
        interface = ("-I", target.own_interface)
        self._check_gone(await self._run(*where, "--logout", *interface), "failed to detach disk")
        self._check_gone(await self._run(*where, "-o", "delete", *interface), "failed to delete node record")

    async def _update_node(self, target: Target, portal: str) -> None:
        node = _node(target, portal)
        scan = await self._run(*node, *_update("node.session.scan", "manual"))
        if scan.code != 0:  # an old one: all of the target's units appear on the node
            log.warning("iSCSI sessions are not scanned by hand", target=target.iqn, output=scan.output)
        if target.chap_session:
            failed = "failed to update node with CHAP"
            await self._must(failed, *node, *_update("node.session.auth.authmethod", "CHAP"))
            await self._tell_secret(failed, node, _SESSION_KEYS, target.secret)

    async def _tell_secret(
        self, failed: str, where: tuple[str, ...], keys: tuple[str, ...], secret: Mapping[str, str]
    ) -> None:
        for key in keys:
            if value := secret.get(key):
                ended = await self._run(*where, *_update(key, value), secret=value)
                if ended.code != 0:
                    raise VolumeError(self.volume, f"iscsi: {failed}: key {key}, output: {ended.output}")

    def _check_gone(self, ended: Ended, failed: str) -> None:
        if ended.code not in (0, _NO_SESSION, _NOTHING_FOUND):
            raise VolumeError(self.volume, f"iscsi: {failed}: {ended.output} ({ended.code})")

    async def _must(self, failed: str, *arguments: str) -> Ended:
        ended = await self._run(*arguments)
        if ended.code != 0:
            raise VolumeError(self.volume, f"iscsi: {failed}: {ended.output} ({ended.code})")
        return ended

    async def _run(self, *arguments: str, secret: str = "") -> Ended:
        return await run_program(
            self.volume, PROGRAM, arguments, package=PACKAGE, deadline=CALL_DEADLINE, secret=secret
        )


def parse_interface(shown: str) -> dict[str, str] | None:
    """The settings of an interface, without its name, which a copy has its own of; None when they cannot be read."""
    settings = {}
    for line in shown.splitlines():
        if not line.startswith("iface.") or "<empty>" in line:
            continue
        words = line.split()
        if len(words) != 3 or words[1] != "=":
            return None
        settings[words[0]] = words[2]
    settings.pop("iface.iscsi_ifacename", None)
    return settings


def _node(target: Target, portal: str) -> tuple[str, ...]:
    return ("-m", "node", "-p", portal, "-T", target.iqn, "-I", target.own_interface)


def _update(key: str, value: str) -> tuple[str, ...]:
    return ("-o", "update", "-n", key, "-v", value)
