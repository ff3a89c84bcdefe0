from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing

from trikubelet.api import Pod, pod_from_dict
from trikubelet.broadcast import Broadcast, Subscription
from trikubelet.clock import TrioClock
from trikubelet.http.messages import HTTPError, Request, Response
from trikubelet.http.routing import Route, Router
from trikubelet.http.server import HttpServer
from trikubelet.node_api.handlers.acting import ActingRefusedError, PodActions
from trikubelet.node_api.local_api import AgentView, ImportRefusedError, local_api
from trikubelet.node_api.log_location import LogNotAvailableError, LogTarget
from trikubelet.node_api.log_query import read_log_query
from trikubelet.pods.journal import Journal
from trikubelet.telemetry.events import AnyEvent, EventRecorder, EventType, NodeEvent, PodEvent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def make(name: str = "web", **status: Any) -> Pod:
    return pod_from_dict(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {
                "containers": [{"name": "main", "image": "x"}],
                "initContainers": [{"name": "setup", "image": "x"}],
            },
            "status": status,
        }
    )


class Actions:
    """Does nothing, or refuses what is called `bad`."""

    async def apply(self, raw: bytes, file: str, *, dry_run: bool, must_be_new: bool) -> Mapping[str, Any]:
        if file == "bad":
            raise ActingRefusedError("bad:1: no\nbad:2: never")
        return {"file": file, "pods": [raw.decode()], "before": None, "warnings": [f"{dry_run} {must_be_new}"]}

    async def delete(self, namespace: str, name: str, *, remove_file: bool, with_others: bool) -> Mapping[str, Any]:
        if name == "bad":
            raise ActingRefusedError("it is not ours")
        return {"file": f"{namespace}.yaml", "uid": name, "flags": [remove_file, with_others]}

    async def restart(self, namespace: str, name: str, container: str | None) -> Sequence[str]:
        if name == "bad":
            raise ActingRefusedError("it would not start again")
        return [container or "all"]


@attrs.define
class FakeAgent:
    """An agent that is what a test says."""

    known: list[Pod] = attrs.field(factory=list)
    checks: dict[str, str | None] = attrs.field(factory=lambda: {"ping": None, "syncloop": None})
    changes: Broadcast[None] = attrs.field(factory=Broadcast)
    recorder: EventRecorder = attrs.field(factory=lambda: EventRecorder(TrioClock()))
    journal: Journal = attrs.field(factory=lambda: Journal(TrioClock()))
    imported: list[Path] = attrs.field(factory=list)
    log: Path | LogNotAvailableError = attrs.field(factory=lambda: LogNotAvailableError("no log"))
    running: bool = True
    counts: dict[str, Any] = attrs.field(factory=dict)
    files: list[dict[str, Any]] = attrs.field(factory=list)
    files_version: int = 0
    files_asked: int = 0

    def set(self, *pods: Pod) -> None:
        self.known = list(pods)
        self.changes.send(None)

    def health(self) -> Mapping[str, str | None]:
        return self.checks

    def version(self) -> Mapping[str, str]:
        return {"agent": "0.1.0"}

    def pods(self) -> Sequence[Pod]:
        return self.known

    def pod(self, namespace: str, name: str) -> Pod | None:
        return next(
            (pod for pod in self.known if (pod.metadata.namespace, pod.metadata.name) == (namespace, name)), None
        )

    def events(self) -> Sequence[PodEvent | NodeEvent]:
        return [*self.recorder.pod_events(), *self.recorder.node_events()]

    def subscribe_events(self) -> Subscription[AnyEvent]:
        sent: Broadcast[AnyEvent] = Broadcast()
        self.recorder.add_listener(sent.send)
        return sent.subscribe()

    def pod_events(self, uid: str) -> Sequence[PodEvent]:
        return self.recorder.events_of(uid)

    @property
    def acting(self) -> PodActions:
        return Actions()

    def manifests(self) -> Sequence[Mapping[str, Any]]:
        return self.files

    def manifests_with_problems(self) -> Sequence[Mapping[str, Any]]:
        self.files_asked += 1
        return [file for file in self.files if file["problems"]]

    def version_of_manifests(self) -> int:
        return self.files_version

    def why(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        pod = self.pod(namespace, name)
        return None if pod is None else {"uid": pod.metadata.uid}

    def subscribe(self) -> Subscription[None]:
        return self.changes.subscribe()

    def container_running(self, container_id: str) -> bool:
        return self.running

    async def log_files(self, namespace: str, pod: str, container: str, previous: bool) -> LogTarget:
        assert (namespace, pod, container) == ("default", "web", "main")
        if isinstance(self.log, LogNotAvailableError):
            raise self.log
        return LogTarget(self.log.with_name("previous") if previous else self.log, "c1", self.running)

    async def images(self) -> Sequence[Mapping[str, Any]]:
        return [{"id": "sha256:1", "repo_tags": ["a:1"], "repo_digests": [], "size": 5, "pinned": False}]

    def pulls(self) -> Sequence[Mapping[str, Any]]:
        return [{"reference": "docker.io/library/nginx:latest", "progress": "1.0MiB of 2.0MiB"}]

    async def import_images(self, path: Path) -> Sequence[str]:
        if path.name == "bad.tar":
            raise ImportRefusedError("entry '../x': leaves the archive")
        self.imported.append(path)
        return ["a:1"]

    def statistics(self) -> Mapping[str, Any]:
        return self.counts


async def answer(agent: FakeAgent, path: str, method: str = "GET", /, **query: str) -> Response:
    view: AgentView = agent
    request = Request(method, path, {key: [value] for key, value in query.items()})
    response = await local_api(view, TrioClock())(request)
    assert isinstance(response, Response)
    return response


async def ask(agent: FakeAgent, path: str, method: str = "GET", /, **query: str) -> Any:
    response = await answer(agent, path, method, **query)
    assert (response.status, response.content_type) == (200, "application/json")
    return json.loads(response.body)


@attrs.define
class Client:
    """An HTTP client that shows the answer as it arrives."""

    stream: trio.abc.Stream
    received: bytes = b""

    async def read(self) -> str:
        """All that arrives until nothing moves any more, the chunks' lengths included."""
        with trio.move_on_after(5):
            while block := await self.stream.receive_some():
                self.received += block
        return self.received.decode()


async def open_stream(agent: FakeAgent, nursery: trio.Nursery, target: str) -> Client:
    ours, theirs = trio.testing.memory_stream_pair()
    nursery.start_soon(HttpServer(local_api(agent, TrioClock())).serve_stream, theirs)
    await ours.send_all(f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    return Client(ours)


async def test_pods_are_a_pod_list_with_statuses() -> None:
    found = await ask(FakeAgent([make(phase="Running")]), "/pods")
    assert (found["kind"], found["apiVersion"]) == ("PodList", "v1")
    assert found["items"][0]["metadata"]["name"] == "web"
    assert found["items"][0]["status"]["phase"] == "Running"
    assert (await ask(FakeAgent(), "/pods"))["items"] == []


async def test_some_pods_can_be_asked_for_by_uid() -> None:
    agent = FakeAgent([make(name) for name in ("a", "b", "c")])
    api = local_api(agent, TrioClock())
    named = []
    for uids in (["uid-a", "uid-c", "uid-of-nobody"], ["uid-of-nobody"]):
        found = await api(Request("GET", "/pods", query={"uid": uids}))
        assert isinstance(found, Response)
        named.append([item["metadata"]["name"] for item in json.loads(found.body)["items"]])
    assert named == [["a", "c"], []]


async def test_a_watch_sends_a_snapshot_now_and_after_every_change(autojump_clock: trio.abc.Clock) -> None:
    agent = FakeAgent([make("a")])
    async with trio.open_nursery() as nursery:
        client = await open_stream(agent, nursery, "/pods?watch=1")
        await client.read()
        agent.changes.send(None)
        await client.read()
        agent.set(make("a"), make("b"))
        await client.read()
        agent.set(make("b", phase="Running"))
        agent.set()
        text = await client.read()
        await client.stream.aclose()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert [(line["type"], [pod["metadata"]["name"] for pod in line["pods"]]) for line in lines] == [
        ("SNAPSHOT", ["a"]),
        ("SNAPSHOT", ["a", "b"]),
        ("SNAPSHOT", []),
    ]
    assert agent.changes.statistics().subscriptions == 0


async def test_the_journal_is_followed_from_a_snapshot_on(autojump_clock: trio.abc.Clock) -> None:
    agent = FakeAgent()
    agent.recorder.add_listener(agent.journal.event)
    agent.recorder.pod_event(make(), EventType.NORMAL, "Pulling", "x", container="main")
    async with trio.open_nursery() as nursery:
        client = await open_stream(agent, nursery, "/journal?watch=1")
        await client.read()
        agent.recorder.pod_event(make(), EventType.WARNING, "Failed", "no x", container="main")
        text = await client.read()
        await client.stream.aclose()
    snapshot, entry = (json.loads(line) for line in text.splitlines() if line.startswith("{"))
    assert snapshot["type"] == "SNAPSHOT"
    assert [(pod["uid"], [one["what"] for one in pod["entries"]]) for pod in snapshot["pods"]] == [
        ("uid-web", ["Pulling"])
    ]
    assert (entry["type"], entry["what"], entry["container"], entry["message"]) == ("ENTRY", "Failed", "main", "no x")
    assert [one["what"] for one in await ask(agent, "/journal", uid="uid-web")] == ["Pulling", "Failed"]
    assert (await ask(agent, "/journal"))["n"] == entry["n"]


async def test_health_is_ok_or_says_what_is_not() -> None:
    agent = FakeAgent()
    assert (await answer(agent, "/healthz")).body == b"ok"
    verbose = await answer(agent, "/healthz", verbose="")
    assert verbose.body == b"[+]ping ok\n[+]syncloop ok\nhealthz check passed\n"
    agent.checks["syncloop"] = "the runtime does not answer"
    sick = await answer(agent, "/healthz")
    assert sick.status == 500
    assert sick.body == b"[+]ping ok\n[-]syncloop failed: the runtime does not answer\nhealthz check failed\n"
    assert (await answer(agent, "/healthz/ping")).body == b"ok"
    assert (await answer(agent, "/healthz/syncloop")).status == 500
    with pytest.raises(HTTPError, match="no health check 'x', only ping, syncloop"):
        await answer(agent, "/healthz/x")


async def test_events_of_a_pod_or_of_all_are_listed(autojump_clock: trio.abc.Clock) -> None:
    agent = FakeAgent()
    agent.recorder.pod_event(make(), EventType.NORMAL, "Pulled", "image is there", container="main")
    (event,) = await ask(agent, "/events", uid="uid-web")
    assert (event["type"], event["reason"], event["fieldPath"]) == ("Normal", "Pulled", "spec.containers{main}")
    assert await ask(agent, "/events", uid="other") == []
    agent.recorder.node_event(EventType.NORMAL, "Starting", "here it is")
    every = await ask(agent, "/events")
    assert [(event["reason"], event.get("name")) for event in every] == [("Pulled", "web"), ("Starting", None)]
    async with trio.open_nursery() as nursery:
        client = await open_stream(agent, nursery, "/events?watch=1")
        await client.read()
        agent.recorder.pod_event(make(), EventType.NORMAL, "Created", "it is there", container="main")
        text = await client.read()
        await client.stream.aclose()
    reasons = [json.loads(line)["reason"] for line in text.splitlines() if line.startswith("{")]
    assert reasons == ["Pulled", "Starting", "Created"]


async def test_what_changes_pods_is_asked_of_the_agent() -> None:
    agent = FakeAgent()

    async def put(path: str, body: bytes, **query: str) -> Any:
        request = Request("PUT", path, {key: [value] for key, value in query.items()}, body=body)
        response = await local_api(agent, TrioClock())(request)
        assert isinstance(response, Response)
        return json.loads(response.body)

    assert (await put("/manifests/a.yaml", b"pod", dryRun="1"))["warnings"] == ["True False"]
    assert (await put("/manifests/a.yaml", b"pod", mustBeNew="true"))["warnings"] == ["False True"]
    assert await put("/manifests/bad", b"") == {"problems": ["bad:1: no", "bad:2: never"]}
    assert await ask(agent, "/pods/default/web", "DELETE") == {
        "file": "default.yaml",
        "uid": "web",
        "flags": [False, False],
    }
    assert (await ask(agent, "/pods/default/web", "DELETE", removeFile="true"))["flags"] == [True, False]
    assert (await ask(agent, "/pods/default/web", "DELETE", withOthers="true"))["flags"] == [False, True]
    assert await ask(agent, "/pods/default/web/restart", "POST", container="main") == ["main"]
    for method, path in (("DELETE", "/pods/default/bad"), ("POST", "/pods/default/bad/restart")):
        with pytest.raises(HTTPError) as caught:
            await answer(agent, path, method)
        assert caught.value.status == 409


async def test_images_are_listed_and_imported() -> None:
    agent = FakeAgent()
    assert (await ask(agent, "/images"))[0]["repo_tags"] == ["a:1"]
    assert await ask(agent, "/images/import", "POST", path="/tmp/a.tar") == ["a:1"]
    assert agent.imported == [Path("/tmp/a.tar")]
    for path, message in (("a.tar", "absolute path"), ("/a\0", "absolute path"), ("/bad.tar", "leaves the archive")):
        with pytest.raises(HTTPError, match=message) as caught:
            await ask(agent, "/images/import", "POST", path=path)
        assert caught.value.status == 400


async def test_statistics_show_every_task_and_what_the_parts_count(autojump_clock: trio.abc.Clock) -> None:
    @attrs.frozen
    class Counts:
        seen: frozenset[str]
        kind: EventType
        slowest: float
        at: datetime

    counts = Counts(frozenset({"b", "a"}), EventType.NORMAL, float("inf"), datetime(2026, 1, 1, tzinfo=UTC))
    agent = FakeAgent(counts={"pleg": counts, "path": Path("/x"), "pair": (1, None)})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever, name="the sleeper")
        await trio.testing.wait_all_tasks_blocked()
        found = await ask(agent, "/statistics")
        nursery.cancel_scope.cancel()
    assert '"name": "the sleeper"' in json.dumps(found["tasks"])
    assert found["agent"] == {
        "pleg": {"seen": ["a", "b"], "kind": "Normal", "slowest": "inf", "at": "2026-01-01T00:00:00.000000Z"},
        "path": "/x",
        "pair": [1, None],
    }


def record(second: int, text: str) -> str:
    return f"2026-01-01T00:00:0{second}Z stdout F {text}\n"


@pytest.fixture
def agent(tmp_path: Path) -> FakeAgent:
    (tmp_path / "0.log").write_text("".join(record(n, f"line{n}") for n in range(4)))
    (tmp_path / "previous").write_text(record(0, "before"))
    return FakeAgent([make()], log=tmp_path / "0.log")


async def logs(agent: FakeAgent, nursery: trio.Nursery, query: str = "") -> str:
    client = await open_stream(agent, nursery, f"/containerLogs/default/web/main{query}")
    return await client.read()


@pytest.mark.parametrize(
    ("query", "chunk"),
    [
        ("", "line0\nline1\nline2\nline3\n"),
        ("?tailLines=2", "line2\nline3\n"),
        ("?tail=all", "line0\nline1\nline2\nline3\n"),
        ("?tail=1", "line3\n"),
        ("?limitBytes=8", "line0\nli"),
        ("?sinceTime=2026-01-01T01:00:02%2B01:00", "line2\nline3\n"),
        ("?sinceSeconds=5", "line0\nline1\nline2\nline3\n"),
        ("?previous=true&timestamps=1", "2026-01-01T00:00:00.000000000Z before\n"),
        ("?stream=Stdout", "line0\nline1\nline2\nline3\n"),
    ],
)
async def test_logs_are_streamed(agent: FakeAgent, query: str, chunk: str, autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        text = await logs(agent, nursery, query)
        nursery.cancel_scope.cancel()
    assert text.startswith("HTTP/1.1 200")
    assert text.endswith(f"\r\n\r\n{len(chunk):x}\r\n{chunk}\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/containerLogs/default/other/main", 404, 'pod "other" does not exist'),
        ("/containerLogs/default/web/other", 404, 'container "other" not found in pod "web"'),
        ("/containerLogs/default/web/main?tailLines=-1", 422, "expected 0 or more"),
        ("/containerLogs/default/web/main?limitBytes=0", 422, "expected 1 or more"),
        ("/containerLogs/default/web/main?sinceSeconds=0", 422, "expected 1 or more"),
        ("/containerLogs/default/web/main?sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", 422, "at most one"),
        ("/containerLogs/default/web/main?stream=Stdin", 422, "expected All, Stdout or Stderr"),
        ("/containerLogs/default/web/main?stream=Stdout&tailLines=1", 422, "counts the lines of both"),
        ("/containerLogs/default/web/main?tailLines=x", 400, "whole number"),
        ("/containerLogs/default/web/main?sinceTime=yesterday", 400, "expected a time like"),
        ("/containerLogs/default/web/main?follow=maybe", 400, "expected true or false"),
    ],
)
async def test_what_cannot_be_asked_of_logs(
    agent: FakeAgent, path: str, status: int, text: str, autojump_clock: trio.abc.Clock
) -> None:
    async with trio.open_nursery() as nursery:
        found = await (await open_stream(agent, nursery, path)).read()
        nursery.cancel_scope.cancel()
    assert found.startswith(f"HTTP/1.1 {status} ")
    assert text in found


@pytest.mark.parametrize("follow", ["", "?follow=1"])
async def test_a_log_that_is_not_there_is_refused_in_the_agents_words(
    agent: FakeAgent, follow: str, autojump_clock: trio.abc.Clock
) -> None:
    agent.log = LogNotAvailableError('container "main" in pod "web" is waiting to start: PodInitializing')
    async with trio.open_nursery() as nursery:
        text = await logs(agent, nursery, follow)
        nursery.cancel_scope.cancel()
    assert text.startswith("HTTP/1.1 400 ")
    assert text.endswith(f"{agent.log}\n")


async def test_a_follower_that_leaves_ends_the_follow(agent: FakeAgent, autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        client = await open_stream(agent, nursery, "/containerLogs/default/web/main?follow=true&tailLines=1")
        assert (await client.read()).endswith("line3\n\r\n")
        assert isinstance(agent.log, Path)
        with agent.log.open("a") as file:
            file.write(record(5, "more"))
        assert (await client.read()).endswith("more\n\r\n")
        assert agent.changes.statistics().subscriptions == 1
        await client.stream.aclose()
    assert agent.changes.statistics().subscriptions == 0


async def test_a_follow_ends_when_its_container_does(agent: FakeAgent, autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        client = await open_stream(agent, nursery, "/containerLogs/default/web/main?follow=true")
        await client.read()
        agent.running = False
        agent.changes.send(None)
        assert (await client.read()).endswith("line3\n\r\n0\r\n\r\n")
        nursery.cancel_scope.cancel()


async def test_since_seconds_counts_back_from_now(autojump_clock: trio.abc.Clock) -> None:
    clock = TrioClock()
    begin = clock.now()
    await trio.sleep(100)
    query = read_log_query(Request("GET", "/", {"sinceSeconds": ["100"]}), clock)
    assert query.options.since == begin
    read_log_query(Request("GET", "/", {"sinceSeconds": [str(2**62)]}), clock)


async def test_the_socket_has_the_nodes_routes_beside_its_own() -> None:
    async def other(request: Request) -> Response:
        return Response(f"the node's {request.path}".encode())

    node = Router([Route("GET", path, other) for path in ("/pods", "/configz", "/debug/tasks")])
    api = local_api(FakeAgent([make()]), TrioClock(), node)
    answers = {path: await api(Request("GET", path)) for path in ("/pods", "/configz", "/debug/tasks", "/version")}
    bodies = {path: found.body for path, found in answers.items() if isinstance(found, Response)}
    assert b"PodList" in bodies["/pods"]
    assert bodies["/configz"] == b"the node's /configz"
    assert bodies["/debug/tasks"] == b"the node's /debug/tasks"
    assert b"0.1.0" in bodies["/version"]


async def test_manifests_are_listed_and_a_watch_tells_of_those_with_problems(autojump_clock: trio.abc.Clock) -> None:
    agent = FakeAgent(files=[{"file": "/m/a", "problems": []}, {"file": "/m/b", "problems": ["one"]}])
    assert await ask(agent, "/manifests") == agent.files
    assert await ask(agent, "/manifests", problems="1") == agent.files[1:]
    async with trio.open_nursery() as nursery:
        client = await open_stream(agent, nursery, "/manifests?watch=1")
        assert '[{"file":"/m/b","problems":["one"]}]' in await client.read()
        agent.changes.send(None)
        assert (await client.read()).count("/m/b") == 1, "nothing has changed"
        assert agent.files_asked == 2, "once by each request: thousands of files take their time"
        agent.files_version += 1
        agent.changes.send(None)
        assert (await client.read()).count("/m/b") == 1, "it is the same after all"
        assert agent.files_asked == 3
        agent.files, agent.files_version = [], 2
        agent.changes.send(None)
        assert (await client.read()).endswith("[]\n\r\n")
        nursery.cancel_scope.cancel()
