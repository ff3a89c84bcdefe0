from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.node_api.handlers.stage import ask
from trikubelet.http.routing import ANY_METHOD, Route, Router
from trikubelet.node_api.handlers.debug import DebugHandlers
from trikubelet.node_api.stack_samples import PERIOD, SamplesInUseError, sample_stacks
from trikubelet.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock


def router(debug: DebugHandlers) -> Router:
    return Router(
        [
            Route("GET", "/debug/pprof/{name:*}", debug.profile),
            Route("GET", "/debug/tasks", debug.tasks),
            Route(ANY_METHOD, "/debug/flags/v", debug.verbosity),
        ]
    )


async def test_tasks_are_shown_as_text_and_as_json(autojump_clock: trio.abc.Clock) -> None:
    api = router(DebugHandlers())
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + 50
        nursery.start_soon(trio.sleep_forever, name="the sleeper")
        await trio.testing.wait_all_tasks_blocked()
        texts = [(await ask(api, path)).text for path in ("/debug/tasks", "/debug/pprof/goroutine")]
        trees = [
            json.loads((await ask(api, "/debug/tasks?format=json")).body),
            json.loads((await ask(api, "/debug/tasks", headers={"accept": "application/json"})).body),
        ]
        nursery.cancel_scope.cancel()
    for text in texts:
        lines = text.splitlines()
        sleeper = next(line for line in lines if "the sleeper" in line)
        above = lines[lines.index(sleeper) - 1]
        assert sleeper.strip() == "the sleeper: trio._timeouts.sleep_forever"
        assert above.strip() == "nursery (50 s left)"
        assert len(sleeper) - len(sleeper.lstrip()) == len(above) - len(above.lstrip()) + 2
    assert all('"the sleeper"' in json.dumps(tree) for tree in trees)


async def test_the_command_line_is_shown_without_what_is_secret() -> None:
    given = ["--manifest-url-header", "X:a", "--manifest-url-header=X:b", "--manifest_url_header=X:c", "--config=c"]
    arguments = ["trikubelet", *given, "-v", "2"]
    answer = await ask(router(DebugHandlers(arguments=arguments)), "/debug/pprof/cmdline")
    assert answer.text.split("\0") == [
        *("trikubelet", "--manifest-url-header", "CLASSIFIED", "--manifest-url-header=CLASSIFIED"),
        *("--manifest_url_header=CLASSIFIED", "--config=c", "-v", "2"),
    ]


@pytest.mark.parametrize("name", ["heap", "trace", "symbol", "profile/x"])
async def test_a_profile_that_there_is_not(name: str) -> None:
    answer = await ask(router(DebugHandlers()), f"/debug/pprof/{name}")
    assert (answer.status, answer.text) == (404, "Unknown profile\n")


async def test_a_profile_tells_where_the_time_went(mock_clock: MockClock) -> None:
    """Real work: what is looked at is the thread that does it."""
    api = router(DebugHandlers())

    async def at_work() -> None:
        began = time.process_time()
        while time.process_time() - began < 0.5:
            sum(range(20_000))
            await trio.lowlevel.checkpoint()
        mock_clock.jump(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(at_work)
        answer = await ask(api, "/debug/pprof/profile?seconds=1")
    counts = {stack: int(count) for stack, _, count in (line.rpartition(" ") for line in answer.text.splitlines())}
    assert 5 <= sum(counts.values()) <= 120
    assert sum(count for stack, count in counts.items() if "at_work" in stack) > sum(counts.values()) / 2
    assert all(";" in stack for stack in counts)


async def test_one_looks_at_a_time_and_a_client_that_goes_ends_it() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sample_stacks, 1000)
        await trio.testing.wait_all_tasks_blocked()
        assert signal.getitimer(signal.ITIMER_PROF)[1] == PERIOD
        with pytest.raises(SamplesInUseError):
            await sample_stacks(1)
        nursery.cancel_scope.cancel()
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)
    signal.raise_signal(signal.SIGPROF)  # a late one does no harm
    await sample_stacks(0)


async def test_a_second_profile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    async def in_use(seconds: float) -> str:
        await trio.lowlevel.checkpoint()
        asked.append(seconds)
        raise SamplesInUseError

    monkeypatch.setattr("trikubelet.node_api.handlers.debug.sample_stacks", in_use)
    api = router(DebugHandlers())
    for query in ("", "?seconds=0", "?seconds=-3", "?seconds=5"):
        answer = await ask(api, f"/debug/pprof/profile{query}")
        assert (answer.status, "already in use" in answer.text) == (500, True)
    assert asked == [30, 30, 30, 5]
    assert (await ask(api, "/debug/pprof/profile?seconds=301")).status == 400


@pytest.fixture
def configured() -> Iterator[None]:
    with logs.configured_as_before():
        logs.configure_logging("json", 0)
        yield


async def test_the_level_of_the_log_is_changed_while_it_runs(
    configured: None, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure_logging("json", 0)  # on the captured stream
    api = router(DebugHandlers())
    log = logs.get_logger("test")
    log.debug("too much")
    answer = await ask(api, "/debug/flags/v", "PUT", body=b"4\n")
    assert (answer.status, answer.text) == (200, "successfully set klog.logging.verbosity to 4\n")
    log.debug("wanted now")
    await ask(api, "/debug/flags/v", "PUT", body=b"2")
    log.debug("again too much")
    written = capsys.readouterr().err
    assert "wanted now" in written
    assert "too much" not in written


@pytest.mark.parametrize("body", [b"", b"x", b"-1", b"1.5", b"\xff", b"9" * 100])
async def test_a_level_that_is_none_changes_nothing(body: bytes) -> None:
    changed: list[int] = []
    api = router(DebugHandlers(set_level=changed.append))
    assert (await ask(api, "/debug/flags/v", "PUT", body=body)).status == 400
    assert (await ask(api, "/debug/flags/v", "POST", body=b"5")).status == 406
    assert changed == []


def test_a_negative_verbosity_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        logs.set_verbosity(-1)
