"""Where an agent's pods come from: a folder of manifests and a URL, as its options name them, and the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.agent.console import short_path
from trikubelet.sources.file import FileSource
from trikubelet.sources.gated_fields import without_disabled_fields
from trikubelet.sources.manifests import display_path
from trikubelet.sources.mux import SourceMux
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trikubelet.agent.agent import Agent
    from trikubelet.agent.cluster import ClusterParts
    from trikubelet.agent.options import AgentOptions
    from trikubelet.clock import WallClock
    from trikubelet.sources.manifests import ManifestProblem
    from trikubelet.sources.mux import PodSource
    from trikubelet.telemetry.events import EventRecorder

LONGEST_MESSAGE: Final = 900
"""Characters of a problem in an event: API servers take 1024."""

log = get_logger("agent")


def source_mux(
    options: AgentOptions,
    clock: WallClock,
    recorder: EventRecorder,
    *,
    files: FileSource | None,
    given: Sequence[PodSource] | None,
    cluster: ClusterParts | None,
) -> SourceMux:
    """All sources of an agent's pods. `given` are instead of those that the options name."""
    sources = [*_configured_sources(options, files)] if given is None else [*given]
    if cluster is not None:
        sources.append(cluster.source)
    change = without_disabled_fields(options.configuration.feature_gates)
    return SourceMux(sources, clock=clock, recorder=recorder, change=change)


def file_source(options: AgentOptions, clock: WallClock, recorder: EventRecorder) -> FileSource | None:
    """The source of manifests on the disk: a person's, then the command line's; None when there is no folder."""
    paths = [path for path in (options.manifests, options.applied) if path is not None]
    if not paths:
        return None
    configuration = options.configuration

    def report(path: Path, problems: tuple[ManifestProblem, ...]) -> None:
        _report_manifest_problems(recorder, path, problems, gone=not source.pods_of(path))

    source = FileSource(
        *paths,
        node_name=options.node_name,
        clock=clock,
        period=configuration.file_check_frequency.total_seconds(),
        may_refer=not configuration.enabled("PreventStaticPodAPIReferences"),
        on_problems=report,
    )
    return source


def _configured_sources(options: AgentOptions, files: FileSource | None) -> Iterator[PodSource]:
    """Yields nothing when the options name no source."""
    configuration = options.configuration
    if files is not None:
        yield files
    if configuration.static_pod_url:
        from trikubelet.sources.http import HttpSource

        yield HttpSource(
            configuration.static_pod_url,
            node_name=options.node_name,
            period=configuration.http_check_frequency.total_seconds(),
            headers=configuration.static_pod_url_header,
            may_refer=not configuration.enabled("PreventStaticPodAPIReferences"),
        )


async def tell_of_nothing_to_run(agent: Agent) -> None:
    """Say so once the first pods of all sources are known, and there are none. A cluster's node may well be empty."""
    await agent.sync_loop.settled.wait()
    if agent.cluster is None and not agent.pods.pods():
        log.warning(nothing_to_run(agent.options))


def nothing_to_run(options: AgentOptions) -> str:
    """Why there is no pod, and what to do about it, for an agent without a cluster."""
    if options.manifests is not None:
        place = short_path(options.manifests) if options.console else display_path(options.manifests)
        holds = "is not there" if not options.manifests.exists() else "holds no pod that can run here"
        return (
            f"nothing to run: {place} {holds}. A manifest that is saved there starts at once; so does what "
            "`trikubelet run IMAGE` and `trikubelet apply -f FILE` are given"
        )
    if options.configuration.static_pod_url:
        return "nothing to run: what staticPodURL names has no pod that can run here"
    return (
        "nothing to run: no source of pods is named. Start again with --manifests FOLDER, or --kubeconfig in a cluster"
    )


def _report_manifest_problems(
    recorder: EventRecorder, path: Path, problems: tuple[ManifestProblem, ...], *, gone: bool
) -> None:
    """Tell of a file once per change: an event of the node names the first problem, the log all of them."""
    if not problems:
        what = "manifest with problems is gone" if gone else "manifest is well again"
        recorder.node_event(EventType.NORMAL, "ManifestMended", f"{what}: {display_path(path)}")
        return
    first, *rest = problems
    more = f" (and {len(rest)} more)" if rest else ""
    recorder.node_event(EventType.WARNING, "InvalidManifest", f"{str(first)[:LONGEST_MESSAGE]}{more}")
    for problem in rest:
        log.warning(str(problem))
