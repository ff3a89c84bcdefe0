from __future__ import annotations

import os
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing

from tests.throwing import throw_into
from trikubelet.api import Pod
from trikubelet.clock import SystemClock
from trikubelet.sources import file as file_module
from trikubelet.sources.file import FileSource
from trikubelet.sources.manifests import read_manifest
from trikubelet.supervision import FAULTS, supervise

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from trikubelet.sources.manifests import Manifest, ManifestProblem

POD = """apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  containers:
  - name: main
    image: {image}
"""


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """Runs like a clock on the wall, and can be moved forward."""
    return trio.testing.MockClock(rate=1.0)


def manifest(name: str, image: str = "x:1") -> str:
    return POD.format(name=name, image=image)


def put(path: Path, text: str | bytes, *, age: float = 0.0) -> Path:
    """Write a file at once, as `mv` does, `age` seconds ago."""
    hidden = path.with_name(".new")
    hidden.write_bytes(text if isinstance(text, bytes) else text.encode())
    moment = SystemClock().now().timestamp() - age
    os.utime(hidden, (moment, moment))
    return hidden.rename(path)


@attrs.define
class Watched:
    """A running source and what came out of it."""

    source: FileSource
    receive: trio.MemoryReceiveChannel[tuple[Pod, ...]]
    told: list[tuple[str, list[str]]]
    task: trio.lowlevel.Task

    async def pods(self) -> list[str]:
        """Names and images of the next set."""
        with trio.fail_after(5):
            pods = await self.receive.receive()
        return [f"{pod.metadata.name}={pod.spec.containers[0].image}" for pod in pods]

    def problems(self) -> dict[str, list[str]]:
        return {path.name: [problem.message for problem in found] for path, found in self.source.problems.items()}

    async def until_told(self, count: int = 1) -> None:
        with trio.fail_after(5):
            while len(self.told) < count:
                await trio.testing.wait_all_tasks_blocked(0.002)


@asynccontextmanager
async def watching(path: Path, *, more: tuple[Path, ...] = (), **options: Any) -> AsyncIterator[Watched]:
    told: list[tuple[str, list[str]]] = []

    def on_problems(file: Path, problems: tuple[ManifestProblem, ...]) -> None:
        told.append((file.name, [problem.message for problem in problems]))

    source = FileSource(path, *more, node_name="node", clock=SystemClock(), on_problems=on_problems, **options)
    send, receive = trio.open_memory_channel[tuple[Pod, ...]](10)
    async with trio.open_nursery() as nursery:
        await nursery.start(supervise, source.run, send.send)
        yield Watched(source, receive, told, next(iter(nursery.child_tasks)))
        nursery.cancel_scope.cancel()


async def test_files_that_exist_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    put(tmp_path / "b.yaml", manifest("b"))
    put(tmp_path / "a.json", manifest("a"))
    put(tmp_path / ".hidden.yaml", manifest("hidden"))
    async with watching(tmp_path) as watched:
        assert await watched.pods() == ["a-node=x:1", "b-node=x:1"]


async def test_an_empty_folder_sends_an_empty_set(tmp_path: Path) -> None:
    async with watching(tmp_path) as watched:
        assert await watched.pods() == []


async def test_a_missing_folder_sends_an_empty_set_and_is_watched_for(tmp_path: Path) -> None:
    async with watching(tmp_path / "later") as watched:
        assert await watched.pods() == []
        (tmp_path / "later").mkdir()
        put(tmp_path / "later" / "a.yaml", manifest("a"))
        assert await watched.pods() == ["a-node=x:1"]


async def test_a_folder_that_vanishes_ends_its_pods_and_may_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    put(folder / "a.yaml", manifest("a"))
    async with watching(folder) as watched:
        assert await watched.pods() == ["a-node=x:1"]
        folder.rename(tmp_path / "away")
        assert await watched.pods() == []
        (tmp_path / "away").rename(folder)
        assert await watched.pods() == ["a-node=x:1"]
        put(folder / "b.yaml", manifest("b"))
        assert await watched.pods() == ["a-node=x:1", "b-node=x:1"]


async def test_a_file_added_changed_and_removed_is_noticed_at_once(tmp_path: Path) -> None:
    async with watching(tmp_path, period=1000) as watched:
        assert await watched.pods() == []
        put(tmp_path / "a.yaml", manifest("a"))
        assert await watched.pods() == ["a-node=x:1"]
        (tmp_path / "a.yaml").write_text(manifest("a", "y:2"))
        assert await watched.pods() == ["a-node=y:2"]
        (tmp_path / "a.yaml").unlink()
        assert await watched.pods() == []


async def test_the_uid_changes_with_the_content(tmp_path: Path) -> None:
    put(tmp_path / "a.yaml", manifest("a"))
    async with watching(tmp_path) as watched:
        (before,) = await watched.receive.receive()
        put(tmp_path / "a.yaml", manifest("a", "y:2"))
        (after,) = await watched.receive.receive()
    assert before.metadata.uid != after.metadata.uid
    assert before.full_name == after.full_name


async def test_a_file_that_is_written_in_pieces_is_read_when_it_is_closed(tmp_path: Path) -> None:
    put(tmp_path / "a.yaml", manifest("a"))
    text = manifest("a", "y:2") + "  - name: second\n    image: z:3\n"
    async with watching(tmp_path, period=1000) as watched:
        assert await watched.pods() == ["a-node=x:1"]
        with (tmp_path / "a.yaml").open("w") as file:
            for line in text.splitlines(keepends=True):
                file.write(line)
                file.flush()
                await trio.testing.wait_all_tasks_blocked(0.003)
            assert watched.receive.statistics().current_buffer_used == 0
        with trio.fail_after(5):
            (pod,) = await watched.receive.receive()
    assert [container.name for container in pod.spec.containers] == ["main", "second"]
    assert watched.told == []


async def test_a_writer_that_forgets_to_close_is_not_waited_for_forever(
    tmp_path: Path, clock: trio.testing.MockClock
) -> None:
    async with watching(tmp_path, period=1000) as watched:
        assert await watched.pods() == []
        with (tmp_path / "a.yaml").open("w") as file:
            file.write(manifest("a"))
            file.flush()
            await trio.testing.wait_all_tasks_blocked(0.02)
            clock.jump(1.1)
            assert await watched.pods() == ["a-node=x:1"]


async def test_a_pod_runs_on_from_its_last_good_version_while_its_file_is_broken(tmp_path: Path) -> None:
    put(tmp_path / "a.yaml", manifest("a"))
    put(tmp_path / "b.yaml", manifest("b"))
    async with watching(tmp_path, period=1000) as watched:
        assert await watched.pods() == ["a-node=x:1", "b-node=x:1"]
        put(tmp_path / "a.yaml", "kind: [", age=60)
        await watched.until_told()
        assert watched.problems().keys() == {"a.yaml"}
        put(tmp_path / "c.yaml", manifest("c"))
        assert await watched.pods() == ["a-node=x:1", "b-node=x:1", "c-node=x:1"]
        put(tmp_path / "a.yaml", manifest("a", "y:2"))
        assert await watched.pods() == ["a-node=y:2", "b-node=x:1", "c-node=x:1"]
        assert watched.problems() == {}
        assert [problems == [] for _, problems in watched.told] == [False, True]


async def test_a_broken_file_that_is_deleted_ends_its_pod(tmp_path: Path) -> None:
    put(tmp_path / "a.yaml", manifest("a"))
    async with watching(tmp_path) as watched:
        assert await watched.pods() == ["a-node=x:1"]
        put(tmp_path / "a.yaml", "kind: [", age=60)
        await watched.until_told()
        (tmp_path / "a.yaml").unlink()
        assert await watched.pods() == []
        assert watched.problems() == {}


async def test_a_file_is_called_broken_only_when_it_stays_so(tmp_path: Path, clock: trio.testing.MockClock) -> None:
    async with watching(tmp_path, period=1000) as watched:
        assert await watched.pods() == []
        put(tmp_path / "a.yaml", "kind: [")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert watched.told == []
        clock.jump(1.1)
        await watched.until_told()
        assert watched.told[0][0] == "a.yaml"


async def test_a_file_that_is_mended_within_a_second_is_never_called_broken(
    tmp_path: Path, clock: trio.testing.MockClock
) -> None:
    async with watching(tmp_path, period=1000) as watched:
        assert await watched.pods() == []
        put(tmp_path / "a.yaml", "kind: [")
        await trio.testing.wait_all_tasks_blocked(0.02)
        put(tmp_path / "a.yaml", manifest("a"))
        assert await watched.pods() == ["a-node=x:1"]
        clock.jump(3)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert watched.told == []


async def test_a_problem_is_told_once_and_again_when_it_changes(tmp_path: Path, clock: trio.testing.MockClock) -> None:
    put(tmp_path / "a.yaml", "kind: Job", age=60)
    async with watching(tmp_path, period=5) as watched:
        await watched.until_told()
        for _ in range(3):
            clock.jump(6)
            await trio.testing.wait_all_tasks_blocked(0.02)
        assert len(watched.told) == 1
        put(tmp_path / "a.yaml", "kind: Deployment", age=60)
        await watched.until_told(2)
        assert "Deployment" in watched.told[1][1][0]


async def test_files_that_did_not_change_are_not_parsed_again(
    tmp_path: Path, clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    def read(path: Path, node_name: str, *, may_refer: bool) -> Manifest:
        parsed.append(path.name)
        return read_manifest(path, node_name, may_refer=may_refer)

    monkeypatch.setattr("trikubelet.sources.file.read_manifest", read)
    put(tmp_path / "a.yaml", manifest("a"))
    put(tmp_path / "b.yaml", manifest("b"))
    async with watching(tmp_path, period=5) as watched:
        await watched.pods()
        clock.jump(6)
        await trio.testing.wait_all_tasks_blocked(0.02)
        put(tmp_path / "b.yaml", manifest("b", "y"))
        await watched.pods()
    assert parsed == ["a.yaml", "b.yaml", "b.yaml"]


async def test_the_periodic_reread_finds_what_no_event_told(
    tmp_path: Path, clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_instances(self: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("trikubelet.linux.inotify.Inotify.__init__", out_of_instances)
    async with watching(tmp_path, period=20) as watched:
        assert await watched.pods() == []
        put(tmp_path / "a.yaml", manifest("a"))
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert watched.receive.statistics().current_buffer_used == 0
        clock.jump(21)
        assert await watched.pods() == ["a-node=x:1"]


async def test_a_change_behind_a_symbolic_link_is_noticed(tmp_path: Path) -> None:
    """As a mounted ConfigMap is updated: the entries link through `..data`, which is replaced."""
    for version in ("1", "2"):
        (tmp_path / f"..v{version}").mkdir()
        (tmp_path / f"..v{version}" / "a.yaml").write_text(manifest("a", f"x:{version}"))
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    async with watching(tmp_path, period=1000) as watched:
        assert await watched.pods() == ["a-node=x:1"]
        (tmp_path / "..tmp").symlink_to("..v2")
        (tmp_path / "..tmp").rename(tmp_path / "..data")
        assert await watched.pods() == ["a-node=x:2"]


async def test_links_count_as_complete_files(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    source = put(elsewhere / "a.yaml", manifest("a"))
    folder = tmp_path / "m"
    folder.mkdir()
    async with watching(folder, period=1000) as watched:
        assert await watched.pods() == []
        (folder / "soft.yaml").symlink_to(source)
        assert await watched.pods() == ["a-node=x:1"]
        (folder / "soft.yaml").unlink()
        assert await watched.pods() == []
        (folder / "hard.yaml").hardlink_to(source)
        assert await watched.pods() == ["a-node=x:1"]


async def test_a_single_file_may_be_the_source(tmp_path: Path) -> None:
    path = put(tmp_path / "only.yaml", manifest("a"))
    async with watching(path, period=1000) as watched:
        assert await watched.pods() == ["a-node=x:1"]
        put(tmp_path / "other.yaml", manifest("b"))
        path.write_text(manifest("a", "y:2"))
        assert await watched.pods() == ["a-node=y:2"]
        path.unlink()
        assert await watched.pods() == []
        put(path, manifest("a", "z:3"))
        assert await watched.pods() == ["a-node=z:3"]


async def test_of_two_files_with_one_pod_the_first_by_name_wins(tmp_path: Path) -> None:
    put(tmp_path / "b.yaml", manifest("web", "b:1"))
    put(tmp_path / "a.yaml", manifest("web", "a:1"))
    async with watching(tmp_path) as watched:
        assert await watched.pods() == ["web-node=a:1"]
        assert watched.problems() == {"b.yaml": ["the pod web-node_default is taken by a.yaml, this one is ignored"]}
        (tmp_path / "a.yaml").unlink()
        assert await watched.pods() == ["web-node=b:1"]
        assert watched.problems() == {}


async def test_a_folder_that_cannot_be_listed_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a.yaml", manifest("a"))
    async with watching(tmp_path, period=0.05) as watched:
        assert await watched.pods() == ["a-node=x:1"]

        def refuse(self: Path) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "iterdir", refuse)
        await trio.sleep(0.15)
        assert watched.receive.statistics().current_buffer_used == 0


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_cancelling_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    before = _descriptors()
    async with watching(tmp_path) as watched:
        await watched.pods()
        start = trio.current_time()
    assert trio.current_time() - start < 10  # a period is longer
    assert _descriptors() == before


def _laughs() -> str:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    return text + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 * 2**20)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


GOOD = manifest("p")


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


BROKEN: list[tuple[str | bytes | Callable[[Path], object], str]] = [
    # Truncated.
    ("", "the file holds no pod"),
    ("# nothing yet\n", "the file holds no pod"),
    (GOOD[:10], "expected a Pod or PodList, got a string"),
    (GOOD[:60], 'spec: expected an object, got "contain"'),
    (GOOD + "  - name: 'unfinished", "quoted scalar"),
    (GOOD + "  - {name: x, image", "flow mapping"),
    ('{"apiVersion": "v1", "kind": "Pod", "metadata": {', "flow node"),
    ('{"apiVersion": "v1", "kind": "Pod"', "flow mapping"),
    # Not YAML.
    (GOOD + "\tx: y\n", "tab character"),
    (GOOD + " bad indent: 1\n", "did not find expected"),
    ("@" + GOOD, "cannot start any token"),
    (GOOD + "  tolerations: %x\n", "cannot start any token"),
    ("a: b: c\n", "mapping values are not allowed"),
    ("{{ template }}\n", "expected a string as key"),
    # Not text.
    (b"\x7fELF\x02\x01\x01" + bytes(100), "binary data"),
    (b"\x89PNG\r\n\x1a\n\0\0", "binary data"),
    (GOOD.encode() + b"# \xff\n", "expected UTF-8"),
    (GOOD.encode("utf-16"), "binary data"),
    (GOOD.encode() + b"\0" * 20, "binary data"),
    # Wrong kinds.
    ("just a string\n", "expected a Pod or PodList, got a string"),
    ("- a\n- b\n", "expected a Pod or PodList, got a list"),
    ("42\n", "expected a Pod or PodList, got a number"),
    (changed("kind: Pod", "kind: Deployment"), "got Deployment"),
    (changed("kind: Pod", "kindd: Pod"), "expected Pod or PodList, got nothing"),
    (changed("apiVersion: v1", "apiVersion: v2"), "expected v1, got v2"),
    ("apiVersion: v1\nkind: PodList\nitems: 3\n", "expected a list, got a number"),
    ("apiVersion: v1\nkind: PodList\nitems: [3]\n", "items[0]"),
    # Wrong types.
    (changed("metadata:\n  name: p", "metadata: p"), "metadata"),
    (changed("name: p", "name: 7"), "metadata.name"),
    (changed("name: p", "name: yes"), "metadata.name"),
    (changed("image: x:1", "image: [x]"), "spec.containers[0].image"),
    (GOOD + "    command: sleep 1\n", "spec.containers[0].command"),
    (GOOD + "    ports: [{containerPort: http}]\n", "spec.containers[0].ports[0].containerPort"),
    (GOOD + "    env: {A: b}\n", "spec.containers[0].env"),
    (GOOD + "    env: [{name: A, value: 1}]\n", "spec.containers[0].env[0].value"),
    (GOOD + "    resources: {limits: {cpu: much}}\n", "spec.containers[0].resources.limits"),
    (GOOD + "  hostNetwork: 'true'\n", "spec.hostNetwork"),
    # Wrong values.
    (changed("name: p", "name: ''"), "name is needed for the pod"),
    (changed("name: p", "name: Not_A_Name"), "metadata.name: Invalid value"),
    (changed("image: x:1", "image: ''"), "spec.containers[0].image: Required value"),
    (changed("name: main", "name: Main!"), "spec.containers[0].name: Invalid value"),
    (GOOD + "  - name: main\n    image: y\n", "Duplicate value"),
    (GOOD + "  restartPolicy: Sometimes\n", "spec.restartPolicy"),
    (GOOD + "  serviceAccountName: x\n", "static pods may not reference serviceaccounts"),
    (GOOD + "  volumes: [{name: v, secret: {secretName: s}}]\n", "static pods may not reference secrets"),
    # Twice.
    (changed("name: p", "name: p\n  name: q"), "metadata.name: the key is given twice"),
    (GOOD + "---\n" + GOOD, "is defined in line 1 already"),
    # Anchors.
    (GOOD + "  tolerations: &a [*a]\n", "the value that contains it"),
    (GOOD + "  affinity: &a {nodeAffinity: *a}\n", "the value that contains it"),
    (GOOD + "---\n" + _laughs(), "aliases expand"),
    (GOOD + "  affinity: *nothing\n", "names no anchor"),
    # Hostile shapes.
    ("[" * 100_000, "deep"),
    ("a: " + "{a: " * 200 + "1" + "}" * 200, "deep"),
    ("a: [" + "1," * 300_000 + "1]", "more than 250000 values"),
    ("a: !!python/object/apply:os.system ['true']\n", "is not supported"),
    (_sparse, "expected at most 10 MiB, got 100.0 MiB"),
    # Not files.
    (lambda path: path.symlink_to("/nowhere/at/all"), "points to /nowhere/at/all, which does not exist"),
    (lambda path: path.symlink_to(path.name), "cannot be read: Too many levels of symbolic links"),
    (lambda path: os.mkfifo(path), "got a FIFO"),
    (_socket, "got a socket"),
    (lambda path: path.mkdir(), "got a directory"),
    (lambda path: path.symlink_to("/dev/zero"), "got a device"),
]


async def test_fifty_broken_manifests_each_have_their_message_and_disturb_nobody(tmp_path: Path) -> None:
    assert len(BROKEN) >= 50
    folder = tmp_path / "m"
    folder.mkdir()
    for index, (content, _) in enumerate(BROKEN):
        path = folder / f"broken-{index:02}.yaml"
        if callable(content):
            content(path)
            os.utime(path, (0, 0), follow_symlinks=False)
        else:
            put(path, content, age=60)
    put(folder / "aaa.yaml", manifest("first"))
    put(folder / "zzz.yaml", manifest("last"))
    async with watching(folder, period=1000) as watched:
        with trio.fail_after(30):
            pods = await watched.receive.receive()
        assert [pod.metadata.name for pod in pods] == ["first-node", "last-node"]
        found = watched.source.problems
        for index, (_, fragment) in enumerate(BROKEN):
            problems = [str(problem) for problem in found[folder / f"broken-{index:02}.yaml"]]
            assert any(fragment in problem for problem in problems), (index, fragment, problems)
        assert len(watched.told) == len(BROKEN)
        put(folder / "more.yaml", manifest("more"))
        assert len(await watched.pods()) == 3


async def test_an_unreadable_file_keeps_its_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trikubelet.sources import manifests

    put(tmp_path / "a.yaml", manifest("a"))
    async with watching(tmp_path) as watched:
        assert await watched.pods() == ["a-node=x:1"]

        def refuse(path: Path) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(manifests, "_read_regular", refuse)
        put(tmp_path / "a.yaml", manifest("a", "y:2"), age=60)
        await watched.until_told()
        assert watched.told == [("a.yaml", ["cannot be read: Permission denied"])]
        assert watched.receive.statistics().current_buffer_used == 0


async def test_after_a_fault_the_folder_is_read_and_watched_anew(tmp_path: Path, clock: trio.testing.MockClock) -> None:
    put(tmp_path / "a.yaml", manifest("a"))
    async with watching(tmp_path) as watched:
        assert await watched.pods() == ["a-node=x:1"]
        await trio.testing.wait_all_tasks_blocked(0.01)
        throw_into(watched.task)
        put(tmp_path / "b.yaml", manifest("b"))
        await trio.testing.wait_all_tasks_blocked(0.01)
        clock.jump(FAULTS.first)
        assert await watched.pods() == ["a-node=x:1", "b-node=x:1"]
        put(tmp_path / "c.yaml", manifest("c"))
        assert await watched.pods() == ["a-node=x:1", "b-node=x:1", "c-node=x:1"]


async def test_two_folders_are_one_source_and_the_first_ones_pod_wins_told_once(tmp_path: Path) -> None:
    mine, applied = tmp_path / "mine", tmp_path / "applied"
    for folder in (mine, applied):
        folder.mkdir()
    put(applied / "a.yaml", manifest("web", "theirs:1"))
    put(applied / "b.yaml", manifest("db"))
    async with watching(mine, more=(applied,), period=1000) as watched:
        assert await watched.pods() == ["web-node=theirs:1", "db-node=x:1"]
        put(mine / "z.yaml", manifest("web", "mine:1"), age=60)
        assert await watched.pods() == ["web-node=mine:1", "db-node=x:1"]
        (ignored,) = watched.problems()["a.yaml"]
        assert ignored == f"the pod web-node_default is taken by {mine}/z.yaml, this one is ignored"
        put(applied / "c.yaml", manifest("new"))
        assert await watched.pods() == ["web-node=mine:1", "db-node=x:1", "new-node=x:1"]
        assert [name for name, _ in watched.told] == ["a.yaml"], "told once"
        (mine / "z.yaml").unlink()
        assert await watched.pods() == ["web-node=theirs:1", "db-node=x:1", "new-node=x:1"]
        assert watched.problems() == {}


async def test_a_pods_uid_is_the_same_whichever_folders_are_beside_its_own(tmp_path: Path) -> None:
    put(tmp_path / "a.yaml", manifest("a"))
    async with watching(tmp_path) as watched:
        (alone,) = await watched.receive.receive()
    async with watching(tmp_path, more=(tmp_path / "applied",)) as watched:
        (beside,) = await watched.receive.receive()
    assert alone.metadata.uid == beside.metadata.uid


async def test_of_several_folders_only_the_missing_one_is_looked_for_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    mine, applied = tmp_path / "mine", tmp_path / "applied"
    mine.mkdir()
    put(mine / "a.yaml", manifest("a"), age=60)
    listed: list[str] = []
    real = file_module._list

    def counted(path: Path, *others: Any) -> Any:
        listed.append(path.name)
        return real(path, *others)

    async def at_once(work: Any, *arguments: Any, **_: object) -> Any:
        return work(*arguments)

    monkeypatch.setattr(file_module, "_list", counted)
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    async with watching(mine, more=(applied,), period=20) as watched:
        assert await watched.pods() == ["a-node=x:1"]
        await trio.sleep(19.5)
        assert (listed.count("mine"), listed.count("applied")) == (1, 20)
        await trio.sleep(1)
        assert listed.count("mine") == 2, "the periodic look still happens"
        applied.mkdir()
        put(applied / "b.yaml", manifest("b"))
        await trio.sleep(2)
        assert await watched.pods() == ["a-node=x:1", "b-node=x:1"]


async def test_nothing_is_sent_before_each_folder_was_listed(tmp_path: Path, clock: trio.testing.MockClock) -> None:
    applied = tmp_path / "applied"
    applied.mkdir()
    put(applied / "a.yaml", manifest("a"))
    async with watching(Path("/dev/null/m"), more=(applied,), period=20) as watched:
        with trio.fail_after(5):
            while not watched.source.path_problems:
                await trio.testing.wait_all_tasks_blocked(0.02)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert watched.receive.statistics().current_buffer_used == 0, "pods of the other folder would be ended"


async def test_what_is_known_of_each_file_is_told(tmp_path: Path) -> None:
    put(tmp_path / "a.yaml", manifest("a"))
    put(tmp_path / "b.yaml", manifest("b").replace("image", "imge"), age=60)
    put(tmp_path / "c.yaml", manifest("a"), age=60)

    def told() -> list[tuple[str, list[str], list[str], int, bool]]:
        states = [state.as_json() for state in watched.source.manifests()]
        return [
            (Path(one["file"]).name, one["pods"], one["names"], len(one["problems"]), one["broken"]) for one in states
        ]

    async with watching(tmp_path, period=1000) as watched:
        assert await watched.pods() == ["a-node=x:1"]
        await watched.until_told(2)
        assert told() == [
            ("a.yaml", ["default/a-node"], ["default/a-node"], 0, False),
            ("b.yaml", [], ["default/b-node"], 1, True),
            ("c.yaml", ["default/a-node"], ["default/a-node"], 1, False),
        ]
        broken = [state.file.name for state in watched.source.manifests_with_problems()]
        assert sorted(broken) == ["b.yaml", "c.yaml"]
        put(tmp_path / "a.yaml", "kind: [", age=60)
        await watched.until_told(3)
        assert told()[0] == ("a.yaml", ["default/a-node"], [], 1, True)
        (problem,) = next(iter(watched.source.manifests())).as_json()["problems"]
        assert problem["message"].startswith("did not find expected node content")


async def test_there_is_another_version_where_what_is_told_of_problems_may_be_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists, list_folder = [], file_module._list

    def counted(*given: Any) -> Any:
        lists.append(given)
        return list_folder(*given)

    monkeypatch.setattr(file_module, "_list", counted)
    put(tmp_path / "a.yaml", manifest("a"))
    put(tmp_path / "b.yaml", "kind: [", age=60)
    async with watching(tmp_path, period=0.05) as watched:
        assert await watched.pods() == ["a-node=x:1"]
        await watched.until_told(1)
        versions = [watched.source.version]
        with trio.fail_after(5):
            several = len(lists) + 4
            while len(lists) < several:
                await trio.testing.wait_all_tasks_blocked(0.002)
        assert watched.source.version == versions[0], "nothing has changed"
        put(tmp_path / "b.yaml", "kind: Pod", age=60)
        await watched.until_told(2)
        versions.append(watched.source.version)
        put(tmp_path / "a.yaml", "kind: [", age=60)
        await watched.until_told(3)
        versions.append(watched.source.version)
        (tmp_path / "b.yaml").unlink()
        await watched.until_told(4)
        versions.append(watched.source.version)
        assert sorted({*versions}) == versions


async def test_a_folder_that_cannot_be_read_is_told_with_the_files(clock: trio.testing.MockClock) -> None:
    async with watching(Path("/dev/null/m"), period=20) as watched:
        with trio.fail_after(5):
            while not watched.source.path_problems:
                await trio.testing.wait_all_tasks_blocked(0.02)
        (state,) = watched.source.manifests()
        assert state.as_json()["problems"] == [
            {"line": None, "field": "", "message": "cannot be read: Not a directory"}
        ]
