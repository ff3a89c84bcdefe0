"""The agent's own process: its files, its lock and its log."""

from __future__ import annotations

import fcntl
import os
import resource
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing

from trikubelet.agent import process, run, service
from trikubelet.agent.ending import Ending
from trikubelet.agent.options import AgentOptions
from trikubelet.agent.process import LockFileError, limit_descriptors, lock_file, watch_lock
from trikubelet.config.kubelet_configuration import (
    KubeletConfiguration,
    LogFormatOptions,
    Logging,
    LogOptions,
    VModuleItem,
)

if TYPE_CHECKING:
    from pathlib import Path

SOCKET = "unix:///run/x.sock"


def options(folder: Path, endpoint: str = SOCKET, **fields: Any) -> AgentOptions:
    configuration = KubeletConfiguration(**fields)
    return AgentOptions(configuration=configuration, root_dir=folder, node_name="n", runtime_endpoint=endpoint)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What was set; a limit above 2000 is refused, and 1500 is the most that there may be before."""
    asked: list[tuple[int, int]] = []

    def set_limit(_: int, values: tuple[int, int]) -> None:
        if values[1] > 2000:
            raise ValueError("not allowed to raise maximum limit")
        asked.append(values)

    monkeypatch.setattr(resource, "setrlimit", set_limit)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1500))
    return asked


@pytest.mark.parametrize(
    ("endpoint", "fields", "expected", "warning"),
    [
        (SOCKET, {"max_open_files": 1200}, [(1200, 1200)], None),
        (SOCKET, {"max_open_files": 1900}, [(1900, 1900)], None),
        (SOCKET, {}, [(1500, 1500)], None),
        (
            SOCKET,
            {"max_open_files": 3000},
            [(1500, 1500)],
            "maxOpenFiles: cannot set the limit of open files to 3000: ",
        ),
        ("embedded", {}, [], None),
        ("embedded", {"max_open_files": 1200}, [(1200, 1200)], None),
    ],
)
def test_the_limit_of_open_files(
    endpoint: str,
    fields: dict[str, Any],
    expected: list[tuple[int, int]],
    warning: str | None,
    limits: list[tuple[int, int]],
    tmp_path: Path,
) -> None:
    said = limit_descriptors(options(tmp_path, endpoint, **fields))
    assert limits == expected
    assert (said is None) if warning is None else (said or "").startswith(warning)


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_the_file_is_locked_for_as_long_as_the_agent_runs(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with ExitStack() as stack:
        lock_file(path, stack)
        assert is_locked(path)
        assert path.stat().st_mode & 0o777 == 0o600
    assert not is_locked(path)


def test_a_file_that_cannot_be_locked_keeps_the_agent_from_starting(tmp_path: Path) -> None:
    with pytest.raises(LockFileError, match=r"^unable to acquire file lock on .*: No such file"), ExitStack() as stack:
        lock_file(tmp_path / "none" / "lock", stack)
    assert run.run_agent(attrs.evolve(options(tmp_path, "embedded"), lock_file=tmp_path / "none" / "lock")) == 1


async def test_an_agent_that_shall_make_room_ends_when_another_process_comes(tmp_path: Path) -> None:
    path, ending = tmp_path / "lock", Ending()
    told = attrs.evolve(options(tmp_path), lock_file=path, exit_on_lock_contention=True)
    with ExitStack() as stack:
        lock_file(path, stack)
        watch = watch_lock(told, stack)
        assert watch is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(service._end_on_contention, watch, ending))
            await trio.testing.wait_all_tasks_blocked()
            assert not ending.asked.is_set(), "its own opening does not count"
            os.close(os.open(path, os.O_RDWR))
            with trio.fail_after(5):
                await ending.asked.wait()


def test_without_the_flag_nobody_watches(tmp_path: Path) -> None:
    with ExitStack() as stack:
        assert watch_lock(attrs.evolve(options(tmp_path), lock_file=tmp_path / "lock"), stack) is None
        assert watch_lock(attrs.evolve(options(tmp_path), exit_on_lock_contention=True), stack) is None


def test_the_log_is_as_the_configuration_says(monkeypatch: pytest.MonkeyPatch) -> None:
    configured: list[Any] = []
    monkeypatch.setattr(process, "configure_logging", lambda *given, **named: configured.append((given, named)))
    split = LogOptions(split_stream=True, info_buffer_size="1Ki")
    process.configure_log(Logging(format="json", verbosity=3, options=LogFormatOptions(json=split)))
    process.configure_log(Logging(vmodule=(VModuleItem(file_pattern="pleg", verbosity=4),)))
    assert configured == [
        (("json", 3), {"by_name": (), "split": True, "buffer": 1024}),
        (("text", 0), {"by_name": (("pleg", 4),), "split": False, "buffer": 0}),
    ]
