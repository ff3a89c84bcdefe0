"""A log whose lines are numbered, who writes and rotates it, and who follows it and misses nothing.

    python -m tests.node_api.numbered_log write FILE --lines 100000 --rotations 20
    python -m tests.node_api.numbered_log follow SOCKET TARGET --lines 100000 --followers 200

Both are processes of their own: what they do is not done by the agent's interpreter. The writer writes pieces that do
not end where records end, and is rotated as the kubelet rotates: its file gets another name, it goes on writing there
for a moment, and then makes a new one. A line has 200 bytes with its newline.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import socket
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

import attrs
import click

from trikubelet.linux.socket_address import socket_address

LINE: Final = 200
_TEXT: Final = b"x" * (LINE - 13) + b"\n"
_STDERR_EVERY: Final = 4
AT_ONCE: Final = 1000
"""Lines."""
_BLOCK_LINES: Final = 5000
_BLOCK: Final = _BLOCK_LINES * LINE
_LONGEST_PIECE: Final = 64 * 2**10
_RECEIVE: Final = 256 * 2**10
_LINGER: Final = 0.5
"""Seconds for which a follower that has everything waits for what it should not get."""


def line(number: int) -> bytes:
    """What a reader gets."""
    return b"%012d" % number + _TEXT


def record(number: int) -> bytes:
    """What is in the file. Go leaves zeros at the end of the fraction out: a tenth of all times are shorter."""
    fraction = (b"%09d" % (number * 7919 % 10**9)).rstrip(b"0") or b"0"
    stream = b"stderr" if number % _STDERR_EVERY == 0 else b"stdout"
    moment = (number // 60000 % 60, number // 1000 % 60)
    return b"2026-01-31T12:%02d:%02d.%bZ %b F %b" % (*moment, fraction, stream, line(number))


# Writing


def write(
    path: Path, lines: int, rotations: int = 0, *, seed: int = 1, rate: float | None = None, at_once: int = AT_ONCE
) -> None:
    """All lines, at most `rate` a second, in as many files as there are rotations and one more."""
    choices = random.Random(seed)
    ends = [lines * number // (rotations + 1) for number in range(1, rotations + 2)]
    began = time.monotonic()
    first = 0
    descriptor = _open(path)
    for number, end in enumerate(ends):
        # A little of what belongs to the next file still comes into this one, under its new name.
        late = min(choices.randrange(3), end - first)
        for start in range(first, end - late, at_once):
            if rate is not None:
                time.sleep(max(0.0, began + start / rate - time.monotonic()))
            _write(descriptor, range(start, min(start + at_once, end - late)), choices)
        if number < rotations:
            path.rename(path.with_name(f"{path.name}.20260131-{number:06d}"))
        _write(descriptor, range(end - late, end), choices)
        if number < rotations:
            os.close(descriptor)
            descriptor = _open(path)
        first = end
    os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)


def _write(descriptor: int, numbers: range, choices: random.Random) -> None:
    data = memoryview(b"".join(map(record, numbers)))
    while data:
        piece = choices.randrange(1, _LONGEST_PIECE)
        data = data[os.write(descriptor, data[:piece]) :]


# Following


class WrongLogError(Exception):
    """Not what was written. The text tells where it begins to differ."""


class ExpectedLog:
    """Takes a log in pieces. Raises WrongLogError for the first byte that is not what was written."""

    def __init__(self, lines: int) -> None:
        self._size = lines * LINE
        self.position = 0

    @property
    def complete(self) -> bool:
        return self.position == self._size

    def feed(self, piece: bytes) -> None:
        while piece:
            if self.complete:
                raise WrongLogError(f"all lines are there, and then came {piece[:20]!r}")
            start = self.position % _BLOCK
            size = min(len(piece), _BLOCK - start, self._size - self.position)
            if _expected(self.position // _BLOCK)[start : start + size] != piece[:size]:
                raise WrongLogError(self._difference(piece[:size], start))
            self.position += size
            piece = piece[size:]

    def _difference(self, piece: bytes, start: int) -> str:
        wanted = _expected(self.position // _BLOCK)[start : start + len(piece)]
        offset = next(index for index, (one, other) in enumerate(zip(piece, wanted, strict=True)) if one != other)
        number = (self.position + offset) // LINE
        return f"line {number}: got {piece[max(0, offset - (self.position + offset) % LINE) :][:20]!r}"


@lru_cache(maxsize=64)
def _expected(block: int) -> bytes:
    return b"".join(line(number) for number in range(block * _BLOCK_LINES, (block + 1) * _BLOCK_LINES))


class Body:
    """Takes an answer in pieces: its head, and chunks."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = -1
        """Of the present chunk, with its newline; -1: the head has not been read."""
        self.ended = False

    @property
    def begun(self) -> bool:
        """The head has been read: the server has opened what it sends."""
        return self._left >= 0

    def feed(self, data: bytes) -> list[bytes]:
        """What of the body is in the next piece. Raises WrongLogError for an answer of another kind."""
        data = self._rest + data if self._rest else data
        self._rest = b""
        found = []
        position = 0
        if self._left < 0:
            head, separator, _ = data.partition(b"\r\n\r\n")
            if not separator:
                self._rest = data
                return []
            if not head.startswith(b"HTTP/1.1 200 ") or b"chunked" not in head:
                raise WrongLogError(f"the answer was {data[:200]!r}")
            position, self._left = len(head) + 4, 0
        while position < len(data) and not self.ended:
            if not self._left:
                end = data.find(b"\r\n", position)
                if end < 0:
                    self._rest = data[position:]
                    break
                size = int(data[position:end], 16)
                position, self._left, self.ended = end + 2, size + 2, not size
                continue
            part = data[position : position + self._left]
            self._left -= len(part)
            position += len(part)
            found.append(part if self._left >= 2 else part[: len(part) - 2 + self._left])
        return found


@attrs.define
class Follower:
    """One who follows."""

    sock: socket.socket
    log: ExpectedLog
    body: Body = attrs.field(factory=Body)
    problem: str = ""

    def read(self) -> bool:
        """Take what has arrived. False: there will not be any more."""
        try:
            data = self.sock.recv(_RECEIVE)
            for piece in self.body.feed(data):
                self.log.feed(piece)
        except (OSError, WrongLogError) as error:
            self.problem = str(error)
            return False
        if not data or self.body.ended:
            if not (self.log.complete and self.body.ended):
                self.problem = f"ended after {self.log.position // LINE} lines"
            return False
        return True


def follow(path: Path, target: str, lines: int, followers: int) -> list[str]:
    """Follow until everybody has everything or has been told that there is no more. Empty texts: no problem."""
    everybody = [Follower(_connect(path, target), ExpectedLog(lines)) for _ in range(followers)]
    with selectors.EpollSelector() as selector:
        for follower in everybody:
            while not follower.body.begun and follower.read():
                pass
            selector.register(follower.sock, selectors.EVENT_READ, follower)
        print("following", flush=True)
        while selector.get_map():
            complete = all(key.data.log.complete for key in selector.get_map().values())
            ready = selector.select(_LINGER if complete else None)
            for key, _ in ready:
                if not key.data.read():
                    selector.unregister(key.fileobj)
            if complete and not ready:
                break
    return [follower.problem for follower in everybody]


def _connect(path: Path, target: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    with socket_address(str(path)) as address:
        sock.connect(address)
    sock.sendall(f"GET {target} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n".encode())
    return sock


@click.group()
def main() -> None:
    """Write a numbered log, or follow one."""


@main.command("write")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--lines", type=int, required=True)
@click.option("--rotations", type=int, default=0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--rate", type=float, help="Lines a second at most.")
@click.option("--at-once", type=int, default=AT_ONCE, show_default=True, help="Lines.")
def _write_command(path: Path, lines: int, rotations: int, seed: int, rate: float | None, at_once: int) -> None:
    """Write a log to PATH."""
    write(path, lines, rotations, seed=seed, rate=rate, at_once=at_once)


@main.command("follow")
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("target")
@click.option("--lines", type=int, required=True)
@click.option("--followers", type=int, default=1, show_default=True)
def _follow_command(path: Path, target: str, lines: int, followers: int) -> None:
    """Follow TARGET of the server on the unix socket PATH. Prints a line when it begins, then problems as JSON."""
    problems = follow(path, target, lines, followers)
    print(json.dumps(problems))
    sys.exit(0 if not any(problems) else 1)


if __name__ == "__main__":
    main()
