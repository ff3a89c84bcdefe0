"""Every command line in the documentation is one that the program takes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from tests.docs.blocks import Found, arguments, commands
from tests.forked import run
from trikubelet.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = commands()
SAFE = ("trikubelet version", "trikubelet sim")


def parse(words: Sequence[str]) -> None:
    """As the program would, without doing anything. Raises click.ClickException."""
    command: click.Command = cli
    context = command.make_context("trikubelet", list(words))
    while isinstance(command, click.Group):
        name, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert inner is not None
        command, context = inner, inner.make_context(name, rest, parent=context)


def test_the_pages_show_commands() -> None:
    assert len(COMMANDS) > 80


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_the_command_is_one_that_the_program_takes(
    command: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = arguments(command.text)
    monkeypatch.chdir(tmp_path)
    for file in words:
        if file.endswith(".tar"):
            Path(file).touch()
    # A help text is an exit; a sentence may name a command alone.
    with suppress(click.exceptions.Exit, *([click.MissingParameter] if command.is_inline else [])):
        parse(words)


@pytest.mark.parametrize("wrong", ["pods --colour", "nodes", "images burn x", "logs a b c"])
def test_what_the_program_does_not_take_is_noticed(wrong: str) -> None:
    with pytest.raises(click.ClickException):
        parse(arguments(f"trikubelet {wrong}"))


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.text.startswith(SAFE)], ids=str)
def test_commands_that_touch_nothing_run(command: Found, tmp_path: Path) -> None:
    words = arguments(command.text)
    if words[0] == "sim":
        # The last one given counts: minutes instead of days.
        words += ["--pods=2", "--hours=0.05"]
    done = run("tests.cli.command_line", words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
