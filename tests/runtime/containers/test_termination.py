"""What ended containers said: termination files and the ends of logs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from trikubelet.container.labels import CONTAINER_TERMINATION_MESSAGE_PATH, CONTAINER_TERMINATION_MESSAGE_POLICY
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.rpc.cri import v1
from trikubelet.runtime.observe import last_log_text, termination_message
from trikubelet.runtime.options import RuntimeOptions
from trikubelet.runtime.pod_files import PodFiles

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files(tmp_path: Path) -> PodFiles:
    return PodFiles(RuntimeOptions(root_dir=tmp_path, machine=MachineFacts(1)))


def ended(
    file: Path | None = None, *, log: Path | None = None, policy: str = "File", exit_code: int = 1, reason: str = ""
) -> v1.ContainerStatus:
    return v1.ContainerStatus(
        id="1",
        exit_code=exit_code,
        reason=reason,
        annotations={
            CONTAINER_TERMINATION_MESSAGE_PATH: "/dev/termination-log",
            CONTAINER_TERMINATION_MESSAGE_POLICY: policy,
        },
        mounts=[] if file is None else [v1.Mount(container_path="/dev/termination-log", host_path=str(file))],
        log_path="" if log is None else str(log),
    )


async def test_the_end_of_the_file_is_the_message(files: PodFiles, tmp_path: Path) -> None:
    file = tmp_path / "message"
    file.write_text("x" * 5000 + "end")
    message = termination_message(ended(file), files)
    assert len(message) == 4096
    assert message.endswith("end")


async def test_no_file_no_message(files: PodFiles, tmp_path: Path) -> None:
    assert termination_message(ended(tmp_path / "missing"), files) == ""
    assert termination_message(ended(None), files) == ""


async def test_a_file_that_is_none_is_not_read(files: PodFiles, tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/etc/passwd")
    assert "is no regular file" in termination_message(ended(pipe), files)
    assert termination_message(ended(link), files).startswith("Error on reading termination log")


LOG = (
    b"".join(b"2026-01-01T00:00:00.0Z stdout F line %d\n" % number for number in range(100))
    + b"2026-01-01T00:00:00.0Z stderr P half\n2026-01-01T00:00:00.0Z stderr F  a line\n"
)


@pytest.mark.parametrize(
    ("policy", "exit_code", "reason", "text", "expected"),
    [
        ("FallbackToLogsOnError", 1, "", "", "half a line\n"),
        ("FallbackToLogsOnError", 1, "", "said", "said"),
        ("FallbackToLogsOnError", 0, "", "", ""),
        ("FallbackToLogsOnError", 1, "ContainerCannotRun", "", ""),
        ("File", 1, "", "", ""),
    ],
)
async def test_a_silent_failure_falls_back_to_the_log_when_asked_to(
    files: PodFiles, tmp_path: Path, policy: str, exit_code: int, reason: str, text: str, expected: str
) -> None:
    file, log = tmp_path / "message", tmp_path / "0.log"
    file.write_text(text)
    log.write_bytes(LOG)
    status = ended(file, log=log, policy=policy, exit_code=exit_code, reason=reason)
    message = termination_message(status, files)
    assert message == expected or (expected and message.endswith(expected))


def test_at_most_eighty_lines_and_two_kilobytes_of_a_log_are_told() -> None:
    text = last_log_text(LOG, whole=True)
    assert text.startswith("line 22\n")
    long = b"2026-01-01T00:00:00.0Z stdout F " + b"x" * 5000 + b"\n"
    assert len(last_log_text(long, whole=True)) == 2048


def test_a_line_that_was_cut_is_left_out() -> None:
    assert last_log_text(b"half of it\n2026-01-01T00:00:00.0Z stdout F whole\n", whole=False) == "whole\n"
