"""Making a pod's sandbox, and the settings of one that exists: what its containers are started with.

A sandbox is made of what the node and the runtime have for the pod: resource claims, the handler of its RuntimeClass,
user ids of its own, DNS settings, a log directory. Nothing of that is asked of the runtime later, so for a sandbox that
exists it is all found again: the same pod gets the same. `sandbox_config` builds the configuration, purely.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from trikubelet.admission.sysctls import dotted_sysctl
from trikubelet.container.errors import SandboxConfigError
from trikubelet.container.host_ports import explain, unmapped_ports
from trikubelet.container.labels import sandbox_annotations, sandbox_labels
from trikubelet.container.messages import describe_pod
from trikubelet.formats.values import frozen
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.containers.resources import overhead_resources, sandbox_resources
from trikubelet.runtime.containers.security import sandbox_security_context
from trikubelet.runtime.convert import sandbox_status
from trikubelet.runtime.logs.paths import pod_logs_directory
from trikubelet.runtime.sandboxes.name_resolution import kernel_hostname, pod_dns, pod_hostname_and_domain
from trikubelet.runtime.turns import CallKind, Turns
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.steps import TURN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trikubelet.api import Container, ContainerPort, Pod
    from trikubelet.rpc.cri.client import RuntimeClient
    from trikubelet.runtime.context import RuntimeContext
    from trikubelet.runtime.options import RuntimeOptions
    from trikubelet.runtime.sandboxes.name_resolution import DNSSettings
    from trikubelet.runtime.sandboxes.user_namespaces import UserNamespaces

log = get_logger("runtime")

CREATE_POD_SANDBOX_ERROR: Final = "CreatePodSandboxError"
CONFIG_POD_SANDBOX_ERROR: Final = "ConfigPodSandboxError"


@frozen
class SandboxError(Exception):
    """A pod's sandbox could not be made, or not be asked about."""

    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class SandboxNotMadeError(SandboxError):
    """The sandbox itself: its claims are met, and it is not there. The kubelet counts only these."""


@frozen
class ResourceClaimError(Exception):
    """A pod's claims could not be met."""

    message: str

    def __str__(self) -> str:
        return self.message


class ResourceClaims(Protocol):
    """Gets what pods claim by name (dynamic resource allocation, KEP-4381)."""

    async def prepare(self, pod: Pod) -> None:
        """Make ready all that the pod claims. Raises ResourceClaimError."""
        ...


class NoResourceClaims:
    """A node without drivers: a pod that claims something must not run without it."""

    async def prepare(self, pod: Pod) -> None:
        names = [claim.name for claim in pod.spec.resource_claims]
        if pod.status.extended_resource_claim_status is not None:
            # The scheduler made a claim of what the pod asks for as an extended resource.
            names.append(pod.status.extended_resource_claim_status.resource_claim_name)
        if names:
            asked = ", ".join(names)
            raise ResourceClaimError(f"this node has no drivers for resource claims, but the pod asks for {asked}")


@frozen
class Sandbox:
    """A sandbox to start containers in."""

    id: str
    config: v1.PodSandboxConfig
    handler: str
    """The runtime handler; empty for the runtime's default."""
    user_namespace: v1.UserNamespace
    ips: tuple[str, ...]


@frozen
class _Settings:
    handler: str
    user_namespace: v1.UserNamespace
    config: v1.PodSandboxConfig
    warnings: tuple[tuple[str, str], ...]
    node_warnings: tuple[tuple[str, str], ...]


class SandboxMaker:
    """Creates sandboxes."""

    def __init__(
        self, runtime: RuntimeClient, context: RuntimeContext, turns: Turns, user_namespaces: UserNamespaces
    ) -> None:
        self._runtime = runtime
        self._turns = turns
        self._steps = context.steps
        self._node = context.node
        self._volume_groups = context.mounts.supplemental_groups
        self._cgroups = context.cgroups
        self._recorder = context.recorder
        self._files = context.files
        self._options = context.options
        self._objects = context.objects
        self._claims = context.claims
        self._user_namespaces = user_namespaces
        self._abilities = context.abilities
        self._handlers: dict[str, str] = {}
        """By RuntimeClass, as last looked up."""

    def handler_of(self, pod: Pod) -> str:
        """The pod's runtime handler; its class is not looked up for this, so before the first sync it is not known."""
        return self._handlers.get(pod.spec.runtime_class_name or "", "")

    async def existing(self, pod: Pod, sandbox_id: str, attempt: int, ips: tuple[str, ...]) -> Sandbox:
        """A sandbox that is ready. Raises SandboxError."""
        try:
            settings = await self._settings(pod, attempt)
        except (SandboxConfigError, ObjectError, OSError) as error:
            message = f'GeneratePodSandboxConfig for pod "{describe_pod(pod)}" failed: {error}'
            raise SandboxError(CONFIG_POD_SANDBOX_ERROR, message) from error
        return Sandbox(sandbox_id, settings.config, settings.handler, settings.user_namespace, ips)

    async def create(self, pod: Pod, attempt: int, ips: tuple[str, ...]) -> Sandbox:
        """Create and start a sandbox, and ask for its addresses (kubelet: `createPodSandbox`).

        `ips` are those of a pod in the node's network. Raises SandboxError, after the event for it. Cancelled, it may
        leave a sandbox, which the next sync finds.
        """
        await self._prepare_claims(pod)
        described = describe_pod(pod)
        try:
            settings = await self._settings(pod, attempt)
        except ObjectError as error:
            raise self._failed(pod, "create sandbox", str(error)) from error
        except (SandboxConfigError, OSError) as error:
            raise self._failed(pod, "generate sandbox config", str(error)) from error
        for reason, message in settings.warnings:
            self._recorder.pod_event(pod, EventType.WARNING, reason, message)
        for reason, message in settings.node_warnings:
            self._recorder.node_event(EventType.WARNING, reason, message)
        step = partial(self._steps.step, pod.metadata.uid)
        try:
            self._files.make_pod_logs_directory(pod)
            with step(TURN):
                async with self._turns.take(CallKind.RUN_SANDBOX):
                    with step("RunPodSandbox"):
                        sandbox_id = await self._runtime.run_pod_sandbox(settings.config, settings.handler)
        except OSError as error:
            raise self._failed(pod, "create log directory", str(error)) from error
        except CRIError as error:
            raise self._failed(pod, "create sandbox", str(error)) from error
        log.info("sandbox created", pod=described, sandbox=sandbox_id, attempt=attempt)
        found = await self._addresses(pod, sandbox_id)
        if not pod.spec.host_network:
            ips = found
            for port in unmapped_ports(pod, found, self._node.host_ips()):
                self._recorder.pod_event(pod, EventType.WARNING, "HostPortNotMapped", explain(port))
        return Sandbox(sandbox_id, settings.config, settings.handler, settings.user_namespace, ips)

    async def _prepare_claims(self, pod: Pod) -> None:
        try:
            await self._claims.prepare(pod)
        except ResourceClaimError as error:
            message = f"Failed to prepare dynamic resources: {error}"
            self._recorder.pod_event(pod, EventType.WARNING, "FailedPrepareDynamicResources", message)
            raise SandboxError(CREATE_POD_SANDBOX_ERROR, message) from error

    async def _settings(self, pod: Pod, attempt: int) -> _Settings:
        """Raises ObjectError, SandboxConfigError and OSError."""
        class_name = pod.spec.runtime_class_name or ""
        handler = ""
        if class_name:
            handler = self._handlers[class_name] = await self._objects.runtime_handler(class_name)
        user_namespace = self._user_namespaces.for_pod(pod, handler, self._abilities())
        dns = pod_dns(
            pod,
            host=self._files.resolver_settings(host_network=pod.spec.host_network),
            cluster_dns=self._options.cluster_dns,
            cluster_domain=self._options.cluster_domain,
            node_ips=self._node.host_ips(),
        )
        config = sandbox_config(
            pod,
            attempt,
            dns.settings,
            self._options,
            userns=user_namespace,
            volume_groups=self._volume_groups(pod),
            cgroup_parent=self._cgroups.parent_of(pod),
            logs_dir=self._files.logs_dir_of(pod),
        )
        return _Settings(handler, user_namespace, config, dns.warnings, dns.node_warnings)

    async def _addresses(self, pod: Pod, sandbox_id: str) -> tuple[str, ...]:
        try:
            reply = await self._runtime.pod_sandbox_status(sandbox_id)
        except CRIError as error:
            message = f"Unable to get pod sandbox status: {error}"
            self._recorder.pod_event(pod, EventType.WARNING, "FailedPodSandBoxStatus", message)
            raise SandboxError(CREATE_POD_SANDBOX_ERROR, message) from error
        return sandbox_status(reply.status).ips

    def _failed(self, pod: Pod, what: str, problem: str) -> SandboxNotMadeError:
        event = f"Failed to create pod sandbox: {problem}"
        self._recorder.pod_event(pod, EventType.WARNING, "FailedCreatePodSandBox", event)
        log.warning("sandbox could not be created", pod=pod.full_name, problem=problem)
        message = f'Failed to {what} for pod "{describe_pod(pod)}": {problem}'
        return SandboxNotMadeError(CREATE_POD_SANDBOX_ERROR, message)


def sandbox_config(
    pod: Pod,
    attempt: int,
    dns: DNSSettings,
    options: RuntimeOptions,
    *,
    userns: v1.UserNamespace | None = None,
    volume_groups: Sequence[int] = (),
    cgroup_parent: str = "",
    logs_dir: Path | None = None,
) -> v1.PodSandboxConfig:
    """Build the message for RunPodSandbox (kubelet: `generatePodSandboxConfig`). Raises SandboxConfigError.

    `userns`: the pod's (`UserNamespaces.for_pod`). `volume_groups`: those that own the pod's volumes. `cgroup_parent`:
    the pod's cgroup, empty where the runtime is to choose. `logs_dir`: the folder of the pod's log folder, None for
    that of the options.
    """
    config = v1.PodSandboxConfig(
        metadata=v1.PodSandboxMetadata(
            name=pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid, attempt=attempt
        ),
        labels=sandbox_labels(pod),
        annotations=sandbox_annotations(pod, options.owner),
        log_directory=str(pod_logs_directory(options.pod_logs_dir if logs_dir is None else logs_dir, pod)),
        dns_config=v1.DnsConfig(servers=list(dns.servers), searches=list(dns.searches), options=list(dns.options)),
        port_mappings=[mapping for container in pod.spec.containers for mapping in port_mappings(container)],
        linux=v1.LinuxPodSandboxConfig(
            cgroup_parent=cgroup_parent,
            security_context=sandbox_security_context(pod, userns=userns, volume_groups=volume_groups),
            sysctls=_sysctls(pod),
            resources=sandbox_resources(pod, options),
            overhead=overhead_resources(pod, options),
        ),
    )
    if not pod.spec.host_network:
        hostname, domain = pod_hostname_and_domain(pod, options.cluster_domain)
        config.hostname = kernel_hostname(pod, hostname, domain)
    return config


def port_mappings(container: Container) -> list[v1.PortMapping]:
    """The container's ports, each name once (kubelet: `MakePortMappings`)."""
    mappings: dict[str, v1.PortMapping] = {}
    for port in container.ports:
        name = port.name or _port_name(port)
        if name in mappings:
            log.warning("port is defined more than once", container=container.name, port=name)
            continue
        mappings[name] = v1.PortMapping(
            protocol=_protocol(port.protocol),
            container_port=port.container_port,
            host_port=port.host_port,
            host_ip=port.host_ip,
        )
    return list(mappings.values())


def _sysctls(pod: Pod) -> dict[str, str]:
    if pod.spec.security_context is None:
        return {}
    return {dotted_sysctl(sysctl.name): sysctl.value for sysctl in pod.spec.security_context.sysctls}


def _port_name(port: ContainerPort) -> str:
    family = "any" if not port.host_ip else "v6" if ":" in port.host_ip else "v4"
    return f"{family}-{port.protocol}-{port.host_ip}:{port.container_port}:{port.host_port}"


def _protocol(name: str) -> v1.Protocol:
    match name:
        case "UDP":
            return v1.Protocol.UDP
        case "SCTP":
            return v1.Protocol.SCTP
    return v1.Protocol.TCP
