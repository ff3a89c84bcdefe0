"""Defaults of volumes: file modes, the path of an iSCSI interface, and an emptyDir where no source is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api.volumes import (
    DownwardAPIVolumeFile,
    EmptyDirVolumeSource,
    EphemeralVolumeSource,
    ProjectedVolumeSource,
    Volume,
    VolumeProjection,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.api.environment import ObjectFieldSelector
    from trikubelet.api.quantity import Quantity

FILE_MODE: Final = 0o644
TOKEN_SECONDS: Final = 3600

# Every field of a volume but its name is a source.
VOLUME_SOURCES: Final = tuple(
    attribute.name for attribute in attrs.fields(Volume) if attribute.name not in ("name", "unknown_fields")
)


def default_field_ref(reference: ObjectFieldSelector | None) -> ObjectFieldSelector | None:
    """`apiVersion` is `v1` unless named."""
    if reference is None or reference.api_version:
        return reference
    return attrs.evolve(reference, api_version="v1")


def default_volume(volume: Volume, pull_policy: Callable[[str], str]) -> Volume:
    """The volume with its defaults; `pull_policy` gives the policy of an image reference."""
    # A source of a newer API is a source: it is not replaced by an empty directory.
    if not volume.unknown_fields and all(getattr(volume, source) is None for source in VOLUME_SOURCES):
        return attrs.evolve(volume, empty_dir=EmptyDirVolumeSource())
    return _default_storage(_default_local(volume, pull_policy))


def _default_local(volume: Volume, pull_policy: Callable[[str], str]) -> Volume:
    if volume.image is not None and not volume.image.pull_policy:
        image = attrs.evolve(volume.image, pull_policy=pull_policy(volume.image.reference))
        volume = attrs.evolve(volume, image=image)
    if volume.host_path is not None and volume.host_path.type is None:
        volume = attrs.evolve(volume, host_path=attrs.evolve(volume.host_path, type=""))
    if volume.secret is not None and volume.secret.default_mode is None:
        volume = attrs.evolve(volume, secret=attrs.evolve(volume.secret, default_mode=FILE_MODE))
    if volume.config_map is not None and volume.config_map.default_mode is None:
        volume = attrs.evolve(volume, config_map=attrs.evolve(volume.config_map, default_mode=FILE_MODE))
    if volume.downward_api is not None:
        source = volume.downward_api
        mode = FILE_MODE if source.default_mode is None else source.default_mode
        source = attrs.evolve(source, default_mode=mode, items=_default_files(source.items))
        volume = attrs.evolve(volume, downward_api=source)
    if volume.projected is not None:
        volume = attrs.evolve(volume, projected=_default_projected(volume.projected))
    if volume.ephemeral is not None:
        volume = attrs.evolve(volume, ephemeral=_default_ephemeral(volume.ephemeral))
    return volume


def _default_files(files: tuple[DownwardAPIVolumeFile, ...]) -> tuple[DownwardAPIVolumeFile, ...]:
    return tuple(attrs.evolve(file, field_ref=default_field_ref(file.field_ref)) for file in files)


def _default_projected(source: ProjectedVolumeSource) -> ProjectedVolumeSource:
    return attrs.evolve(
        source,
        default_mode=FILE_MODE if source.default_mode is None else source.default_mode,
        sources=tuple(_default_projection(projection) for projection in source.sources),
    )


def _default_projection(projection: VolumeProjection) -> VolumeProjection:
    if projection.downward_api is not None:
        downward = attrs.evolve(projection.downward_api, items=_default_files(projection.downward_api.items))
        projection = attrs.evolve(projection, downward_api=downward)
    token = projection.service_account_token
    if token is not None and token.expiration_seconds is None:
        token = attrs.evolve(token, expiration_seconds=TOKEN_SECONDS)
        projection = attrs.evolve(projection, service_account_token=token)
    return projection


def _default_ephemeral(source: EphemeralVolumeSource) -> EphemeralVolumeSource:
    template = source.volume_claim_template
    if template is None:
        return source
    spec = attrs.evolve(
        template.spec,
        volume_mode="Filesystem" if template.spec.volume_mode is None else template.spec.volume_mode,
        resources=attrs.evolve(
            template.spec.resources,
            limits=_rounded(template.spec.resources.limits),
            requests=_rounded(template.spec.resources.requests),
        ),
    )
    return attrs.evolve(source, volume_claim_template=attrs.evolve(template, spec=spec))


def _rounded(amounts: dict[str, Quantity]) -> dict[str, Quantity]:
    return {name: amount.round_up(-3) for name, amount in amounts.items()}


def _default_storage(volume: Volume) -> Volume:
    """Sources that only storage drivers know."""
    if volume.iscsi is not None:
        interface = volume.iscsi.iscsi_interface or "default"
        volume = attrs.evolve(volume, iscsi=attrs.evolve(volume.iscsi, iscsi_interface=interface))
    if volume.rbd is not None:
        rbd = attrs.evolve(
            volume.rbd,
            pool=volume.rbd.pool or "rbd",
            user=volume.rbd.user or "admin",
            keyring=volume.rbd.keyring or "/etc/ceph/keyring",
        )
        volume = attrs.evolve(volume, rbd=rbd)
    if volume.azure_disk is not None:
        disk = volume.azure_disk
        disk = attrs.evolve(
            disk,
            caching_mode="ReadWrite" if disk.caching_mode is None else disk.caching_mode,
            fs_type="ext4" if disk.fs_type is None else disk.fs_type,
            read_only=False if disk.read_only is None else disk.read_only,
            kind="Shared" if disk.kind is None else disk.kind,
        )
        volume = attrs.evolve(volume, azure_disk=disk)
    if volume.scale_io is not None:
        scale_io = attrs.evolve(
            volume.scale_io,
            storage_mode=volume.scale_io.storage_mode or "ThinProvisioned",
            fs_type=volume.scale_io.fs_type or "xfs",
        )
        volume = attrs.evolve(volume, scale_io=scale_io)
    return volume
