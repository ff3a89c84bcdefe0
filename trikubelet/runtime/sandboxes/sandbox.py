"""Making a pod's sandbox, and knowing one that is there: what its containers are started with.

A sandbox is made of what the node and the runtime have for the pod: resource claims, the handler of its RuntimeClass,
user ids of its own, DNS settings, a log directory. Nothing of that is asked of the runtime later, so for a sandbox that
exists it is all found again: the same pod gets the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import attrs

from trikubelet.container.errors import SandboxConfigError
from trikubelet.container.messages import describe_error, describe_pod
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.convert import sandbox_status
from trikubelet.runtime.sandboxes.config import sandbox_config
from trikubelet.runtime.sandboxes.dns import pod_dns
from trikubelet.runtime.turns import Making, Turns
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.api import Pod
    from trikubelet.rpc.cri.client import RuntimeClient
    from trikubelet.runtime.context import RuntimeContext
    from trikubelet.runtime.sandboxes.user_namespaces import UserNamespaces

log = get_logger("runtime")

CREATE_POD_SANDBOX_ERROR: Final = "CreatePodSandboxError"
CONFIG_POD_SANDBOX_ERROR: Final = "ConfigPodSandboxError"


@attrs.frozen
class SandboxError(Exception):
    """A pod's sandbox could not be made, or not be asked about."""

    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


@attrs.frozen
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


@attrs.frozen
class Sandbox:
    """A sandbox to start containers in."""

    id: str
    config: v1.PodSandboxConfig
    handler: str
    """The runtime handler; empty for the runtime's default."""
    user_namespace: v1.UserNamespace
    ips: tuple[str, ...]


@attrs.frozen
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
        """What each RuntimeClass named last."""

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
        try:
            self._files.make_pod_logs_directory(pod)
            async with self._turns.take(Making.RUN_SANDBOX):
                sandbox_id = await self._runtime.run_pod_sandbox(settings.config, settings.handler)
        except OSError as error:
            raise self._failed(pod, "create log directory", str(error)) from error
        except CRIError as error:
            raise self._failed(pod, "create sandbox", describe_error(error)) from error
        log.info("sandbox created", pod=described, sandbox=sandbox_id, attempt=attempt)
        found = await self._addresses(pod, sandbox_id)
        if not pod.spec.host_network:
            ips = found
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
            host=self._files.resolver_settings(),
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
        )
        return _Settings(handler, user_namespace, config, dns.warnings, dns.node_warnings)

    async def _addresses(self, pod: Pod, sandbox_id: str) -> tuple[str, ...]:
        try:
            reply = await self._runtime.pod_sandbox_status(sandbox_id)
        except CRIError as error:
            message = f"Unable to get pod sandbox status: {describe_error(error)}"
            self._recorder.pod_event(pod, EventType.WARNING, "FailedPodSandBoxStatus", message)
            raise SandboxError(CREATE_POD_SANDBOX_ERROR, message) from error
        return sandbox_status(reply.status).ips

    def _failed(self, pod: Pod, what: str, problem: str) -> SandboxError:
        event = f"Failed to create pod sandbox: {problem}"
        self._recorder.pod_event(pod, EventType.WARNING, "FailedCreatePodSandBox", event)
        log.warning("sandbox could not be created", pod=pod.full_name, problem=problem)
        message = f'Failed to {what} for pod "{describe_pod(pod)}": {problem}'
        return SandboxError(CREATE_POD_SANDBOX_ERROR, message)
