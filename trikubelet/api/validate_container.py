"""Checks of containers: names, images, ports, variables, mounts, probes and hooks."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Final

from trikubelet.api.name_formats import dns_label, dns_subdomain, environment_name, port_name, port_number
from trikubelet.api.paths import check_descending_path, check_no_backsteps
from trikubelet.api.pod_spec import PodSpec
from trikubelet.api.validate_probes import validate_lifecycle, validate_probes
from trikubelet.api.validate_resources import validate_container_resources, validate_resize_policies
from trikubelet.api.validate_security import validate_container_security
from trikubelet.api.validate_volumes import validate_field_ref, validate_key_selector, validate_resource_field_ref
from trikubelet.api.volumes import Volume
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.api.container import Container, ContainerPort, VolumeMount
    from trikubelet.api.environment import EnvFromSource, EnvVar, EnvVarSource, FileKeySelector
    from trikubelet.api.field_errors import Place

_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
_MESSAGE_POLICIES: Final = ("File", "FallbackToLogsOnError")
_RESTART_POLICIES: Final = ("Always", "Never", "OnFailure")
_MAX_RESTART_RULES: Final = 20
_MAX_EXIT_CODES: Final = 255
_VARIABLE_FIELDS: Final = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
# Names that today's fields had once, still read by the downward API.
_OLD_FIELDS: Final = ("spec.host",)


@frozen
class PodContext:
    """What checks of a container need to know of its pod."""

    spec: PodSpec
    volumes: Mapping[str, Volume]
    claim_names: Set[str]

    @property
    def host_users(self) -> bool:
        return self.spec.host_users is not False


def validate_container(container: Container, pod: PodContext, place: Place) -> None:
    """What holds for every kind of container."""
    if not container.name:
        place.at("name").required()
    else:
        place.at("name").invalid(container.name, *dns_label(container.name))
    if not container.image:
        place.at("image").required()
    elif container.image != container.image.strip():
        place.at("image").invalid(container.image, "must not have leading or trailing whitespace")
    place.at("terminationMessagePolicy").one_of(container.termination_message_policy, _MESSAGE_POLICIES)
    _validate_ports(container.ports, place.at("ports"))
    _validate_variables(container.env, place.at("env"))
    _validate_variable_sources(container.env_from, place.at("envFrom"))
    _validate_mounts(container, pod, place.at("volumeMounts"))
    _validate_devices(container, pod, place.at("volumeDevices"))
    place.at("imagePullPolicy").one_of(container.image_pull_policy, _PULL_POLICIES)
    validate_container_resources(container.resources, pod.claim_names, place.at("resources"))
    validate_resize_policies(container, pod.spec.restart_policy, place.at("resizePolicy"))
    validate_container_security(container.security_context, pod.host_users, place.at("securityContext"))
    _validate_file_keys(container.env, pod.spec, place.at("env"))


def validate_running_container(container: Container, pod: PodContext, place: Place) -> None:
    """What holds for containers that run beside each other: regular ones and sidecars."""
    grace_period = pod.spec.termination_grace_period_seconds
    os_name = None if pod.spec.os is None else pod.spec.os.name
    validate_lifecycle(container.lifecycle, grace_period, os_name, place.at("lifecycle"))
    validate_probes(container, place)


def validate_restart_rules(container: Container, place: Place) -> None:
    """A container's own restart policy and the rules that refine it (KEP-5307)."""
    if container.restart_policy is None:
        if container.restart_policy_rules:
            place.at("restartPolicy").required("must specify restartPolicy when restart rules are used")
    elif container.restart_policy not in _RESTART_POLICIES:
        place.at("restartPolicy").unsupported(container.restart_policy, _RESTART_POLICIES)
    rules = place.at("restartPolicyRules")
    if len(container.restart_policy_rules) > _MAX_RESTART_RULES:
        rules.too_many(len(container.restart_policy_rules), _MAX_RESTART_RULES)
    for index, rule in enumerate(container.restart_policy_rules):
        where = rules.index(index)
        if rule.action not in ("Restart", "RestartAllContainers"):
            where.at("action").unsupported(rule.action, ("Restart", "RestartAllContainers"))
        codes = rule.exit_codes
        if codes is None:
            where.at("exitCodes").required("must be specified")
            continue
        if codes.operator not in ("In", "NotIn"):
            where.at("exitCodes", "operator").unsupported(codes.operator, ("In", "NotIn"))
        if len(codes.values) > _MAX_EXIT_CODES:
            where.at("exitCodes", "values").too_many(len(codes.values), _MAX_EXIT_CODES)


def validate_host_ports(containers: tuple[Container, ...], place: Place) -> None:
    """No two of the containers take the same port of the host."""
    taken: set[str] = set()
    for index, container in enumerate(containers):
        for number, port in enumerate(container.ports):
            if not port.host_port:
                continue
            key = f"{port.protocol}/{port.host_ip}/{port.host_port}"
            if key in taken:
                place.index(index).at("ports").index(number).at("hostPort").duplicate(key)
            taken.add(key)


def _validate_ports(ports: tuple[ContainerPort, ...], place: Place) -> None:
    names: set[str] = set()
    for index, port in enumerate(ports):
        where = place.index(index)
        if port.name:
            wrong = port_name(port.name)
            where.at("name").invalid(port.name, *wrong)
            if not wrong and port.name in names:
                where.at("name").duplicate(port.name)
            names.add(port.name)
        if not port.container_port:
            where.at("containerPort").required()
        else:
            where.at("containerPort").invalid(port.container_port, *port_number(port.container_port))
        if port.host_port:
            where.at("hostPort").invalid(port.host_port, *port_number(port.host_port))
        where.at("protocol").one_of(port.protocol, _PROTOCOLS)


def _validate_variables(variables: tuple[EnvVar, ...], place: Place) -> None:
    for index, variable in enumerate(variables):
        where = place.index(index)
        if not variable.name:
            where.at("name").required()
        else:
            where.at("name").invalid(variable.name, *environment_name(variable.name))
        if variable.value_from is not None:
            _validate_value_source(variable.value_from, bool(variable.value), where.at("valueFrom"))


def _validate_value_source(source: EnvVarSource, has_value: bool, place: Place) -> None:
    if source.field_ref is not None and source.field_ref.field_path not in _OLD_FIELDS:
        validate_field_ref(source.field_ref, _VARIABLE_FIELDS, place.at("fieldRef"))
    if source.resource_field_ref is not None:
        validate_resource_field_ref(source.resource_field_ref, place.at("resourceFieldRef"))
    if source.config_map_key_ref is not None:
        reference = source.config_map_key_ref
        validate_key_selector(reference.name, reference.key, place.at("configMapKeyRef"))
    if source.secret_key_ref is not None:
        validate_key_selector(source.secret_key_ref.name, source.secret_key_ref.key, place.at("secretKeyRef"))
    if source.file_key_ref is not None:
        _validate_file_key(source.file_key_ref, place.at("fileKeyRef"))
    count = sum(
        reference is not None
        for reference in (
            source.field_ref,
            source.resource_field_ref,
            source.config_map_key_ref,
            source.secret_key_ref,
            source.file_key_ref,
        )
    )
    if count == 0 and not source.unknown_fields:
        choices = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        place.invalid("", f"must specify one of: {choices}")
    elif has_value:
        place.invalid("", "may not be specified when `value` is not empty")
    elif count > 1:
        place.invalid("", "may not have more than one field specified at a time")


def _validate_file_key(reference: FileKeySelector, place: Place) -> None:
    if not reference.key:
        place.at("key").required()
    else:
        place.at("key").invalid(reference.key, *environment_name(reference.key))
    if not reference.volume_name:
        place.at("volumeName").required()
    else:
        place.at("volumeName").invalid(reference.volume_name, *dns_label(reference.volume_name))
    if not reference.path:
        place.at("path").required()
    else:
        check_no_backsteps(reference.path, place.at("path"))


def _validate_file_keys(variables: tuple[EnvVar, ...], spec: PodSpec, place: Place) -> None:
    """Files of variables lie in an emptyDir of the pod."""
    volumes = {volume.name: volume for volume in spec.volumes}
    for index, variable in enumerate(variables):
        reference = None if variable.value_from is None else variable.value_from.file_key_ref
        if reference is None or not reference.volume_name:
            continue
        where = place.index(index).at("valueFrom", "fileKeyRef", "volumeName")
        volume = volumes.get(reference.volume_name)
        if volume is None:
            where.not_found(reference.volume_name)
        elif volume.empty_dir is None:
            where.invalid(reference.volume_name, "referenced volume must be of type emptyDir")


def _validate_variable_sources(sources: tuple[EnvFromSource, ...], place: Place) -> None:
    for index, source in enumerate(sources):
        where = place.index(index)
        if source.prefix:
            where.at("prefix").invalid(source.prefix, *environment_name(source.prefix))
        for name, reference in (("configMapRef", source.config_map_ref), ("secretRef", source.secret_ref)):
            if reference is None:
                continue
            if not reference.name:
                where.at(name, "name").required()
            else:
                where.at(name, "name").invalid(reference.name, *dns_subdomain(reference.name))
        if source.config_map_ref is None and source.secret_ref is None:
            where.invalid("", "must specify one of: `configMapRef` or `secretRef`")
        elif source.config_map_ref is not None and source.secret_ref is not None:
            where.invalid("", "may not have more than one field specified at a time")


def _validate_mounts(container: Container, pod: PodContext, place: Place) -> None:
    paths: set[str] = set()
    device_names = {device.name for device in container.volume_devices}
    device_paths = {device.device_path for device in container.volume_devices}
    privileged = container.security_context is not None and bool(container.security_context.privileged)
    for index, mount in enumerate(container.volume_mounts):
        where = place.index(index)
        if not mount.name:
            where.at("name").required()
        if mount.name not in pod.volumes:
            where.at("name").not_found(mount.name)
        if not mount.mount_path:
            where.at("mountPath").required()
        if mount.mount_path in paths:
            where.at("mountPath").invalid(mount.mount_path, "must be unique")
        paths.add(mount.mount_path)
        if mount.name in device_names:
            where.at("name").invalid(mount.name, "must not already exist in volumeDevices")
        if mount.mount_path in device_paths:
            where.at("mountPath").invalid(mount.mount_path, "must not already exist as a path in volumeDevices")
        _validate_mount_options(mount, privileged, where)


def _validate_mount_options(mount: VolumeMount, privileged: bool, place: Place) -> None:
    if mount.sub_path:
        check_descending_path(mount.sub_path, place.at("subPath"))
    if mount.sub_path_expr:
        if mount.sub_path:
            detail = "subPathExpr and subPath are mutually exclusive"
            place.at("subPathExpr").invalid(mount.sub_path_expr, detail)
        check_descending_path(mount.sub_path_expr, place.at("subPathExpr"))
    propagation = mount.mount_propagation
    if propagation is not None:
        supported = ("Bidirectional", "HostToContainer", "None")
        if propagation not in supported:
            place.at("mountPropagation").unsupported(propagation, supported)
        if propagation == "Bidirectional" and not privileged:
            detail = "Bidirectional mount propagation is available only to privileged containers"
            place.at("mountPropagation").forbidden(detail)
    recursive = mount.recursive_read_only
    where = place.at("recursiveReadOnly")
    if recursive in ("Enabled", "IfPossible"):
        if not mount.read_only:
            where.forbidden("may only be specified when readOnly is true")
        if propagation not in (None, "None"):
            where.forbidden("may only be specified when mountPropagation is None or not specified")
    elif recursive not in (None, "Disabled"):
        where.unsupported(recursive, ("Disabled", "Enabled", "IfPossible"))


def _validate_devices(container: Container, pod: PodContext, place: Place) -> None:
    names: set[str] = set()
    paths: set[str] = set()
    mounts = {mount.name: mount.mount_path for mount in container.volume_mounts}
    for index, device in enumerate(container.volume_devices):
        name, path = place.index(index).at("name"), place.index(index).at("devicePath")
        volume = pod.volumes.get(device.name)
        if not device.name:
            name.required()
        if device.name in names:
            name.invalid(device.name, "must be unique")
        if volume is None:
            name.not_found(device.name)
        elif volume.persistent_volume_claim is None and volume.ephemeral is None:
            detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            name.invalid(device.name, detail)
        if not device.device_path:
            path.required()
        if device.device_path in paths:
            path.invalid(device.device_path, "must be unique")
        if ".." in device.device_path.split("/"):
            path.invalid(device.device_path, "can not contain backsteps ('..')")
        if device.name in mounts:
            name.invalid(device.name, "must not already exist in volumeMounts")
        if device.device_path in mounts.values():
            path.invalid(device.device_path, "must not already exist as a path in volumeMounts")
        names.add(device.name)
        paths.add(device.device_path)
