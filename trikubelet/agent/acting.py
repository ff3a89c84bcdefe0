"""What a person has the agent do to its pods (`trikubelet.node_api.handlers.acting.PodActions`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from trikubelet.api import is_sidecar
from trikubelet.api.pod_kinds import FILE_SOURCE, HTTP_SOURCE, pod_source
from trikubelet.node_api.handlers.acting import ActingRefusedError
from trikubelet.pods.phases import Syncing
from trikubelet.pods.syncer import RestartError
from trikubelet.sources.manifest_folder import ManifestFolder, ManifestFolderError
from trikubelet.sources.manifests import display_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trikubelet.agent.agent import Agent
    from trikubelet.api import Pod

RESTART_MARGIN: Final = 60.0
"""Seconds beyond its grace period that the end of a container may take."""

T = TypeVar("T")


class Acting:
    """Implements `PodActions`. `find` gives the pod of a namespace and name."""

    def __init__(self, agent: Agent, find: Callable[[str, str], Pod | None]) -> None:
        self._agent = agent
        self._find = find

    async def apply(self, raw: bytes, file: str, *, dry_run: bool) -> Mapping[str, Any]:
        applied = await self._on_disk(partial(self._folder().apply, raw, file, dry_run=dry_run))
        return {
            "file": display_path(applied.file),
            "pods": list(applied.pods),
            "before": None if applied.before is None else applied.before.decode(errors="replace"),
            "warnings": list(applied.warnings),
        }

    async def delete(self, namespace: str, name: str) -> Mapping[str, str]:
        pod = self._pod(namespace, name)
        source = pod_source(pod)
        if source == HTTP_SOURCE:
            url = self._agent.options.configuration.static_pod_url
            raise ActingRefusedError(f"the pod {namespace}/{name} comes from {url}: remove it there")
        if source != FILE_SOURCE:
            raise ActingRefusedError(
                f"the pod {namespace}/{name} is the API server's: kubectl delete pod -n {namespace} {name}"
            )
        file = await self._on_disk(partial(self._folder().delete, f"{namespace}/{name}"))
        return {"file": display_path(file), "uid": pod.metadata.uid}

    async def restart(self, namespace: str, name: str, container: str | None) -> Sequence[str]:
        pod = self._pod(namespace, name)
        uid = pod.metadata.uid
        names = _restartable(pod)
        if container is not None and container not in names:
            raise ActingRefusedError(
                f"the pod {namespace}/{name} has no container {container} that runs on: it has {', '.join(names)}"
            )
        syncer = self._agent.syncers.get(uid)
        if syncer is None or not isinstance(self._agent.workers.states.phase(uid), Syncing):
            raise ActingRefusedError(f"the pod {namespace}/{name} is not being run: nothing of it is restarted")
        if pod.spec.restart_policy == "Never":
            raise ActingRefusedError(
                f"the pod {namespace}/{name} has the restart policy Never: its containers would not start again"
            )
        chosen = names if container is None else [container]
        seconds = (pod.spec.termination_grace_period_seconds or 0) + RESTART_MARGIN
        try:
            with trio.fail_after(seconds):
                await syncer.restart_containers(pod, chosen)
        except RestartError as error:
            raise ActingRefusedError(f"the runtime did not end what was to be restarted: {error}") from error
        except trio.TooSlowError:
            raise ActingRefusedError(f"what was to be restarted has not ended within {seconds:g} s") from None
        if (life := self._agent.workers.life(uid)) is not None:
            life.look_again(0)  # at those that wait in a back-off
        return chosen

    def _pod(self, namespace: str, name: str) -> Pod:
        pod = self._find(namespace, name)
        if pod is None:
            raise ActingRefusedError(f"the agent has no pod {namespace}/{name}")
        return pod

    def _folder(self) -> ManifestFolder:
        options = self._agent.options
        if options.manifests is None:
            raise ActingRefusedError("the agent has no folder of manifests: start it with --manifests FOLDER")
        may_refer = not options.configuration.enabled("PreventStaticPodAPIReferences")
        return ManifestFolder(options.manifests, options.node_name, may_refer=may_refer)

    async def _on_disk(self, work: Callable[[], T]) -> T:
        async with self._agent.writing_manifests:
            try:
                return await trio.to_thread.run_sync(work)
            except ManifestFolderError as error:
                raise ActingRefusedError(str(error)) from error
            except OSError as error:
                raise ActingRefusedError(f"the folder of manifests cannot be written: {error}") from error


def _restartable(pod: Pod) -> list[str]:
    """Containers that run as long as the pod: not init containers, which would run again in vain."""
    sidecars = [container.name for container in pod.spec.init_containers if is_sidecar(container)]
    return [*sidecars, *(container.name for container in pod.spec.containers)]
