"""What makes a manifest a static pod: that it is a valid pod, its identity on this node, and what it may not refer to.

Pure. Follows the kubelet's `applyDefaults` and `HasAPIObjectReference`.

The UID is the kubelet's recipe: FNV-1a 128 over the defaulted pod, then `host:NODE`, then `file:PATH`, in hex. The
kubelet dumps the pod as its own Go struct of that release, so that its UIDs change with nearly every minor version;
no other program can print that struct, nor would it help the node. Ours hashes the pod's canonical JSON: the same
ingredients, the same properties (another node, another path or another content gives another pod), and stable as long
as the defaults are.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.api import (
    POD_PENDING,
    Container,
    DecodeError,
    EphemeralContainer,
    Pod,
    Problem,
    Toleration,
    pod_from_dict,
    set_pod_defaults,
    to_dict,
    validate_pod,
    volume_config_maps,
    volume_secrets,
)
from trikubelet.api.decode import wire_name
from trikubelet.api.pod_kinds import CONFIG_HASH_ANNOTATION, CONFIG_SOURCE_ANNOTATION, FILE_SOURCE, HTTP_SOURCE
from trikubelet.api.schema import APIObject

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_NAMESPACE: Final = "default"

_NAMES_A_FOLDER: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""A UID names folders of volumes and logs, so it must not lead elsewhere."""
_FNV_OFFSET: Final = 0x6C62272E07BB014262B821756295C58D
_FNV_PRIME: Final = 0x0000000001000000000000000000013B
_FNV_MASK: Final = 2**128 - 1


@attrs.frozen
class StaticPod:
    """What the data of a manifest says."""

    pod: Pod | None
    """None: not even that. With problems it may not run."""
    problems: tuple[Problem, ...] = ()
    unknown_fields: tuple[str, ...] = ()
    """Paths of fields that Kubernetes does not have and that have no effect."""


def read_static_pod(data: Any, *, node_name: str, file: str | None = None, url: str | None = None) -> StaticPod:
    """Decode, default and check the data of one manifest. Exactly one of file and url is its source."""
    try:
        decoded = pod_from_dict(data)
    except DecodeError as error:
        return StaticPod(None, error.problems)
    uid = decoded.metadata.uid
    if not decoded.metadata.name:
        return StaticPod(None, (Problem("metadata.name", "Required value: name is needed for the pod"),))
    if uid and _NAMES_A_FOLDER.fullmatch(uid) is None:
        expected = 'expected letters and digits, with "-", "_" or "." between'
        return StaticPod(None, (Problem("metadata.uid", f'Invalid value: "{uid}": {expected}'),))
    pod = make_static(set_pod_defaults(decoded), node_name=node_name, file=file, url=url)
    problems = tuple(validate_pod(pod))
    reference = None if problems else api_reference(pod)
    return StaticPod(pod, (reference,) if reference else problems, tuple(_unknown_fields(decoded)))


def make_static(pod: Pod, *, node_name: str, file: str | None = None, url: str | None = None) -> Pod:
    """A decoded and defaulted pod as the static pod of this node. Exactly one of file and url is its source."""
    uid = pod.metadata.uid or _derive_uid(pod, node_name, file, url)
    metadata = attrs.evolve(
        pod.metadata,
        uid=uid,
        name=f"{pod.metadata.name}-{node_name.lower()}",
        namespace=pod.metadata.namespace or DEFAULT_NAMESPACE,
        annotations={
            **pod.metadata.annotations,
            CONFIG_HASH_ANNOTATION: uid,
            CONFIG_SOURCE_ANNOTATION: FILE_SOURCE if file is not None else HTTP_SOURCE,
        },
    )
    tolerations = _tolerate_no_execute(pod.spec.tolerations) if file is not None else pod.spec.tolerations
    spec = attrs.evolve(pod.spec, node_name=node_name, tolerations=tolerations)
    status = attrs.evolve(pod.status, phase=POD_PENDING)
    return attrs.evolve(pod, metadata=metadata, spec=spec, status=status)


def _unknown_fields(value: object, path: str = "") -> Iterator[str]:
    """Paths of the fields that an object and the objects in it were given and Kubernetes does not have."""
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _unknown_fields(item, f"{path}[{index}]")
    elif isinstance(value, APIObject):
        prefix = f"{path}." if path else ""
        yield from (f"{prefix}{name}" for name in value.unknown_fields)
        for attribute in attrs.fields(type(value)):
            inner = getattr(value, attribute.name)
            if isinstance(inner, APIObject | tuple) and inner:
                yield from _unknown_fields(inner, prefix + wire_name(attribute))


def fnv1a_128(data: bytes) -> str:
    """FNV-1a with 128 bits, in hex."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _FNV_MASK
    return f"{value:032x}"


def _derive_uid(pod: Pod, node_name: str, file: str | None, url: str | None) -> str:
    content = json.dumps(to_dict(pod), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    source = f"host:{node_name}file:{file}" if file is not None else f"url:{url}"
    # A path may hold bytes that are no UTF-8; they count as they are.
    return fnv1a_128(content.encode(errors="surrogatepass") + source.encode(errors="surrogateescape"))


def _tolerate_no_execute(tolerations: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
    """Static pods are not evicted for the node's own troubles (kubelet: `AddOrUpdateTolerationInPod`)."""
    wanted = Toleration(operator="Exists", effect="NoExecute")
    rest = list(tolerations)
    for index, toleration in enumerate(rest):
        if _same_toleration(toleration, wanted):
            rest[index] = wanted
            return tuple(rest)
    return (*tolerations, wanted)


def _same_toleration(one: Toleration, other: Toleration) -> bool:
    return (one.key, one.effect, one.operator, one.value) == (other.key, other.effect, other.operator, other.value)


def api_reference(pod: Pod) -> Problem | None:
    """The first reference to an API object, which a static pod may not have, in the kubelet's order and words."""
    for references in (_service_account, _named_secrets, _named_config_maps, _claims, _volumes):
        for path, resource in references(pod):
            return Problem(path, f"static pods may not reference {resource}")
    return None


def _service_account(pod: Pod) -> Iterator[tuple[str, str]]:
    if pod.spec.service_account_name:
        yield "spec.serviceAccountName", "serviceaccounts"
    if pod.spec.service_account:
        yield "spec.serviceAccount", "serviceaccounts"


def _containers(pod: Pod) -> Iterator[tuple[str, Container | EphemeralContainer]]:
    for field, containers in (
        ("initContainers", pod.spec.init_containers),
        ("containers", pod.spec.containers),
        ("ephemeralContainers", pod.spec.ephemeral_containers),
    ):
        for index, container in enumerate(containers):
            yield f"spec.{field}[{index}]", container


def _named_secrets(pod: Pod) -> Iterator[tuple[str, str]]:
    for index, reference in enumerate(pod.spec.image_pull_secrets):
        if reference.name:
            yield f"spec.imagePullSecrets[{index}]", "secrets"
    for path, container in _containers(pod):
        for index, source in enumerate(container.env_from):
            if source.secret_ref is not None and source.secret_ref.name:
                yield f"{path}.envFrom[{index}].secretRef", "secrets"
        for index, variable in enumerate(container.env):
            origin = variable.value_from
            if origin is not None and origin.secret_key_ref is not None and origin.secret_key_ref.name:
                yield f"{path}.env[{index}].valueFrom.secretKeyRef", "secrets"
    for index, volume in enumerate(pod.spec.volumes):
        if any(volume_secrets(volume)):
            yield f"spec.volumes[{index}]", "secrets"


def _named_config_maps(pod: Pod) -> Iterator[tuple[str, str]]:
    for path, container in _containers(pod):
        for index, source in enumerate(container.env_from):
            if source.config_map_ref is not None and source.config_map_ref.name:
                yield f"{path}.envFrom[{index}].configMapRef", "configmaps"
        for index, variable in enumerate(container.env):
            origin = variable.value_from
            if origin is not None and origin.config_map_key_ref is not None and origin.config_map_key_ref.name:
                yield f"{path}.env[{index}].valueFrom.configMapKeyRef", "configmaps"
    for index, volume in enumerate(pod.spec.volumes):
        if any(volume_config_maps(volume)):
            yield f"spec.volumes[{index}]", "configmaps"


def _claims(pod: Pod) -> Iterator[tuple[str, str]]:
    if pod.spec.resource_claims:
        yield "spec.resourceClaims", "resourceclaims"


_VOLUME_RESOURCES: Final = (
    ("config_map", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistent_volume_claim", "persistentvolumeclaims"),
    ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ("azure_file", "secrets (via azureFile volumes)"),
)
_PROJECTION_RESOURCES: Final = (
    ("config_map", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    ("service_account_token", "serviceaccounts (via projected volumes)"),
    ("cluster_trust_bundle", "clustertrustbundles"),
    ("pod_certificate", "podcertificates"),
)


def _volumes(pod: Pod) -> Iterator[tuple[str, str]]:
    for index, volume in enumerate(pod.spec.volumes):
        path = f"spec.volumes[{index}]"
        for field, resource in _VOLUME_RESOURCES:
            if getattr(volume, field) is not None:
                yield path, resource
        for position, source in enumerate(volume.projected.sources if volume.projected is not None else ()):
            for field, resource in _PROJECTION_RESOURCES:
                if getattr(source, field) is not None:
                    yield f"{path}.projected.sources[{position}]", resource
