"""Checks of volumes: that each has one source, and of the sources that a node agent serves itself.

Sources of storage systems are the business of their drivers, which check them when they mount.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api.decode import wire_name
from trikubelet.api.name_formats import config_map_key, dns_label, dns_subdomain, qualified_name
from trikubelet.api.paths import check_no_backsteps, check_volume_file_path
from trikubelet.api.volume_defaults import VOLUME_SOURCES
from trikubelet.api.volumes import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trikubelet.api.environment import ObjectFieldSelector, ResourceFieldSelector
    from trikubelet.api.field_errors import Place
    from trikubelet.api.volumes import (
        DownwardAPIVolumeFile,
        KeyToPath,
        ProjectedVolumeSource,
        ServiceAccountTokenProjection,
        VolumeProjection,
    )

_SOURCE_NAMES: Final = {
    attribute.name: wire_name(attribute) for attribute in attrs.fields(Volume) if attribute.name in VOLUME_SOURCES
}
_HOST_PATH_TYPES: Final = (
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
)
_FILE_FIELDS: Final = (
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
)
RESOURCE_FIELDS: Final = (
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
)
_CPU_DIVISORS: Final = ("1m", "1")
_BYTE_DIVISORS: Final = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")
_MIN_TOKEN_SECONDS: Final = 600
_MAX_TOKEN_SECONDS: Final = 2**32


def validate_volumes(volumes: tuple[Volume, ...], pod_name: str, place: Place) -> dict[str, Volume]:
    """Report what is wrong, and give the sound volumes by name."""
    sound: dict[str, Volume] = {}
    created_claims = {f"{pod_name}-{volume.name}" for volume in volumes if volume.ephemeral is not None}
    for index, volume in enumerate(volumes):
        where = place.index(index)
        before = len(where.problems)
        _validate_sources(volume, where)
        if not volume.name:
            where.at("name").required()
        else:
            where.at("name").invalid(volume.name, *dns_label(volume.name))
        if volume.name in sound:
            where.at("name").duplicate(volume.name)
        if len(where.problems) == before:
            sound[volume.name] = volume
        claim = volume.persistent_volume_claim
        if claim is not None and pod_name and claim.claim_name in created_claims:
            detail = "must not reference a PVC that gets created for an ephemeral volume"
            where.at("persistentVolumeClaim", "claimName").invalid(claim.claim_name, detail)
    return sound


def _validate_sources(volume: Volume, place: Place) -> None:
    present = [source for source in VOLUME_SOURCES if getattr(volume, source) is not None]
    if not present and not volume.unknown_fields:
        place.required("must specify a volume type")
    for source in present[1:]:
        place.at(_SOURCE_NAMES[source]).forbidden("may not specify more than 1 volume type")
    if present and present[0] in _CHECKS:
        _CHECKS[present[0]](volume, place.at(_SOURCE_NAMES[present[0]]))


def _validate_empty_dir(volume: Volume, place: Place) -> None:
    limit = None if volume.empty_dir is None else volume.empty_dir.size_limit
    if limit is not None and limit.nanos < 0:
        place.at("sizeLimit").forbidden("SizeLimit field must be a valid resource quantity")


def _validate_host_path(volume: Volume, place: Place) -> None:
    source = volume.host_path
    if source is None:
        return
    if not source.path:
        place.at("path").required()
    check_no_backsteps(source.path, place.at("path"))
    if source.type is not None and source.type not in _HOST_PATH_TYPES:
        place.at("type").unsupported(source.type, _HOST_PATH_TYPES)


def _validate_secret(volume: Volume, place: Place) -> None:
    if volume.secret is None:
        return
    if not volume.secret.secret_name:
        place.at("secretName").required()
    _check_mode(volume.secret.default_mode, place.at("defaultMode"))
    _validate_items(volume.secret.items, place.at("items"))


def _validate_config_map(volume: Volume, place: Place) -> None:
    if volume.config_map is None:
        return
    if not volume.config_map.name:
        place.at("name").required()
    _check_mode(volume.config_map.default_mode, place.at("defaultMode"))
    _validate_items(volume.config_map.items, place.at("items"))


def _validate_downward_api(volume: Volume, place: Place) -> None:
    if volume.downward_api is None:
        return
    _check_mode(volume.downward_api.default_mode, place.at("defaultMode"))
    for file in volume.downward_api.items:
        _validate_downward_file(file, place)


def _validate_projected(volume: Volume, place: Place) -> None:
    if volume.projected is None:
        return
    _check_mode(volume.projected.default_mode, place.at("defaultMode"))
    for index, projection in enumerate(volume.projected.sources):
        _validate_projection(projection, place.at("sources").index(index))
    _check_distinct_paths(volume.projected, place)


def _validate_claim(volume: Volume, place: Place) -> None:
    if volume.persistent_volume_claim is not None and not volume.persistent_volume_claim.claim_name:
        place.at("claimName").required()


def _validate_nfs(volume: Volume, place: Place) -> None:
    if volume.nfs is None:
        return
    if not volume.nfs.server:
        place.at("server").required()
    if not volume.nfs.path:
        place.at("path").required()
    if not volume.nfs.path.startswith("/"):
        place.at("path").invalid(volume.nfs.path, "must be an absolute path")


def _validate_csi(volume: Volume, place: Place) -> None:
    if volume.csi is None:
        return
    if not volume.csi.driver:
        place.at("driver").required()
    secret = volume.csi.node_publish_secret_ref
    if secret is not None and not secret.name:
        place.at("nodePublishSecretRef", "name").required()


def _validate_ephemeral(volume: Volume, place: Place) -> None:
    if volume.ephemeral is not None and volume.ephemeral.volume_claim_template is None:
        place.at("volumeClaimTemplate").required()


def _validate_image(volume: Volume, place: Place) -> None:
    if volume.image is None:
        return
    if not volume.image.reference:
        place.at("reference").required()
    place.at("pullPolicy").one_of(volume.image.pull_policy, ("Always", "IfNotPresent", "Never"))


_CHECKS: Final[dict[str, Callable[[Volume, Place], None]]] = {
    "empty_dir": _validate_empty_dir,
    "host_path": _validate_host_path,
    "secret": _validate_secret,
    "config_map": _validate_config_map,
    "downward_api": _validate_downward_api,
    "projected": _validate_projected,
    "persistent_volume_claim": _validate_claim,
    "nfs": _validate_nfs,
    "csi": _validate_csi,
    "ephemeral": _validate_ephemeral,
    "image": _validate_image,
}


def _validate_projection(projection: VolumeProjection, place: Place) -> None:
    if projection.secret is not None:
        if not projection.secret.name:
            place.at("secret", "name").required()
        _validate_items(projection.secret.items, place.at("secret", "items"))
    if projection.config_map is not None:
        if not projection.config_map.name:
            place.at("configMap", "name").required()
        _validate_items(projection.config_map.items, place.at("configMap", "items"))
    if projection.downward_api is not None:
        for file in projection.downward_api.items:
            _validate_downward_file(file, place.at("downwardAPI"))
    if projection.service_account_token is not None:
        _validate_token(projection.service_account_token, place.at("serviceAccountToken"))
    bundle = projection.cluster_trust_bundle
    if bundle is not None:
        where = place.at("clusterTrustBundle")
        if bundle.name is not None and bundle.signer_name is not None:
            where.invalid(bundle.name, "only one of name and signerName may be used")
        elif bundle.name is None and bundle.signer_name is None:
            where.required("either name or signerName must be specified")
        if not bundle.path:
            where.at("path").required()
        check_volume_file_path(bundle.path, where.at("path"))
    sources = attrs.astuple(projection, recurse=False, filter=lambda attribute, _: attribute.name != "unknown_fields")
    if sum(source is not None for source in sources) > 1:
        place.forbidden("may not specify more than 1 volume type per source")


def _validate_token(token: ServiceAccountTokenProjection, place: Place) -> None:
    seconds = token.expiration_seconds
    if seconds is not None and seconds < _MIN_TOKEN_SECONDS:
        place.at("expirationSeconds").invalid(seconds, "may not specify a duration less than 10 minutes")
    if seconds is not None and seconds > _MAX_TOKEN_SECONDS:
        place.at("expirationSeconds").invalid(seconds, "may not specify a duration larger than 2^32 seconds")
    if not token.path:
        place.at("path").required()
    else:
        check_volume_file_path(token.path, place.at("path"))


def _check_distinct_paths(source: ProjectedVolumeSource, place: Place) -> None:
    seen: set[str] = set()
    for projection in source.sources:
        paths: list[str] = []
        for items in (
            projection.secret and projection.secret.items,
            projection.config_map and projection.config_map.items,
            projection.downward_api and projection.downward_api.items,
        ):
            paths += [item.path for item in items or ()]
        if projection.cluster_trust_bundle is not None:
            paths.append(projection.cluster_trust_bundle.path)
        for path in paths:
            if path and path in seen:
                place.invalid(path, "conflicting duplicate paths")
            seen.add(path)


def _validate_items(items: Sequence[KeyToPath], place: Place) -> None:
    for index, item in enumerate(items):
        where = place.index(index)
        if not item.key:
            where.at("key").required()
        if not item.path:
            where.at("path").required()
        check_volume_file_path(item.path, where.at("path"))
        _check_mode(item.mode, where.at("mode"))


def _check_mode(mode: int | None, place: Place) -> None:
    if mode is not None and not 0 <= mode <= 0o777:
        place.invalid(mode, "must be a number between 0 and 0777 (octal), both inclusive")


def _validate_downward_file(file: DownwardAPIVolumeFile, place: Place) -> None:
    if not file.path:
        place.at("path").required()
    check_volume_file_path(file.path, place.at("path"))
    if file.field_ref is not None:
        validate_field_ref(file.field_ref, _FILE_FIELDS, place.at("fieldRef"))
        if file.resource_field_ref is not None:
            place.invalid("resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
    elif file.resource_field_ref is not None:
        where = place.at("resourceFieldRef")
        if not file.resource_field_ref.container_name:
            where.at("containerName").required()
        validate_resource_field_ref(file.resource_field_ref, where)
    else:
        place.required("one of fieldRef and resourceFieldRef is required")
    _check_mode(file.mode, place.at("mode"))


def validate_field_ref(reference: ObjectFieldSelector, supported: tuple[str, ...], place: Place) -> None:
    """A field of the pod, or one label or annotation of it: `metadata.labels['key']`."""
    if not reference.api_version:
        place.at("apiVersion").required()
    path = reference.field_path
    if not path:
        place.at("fieldPath").required()
    elif path.endswith("']") and "['" in path:
        field, _, key = path[:-2].partition("['")
        if field == "metadata.annotations":
            place.invalid(key, *qualified_name(key.lower()))
        elif field == "metadata.labels":
            place.invalid(key, *qualified_name(key))
        else:
            place.invalid(field, "does not support subscript")
    elif path not in supported:
        place.at("fieldPath").unsupported(path, supported)


def validate_resource_field_ref(reference: ResourceFieldSelector, place: Place) -> None:
    """A request or limit of a container, and a divisor that fits it."""
    name = reference.resource
    huge_pages = name.startswith(("limits.hugepages-", "requests.hugepages-"))
    if not name:
        place.at("resource").required()
    elif name not in RESOURCE_FIELDS and not huge_pages:
        place.at("resource").unsupported(name, RESOURCE_FIELDS)
    if not reference.divisor:
        return
    kind = "hugepages" if huge_pages else name.partition(".")[2]
    kind = "local ephemeral storage" if kind == "ephemeral-storage" else kind
    divisors = _CPU_DIVISORS if kind == "cpu" else _BYTE_DIVISORS
    if str(reference.divisor) not in divisors:
        shown = " and ".join(divisors) if kind == "cpu" else ", ".join(divisors)
        place.at("divisor").invalid(name, f"only divisor's values {shown} are supported with the {kind} resource")


def validate_key_selector(name: str, key: str, place: Place) -> None:
    """One key of a config map or secret."""
    place.at("name").invalid(name, *dns_subdomain(name))
    if not key:
        place.at("key").required()
    else:
        place.at("key").invalid(key, *config_map_key(key))
