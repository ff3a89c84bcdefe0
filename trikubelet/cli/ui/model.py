"""What is known of the agent and its pods, from what it tells. Pure: whoever asks brings the time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.api import Pod, pod_from_dict
from trikubelet.api.timestamps import parse_time
from trikubelet.cli.manifest_problems import problem_lines
from trikubelet.cli.pod_columns import PodRow, human_duration, pod_row
from trikubelet.cli.ui.timeline import Stage, Timeline
from trikubelet.cli.usage_rows import Usage, pod_lines
from trikubelet.formats.values import define

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

GONE_SHOWN: Final = timedelta(seconds=20)
"""How long a pod stays on the screen that is there no more."""
NOTHING: Final = "-"
_TELLING: Final = ("phase", "container", "status", "ready")
"""Kinds of entries after which the pod's object is another one."""


@define
class PodView:
    """One pod."""

    uid: str
    name: str
    """Namespace and name, with a slash between."""
    timeline: Timeline = attrs.field(factory=Timeline)
    pod: Pod | None = None
    """As the agent reports it; None when it does not, or not yet."""
    usage: Usage = attrs.field(factory=Usage)

    def row(self, now: datetime) -> PodRow:
        """Its columns in kubectl's words, with the grace running down in the status of one that is being ended."""
        row = PodRow("", "", NOTHING, self.timeline.stage.word, NOTHING, NOTHING, "", "")
        if self.pod is not None:
            row = pod_row(self.pod, now)
        elif self.timeline.segments:
            row = attrs.evolve(row, age=human_duration(now - self.timeline.segments[0].start))
        if self.timeline.gone is not None:
            return attrs.evolve(row, status="Gone")
        if self.timeline.stage is Stage.ENDING:
            left = self.grace_left(now)
            return attrs.evolve(row, status="Terminating" if left is None else f"Terminating {left}s")
        return row

    def grace_left(self, now: datetime) -> int | None:
        """Seconds; None when it is not being ended."""
        until = self.timeline.until
        return None if until is None else max(0, round((until - now).total_seconds()))


@define
class Model:
    """All of it."""

    pods: dict[str, PodView] = attrs.field(factory=dict)
    """By UID."""
    unread: set[str] = attrs.field(factory=set)
    """UIDs of pods whose objects are to be asked for."""
    manifests: list[str] = attrs.field(factory=list)
    """Lines about the files of manifests that have problems."""
    node: str = ""
    trouble: str = "not yet connected"
    """Why nothing new is known; "" when all is well."""
    since: datetime | None = None
    """Of the trouble."""
    told_at: datetime | None = None
    """The agent's clock when it told of all pods."""

    def take(self, line: Mapping[str, Any]) -> None:
        """A line of the journal. Raises KeyError, TypeError and ValueError for what is none."""
        if line["type"] == "SNAPSHOT":
            known, self.told_at = self.pods, parse_time(line["now"])
            self.pods = {}
            for told in line["pods"]:
                view = self._view(told["uid"], told["pod"])
                if (before := known.get(view.uid)) is not None:
                    view.pod, view.usage = before.pod, before.usage
                for stage in told["stages"]:
                    view.timeline.begin(stage)
                for entry in told["entries"]:
                    view.timeline.apply(entry, kept=True)
            self.unread = set(self.pods)
        elif line["type"] == "ENTRY":
            self._view(line["uid"], line["pod"]).timeline.apply(line)
            if line["kind"] in _TELLING:
                self.unread.add(line["uid"])
            if line["what"] == "Gone":
                self._drop_gone(self.pods[line["uid"]].timeline.gone)

    def take_pods(self, asked: Iterable[str], items: Iterable[Mapping[str, Any]]) -> None:
        """The objects of these pods, as far as there are some. Raises as `take`."""
        found = {item["metadata"]["uid"]: pod_from_dict(item) for item in items}
        for uid in asked:
            if (view := self.pods.get(uid)) is not None:
                view.pod = found.get(uid)
                self.node = (view.pod and view.pod.spec.node_name) or self.node

    def take_manifests(self, manifests: Sequence[Mapping[str, Any]]) -> None:
        """The files that have problems. Raises as `take`."""
        self.manifests = [*problem_lines(manifests)]

    def take_usage(self, summary: Mapping[str, Any]) -> None:
        """What `/stats/summary` says. Raises as `take`."""
        usages = {(line.namespace, line.pod): line.usage for line in pod_lines(dict(summary), containers=False)}
        for view in self.pods.values():
            namespace, _, name = view.name.partition("/")
            view.usage = usages.get((namespace, name), Usage())

    def fails(self, trouble: str, now: datetime) -> None:
        """Nothing new is known from now on; "" when something is again."""
        if bool(trouble) != bool(self.trouble) or self.since is None:
            self.since = now
        self.trouble = trouble

    def shown(self, now: datetime) -> list[PodView]:
        """The pods to show, by name; of one name the oldest first."""
        kept = [
            view
            for view in self.pods.values()
            if view.timeline.segments and (view.timeline.gone is None or now - view.timeline.gone < GONE_SHOWN)
        ]
        return sorted(kept, key=lambda view: (view.name, view.timeline.segments[0].start))

    def _drop_gone(self, now: datetime | None) -> None:
        gone = {uid: view.timeline.gone for uid, view in self.pods.items()}
        for uid, since in gone.items():
            if now is not None and since is not None and now - since > GONE_SHOWN:
                del self.pods[uid]

    def _view(self, uid: str, name: str) -> PodView:
        if uid not in self.pods:
            self.pods[uid] = PodView(uid, name)
        return self.pods[uid]
