"""`trikubelet ui` on a terminal of its own, by what is on the screen."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.agent.serving import Served, authentication, served
from tests.agent.sim_node import static_pod
from tests.cli.conftest import a_pod, run_command
from tests.cli.streaming_agent import StreamingAgent, streaming_agent
from tests.cli.test_top import pod as pod_usage
from tests.cli.test_top import summary, usage
from tests.cli.ui.entries import START, line, snapshot
from tests.cli.ui.person import person
from trikubelet.config.kubelet_configuration import Authorization, WebhookAuthentication
from trikubelet.http.messages import JSON, HTTPError, Response
from trikubelet.http.streaming.command import Exited
from trikubelet.sim import Program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

EVIL = "\x1b[2J\x1b[H\x1b]0;owned\x07"
READY: Any = {
    "name": "main",
    "ready": True,
    "restartCount": 1,
    "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}},
}


def the_pod() -> dict[str, Any]:
    item = a_pod("web", containerStatuses=[READY], startTime="2026-01-01T00:00:00Z", podIP="10.0.0.7")
    item["metadata"]["uid"] = "uid-default/web"
    return item


def set_up(agent: StreamingAgent) -> None:
    agent.pods = [the_pod()]
    agent.summaries = [summary(pod_usage("web", main=usage(250_000_001, 10 * 2**20)))]
    agent.answers["version"] = Response(b"{}", content_type=JSON)
    agent.journal = [snapshot(*START)]


@pytest.fixture
async def agent(root_dir: Path) -> AsyncIterator[StreamingAgent]:
    async with streaming_agent(root_dir) as agent:
        set_up(agent)
        yield agent


async def test_pods_are_shown_with_what_they_use_and_the_terminal_is_given_back(agent: StreamingAgent) -> None:
    async with person(agent.root_dir) as me:
        before = me.terminal.modes()
        await me.sees(">web", "Running", "1/1", "251m", "10Mi")
        assert me.lines[0].startswith(" node: 1 pod, 1 ready")
        assert me.lines[0].endswith("live")
        assert me.lines[-1].startswith("l logs")
        await me.type("q")
        assert await me.terminal.process.wait() == 0
        assert me.terminal.modes() == before


async def test_what_happens_is_shown_as_it_happens_and_nobody_is_asked_for_it(agent: StreamingAgent) -> None:
    async with person(agent.root_dir) as me:
        await me.sees(">web", "1/1", "251m")
        asked = len([request for request in agent.requests if request.path == "/pods"])
        agent.tell(line(20, "event", "Unhealthy", message="the probe says no"))
        await me.sees("Unhealthy: the probe says no")
        assert len([request for request in agent.requests if request.path == "/pods"]) == asked
        agent.pods = [the_pod(), {**a_pod("new"), "metadata": {**a_pod("new")["metadata"], "uid": "uid-default/new"}}]
        agent.tell(line(30, "phase", "Syncing", "default/new"))
        await me.sees("new", "0/1", "Running")
        last = [request for request in agent.requests if request.path == "/pods"][-1]
        assert last.query["uid"] == ["uid-default/new"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_signals_end_it_and_the_terminal_is_given_back(agent: StreamingAgent, number: int, code: int) -> None:
    async with person(agent.root_dir) as me:
        before = me.terminal.modes()
        await me.sees(">web")
        if number == signal.SIGINT:
            await me.type("\x03")
        else:
            me.terminal.process.send_signal(number)
        assert await me.terminal.process.wait() == code
        assert me.terminal.modes() == before


async def test_a_narrow_terminal_and_one_that_changes_its_size(agent: StreamingAgent) -> None:
    async with person(agent.root_dir, (40, 10)) as me:
        await me.sees(">web", "Running", "=")
        assert max(map(len, me.lines)) <= 40
        me.resize(100, 30)
        await me.sees("READY RST   AGE   CPU    MEM")
        await me.sees("-- default/web 10.0.0.7 --")
        assert len(me.lines) == 30
        me.resize(20, 4)
        await me.until(lambda: me.lines[-1].startswith("? help"))
        assert me.line_of(">web")


async def test_no_colour_is_needed(agent: StreamingAgent) -> None:
    def colours(printed: bytearray) -> bool:
        return b"42m" in printed

    async with person(agent.root_dir) as me:
        await me.sees(">web", "1/1", "251m")
        assert colours(me.raw)
    async with person(agent.root_dir, NO_COLOR="1") as me:
        await me.sees(">web", "1/1", "251m")
        assert not colours(me.raw)


async def test_an_agent_goes_and_comes_back(root_dir: Path) -> None:
    async with streaming_agent(root_dir) as first:
        set_up(first)
        async with person(root_dir) as me:
            await me.sees(">web")
            first.stopping.set()
            await me.sees("NOT LIVE", "no agent answers")
            assert me.line_of(">web"), "what was known stays"
            async with streaming_agent(root_dir) as second:
                set_up(second)
                second.journal = [snapshot(*(dict(each, pod="default/other", uid="2") for each in START))]
                await me.sees("live")
                await me.sees(">other")
                assert not me.line_of(" web ")
                await me.type("q")
                assert await me.terminal.process.wait() == 0


async def test_keys_show_logs_why_and_help_and_lead_back(agent: StreamingAgent) -> None:
    agent.answers["containerLogs"] = Response(b"one\n" + EVIL.encode() + b"two\n" + b"x" * 100 + b"end\n\xff\n")
    async with person(agent.root_dir) as me:
        await me.sees(">web", "1/1", "251m")
        await me.type("l")
        await me.sees("log of default/web main")
        await me.sees("\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}[H")
        await me.sees("-- the container has ended --")
        assert me.lines[1] == "one"
        assert me.lines[4].endswith("end"), "long lines go on below"
        assert me.title == ""
        (log,) = [request for request in agent.requests if request.path.startswith("/containerLogs")]
        assert log.query["follow"] == ["true"]
        await me.type("q?")
        await me.sees("Timelines run to the right")
        await me.type("q")
        await me.sees(">web")
        await me.type("q")
        assert await me.terminal.process.wait() == 0


async def test_a_log_of_several_containers_is_chosen_by_tab(agent: StreamingAgent) -> None:
    agent.answers["containerLogs"] = Response(b"hello\n")
    agent.pods[0]["spec"]["containers"].append({"name": "side", "image": "x:1"})
    async with person(agent.root_dir) as me:
        await me.sees(">web", "1/2")
        for name in ("main", "side", "main"):
            await me.type("l" if not me.line_of("log of") else "\t")
            await me.sees(f"log of default/web {name}")


async def test_a_shell_has_the_terminal_and_gives_it_back(agent: StreamingAgent) -> None:
    async def shell(command: Any, words: list[str]) -> Any:
        await command.stdout.send_all(b"hello from inside\r\n")
        assert await command.stdin.receive_some() == b"q"
        return Exited(3)

    agent.commands["sh"] = shell
    async with person(agent.root_dir) as me:
        await me.sees(">web", "1/1", "251m")
        await me.type("x")
        await me.sees("hello from inside")
        await me.type("q")
        await me.sees("the shell ended with exit code 3")
        assert me.line_of(">web")
        await me.type("q")
        assert await me.terminal.process.wait() == 0


async def test_a_pod_with_a_hostile_name_moves_no_cursor(agent: StreamingAgent) -> None:
    async def shell(command: Any, words: list[str]) -> Any:
        await command.stdout.send_all(b"hello from inside\r\n")
        return Exited(0)

    agent.commands["sh"] = shell
    agent.pods[0]["metadata"]["name"] = f"w{EVIL}eb"
    agent.journal = [snapshot(*(dict(each, pod=f"default/w{EVIL}eb") for each in START))]
    agent.journal[0]["pods"][0]["uid"] = "uid-default/web"
    agent.answers["containerLogs"] = Response(b"hello\n")
    async with person(agent.root_dir) as me:
        await me.sees(">w?[2J?[H?]0;", "1/1")
        await me.type("l")
        await me.sees("log of default/w\N{REPLACEMENT CHARACTER}[2J")
        await me.type("qx")
        await me.sees("the shell ended with exit code 0")
        await me.type("r")
        await me.sees("restart the containers of default/w\N{REPLACEMENT CHARACTER}[2J")
        assert me.title == ""
        assert EVIL.encode() not in me.raw


async def test_a_shell_that_there_is_not_is_told(agent: StreamingAgent) -> None:
    agent.refusal = HTTPError(404, f"no such container{EVIL}")
    async with person(agent.root_dir) as me:
        await me.sees(">web", "1/1", "251m")
        await me.type("x")
        await me.sees("no such container\N{REPLACEMENT CHARACTER}[2J")
        assert me.line_of(">web")
        assert me.title == ""


async def test_an_answer_that_is_not_understood_is_told(agent: StreamingAgent) -> None:
    async with person(agent.root_dir) as me:
        await me.sees(">web", "1/1", "251m")
        await me.type("w")  # the stand-in answers with a list of pods
        await me.sees("the agent's answer is of another version: KeyError")
        assert me.line_of(">web")


async def test_a_log_without_an_end_does_not_keep_keys_from_working(agent: StreamingAgent) -> None:
    agent.answers["containerLogs"] = Response(b"spam\n" * 400_000)
    async with person(agent.root_dir) as me:
        await me.sees(">web", "1/1", "251m")
        await me.type("l")
        await me.sees("spam")
        await me.type("q")
        await me.sees(">web")


@pytest.mark.parametrize("answer", [b"what?\n", b'{"type": "SNAPSHOT"}\n', b"[]\n"])
async def test_an_agent_of_another_version_is_told(agent: StreamingAgent, answer: bytes) -> None:
    agent.journal = [json.loads(answer)] if answer.startswith((b"{", b"[")) else ["what?"]  # type: ignore[list-item]
    async with person(agent.root_dir) as me:
        await me.sees("NOT LIVE", "the agent speaks another version of the journal")


def test_without_a_terminal_it_says_what_to_use(root_dir: Path) -> None:
    outcome = run_command("ui", "--root-dir", root_dir)
    assert outcome.code == 1
    assert "`trikubelet pods -w`" in outcome.err


async def test_without_an_agent_it_says_so_at_once(root_dir: Path) -> None:
    async with person(root_dir) as me:
        await me.sees("no agent answers on")
        assert await me.terminal.process.wait() == 1


# -- with a whole agent ------------------------------------------------------------------------------------------------


@pytest.fixture
async def node(root_dir: Path) -> AsyncIterator[Served]:
    """A simulated one: short paths, since a socket's may have 107 bytes."""
    tokens = authentication(root_dir, webhook=WebhookAuthentication(enabled=False))
    async with served(
        root_dir, cluster=False, authentication=tokens, authorization=Authorization(mode="AlwaysAllow")
    ) as node:
        yield node


async def until_quiet(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.05)


async def test_a_pod_is_watched_from_its_start_to_its_end(node: Served) -> None:
    node.sim.program(Program.runs_forever(sigterm=6), container="slow")
    slow = static_pod(
        "slow", nodeName="simulated", terminationGracePeriodSeconds=20, containers=[{"name": "slow", "image": "test:1"}]
    )
    async with person(node.folder / "root") as me:
        await me.sees(">web-node", "Running", "1/1")
        node.source.put(slow)
        await me.sees("slow-node", "Running", "1/1", "=")
        await me.type("k")
        await me.sees(">slow-node")
        await me.sees("slow: running")
        node.source.remove(slow)
        await me.sees(">slow-node", "Terminating", "!")
        await me.sees("s left of 20 s of grace; asked by: manifest removed")
        await me.sees(">slow-node", "Gone")
        assert me.lines[0].startswith(" simulated: 2 pods, 1 ready")
        await me.type("jw")
        await me.sees("default/web-node: nothing: the pod is Running and ready")
        await me.type("qd")
        await me.sees("Name:                 web-node")
        await me.type("qr")
        await me.sees("restart the containers of default/web-node? y/n")
        await me.type("n")
        await me.sees("l logs")
        started = len(node.sim.started("main"))
        await me.type("ry")
        await me.sees("default/web-node restarted: main")
        await until_quiet(lambda: len(node.sim.started("main")) == started + 1)
        await me.type("q")
        assert await me.terminal.process.wait() == 0


async def test_it_costs_the_agent_nothing_when_nobody_looks(node: Served) -> None:
    viewers = node.agent.journal._viewers
    assert viewers == []
    async with person(node.folder / "root") as me:
        await me.sees(">web-node", "Running")
        assert len(viewers) == 1
        await me.type("q")
        assert await me.terminal.process.wait() == 0
    await until_quiet(lambda: not viewers)
