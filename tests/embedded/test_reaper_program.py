"""The program that reaps, by itself."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trikubelet.embedded.keeper import reaper_program
from trikubelet.embedded.keeper.reaper import STATUS

if TYPE_CHECKING:
    from collections.abc import Iterator

ON_THIS_MACHINE = reaper_program.image(os.uname().machine) is not None


@pytest.fixture
def program() -> Iterator[int]:
    if not ON_THIS_MACHINE:
        pytest.skip("not for this machine")
    descriptor = reaper_program.open_program()
    assert descriptor is not None
    yield descriptor
    os.close(descriptor)


def reaped(program: int, command: str, *more: str) -> tuple[int, bytes]:
    """A reaper of a shell command, until its end: its own exit code and what it reported."""
    reader, writer = os.pipe()
    reaper = os.fork()
    if reaper == 0:
        child = os.fork()
        if child == 0:
            os.execv("/bin/sh", ["sh", "-c", command])
        os.dup2(writer, 0)
        os.close(writer)
        os.execve(program, ["reaper", str(child), *more], {})
    os.close(writer)
    _, status = os.waitpid(reaper, 0)
    with os.fdopen(reader, "rb") as file:
        return os.waitstatus_to_exitcode(status), file.read()


@pytest.mark.parametrize("more", [(), ("stay",)])
@pytest.mark.parametrize(("command", "expected"), [("exit 7", 7 << 8), ("kill -9 $$", 9), ("true", 0)])
def test_the_wait_status_of_the_command_is_reported(
    program: int, command: str, expected: int, more: tuple[str, ...]
) -> None:
    assert reaped(program, command, *more) == (0, STATUS.pack(expected))


def test_one_that_stays_waits_for_all_children(program: int, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    reaper = os.fork()
    if reaper == 0:
        os.close(reader)
        os.dup2(writer, 0)
        command = os.fork()
        if command == 0:
            os._exit(5)
        if os.fork() == 0:
            os.execv("/bin/sh", ["sh", "-c", f"sleep 0.2; touch {tmp_path}/ended"])
        os.execve(program, ["reaper", str(command), "stay"], {})
    os.close(writer)
    assert os.waitpid(reaper, 0)[1] == 0
    assert (tmp_path / "ended").exists()
    assert os.read(reader, 64) == STATUS.pack(5 << 8)
    os.close(reader)


def test_one_without_a_command_stays_until_it_is_killed_and_takes_no_memory(program: int) -> None:
    holder = os.fork()
    if holder == 0:
        os.execve(program, ["holder"], {})
    try:
        while Path(f"/proc/{holder}/cmdline").read_bytes() != b"holder\0":
            pass
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{holder}/status").read_text().splitlines())
        assert int(fields["VmSize"].split()[0]) < 300
        assert os.waitpid(holder, os.WNOHANG) == (0, 0)
    finally:
        os.kill(holder, signal.SIGKILL)
        assert os.waitpid(holder, 0)[1] == signal.SIGKILL


def test_it_can_be_executed_and_not_be_changed(program: int) -> None:
    assert os.fstat(program).st_mode & 0o777 == 0o111
    for change in (lambda: os.write(program, b"x"), lambda: os.ftruncate(program, 0)):
        with pytest.raises(PermissionError):
            change()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_file_is_one_segment_that_is_not_writable(machine: str) -> None:
    image = reaper_program.image(machine)
    assert image is not None
    assert image[:7] == b"\x7fELF\x02\x01\x01"
    entry, offset = struct.unpack_from("<QQ", image, 24)
    assert offset == 64
    kind, access, start, address, _, size, in_memory, _ = struct.unpack_from("<IIQQQQQQ", image, offset)
    assert (kind, access, start, size, in_memory) == (1, 5, 0, len(image), len(image))
    assert address < entry < address + size
    if machine == "aarch64":
        assert (address + size - entry) % 4 == 0


def test_there_is_none_for_other_machines() -> None:
    assert reaper_program.image("riscv64") is None


@pytest.mark.skipif(subprocess.run(["which", "llvm-mc"], capture_output=True, check=False).returncode != 0, reason="")
@pytest.mark.parametrize(("machine", "options"), [("x86_64", ["-output-asm-variant=1"]), ("aarch64", [])])
def test_the_text_beside_the_bytes_is_what_they_are(machine: str, options: list[str]) -> None:
    lines = [line for line in reaper_program._INSTRUCTIONS[machine].splitlines() if line]
    code = " ".join(f"0x{byte:02x}" for line in lines for byte in bytes.fromhex(line[:16]))
    command = ["llvm-mc", f"-triple={machine}", "-disassemble", *options]
    decoded = subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout
    words = [line.split()[0] for line in decoded.splitlines() if line.strip() and not line.strip().startswith(".")]
    assert words == [line[16:].split()[0] for line in lines]
