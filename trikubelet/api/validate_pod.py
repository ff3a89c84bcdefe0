"""Whether a pod can be run: the checks of an API server (`pkg/apis/core/validation`), for pods that never meet one.

The pod is checked as it is after defaulting. Left out is what only a scheduler or an API server acts on (affinity,
topology spread, scheduling gates) and what other operating systems need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api.field_errors import Place
from trikubelet.api.name_formats import (
    dns_label,
    dns_subdomain,
    inclusive_range,
    ip_address,
    label_value,
    qualified_name,
    search_domain,
)
from trikubelet.api.pod_resources import is_sidecar
from trikubelet.api.validate_container import (
    PodContext,
    validate_container,
    validate_host_ports,
    validate_restart_rules,
    validate_running_container,
)
from trikubelet.api.validate_resources import validate_overhead, validate_pod_level_resources
from trikubelet.api.validate_security import validate_pod_security
from trikubelet.api.validate_volumes import validate_volumes

if TYPE_CHECKING:
    from trikubelet.api.container import Container, EphemeralContainer
    from trikubelet.api.meta import ObjectMeta
    from trikubelet.api.objects import Pod
    from trikubelet.api.pod_spec import PodSpec
    from trikubelet.api.problems import Problem
    from trikubelet.api.scheduling import Toleration

_DNS_POLICIES: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_MAX_ANNOTATION_BYTES: Final = 256 * 1024
_MAX_NAMESERVERS: Final = 3
_MAX_SEARCHES: Final = 32
_MAX_SEARCH_CHARACTERS: Final = 2048
_MAX_HOSTNAME: Final = 64
_MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
_EPHEMERAL_FORBIDDEN: Final = (
    ("ports", "ports"),
    ("resources", "resources"),
    ("liveness_probe", "livenessProbe"),
    ("readiness_probe", "readinessProbe"),
    ("startup_probe", "startupProbe"),
    ("lifecycle", "lifecycle"),
    ("resize_policy", "resizePolicy"),
    ("restart_policy", "restartPolicy"),
    ("restart_policy_rules", "restartPolicyRules"),
)


def validate_pod(pod: Pod) -> list[Problem]:
    """Everything that is wrong with a defaulted pod; empty when it is sound."""
    root = Place([])
    _validate_metadata(pod.metadata, root.at("metadata"))
    annotations = root.at("metadata", "annotations")
    if _MIRROR_ANNOTATION in pod.metadata.annotations and not pod.spec.node_name:
        value = pod.metadata.annotations[_MIRROR_ANNOTATION]
        annotations.key(_MIRROR_ANNOTATION).invalid(value, "must set spec.nodeName if mirror pod annotation is set")
    _validate_spec(pod, root.at("spec"))
    return root.problems


def _validate_metadata(metadata: ObjectMeta, place: Place) -> None:
    if not metadata.name:
        place.at("name").required("name or generateName is required")
    else:
        place.at("name").invalid(metadata.name, *dns_subdomain(metadata.name))
    if not metadata.namespace:
        place.at("namespace").required()
    else:
        place.at("namespace").invalid(metadata.namespace, *dns_label(metadata.namespace))
    _validate_labels(metadata.labels, place.at("labels"))
    annotations = place.at("annotations")
    for key in metadata.annotations:
        annotations.invalid(key, *qualified_name(key.lower()))
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.annotations.items())
    if size > _MAX_ANNOTATION_BYTES:
        annotations.too_long(_MAX_ANNOTATION_BYTES)
    if metadata.deletion_grace_period_seconds is not None:
        place.at("deletionGracePeriodSeconds").not_negative(metadata.deletion_grace_period_seconds)


def _validate_labels(labels: dict[str, str], place: Place) -> None:
    for key, value in labels.items():
        place.invalid(key, *qualified_name(key))
        place.key(key).invalid(value, *label_value(value))


def _validate_spec(pod: Pod, place: Place) -> None:
    spec = pod.spec
    if spec.termination_grace_period_seconds is None:
        place.at("terminationGracePeriodSeconds").required()
    volumes = validate_volumes(spec.volumes, pod.metadata.name, place.at("volumes"))
    claim_names = {claim.name for claim in spec.resource_claims}
    context = PodContext(spec, volumes, claim_names)
    _validate_containers(spec.containers, context, place.at("containers"))
    _validate_init_containers(spec, context, place.at("initContainers"))
    _validate_ephemeral_containers(spec, context, place.at("ephemeralContainers"))
    validate_pod_level_resources(pod, claim_names, place.at("resources"))
    place.at("restartPolicy").one_of(spec.restart_policy, ("Always", "OnFailure", "Never"))
    place.at("dnsPolicy").one_of(spec.dns_policy, _DNS_POLICIES)
    _validate_labels(spec.node_selector, place.at("nodeSelector"))
    if spec.security_context is not None:
        validate_pod_security(spec.security_context, spec, place.at("securityContext"))
    _validate_dns(spec, place.at("dnsConfig"))
    _validate_host_namespaces(spec, place)
    _validate_names(spec, place)
    _validate_tolerations(spec.tolerations, place.at("tolerations"))
    validate_overhead(spec.overhead, place.at("overhead"))
    deadline = spec.active_deadline_seconds
    if deadline is not None:
        place.at("activeDeadlineSeconds").invalid(deadline, *inclusive_range(deadline, 1, 2**31 - 1))
    if spec.os is not None:
        if not spec.os.name:
            place.at("os", "name").required()
        elif spec.os.name not in ("linux", "windows"):
            place.at("os").unsupported(spec.os.name, ("linux", "windows"))
    _validate_service_account(spec, place)


def _validate_containers(containers: tuple[Container, ...], context: PodContext, place: Place) -> None:
    if not containers:
        place.required()
    names: set[str] = set()
    for index, container in enumerate(containers):
        where = place.index(index)
        validate_container(container, context, where)
        if container.name in names:
            where.at("name").duplicate(container.name)
        names.add(container.name)
        validate_running_container(container, context, where)
        validate_restart_rules(container, where)
        if context.spec.host_network:
            for number, port in enumerate(container.ports):
                if port.host_port != port.container_port:
                    detail = "must match `containerPort` when `hostNetwork` is true"
                    where.at("ports").index(number).at("hostPort").invalid(port.host_port, detail)
    validate_host_ports(containers, place)


def _validate_init_containers(spec: PodSpec, context: PodContext, place: Place) -> None:
    names = {container.name for container in spec.containers}
    for index, container in enumerate(spec.init_containers):
        where = place.index(index)
        validate_container(container, context, where)
        validate_restart_rules(container, where)
        if container.name in names:
            where.at("name").duplicate(container.name)
        elif container.name:
            names.add(container.name)
        validate_host_ports((container,), place)
        if is_sidecar(container):
            validate_running_container(container, context, where)
            continue
        for name, value in (
            ("lifecycle", container.lifecycle),
            ("livenessProbe", container.liveness_probe),
            ("readinessProbe", container.readiness_probe),
            ("startupProbe", container.startup_probe),
        ):
            if value is not None:
                where.at(name).forbidden("may not be set for init containers without restartPolicy=Always")


def _validate_ephemeral_containers(spec: PodSpec, context: PodContext, place: Place) -> None:
    others = {container.name for container in (*spec.containers, *spec.init_containers)}
    names = set(others)
    for index, container in enumerate(spec.ephemeral_containers):
        where = place.index(index)
        validate_container(container, context, where)
        if container.name in names:
            where.at("name").duplicate(container.name)
        names.add(container.name)
        if container.target_container_name and container.target_container_name not in others:
            where.at("targetContainerName").not_found(container.target_container_name)
        _forbid_fields(container, where)


def _forbid_fields(container: EphemeralContainer, place: Place) -> None:
    empty = type(container)()
    for name, wire in _EPHEMERAL_FORBIDDEN:
        if getattr(container, name) != getattr(empty, name):
            place.at(wire).forbidden("cannot be set for an Ephemeral Container")
    for index, mount in enumerate(container.volume_mounts):
        for name, value in (("subPath", mount.sub_path), ("subPathExpr", mount.sub_path_expr)):
            if value:
                place.at("volumeMounts").index(index).at(name).forbidden("cannot be set for an Ephemeral Container")


def _validate_dns(spec: PodSpec, place: Place) -> None:
    config = spec.dns_config
    if config is None:
        if spec.dns_policy == "None":
            place.required("must provide `dnsConfig` when `dnsPolicy` is None")
        return
    if spec.dns_policy == "None" and not config.nameservers:
        place.at("nameservers").required("must provide at least one DNS nameserver when `dnsPolicy` is None")
    if len(config.nameservers) > _MAX_NAMESERVERS:
        detail = f"must not have more than {_MAX_NAMESERVERS} nameservers"
        place.at("nameservers").invalid(" ".join(config.nameservers), detail)
    for index, server in enumerate(config.nameservers):
        place.at("nameservers").index(index).invalid(server, *ip_address(server))
    searches = place.at("searches")
    if len(config.searches) > _MAX_SEARCHES:
        searches.invalid(" ".join(config.searches), f"must not have more than {_MAX_SEARCHES} search paths")
    if len(" ".join(config.searches)) > _MAX_SEARCH_CHARACTERS:
        detail = f"must not have more than {_MAX_SEARCH_CHARACTERS} characters (including spaces) in the search list"
        searches.invalid(" ".join(config.searches), detail)
    for index, search in enumerate(config.searches):
        if search != ".":
            domain = search.removesuffix(".")
            searches.index(index).invalid(domain, *search_domain(domain))
    for index, option in enumerate(config.options):
        if not option.name:
            place.at("options").index(index).required("must not be empty")


def _validate_host_namespaces(spec: PodSpec, place: Place) -> None:
    if spec.host_users is False:
        for name, shared in (
            ("hostNetwork", spec.host_network),
            ("hostPID", spec.host_pid),
            ("hostIPC", spec.host_ipc),
        ):
            if shared:
                place.at(name).forbidden("when `hostUsers` is false")
    override = spec.hostname_override
    if override is None:
        return
    where = place.at("hostnameOverride")
    if spec.set_hostname_as_fqdn:
        where.forbidden("may not be specified when setHostnameAsFQDN is true")
    if spec.host_network:
        where.forbidden("may not be specified when hostNetwork is true")
    if len(override) > _MAX_HOSTNAME:
        where.too_long(_MAX_HOSTNAME)
    where.invalid(override, *dns_subdomain(override))


def _validate_names(spec: PodSpec, place: Place) -> None:
    for name, value, check in (
        ("hostname", spec.hostname, dns_label),
        ("subdomain", spec.subdomain, dns_label),
        ("nodeName", spec.node_name, dns_subdomain),
        ("serviceAccountName", spec.service_account_name, dns_subdomain),
        ("priorityClassName", spec.priority_class_name, dns_subdomain),
        ("runtimeClassName", spec.runtime_class_name, dns_subdomain),
    ):
        if value:
            place.at(name).invalid(value, *check(value))
    for index, alias in enumerate(spec.host_aliases):
        where = place.at("hostAliases").index(index)
        where.at("ip").invalid(alias.ip, *ip_address(alias.ip))
        for number, hostname in enumerate(alias.hostnames):
            where.at("hostnames").index(number).invalid(hostname, *dns_subdomain(hostname))
    for index, gate in enumerate(spec.readiness_gates):
        where = place.at("readinessGates").index(index).at("conditionType")
        where.invalid(gate.condition_type, *qualified_name(gate.condition_type))
    names: set[str] = set()
    for index, claim in enumerate(spec.resource_claims):
        where = place.at("resourceClaims").index(index)
        if not claim.name:
            where.at("name").required()
        else:
            where.at("name").invalid(claim.name, *dns_label(claim.name))
        if claim.name in names:
            where.at("name").duplicate(claim.name)
        names.add(claim.name)


def _validate_tolerations(tolerations: tuple[Toleration, ...], place: Place) -> None:
    for index, toleration in enumerate(tolerations):
        where = place.index(index)
        if toleration.key:
            where.at("key").invalid(toleration.key, *qualified_name(toleration.key))
        elif toleration.operator != "Exists":
            detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            where.at("operator").invalid(toleration.operator, detail)
        if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
            where.at("effect").invalid(toleration.effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
        if toleration.operator in ("Equal", ""):
            where.at("operator").invalid(toleration.value, *label_value(toleration.value))
        elif toleration.operator == "Exists":
            if toleration.value:
                where.at("operator").invalid(toleration.value, "value must be empty when `operator` is 'Exists'")
        elif toleration.operator not in ("Lt", "Gt"):
            where.at("operator").unsupported(toleration.operator, ("Equal", "Exists"))
        if toleration.effect and toleration.effect not in _TAINT_EFFECTS:
            where.at("effect").unsupported(toleration.effect, _TAINT_EFFECTS)


def _validate_service_account(spec: PodSpec, place: Place) -> None:
    if spec.service_account_name:
        return
    for index, volume in enumerate(spec.volumes):
        for number, source in enumerate(volume.projected.sources if volume.projected is not None else ()):
            if source.service_account_token is not None:
                where = place.at("volumes").index(index).at("projected", "sources").index(number)
                detail = "must not be specified when serviceAccountName is not set"
                where.at("serviceAccountToken").forbidden(detail)
