"""The agent as its node's API shows it (`trikubelet.node_api.view.NodeApiView`): `LocalView`, and what goes on in
containers, by way of the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from trikubelet.agent.view import LocalView
from trikubelet.api import Container, ObjectMeta, Pod, PodSpec
from trikubelet.container.labels import CONTAINER_NAME, POD_UID
from trikubelet.container.model import ContainerState
from trikubelet.node_api.view import Ran
from trikubelet.rpc.cri import v1
from trikubelet.supervision import contain
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from trikubelet.agent.agent import Agent
    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.container.model import RunningPod
    from trikubelet.embedded.runtime import EmbeddedRuntime
    from trikubelet.http.streaming.command import CommandStreams

log = get_logger("server")


class NodeView(LocalView):
    """Implements `NodeApiView`. What is asked of the runtime raises CRIError."""

    def __init__(
        self,
        agent: Agent,
        embedded: EmbeddedRuntime | None = None,
        *,
        started_at: datetime,
    ) -> None:
        super().__init__(agent, embedded)
        self.started_at = started_at

    @property
    def configuration(self) -> KubeletConfiguration:
        return self._agent.options.configuration

    @property
    def root_dir(self) -> Path:
        return self._agent.options.root_dir

    @property
    def kubernetes_version(self) -> str:
        return self._agent.options.node.reported_version

    def flags(self) -> Mapping[str, str]:
        return self._agent.options.flags

    async def running_pods(self) -> Sequence[Pod]:
        return [_shown(pod) for pod in await self._agent.runtime.get_pods()]

    async def running_container(self, pod: Pod, uid: str, container: str) -> str | None:
        own = pod.metadata.uid
        if uid and self._agent.pods.resolve_uid(uid) != own:
            return None
        # As a rule what was last seen is so. A container that has just begun is asked for, one that has just ended
        # the runtime refuses.
        seen = self._agent.pleg.cache.last_seen(own)
        for status in () if seen is None else seen.container_statuses:
            if status.name == container and status.state is ContainerState.RUNNING:
                return status.id.id
        filter_ = v1.ContainerFilter(
            state=v1.ContainerStateValue(state=v1.ContainerState.CONTAINER_RUNNING),
            label_selector={POD_UID: own, CONTAINER_NAME: container},
        )
        found = await self._agent.runtime_client.list_containers(filter_)
        return max(found, key=lambda one: one.created_at).id if found else None

    async def run_command(self, container_id: str, command: Sequence[str]) -> Ran:
        reply = await self._agent.runtime_client.exec_sync(container_id, command, timeout=0)
        return Ran(reply.stdout, reply.stderr, reply.exit_code)

    async def checkpoint(self, container_id: str, location: Path, timeout: int) -> None:
        # The container is paused meanwhile, and containerd leaves it so for good when the call is given up. So the call
        # goes on when the client has gone, until its deadline; only the agent's end ends it before.
        assert self._nursery is not None, "it runs"
        done, failures = trio.Event(), list[Exception]()

        async def save() -> None:
            try:
                await self._agent.runtime_client.checkpoint_container(container_id, str(location), timeout)
            except Exception as failure:  # noqa: BLE001 - raised to who asked, who may have gone
                log.warning("a container was not checkpointed", container_id=container_id, error=str(failure))
                failures.append(failure)
            done.set()

        self._nursery.start_soon(contain, save)
        await done.wait()
        for failure in failures:
            raise failure

    async def exec_url(self, container_id: str, command: Sequence[str], streams: CommandStreams) -> str:
        request = v1.ExecRequest(
            container_id=container_id,
            cmd=list(command),
            tty=streams.tty,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
        )
        return await self._agent.runtime_client.exec(request)

    async def attach_url(self, container_id: str, streams: CommandStreams) -> str:
        request = v1.AttachRequest(
            container_id=container_id,
            tty=streams.tty,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
        )
        return await self._agent.runtime_client.attach(request)

    async def port_forward_url(self, pod: Pod, ports: Sequence[int]) -> str | None:
        filter_ = v1.PodSandboxFilter(label_selector={POD_UID: pod.metadata.uid})
        sandboxes = await self._agent.runtime_client.list_pod_sandboxes(filter_)
        if not sandboxes:
            return None
        newest = max(sandboxes, key=lambda sandbox: sandbox.created_at)
        request = v1.PortForwardRequest(pod_sandbox_id=newest.id, port=list(ports))
        return await self._agent.runtime_client.port_forward(request)


def _shown(pod: RunningPod) -> Pod:
    """What the runtime knows of a pod (kubelet: `Pod.ToAPIPod`)."""
    running = (one for one in pod.containers if one.state is ContainerState.RUNNING)
    containers = tuple(Container(name=one.name, image=one.image) for one in running)
    metadata = ObjectMeta(name=pod.name, namespace=pod.namespace, uid=pod.uid)
    return Pod(metadata=metadata, spec=PodSpec(containers=containers))
