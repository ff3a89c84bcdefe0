"""What is on the screen of the live page, in a real browser: with a simulated runtime, and with real containers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio

from tests.agent.real_node import COMMAND
from tests.agent.serving import Served, served
from tests.agent.sim_node import static_pod
from tests.browser import Browser, needs_browser, open_browser
from tests.examples import examples
from tests.patience import PATIENCE
from trikubelet.agent.sources import file_source
from trikubelet.http.messages import HTTPError
from trikubelet.node_api import local_api
from trikubelet.probes.types import Outcome, ProbeAnswer
from trikubelet.sim import Program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from tests.agent.real_node import RealNode
    from trikubelet.api import Pod
    from trikubelet.http.messages import AnyResponse, Request

pytestmark = needs_browser

HOSTILE: Final = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
MANY: Final = examples(200)
ROW: Final = "[data-uid='uid-of-{}']"
FRAMES: Final = """
const begin = performance.now(); const times = []; let last = begin;
return new Promise((resolve) => requestAnimationFrame(function frame(now) {
  times.push(now - last); last = now;
  if (now - begin < 2000) requestAnimationFrame(frame); else resolve(times.slice(2));
}));"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@attrs.define
class Watching:
    """A browser that shows the page of a simulated agent."""

    node: Served
    browser: Browser

    async def see(self, look: Callable[..., Any], *arguments: Any) -> Any:
        """One of the browser's methods, beside the event loop that the page's server needs."""
        return await trio.to_thread.run_sync(look, *arguments)

    async def see_state(self, name: str, pattern: str) -> str:
        text: str = await self.see(self.browser.until_text, f"{ROW.format(name)} .state", pattern)
        return text

    async def choose(self, name: str) -> None:
        await self.see(self.browser.click, f"{ROW.format(name)} .name")


@asynccontextmanager
async def watching(browser: Browser, folder: Path, *pods: Pod) -> AsyncIterator[Watching]:
    async with served(
        folder, cluster=False, enable_server=False, read_only_port=0, ui_address=("127.0.0.1", 0)
    ) as node:
        node.source.put(*pods)
        watched = Watching(node, browser)
        answer = await node.caller("socket").ask("POST", "/ui/link")
        await watched.see(browser.open, json.loads(answer.text)["url"])
        await watched.see(browser.until_text, "#connection", "^live$")
        yield watched
        complaints = await watched.see(browser.complaints)
        # What is not there, as the tasks of a pod that has gone, is no fault of a script.
        faults = [one for one in complaints if "Failed to load resource" not in one]
        assert faults == [], "neither a script nor the policy complains"
        await watched.see(browser.open, "about:blank")


async def ignore(_: object) -> None:
    await trio.lowlevel.checkpoint()


async def test_pods_are_rows_with_their_states(browser: Browser, tmp_path: Path) -> None:
    failing = static_pod("failing", containers=[{"name": "fails", "image": "test:1"}])
    async with watching(browser, tmp_path) as screen:
        screen.node.sim.program(Program.exits(after=0.2, exit_code=3), container="fails")
        screen.node.source.put(failing)
        await screen.see_state("web", "^ready$")
        await screen.see_state("failing", "^backs off$")
        await screen.see(browser.until_text, "#count", "^1 of 2 ready$")
        names = await screen.see(browser.run, "return [...document.querySelectorAll('.name')].map((e) => e.innerText)")
        assert names == ["default/failing-node", "default/web-node"]
        marks = "return document.querySelector(arguments[0]).title"
        assert await screen.see(browser.run, marks, f"{ROW.format('failing')} .mark.failed") == "fails: exit code 3"


async def test_manifests_with_problems_are_the_last_block_and_go_when_they_are_mended(
    browser: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "a.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}\n")
    (folder / "b.yaml").write_text(f"kind: {json.dumps(HOSTILE)}\n")
    os.utime(folder / "a.yaml", (0, 0))
    os.utime(folder / "b.yaml", (0, 0))

    async with watching(browser, tmp_path) as screen, trio.open_nursery() as nursery:
        agent = screen.node.agent
        options = attrs.evolve(agent.options, manifests=folder)
        agent.files = file_source(options, agent.clock, agent.recorder)
        assert agent.files is not None
        await nursery.start(agent.files.run, ignore)
        text = await screen.see(browser.until_text, "#manifests", "spec.containers: Required value")
        assert "line 4: spec.containers: Required value" in text
        assert "<script>" in text
        assert await screen.see(browser.run, "return document.title") == "Pods · trikubelet"
        for name in ("a.yaml", "b.yaml"):
            (folder / name).unlink()
        await screen.see(browser.until, "return document.querySelector('#manifests').hidden")
        nursery.cancel_scope.cancel()


async def test_manifests_are_asked_for_again_after_an_answer_that_is_an_error(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell, asked = local_api._LocalApi.manifests, 0

    async def fail_first(api: Any, request: Request) -> AnyResponse:
        nonlocal asked
        asked += 1
        if asked <= 2:
            raise HTTPError(503, "too busy")
        return await tell(api, request)

    monkeypatch.setattr(local_api._LocalApi, "manifests", fail_first)
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "a.yaml").write_text("kind: [\n")
    os.utime(folder / "a.yaml", (0, 0))
    async with watching(browser, tmp_path) as screen, trio.open_nursery() as nursery:
        agent = screen.node.agent
        agent.files = file_source(attrs.evolve(agent.options, manifests=folder), agent.clock, agent.recorder)
        assert agent.files is not None
        await nursery.start(agent.files.run, ignore)
        await screen.see(browser.until_text, "#manifests", "did not find expected node content")
        assert asked == 3
        nursery.cancel_scope.cancel()


async def test_a_pod_that_comes_and_goes_while_it_is_watched(browser: Browser, tmp_path: Path) -> None:
    pod = static_pod("late", terminationGracePeriodSeconds=30)
    async with watching(browser, tmp_path) as screen:
        screen.node.sim.program(Program.runs_forever(sigterm=None), pod="late-node")
        assert await screen.see(browser.text, ROW.format("late")) == ""
        screen.node.source.put(pod)
        await screen.see_state("late", "^ready$")
        await screen.choose("late")
        await screen.see(browser.until_text, "#why", "nothing: the pod is Running and ready")
        screen.node.source.remove(pod)
        first = await screen.see_state("late", r"^ending: \d+ s of 30 s left$")
        second = await screen.see_state("late", f"^(?!{first}$)ending: \\d+ s of 30 s left$")
        assert int(second.split()[1]) < int(first.split()[1])
        await screen.see(browser.until_text, "#why", "StopContainer of `main`: .* asked by: manifest removed")
        (container,) = screen.node.sim.running_containers("uid-of-late")
        screen.node.sim.end_container(container, 128 + signal.SIGKILL)
        await screen.see_state("late", "^gone$")
        states = await screen.see(
            browser.run,
            "return [...document.querySelector(arguments[0]).querySelectorAll('.segment')].map((e) => e.classList[1])",
            ROW.format("late"),
        )
        assert states[-4:] == ["ready", "ending", "ended", "gone"]
        assert states[0] == "waiting"
        await screen.see(browser.until_text, "#why", "nothing: the pod is gone")
        await screen.see(browser.until_text, "#scopes", "no task runs for a pod of UID uid-of-late")
        assert "signal 9" in await screen.see(browser.text, "#events")


async def test_the_chosen_pod_is_told_of(browser: Browser, tmp_path: Path) -> None:
    probe = {"httpGet": {"port": 80}, "periodSeconds": 7}
    main = {"name": "main", "image": "test:1", "readinessProbe": probe}
    pod = static_pod("probed", containers=[main, {"name": "side", "image": "test:1"}])
    async with watching(browser, tmp_path) as screen:
        screen.node.sim.program(Program(answers=lambda kind, age: ProbeAnswer(Outcome.FAILURE)), pod="probed-node")
        screen.node.source.put(pod)
        await screen.see_state("probed", "^runs, not ready$")
        await screen.choose("probed")
        unready = r"readiness probe: has not passed \(httpGet, every 7 s, 3 failures\)"
        await screen.see(browser.until_text, "#containers", unready)
        scopes = await screen.see(browser.until_text, "#scopes", "Readiness probe of main")
        assert scopes.startswith("pod probed-node_default uid-of-probed")
        assert "container main" in scopes
        await screen.see(browser.until_text, "#events", "main: Started")
        options = await screen.see(
            browser.run, "return [...document.querySelectorAll('#log option')].map((e) => e.value)"
        )
        assert options == ["main", "side"]
        await screen.see(browser.click, ".close")
        assert await screen.see(browser.text, "#details") == ""


async def test_what_is_chosen_stays_when_the_page_is_loaded_again(browser: Browser, tmp_path: Path) -> None:
    async with watching(browser, tmp_path) as screen:
        await screen.see_state("web", "^ready$")
        await screen.choose("web")
        await screen.see(browser.until_text, "#details h2", "^default/web-node$")
        await screen.see(browser.run, "location.reload()")
        await screen.see(browser.until_text, "#details h2", "^default/web-node$")


async def test_what_is_chosen_is_told_of_once_the_agent_knows_it(browser: Browser, tmp_path: Path) -> None:
    """An agent that starts anew answers before it has found its pods."""
    async with watching(browser, tmp_path) as screen:
        await screen.see(browser.run, "location.hash = 'uid-of-late'; location.reload()")
        await screen.see_state("web", "^ready$")
        assert await screen.see(browser.text, "#details") == ""
        screen.node.source.put(static_pod("late"))
        await screen.see(browser.until_text, "#details h2", "^default/late-node$")
        await screen.see(browser.until_text, "#events", "Running")


async def test_a_page_that_nobody_sees_asks_for_nothing(browser: Browser, tmp_path: Path) -> None:
    turn = """Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});
        document.dispatchEvent(new Event('visibilitychange'))"""
    async with watching(browser, tmp_path) as screen:
        await screen.see_state("web", "^ready$")
        await screen.choose("web")
        await screen.see(browser.until_text, "#events", "Running")

        def busy() -> int:
            return screen.node.server.statistics()["ui"].busy

        assert busy() >= 1
        await screen.see(browser.run, turn, True)
        await screen.node.until(lambda: busy() == 0)
        screen.node.source.put(static_pod("missed"))
        await screen.node.until_running(static_pod("missed"))
        assert await screen.see(browser.text, ROW.format("missed")) == ""
        await screen.see(browser.run, turn, False)
        await screen.see_state("missed", "^ready$")


async def test_what_pods_say_is_text(browser: Browser, tmp_path: Path) -> None:
    hostile = static_pod("hostile", containers=[{"name": HOSTILE, "image": "test:1"}])
    hostile = attrs.evolve(hostile, metadata=attrs.evolve(hostile.metadata, name="<script>"))
    named = static_pod("named", containers=[{"name": HOSTILE, "image": HOSTILE}])
    named = attrs.evolve(named, metadata=attrs.evolve(named.metadata, name=HOSTILE))
    async with watching(browser, tmp_path) as screen:
        screen.node.source.put(hostile, named)
        await screen.see_state("hostile", "^ready$")
        await screen.see_state("named", "^backs off$")
        assert await screen.see(browser.text, f"{ROW.format('hostile')} .name") == "default/<script>"
        for uid in ("hostile", "named"):
            await screen.choose(uid)
            await screen.see(browser.until_text, "#containers", "onerror=")
            await screen.see(browser.until_text, "#events", "onerror=")
        elements = "return document.querySelectorAll('main script, main img').length"
        assert await screen.see(browser.run, elements) == 0
        assert await screen.see(browser.run, "return document.title") == "Pods · trikubelet"


async def test_what_containers_write_is_text_and_follows(browser: Browser, tmp_path: Path) -> None:
    async with watching(browser, tmp_path) as screen:
        await screen.see_state("web", "^ready$")
        [log] = (tmp_path / "logs").rglob("*.log")
        log.write_text(f"2026-01-01T00:00:00.000000000Z stdout F {HOSTILE}\n")
        await screen.choose("web")
        await screen.see(browser.until_text, "#log pre", "onerror=")
        with log.open("a") as file:
            file.write("2026-01-01T00:00:01.000000000Z stdout F \x1b[31mmore\x1b[0m <b>bold</b>\n")
        await screen.see(browser.until_text, "#log pre", "<b>bold</b>")
        assert await screen.see(browser.run, "return document.querySelector('#log pre').children.length") == 0
        assert await screen.see(browser.run, "return document.title") == "Pods · trikubelet"


async def test_the_browser_enforces_the_policy(browser: Browser, tmp_path: Path) -> None:
    async with watching(browser, tmp_path) as screen:
        inline = "const e = document.createElement('script'); e.append('x'); document.head.append(e)"
        for forbidden in (inline, "document.body.innerHTML = '<b>x</b>'"):
            script = f"try {{ {forbidden}; return 'done' }} catch (error) {{ return error.name }}"
            outcome = await screen.see(browser.run, script)
            complaints = await screen.see(browser.complaints)
            assert outcome == "TypeError" or any("will not be executed" in one for one in complaints), complaints
        await screen.see(browser.run, "document.body.setAttribute('style', 'display: none')")
        assert any("style" in one for one in await screen.see(browser.complaints))
        foreign = "return fetch('http://127.0.0.1:1/').then(() => 'sent', () => 'refused')"
        assert await screen.see(browser.run, foreign) == "refused"
        assert any("connect-src" in one for one in await screen.see(browser.complaints))


@pytest.mark.night
async def test_a_page_that_is_opened_late_shows_the_same_history(browser: Browser, tmp_path: Path) -> None:
    """Of a crash loop the journal keeps the last back-off and the last pull only."""
    drawn = """return [...document.querySelectorAll(arguments[0] + ' .segment')].map(
        (e) => [e.classList[1], parseFloat(e.style.left)])"""
    failing = static_pod("failing", containers=[{"name": "fails", "image": "test:1"}])
    ends = "return document.querySelectorAll(arguments[0] + ' .mark.failed').length === 3"
    async with watching(browser, tmp_path) as screen:
        screen.node.sim.program(Program.exits(after=0.2, exit_code=3), container="fails")
        screen.node.source.put(failing)
        row = ROW.format("failing")
        await screen.see(browser.until, ends, row)
        await screen.see_state("failing", "^backs off$")
        early = [state for state, _ in await screen.see(browser.run, drawn, row)]
        assert early.count("backoff") == 3
        assert early[-1] == "backoff"
        await screen.see(browser.run, "location.reload()")
        await screen.see_state("failing", "^backs off$")
        late = await screen.see(browser.run, drawn, row)
        assert [state for state, _ in late] == early
        down = sum(end - begin for (state, begin), (_, end) in pairwise(late) if state == "backoff")
        assert down > 0.8 * (late[-1][1] - late[0][1]), "most of its time it was down"


@pytest.mark.night
async def test_many_pods(browser: Browser, tmp_path: Path, record_testsuite_property: Any) -> None:
    """How long frames take depends on the machine, and is recorded only."""
    pods = [static_pod(f"many-{number:03}") for number in range(MANY)]
    async with watching(browser, tmp_path, *pods) as screen:
        await screen.see(browser.until_text, "#count", f"^{MANY + 1} of {MANY + 1} ready$")
        drawn = "return document.querySelectorAll('.row.pod .segment.ready').length"
        assert await screen.see(browser.run, drawn) == MANY + 1
        frames = sorted(await screen.see(browser.run, FRAMES))
        figures = {"frames": len(frames), "median_ms": frames[len(frames) // 2], "slowest_ms": frames[-1]}
        record_testsuite_property(f"frames of {MANY} pods", json.dumps(figures))
        await screen.see(
            browser.run,
            "const f = document.querySelector('#filter'); f.value = 'MANY-01'; f.dispatchEvent(new Event('input'))",
        )
        shown = "return [...document.querySelectorAll('.row.pod')].filter((e) => !e.hidden).length"
        assert await screen.see(browser.run, shown) == 10


@contextmanager
def page_of(node: RealNode) -> Iterator[str]:
    """`trikubelet web`, and the link that it prints."""
    process = subprocess.Popen(
        [*COMMAND, "web", f"--root-dir={node.root}", "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 128 + signal.SIGINT
        process.stdout.close()


@pytest.mark.night
@pytest.mark.root
def test_real_containers_and_an_agent_that_starts_anew(browser: Browser, embedded_node: RealNode) -> None:
    node = embedded_node
    node.run("talks", node.container("while :; do echo '<i>here</i>'; sleep 0.2; done"))
    node.start("--no-drain-on-exit")
    node.until_running("talks")
    with page_of(node) as url:
        browser.open(url)
        browser.until_text("#connection", "^live$")
        browser.until_text(".row.pod .state", "^ready$")
        assert browser.text(".row.pod .name") == "default/talks-node-1"
        browser.click(".row.pod .name")
        browser.until_text("#log pre", "<i>here</i>\n<i>here</i>")
        node.stop(signal.SIGKILL)
        browser.until_text("#connection", "the agent does not answer")
        assert browser.text(".row.pod .state") == "ready", "what was known stays on the screen"
        node.start()
        browser.until_text("#connection", "^live$")
        browser.until_text(".row.pod .state", "^ready$")
        browser.until_text("#events", "Running")
        node.run(
            "stubborn",
            node.container('trap "" TERM; until [ -e /shared/seen ]; do sleep 0.1; done'),
            terminationGracePeriodSeconds=30,
        )
        browser.until("return document.querySelectorAll('.row.pod[data-state=ready]').length === 2")
        (node.manifests / "stubborn.json").unlink()
        browser.until_text(".row.pod[data-state=ending] .state", r"^ending: \d+ s of 30 s left$")
        (node.shared / "seen").touch()
        browser.until_text(".row.pod[data-state=gone] .state", "^gone$")
        browser.open("about:blank")
