"""What a pod wants of volumes: which ones, and what is behind the claims that it names.

Only volumes that a container mounts, or takes as a device, are wanted. Most say themselves what they are
(`resolve_now`); for a claim the API server has to be asked for the claim and the persistent volume that it is bound to,
and a lot can be wrong with them (kubelet: `desired_state_of_world_populator.go`). What makes it impossible to tell what
a volume is, is a problem; what only forbids to mount it here and now, is an obstacle.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.admission.predicates import matches_terms
from trikubelet.api import Pod, Quantity
from trikubelet.api.persistent_volumes import READ_ONLY_MANY
from trikubelet.formats.values import frozen
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.layout import folder_of_plugin
from trikubelet.volumes.migration.translate import TranslationError, migration_of
from trikubelet.volumes.model import MountLabel, VolumeSpec
from trikubelet.volumes.sources import CSI, plugin_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.api import Container, PersistentVolume, PersistentVolumeClaim, Volume
    from trikubelet.kube_client.volume_objects import StorageObjects
    from trikubelet.volumes.kinds.protocol import VolumeKind

BLOCK: Final = "Block"
FILESYSTEM: Final = "Filesystem"
BOUND: Final = "Bound"
READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"
CLAIM_PROTECTION: Final = "kubernetes.io/pvc-protection"
GROUP_ANNOTATION: Final = "pv.beta.kubernetes.io/gid"
MOUNT_OPTIONS_ANNOTATION: Final = "volume.beta.kubernetes.io/mount-options"
AFFINITY_CHECK: Final = "NodeAffinity check"
NO_MATCHING_TERMS: Final = "no matching NodeSelectorTerms"
MOUNT_OPTIONS_CHECK: Final = "MountOptionSupport check"
NO_MOUNT_OPTIONS: Final = "mount options are not supported for this volume type"


@frozen
class Obstacle:
    """Why a volume that is known must not be mounted. `step` and `problem` are for the event's text."""

    step: str
    problem: str


@frozen(kw_only=True)
class Wanted:
    """A volume that a pod wants to be there."""

    pod: Pod
    spec: VolumeSpec
    names: tuple[str, ...]
    """In the pod: more than one when it names the same claim twice."""
    staged: bool = False
    attachable: bool = False
    refreshes: bool = False
    request: int = 0
    """Grows with each wish that the volume be made up to date."""
    size: Quantity | None = None
    """What the file system should have; None when it is not to be grown."""
    obstacle: Obstacle | None = None
    label: MountLabel = attrs.field(factory=MountLabel)

    @property
    def exclusive(self) -> bool:
        """No other pod may have it. With more access modes it is unclear which one is meant."""
        persistent = self.spec.persistent
        return persistent is not None and persistent.spec.access_modes == (READ_WRITE_ONCE_POD,)


@frozen
class Resolved:
    """What the wanted volumes of a pod are, all by their names in the pod and in its order."""

    specs: Mapping[str, VolumeSpec]
    problems: Mapping[str, str]
    obstacles: Mapping[str, Obstacle]


@frozen
class _Used:
    """Names of volumes that containers mount, and of those that they take as devices."""

    mounts: frozenset[str]
    devices: frozenset[str]


def wanted_names(pod: Pod) -> frozenset[str]:
    """The volumes that must be there before the pod's containers start. Images are the runtime's business."""
    images = {volume.name for volume in pod.spec.volumes if volume.image is not None}
    used = _used(pod)
    return (used.mounts | used.devices) - images


def asks_api_server(pod: Pod) -> bool:
    """Whether `resolve_now` is not enough."""
    return any(_claim_name(pod, volume) is not None for volume in pod.spec.volumes)


def resolve_now(pod: Pod) -> Resolved:
    """What the pod's volumes are, of those that do not name a claim."""
    specs: dict[str, VolumeSpec] = {}
    names = wanted_names(pod)
    problems = {name: f'no volume with the name "{name}"' for name in sorted(names - _declared(pod))}
    for volume in pod.spec.volumes:
        if volume.name in names and _claim_name(pod, volume) is None:
            try:
                specs[volume.name] = _of_pod(pod, volume)
            except VolumeError as error:
                problems[volume.name] = error.problem
    return Resolved(specs, problems, {})


async def resolve(pod: Pod, storage: StorageObjects) -> Resolved:
    """What all of the pod's volumes are. Raises nothing: what goes wrong is among the problems and obstacles."""
    known = resolve_now(pod)
    specs, problems, obstacles = dict(known.specs), dict(known.problems), {}
    used = _used(pod)
    for volume in pod.spec.volumes:
        claim_name = _claim_name(pod, volume)
        if claim_name is None or volume.name not in used.mounts | used.devices:
            continue
        try:
            spec = await _behind_claim(pod, volume, claim_name, storage)
            _check_mode(spec, used)
        except VolumeError as error:
            problems[volume.name] = error.problem
            continue
        specs[volume.name] = spec
        obstacle = await _node_obstacle(spec, storage)
        if obstacle is not None:
            obstacles[volume.name] = obstacle
    order = [volume.name for volume in pod.spec.volumes]
    return Resolved(
        {name: specs[name] for name in order if name in specs},
        {name: problems[name] for name in (*order, *problems) if name in problems},
        obstacles,
    )


def mount_options(persistent: PersistentVolume) -> tuple[str, ...]:
    """What the volume wants to be mounted with. The annotation is older, and wins."""
    annotated = persistent.metadata.annotations.get(MOUNT_OPTIONS_ANNOTATION)
    if annotated is None:
        return persistent.spec.mount_options
    return tuple(option for option in annotated.split(",") if option)


def options_obstacle(spec: VolumeSpec, kind: VolumeKind) -> Obstacle | None:
    """A kind that takes no mount options must not be given any."""
    if spec.persistent is None or spec.block or kind.takes_mount_options or not mount_options(spec.persistent):
        return None
    return Obstacle(MOUNT_OPTIONS_CHECK, NO_MOUNT_OPTIONS)


def is_staged(spec: VolumeSpec, kind: VolumeKind) -> bool:
    """Whether the volume is made ready for the node first. A driver's inline volumes belong to one pod, and are not."""
    return kind.staged and (spec.volume is None or spec.volume.csi is None)


def references(spec: VolumeSpec, namespace: str) -> frozenset[tuple[str, str, str]]:
    """The ConfigMaps and Secrets that the volume shows or needs: plural, namespace and name."""
    return frozenset(_references(spec, namespace))


def needs_credentials(spec: VolumeSpec) -> bool:
    """Whether it shows what `PodCredentials` gives and announces changes of: trust bundles, pod certificates."""
    if spec.volume is None or spec.volume.projected is None:
        return False
    sources = spec.volume.projected.sources
    return any(one.cluster_trust_bundle is not None or one.pod_certificate is not None for one in sources)


def csi_driver_of(spec: VolumeSpec) -> str | None:
    """The name of the driver that serves the volume."""
    if spec.persistent is not None and spec.persistent.spec.csi is not None:
        return spec.persistent.spec.csi.driver
    if spec.volume is not None and spec.volume.csi is not None:
        return spec.volume.csi.driver
    return None


def common_user(pod: Pod) -> int | None:
    """The user that all containers run as; None when one does not say or they differ (kubelet: `FsUserFrom`)."""
    from trikubelet.api.security_context import effective_security_context

    users = {effective_security_context(pod, container).run_as_user for container in _containers(pod)}
    return users.pop() if len(users) == 1 else None


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.init_containers
    yield from pod.spec.containers
    yield from pod.spec.ephemeral_containers


def _used(pod: Pod) -> _Used:
    containers = tuple(_containers(pod))
    return _Used(
        frozenset(mount.name for container in containers for mount in container.volume_mounts),
        frozenset(device.name for container in containers for device in container.volume_devices),
    )


def _declared(pod: Pod) -> frozenset[str]:
    return frozenset(volume.name for volume in pod.spec.volumes)


def _claim_name(pod: Pod, volume: Volume) -> str | None:
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return f"{pod.metadata.name}-{volume.name}" if volume.ephemeral is not None else None


def _of_pod(pod: Pod, volume: Volume) -> VolumeSpec:
    """A volume that says itself what it is."""
    migration = migration_of(volume)
    if migration is None:
        return VolumeSpec(volume.name, volume.name, plugin_of(volume, volume.name), volume=volume)
    with _translating(volume.name):
        persistent = migration.inline(volume, pod.metadata.namespace)
    source = persistent.spec.csi
    assert source is not None
    return VolumeSpec(
        volume.name,
        folder_of_plugin(persistent.metadata.name),
        CSI,
        volume=volume,
        persistent=persistent,
        read_only=source.read_only or persistent.spec.access_modes == (READ_ONLY_MANY,),
        migrated=True,
    )


@contextmanager
def _translating(name: str) -> Iterator[None]:
    try:
        yield
    except TranslationError as error:
        raise VolumeError(name, f"failed to translate in-tree pv to CSI: {error}") from error


async def _behind_claim(pod: Pod, volume: Volume, claim_name: str, storage: StorageObjects) -> VolumeSpec:
    namespace = pod.metadata.namespace

    def refused(problem: str) -> VolumeError:
        return VolumeError(volume.name, f"error processing PVC {namespace}/{claim_name}: {problem}")

    try:
        claim = await storage.claim(namespace, claim_name)
    except ObjectError as error:
        raise refused(f"failed to fetch PVC from API server: {error}") from error
    if (problem := _claim_problem(claim)) is not None:
        raise refused(problem)
    if volume.ephemeral is not None and not _is_controlled_by(claim, pod):
        problem = f"PVC {namespace}/{claim_name} was not created for pod {namespace}/{pod.metadata.name} "
        raise VolumeError(volume.name, problem + "(pod is not owner)")
    name = claim.spec.volume_name
    try:
        persistent = await storage.volume(name)
    except ObjectError as error:
        raise refused(f"failed to fetch PV {name} from API server: {error}") from error
    if (problem := _binding_problem(persistent, name, claim.metadata.uid)) is not None:
        raise refused(problem)
    migration = migration_of(persistent.spec)
    if migration is not None:
        with _translating(volume.name):
            persistent = migration.persistent(persistent)
    source = volume.persistent_volume_claim
    return VolumeSpec(
        name=volume.name,
        inner_name=name,
        plugin=plugin_of(persistent.spec, volume.name),
        migrated=migration is not None,
        volume=volume,
        persistent=persistent,
        claim=claim,
        read_only=source is not None and source.read_only,
        block=persistent.spec.volume_mode == BLOCK,
        group=persistent.metadata.annotations.get(GROUP_ANNOTATION, ""),
    )


def _claim_problem(claim: PersistentVolumeClaim) -> str | None:
    """A claim that is going is only good for pods that it waits for: then it is protected."""
    metadata = claim.metadata
    if metadata.deletion_timestamp is not None and CLAIM_PROTECTION not in metadata.finalizers:
        return "PVC is being deleted"
    if claim.status.phase != BOUND:
        return "PVC is not bound"
    return None if claim.spec.volume_name else "PVC has empty pvc.Spec.VolumeName"


def _binding_problem(persistent: PersistentVolume, name: str, claim_uid: str) -> str | None:
    bound_to = persistent.spec.claim_ref
    if bound_to is None:
        return f"found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
    if bound_to.uid != claim_uid:
        found = f"found PV object {name} but its pv.Spec.ClaimRef.UID {bound_to.uid}"
        return f"{found} does not point to claim.UID {claim_uid}"
    return None


def _is_controlled_by(claim: PersistentVolumeClaim, pod: Pod) -> bool:
    owner = next((one for one in claim.metadata.owner_references if one.controller), None)
    same_namespace = claim.metadata.namespace == pod.metadata.namespace
    return same_namespace and owner is not None and owner.uid == pod.metadata.uid


def _check_mode(spec: VolumeSpec, used: _Used) -> None:
    mode = BLOCK if spec.block else FILESYSTEM
    for names, right, where in ((used.mounts, FILESYSTEM, "volumeMounts"), (used.devices, BLOCK, "volumeDevices")):
        if spec.name in names and mode != right:
            problem = f"volume {spec.name} has volumeMode {mode}, but is specified in {where}"
            raise VolumeError(spec.name, problem)


async def _node_obstacle(spec: VolumeSpec, storage: StorageObjects) -> Obstacle | None:
    affinity = None if spec.persistent is None else spec.persistent.spec.node_affinity
    if affinity is None or affinity.required is None:
        return None
    try:
        node = await storage.node()
    except ObjectError as error:
        return Obstacle(AFFINITY_CHECK, str(error))
    if matches_terms(affinity.required.node_selector_terms, node.metadata.name, node.metadata.labels):
        return None
    return Obstacle(AFFINITY_CHECK, NO_MATCHING_TERMS)


def _references(spec: VolumeSpec, namespace: str) -> Iterator[tuple[str, str, str]]:
    volume, persistent = spec.volume, spec.persistent
    if volume is not None and volume.config_map is not None:
        yield "configmaps", namespace, volume.config_map.name
    if volume is not None and volume.secret is not None:
        yield "secrets", namespace, volume.secret.secret_name
    if volume is not None and volume.projected is not None:
        for source in volume.projected.sources:
            if source.config_map is not None:
                yield "configmaps", namespace, source.config_map.name
            if source.secret is not None:
                yield "secrets", namespace, source.secret.name
    if volume is not None and volume.csi is not None and volume.csi.node_publish_secret_ref is not None:
        yield "secrets", namespace, volume.csi.node_publish_secret_ref.name
    if volume is not None and volume.iscsi is not None and volume.iscsi.secret_ref is not None:
        yield "secrets", namespace, volume.iscsi.secret_ref.name
    if volume is not None and volume.flex_volume is not None and volume.flex_volume.secret_ref is not None:
        yield "secrets", namespace, volume.flex_volume.secret_ref.name
    for disk in () if persistent is None else (persistent.spec.iscsi, persistent.spec.flex_volume):
        reference = None if disk is None else disk.secret_ref
        if reference is not None:
            yield "secrets", reference.namespace or namespace, reference.name
    if persistent is not None and (driver := persistent.spec.csi) is not None:
        for secret in (driver.node_stage_secret_ref, driver.node_publish_secret_ref, driver.node_expand_secret_ref):
            if secret is not None:
                yield "secrets", secret.namespace, secret.name
