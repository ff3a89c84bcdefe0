"""`trikubelet top`."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import StandInAgent, a_pod, run_command
from tests.cli.streaming_agent import StreamingAgent, started_cli, streaming_agent, terminal
from trikubelet.cli import top

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def usage(cpu: int | None, memory: int, **more: Any) -> dict[str, Any]:
    """`cpu` in billionths of a core; `memory` in bytes."""
    rate = {} if cpu is None else {"usageNanoCores": cpu}
    return {"cpu": {"time": "2026-01-01T00:00:00Z", **rate}, "memory": {"workingSetBytes": memory, **more}}


def pod(name: str, namespace: str = "default", **containers: dict[str, Any]) -> dict[str, Any]:
    stats = [{"name": container, **measured} for container, measured in containers.items()]
    return {"podRef": {"name": name, "namespace": namespace, "uid": name}, "containers": stats}


def summary(*pods: dict[str, Any], cpu: int | None = 1_500_000_000) -> dict[str, Any]:
    return {"node": {"nodeName": "node", **usage(cpu, 2**30, availableBytes=3 * 2**30)}, "pods": list(pods)}


BUSY = pod("busy", "other", main=usage(250_000_001, 10 * 2**20), side=usage(1_000_000, 2**20))
LARGE = pod("large-node", main=usage(2_000_000, 300 * 2**20))
SUMMARY = "GET /stats/summary?only_cpu_and_memory=true"


@pytest.fixture
def table(agent: StandInAgent) -> Any:
    agent.will_answer(SUMMARY, summary(LARGE, BUSY))
    agent.has_pods(a_pod("large-node"))

    def run(*words: str) -> list[list[str]]:
        outcome = run_command("top", *words, "--root-dir", agent.root_dir)
        assert outcome.code == 0, outcome.err
        return [line.split() for line in outcome.out.splitlines()]

    return run


def test_pods_use_what_their_containers_use(table: Any) -> None:
    assert table("pods") == [
        ["NAMESPACE", "NAME", "CPU(cores)", "MEMORY(bytes)"],
        ["default", "large-node", "2m", "300Mi"],
        ["other", "busy", "252m", "11Mi"],
    ]


def test_containers_have_lines_of_their_own(table: Any) -> None:
    assert table("pods", "--containers", "--no-headers") == [
        ["default", "large-node", "main", "2m", "300Mi"],
        ["other", "busy", "main", "251m", "10Mi"],
        ["other", "busy", "side", "1m", "1Mi"],
    ]


@pytest.mark.parametrize(("key", "first"), [("cpu", "busy"), ("memory", "large-node")])
def test_the_highest_come_first(table: Any, key: str, first: str) -> None:
    assert table("pods", "--sort-by", key)[1][1] == first


def test_the_sum_stands_below(table: Any) -> None:
    assert table("pods", "--sum")[-1] == ["254m", "311Mi"]


def test_one_pod_or_a_namespace_may_be_meant(table: Any) -> None:
    assert [row[1] for row in table("pods", "large")[1:]] == ["large-node"]
    assert [row[1] for row in table("pods", "-n", "other")[1:]] == ["busy"]


def test_the_node_is_shown_in_percent_too(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert table("node") == [
        ["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"],
        ["node", "1500m", "75%", "1024Mi", "25%"],
    ]


def test_without_pods_there_is_a_word_on_stderr(agent: StandInAgent) -> None:
    agent.will_answer(SUMMARY, summary())
    outcome = run_command("top", "pods", "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "No pods.\n")


def test_a_rate_that_nobody_knows_yet_is_asked_for_again(agent: StandInAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = summary(pod("new", main=usage(None, 2**20)))
    agent.will_answer(SUMMARY, unknown)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        agent.will_answer(SUMMARY, summary(pod("new", main=usage(5_000_000, 2**20)), pod("newer", main=usage(None, 0))))

    monkeypatch.setattr(top, "_pause", pause)
    rows = run_command("top", "pods", "--root-dir", agent.root_dir).out.splitlines()[1:]
    assert [row.split()[1:] for row in rows] == [["new", "5m", "1Mi"], ["newer", "<unknown>", "0Mi"]]
    assert len(pauses) == 1


def test_without_an_agent_there_is_one_sentence(root_dir: Path) -> None:
    assert run_command("top", "pods", "--root-dir", root_dir).err.startswith("no agent answers on ")


# -- live --------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def streaming(root_dir: Path) -> AsyncIterator[StreamingAgent]:
    async with streaming_agent(root_dir) as agent:
        agent.summaries = [summary(LARGE), summary(LARGE, BUSY)]
        yield agent


async def test_a_terminal_gets_a_new_picture_every_two_seconds_and_its_old_screen_back(
    streaming: StreamingAgent,
) -> None:
    async with terminal(streaming.root_dir, "top", "pods", "-w", columns=40, lines=2) as person:
        await person.until(b"\x1b[?1049h")
        await person.until(b"large-node")
        await person.until(b"\x1b[H")
        await person.until(b"large-node")
        person.resize(columns=80, lines=24)
        await person.until(b"busy")
        await person.type(b"\x03")
        assert await person.process.wait() == 130
        await person.until(b"\x1b[?25h\x1b[?1049l")


async def test_a_pipe_gets_one_table_after_the_other(streaming: StreamingAgent) -> None:
    async with started_cli(streaming.root_dir, "top", "pods", "--watch") as process:
        assert process.stdout is not None
        out = b""
        while b"busy" not in out:
            data = await process.stdout.receive_some()
            assert data, out
            out += data
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
    assert out.count(b"NAMESPACE") == 2
    assert b"\x1b" not in out
