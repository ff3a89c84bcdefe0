"""Making a pod's sandbox: its configuration, its log directory, the call, and the addresses it got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.cri.errors import CRIError
from trikubelet.events import EventType
from trikubelet.logs import get_logger
from trikubelet.runtime.convert import sandbox_status
from trikubelet.runtime.dns import pod_dns
from trikubelet.runtime.errors import SandboxConfigError
from trikubelet.runtime.sandbox_config import sandbox_config
from trikubelet.runtime.wording import describe_error, describe_pod

if TYPE_CHECKING:
    from trikubelet.api import Pod
    from trikubelet.cri import v1
    from trikubelet.cri.client import RuntimeClient
    from trikubelet.events import EventRecorder
    from trikubelet.runtime.options import RuntimeOptions
    from trikubelet.runtime.pod_files import PodFiles

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


class SandboxMaker:
    """Creates sandboxes."""

    def __init__(
        self, runtime: RuntimeClient, recorder: EventRecorder, files: PodFiles, options: RuntimeOptions
    ) -> None:
        self._runtime = runtime
        self._recorder = recorder
        self._files = files
        self._options = options

    def config(self, pod: Pod, attempt: int, *, announce: bool = False) -> v1.PodSandboxConfig:
        """The configuration of the pod's sandbox. `announce`: tell by events what could not be had as asked for.

        Raises SandboxError.
        """
        try:
            dns = pod_dns(
                pod,
                host=self._files.resolver_settings(),
                cluster_dns=self._options.cluster_dns,
                cluster_domain=self._options.cluster_domain,
                node_ips=self._options.host_ips,
            )
            config = sandbox_config(pod, attempt, dns.settings, self._options)
        except (SandboxConfigError, OSError) as error:
            message = f'GeneratePodSandboxConfig for pod "{describe_pod(pod)}" failed: {error}'
            raise SandboxError(CONFIG_POD_SANDBOX_ERROR, message) from error
        if announce:
            for reason, message in dns.warnings:
                self._recorder.pod_event(pod, EventType.WARNING, reason, message)
        return config

    async def create(self, pod: Pod, config: v1.PodSandboxConfig) -> str:
        """Create and start the sandbox; returns its id. Raises SandboxError, after the event for it."""
        problem: str
        try:
            self._files.make_pod_logs_directory(pod)
            return await self._runtime.run_pod_sandbox(config)
        except OSError as error:
            problem = str(error)
            message = f'Failed to create log directory for pod "{describe_pod(pod)}": {problem}'
            cause: Exception = error
        except CRIError as error:
            problem = describe_error(error)
            message = f'Failed to create sandbox for pod "{describe_pod(pod)}": {problem}'
            cause = error
        self._recorder.pod_event(
            pod, EventType.WARNING, "FailedCreatePodSandBox", f"Failed to create pod sandbox: {problem}"
        )
        log.warning("sandbox could not be created", pod=pod.full_name, problem=problem)
        raise SandboxError(CREATE_POD_SANDBOX_ERROR, message) from cause

    async def addresses(self, pod: Pod, sandbox_id: str) -> tuple[str, ...]:
        """The new sandbox's addresses. Raises SandboxError, after the event for it."""
        try:
            reply = await self._runtime.pod_sandbox_status(sandbox_id)
        except CRIError as error:
            message = f"Unable to get pod sandbox status: {describe_error(error)}"
            self._recorder.pod_event(pod, EventType.WARNING, "FailedPodSandBoxStatus", message)
            raise SandboxError(CREATE_POD_SANDBOX_ERROR, message) from error
        return sandbox_status(reply.status).ips
