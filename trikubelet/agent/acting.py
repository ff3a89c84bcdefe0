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
from trikubelet.sources.manifest_folder import ManifestFolder, ManifestFolderError, NotHeldError
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

    async def apply(self, raw: bytes, file: str, *, dry_run: bool, must_be_new: bool = False) -> Mapping[str, Any]:
        apply = partial(self._folder().apply, raw, file, dry_run=dry_run, must_be_new=must_be_new)
        applied = await self._on_disk(apply)
        return {
            "file": display_path(applied.file),
            "pods": list(applied.pods),
            "before": None if applied.before is None else applied.before.decode(errors="replace"),
            "warnings": list(applied.warnings),
        }

    async def delete(
        self, namespace: str, name: str, *, remove_file: bool = False, with_others: bool = False
    ) -> Mapping[str, Any]:
        pod = self._pod(namespace, name)
        source = pod_source(pod)
        if source == HTTP_SOURCE:
            url = self._agent.options.configuration.static_pod_url
            raise ActingRefusedError(f"the pod {namespace}/{name} comes from {url}: remove it there")
        if source != FILE_SOURCE:
            raise ActingRefusedError(
                f"the pod {namespace}/{name} is the API server's: kubectl delete pod -n {namespace} {name}"
            )
        delete = partial(self._folder().delete, remove_file=remove_file, with_others=with_others)
        try:
            removed = await self._on_disk(partial(delete, f"{namespace}/{name}"))
        except NotHeldError:  # somebody removed the file: the pod ends, or will as soon as the source notices
            return {"file": None, "moved": {}, "others": [], "uid": pod.metadata.uid}
        return {
            "file": display_path(removed.files[0][0]),
            "moved": {display_path(file): display_path(to) for file, to in removed.files if to is not None},
            "others": list(removed.others),
            "uid": pod.metadata.uid,
        }

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
        options, files = self._agent.options, self._agent.files
        return ManifestFolder(
            root_dir=options.root_dir,
            node_name=options.node_name,
            persons=options.manifests,
            in_cluster=self._agent.cluster is not None,
            may_refer=not options.configuration.enabled("PreventStaticPodAPIReferences"),
            last_good=None if files is None else files.pods_of,
        )

    async def _on_disk(self, work: Callable[[], T]) -> T:
        async with self._agent.writing_manifests:
            try:
                return await trio.to_thread.run_sync(work)
            except NotHeldError:
                raise
            except ManifestFolderError as error:
                raise ActingRefusedError(str(error)) from error
            except OSError as error:
                raise ActingRefusedError(f"the folders of manifests cannot be used: {error}") from error


def _restartable(pod: Pod) -> list[str]:
    """Containers that run as long as the pod: not init containers, which would run again in vain."""
    sidecars = [container.name for container in pod.spec.init_containers if is_sidecar(container)]
    return [*sidecars, *(container.name for container in pod.spec.containers)]
