"""`iscsi`: a disk of an iSCSI target, by the system's iscsiadm (kubelet: `iscsi.go`, `iscsi_util.go`).

A session with a target serves all volumes on it, so what is done to sessions of one target is done by one at a time,
and nobody logs out of a portal that another volume was staged over.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import trio

from trikubelet.api import ISCSIPersistentVolumeSource, SecretReference, from_dict, to_dict
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.errors import TransientVolumeError, UncertainVolumeError, VolumeError
from trikubelet.volumes.kinds.node_kind import as_volume_error
from trikubelet.volumes.kinds.programs import MissingProgramError
from trikubelet.volumes.scsi.iscsi_session import TCP, ISCSIAdm, Target
from trikubelet.volumes.scsi.kind import ScsiKind
from trikubelet.volumes.scsi.records import ScsiDisk
from trikubelet.volumes.sources import ISCSI

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from trikubelet.kube_client.volume_objects import StorageObjects
    from trikubelet.volumes.model import SetUpRequest, VolumeSpec

log = get_logger("volumes")

DEFAULT_PORT: Final = "3260"
ENOUGH_PATHS: Final = 2
"""With so many, a disk that should have more is used after `ENOUGH_ATTEMPTS`."""
ENOUGH_ATTEMPTS: Final = 2
MOST_ATTEMPTS: Final = 5
"""Afterwards one path will do."""
APPEARS_WITHIN: Final = 30
MULTIPATH_WITHIN: Final = 10
"""Seconds, a look at each."""
ALL_DEADLINE: Final = 900.0
"""Seconds until a disk must have appeared, over whichever portals."""
KUBELETS_RECORD: Final = "iscsi.json"


class ISCSIKind(ScsiKind):
    plugin = ISCSI
    source_field = "iscsi"
    kubelets_record = KUBELETS_RECORD

    def __init__(self, *, storage: StorageObjects, **common: Any) -> None:
        """`storage` gives the secrets. `common`: as `ScsiKind`."""
        super().__init__(**common)
        self._storage = storage
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        """By target."""

    def disk_of(self, spec: VolumeSpec) -> ScsiDisk:
        source = _source(spec)
        target = _target(source, spec.inner_name)
        names = (f"iface-{target.own_interface}", f"{target.portals[0]}-{source.iqn}-lun-{source.lun}")
        if any("/" in name for name in names):
            problem = f"expected an interface, portal, iqn and volume without slashes, got {' and '.join(names)}"
            raise VolumeError(spec.name, problem)
        return ScsiDisk(
            name=f"{source.target_portal}:{source.iqn}:{source.lun}",
            folder="/".join(names),
            volume=spec.inner_name,
            block=spec.block,
            source=to_dict(source),
        )

    async def appear(self, request: SetUpRequest, disk: ScsiDisk) -> Path:
        volume, source = request.spec.name, _read(disk)
        secret = await self._secret(volume, source, request.pod.metadata.namespace)
        target = _target(source, disk.volume, secret)
        program = ISCSIAdm(volume)
        transport = await program.transport(target.interface)
        if target.initiator:
            await program.copy_interface(target)
        try:
            with trio.fail_after(ALL_DEADLINE):
                async with self._lock(target.iqn):
                    paths = await self._find_paths(program, target, source.lun, transport)
        except trio.TooSlowError:
            raise UncertainVolumeError(volume, f"no path to {disk.name} within {ALL_DEADLINE:.0f} s") from None
        with self.written_down(volume, f"cannot write {KUBELETS_RECORD}"):
            await self._disk.run(partial(_write_for_kubelet, self.place(volume, disk), target, source.lun))
        return await self._multipath(paths, looks=MULTIPATH_WITHIN if len(target.portals) > 1 else 1) or paths[0]

    async def disappear(self, volume: str, disk: ScsiDisk) -> None:
        source = _read(disk)
        target, program = _target(source, disk.volume), ISCSIAdm(volume)
        async with self._lock(target.iqn):
            others = [_read(other) for other in await self.others(volume, disk)]
            neighbours = [other for other in others if other.iqn == source.iqn]
            if all(other.lun != source.lun for other in neighbours):
                await self._delete_devices(volume, source)
            with self.written_down(volume, "cannot look for volumes of another agent"):
                unknown = await self._disk.run(self._records.unrecorded)
            if any(f"-{source.iqn}-lun-" in name for name in unknown):
                log.info("an iSCSI target is used by a volume of another agent", target=source.iqn)
                return
            used = {portal for other in neighbours for portal in _portals(other)}
            for portal in target.portals:
                if portal not in used:
                    await program.log_out(target, portal)
            await program.remove_interface(target)

    # Steps

    async def _find_paths(self, program: ISCSIAdm, target: Target, lun: int, transport: str) -> list[Path]:
        """The disk's devices, one for each portal that it is reached over. Raises VolumeError for none."""
        paths: dict[str, Path] = {}
        problem: VolumeError | None = None
        for attempt in range(1, MOST_ATTEMPTS + 1):
            for portal in target.portals:
                if portal not in paths:
                    try:
                        paths[portal] = await self._find_path(program, target, portal, lun, transport)
                    except MissingProgramError:
                        raise
                    except VolumeError as error:
                        problem = error
            if not paths:
                await program.remove_interface(target)
                why = "no portal" if problem is None else problem.problem
                raise VolumeError(program.volume, f"failed to get any path for iscsi disk, last err seen:\n{why}")
            if len(paths) == len(target.portals) or (len(paths) >= ENOUGH_PATHS and attempt >= ENOUGH_ATTEMPTS):
                break
        if problem is not None:
            log.warning("not every path to an iSCSI disk was found at once", volume=program.volume, error=str(problem))
        return list(paths.values())

    async def _find_path(self, program: ISCSIAdm, target: Target, portal: str, lun: int, transport: str) -> Path:
        volume = program.volume
        hosts = await self._hosts(volume, target.iqn)
        if portal not in hosts:
            await program.log_in(target, portal)
            hosts = await self._hosts(volume, target.iqn)
            if portal not in hosts:
                problem = f"Could not get SCSI host number for portal {portal} after logging in"
                raise VolumeError(volume, problem)
        host = hosts[portal]
        what = f"looking for LUN {lun} on SCSI host {host}"
        await self.ask_host(volume, what, partial(self._host.scan_unit, host, lun))
        link = f"ip-{portal.replace('[', '').replace(']', '')}-iscsi-{target.iqn}-lun-{lun}"
        for look in range(APPEARS_WITHIN):
            await trio.sleep(1 if look else 0)
            links = await self._disk.run(partial(self._host.links, "by-path"))
            for name, device in links.items():
                if name == link or (transport != TCP and name.startswith("pci-") and name.endswith(f"-{link}")):
                    return device
        shown = link if transport == TCP else f"pci-*-{link}"
        where = self._host.dev / "disk/by-path" / shown
        raise VolumeError(volume, f"Timed out waiting for device at path {where} after {APPEARS_WITHIN}s")

    async def _hosts(self, volume: str, iqn: str) -> dict[str, int]:
        with self.written_down(volume, f"cannot look for sessions with {iqn}"):
            return await self._disk.run(partial(self._host.portals, iqn))

    async def _multipath(self, paths: list[Path], *, looks: int) -> Path | None:
        for look in range(looks):
            await trio.sleep(1 if look else 0)
            for path in paths:
                if (found := await self._disk.run(partial(self._host.multipath_of, path))) is not None:
                    return found
        return None

    async def _delete_devices(self, volume: str, source: ISCSIPersistentVolumeSource) -> None:
        """Before their session ends, so that nothing waits for them. What fails here may be cured by logging out."""
        try:
            with as_volume_error(volume, f"cannot look for the devices of {source.iqn}"):
                devices = await self._disk.run(partial(self._host.devices_of, source.iqn, source.lun))
                on_top = [await self._disk.run(partial(self._host.multipath_of, device)) for device in devices]
        except VolumeError as error:
            log.warning("an iSCSI disk stays until its session ends", error=error.problem)
            return
        for multipath in sorted({path for path in on_top if path is not None}):
            await self._try(self.flush_multipath(volume, multipath))
        for device in devices:
            await self._try(self.delete_device(volume, device))

    async def _try(self, work: Awaitable[None]) -> None:
        try:
            await work
        except VolumeError as error:
            log.warning("an iSCSI disk stays until its session ends", error=error.problem)

    async def _secret(self, volume: str, source: ISCSIPersistentVolumeSource, namespace: str) -> dict[str, str]:
        reference = source.secret_ref
        if reference is None or not (source.chap_auth_discovery or source.chap_auth_session):
            return {}
        namespace = reference.namespace or namespace
        where = f"{namespace}/{reference.name}"
        try:
            secret = await self._storage.secret(namespace, reference.name)
        except ObjectError as error:
            raise TransientVolumeError(volume, f"couldn't get secret {where} error: {error}") from error
        try:
            return {key: value.decode() for key, value in secret.data.items()}
        except UnicodeDecodeError:
            # The error itself holds the value, so it is not chained.
            problem = f"expected text in secret {where}, got bytes that are not UTF-8"
            raise VolumeError(volume, problem) from None

    def _lock(self, iqn: str) -> trio.Lock:
        lock = self._locks.get(iqn)
        if lock is None:
            lock = self._locks[iqn] = trio.Lock()
        return lock


def _source(spec: VolumeSpec) -> ISCSIPersistentVolumeSource:
    """An inline volume's secret is in the pod's namespace: none is named here."""
    if spec.persistent is not None and spec.persistent.spec.iscsi is not None:
        return spec.persistent.spec.iscsi
    inline = None if spec.persistent is not None or spec.volume is None else spec.volume.iscsi
    if inline is None:
        raise VolumeError(spec.name, "Spec does not reference an ISCSI volume type")
    secret = None if inline.secret_ref is None else SecretReference(name=inline.secret_ref.name)
    values = to_dict(inline)
    values.pop("secretRef", None)
    return from_dict(ISCSIPersistentVolumeSource, values | ({} if secret is None else {"secretRef": to_dict(secret)}))


def _read(disk: ScsiDisk) -> ISCSIPersistentVolumeSource:
    return from_dict(ISCSIPersistentVolumeSource, dict(disk.source))


def _portals(source: ISCSIPersistentVolumeSource) -> tuple[str, ...]:
    """In order, each once."""
    named = (source.target_portal, *source.portals)
    return tuple(dict.fromkeys(portal if ":" in portal else f"{portal}:{DEFAULT_PORT}" for portal in named))


def _target(source: ISCSIPersistentVolumeSource, volume: str, secret: dict[str, str] | None = None) -> Target:
    return Target(
        iqn=source.iqn,
        portals=_portals(source),
        interface=source.iscsi_interface or "default",
        volume=volume,
        initiator=source.initiator_name or "",
        chap_discovery=source.chap_auth_discovery,
        chap_session=source.chap_auth_session,
        secret=secret or {},
    )


def _write_for_kubelet(at: Path, target: Target, lun: int) -> None:
    at.mkdir(mode=0o750, parents=True, exist_ok=True)
    values = {
        "VolName": target.volume,
        "Portals": target.portals,
        "Iqn": target.iqn,
        "Lun": str(lun),
        "InitIface": target.interface,
        "Iface": target.own_interface,
        "InitiatorName": target.initiator,
    }
    (at / KUBELETS_RECORD).write_text(json.dumps(values) + "\n")
