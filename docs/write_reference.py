"""Writes the pages of the reference from the code: commands, fields of the configuration, events.

Run it after a change of any of these: `python docs/write_reference.py`. A test fails while a page is stale.
"""

from __future__ import annotations

import sys
import typing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.parity.emitted import emitted
from tests.parity.tables import read
from trikubelet.cli.main import cli
from trikubelet.config import kubelet_configuration as configuration
from trikubelet.config.flags import CONFIG_FLAGS
from trikubelet.formats.durations import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DOCS: Final = Path(__file__).parent
_WIDTH: Final = 100

_COMMANDS: Final = """\
# Commands

Written from the code by `make reference`; it is what each command prints with `--help`.
"""

_FIELDS: Final = """\
# Configuration fields

Written from the code by `make reference`: every field of a `KubeletConfiguration` (`kubelet.config.k8s.io/v1beta1`,
Kubernetes 1.36), its default here, and the kubelet's flag for it. A field with `no` in the last column is checked, and
then has no effect: a warning says so. What the fields mean, and which defaults depend on other settings:
[Configuring it](configuring.md#fields-that-have-an-effect).

| field | default | flag | has an effect |
|---|---|---|---|
"""

_EVENTS: Final = """\
# Events

Written from the code by `make reference`: every event that the agent can record. `trikubelet events` shows them, and so
does `kubectl get events` in a cluster. Reasons, types and first words are the kubelet's, so that alerts on them keep
working.

| reason | type | about | begins with | note |
|---|---|---|---|---|
"""


def pages() -> Mapping[str, str]:
    """Every page by its file's name."""
    return {
        "cli.md": _COMMANDS
        + "\n".join(_commands(cli, click.Context(cli, info_name="trikubelet", **cli.context_settings))),
        "configuration-fields.md": _FIELDS + "".join(f"{row}\n" for row in _fields()),
        "events.md": _EVENTS + "".join(f"{row}\n" for row in _events()),
    }


def _commands(command: click.Command, context: click.Context) -> Iterator[str]:
    context.terminal_width = _WIDTH
    text = command.get_help(context)
    yield f"\n## {context.command_path}\n\n```text\n{text}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, click.Context(inner, info_name=name, parent=context, **inner.context_settings))


def _fields() -> Iterator[str]:
    flags = {flag.path: flag.name for flag in CONFIG_FLAGS}
    for path, default in sorted(_leaves(configuration.KubeletConfiguration)):
        flag = f"`--{flags[path]}`" if path in flags else ""
        works = "yes" if path.partition(".")[0] in configuration.SUPPORTED else "no"
        yield f"| `{path}` | {default} | {flag} | {works} |"


def _leaves(cls: type[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every field that is no object itself, with the text of its default."""
    hints = typing.get_type_hints(cls)
    for attribute in attrs.fields(cls):
        path = prefix + configuration.wire_name(attribute)
        hint = hints[attribute.name]
        inner = [one for one in (hint, *typing.get_args(hint)) if isinstance(one, type) and attrs.has(one)]
        if inner and typing.get_origin(hint) is not tuple:
            yield from _leaves(inner[0], f"{path}.")
        else:
            yield path, _text(attribute)


def _text(attribute: Any) -> str:
    """The default as it stands in a file."""
    value = attribute.default
    if isinstance(value, timedelta):
        value = format_duration(value)
    elif isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, tuple):
        value = ", ".join(value)
    return "none" if value in (None, "", {}) else f"`{value}`"


def _events() -> Iterator[str]:
    notes = {row.name: row.note for row in read("events")}
    rows = {(one.reason, one.type, one.about, one.text.strip()) for one in emitted() if one.reason is not None}
    for reason, type_, about, text in sorted(rows, key=lambda row: tuple(map(str, row))):
        begins = f"`{text}`" if text else ""
        yield f"| `{reason}` | {type_ or 'either'} | {about} | {begins} | {notes.get(str(reason), '')} |"


def main() -> int:
    """Write the pages, or with `--check` name those that are stale and return 1."""
    stale = [name for name, text in pages().items() if not _is_written(DOCS / name, text)]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/{name} is stale: run `make reference`")
        return 1 if stale else 0
    for name in stale:
        (DOCS / name).write_text(pages()[name], encoding="utf-8")
    return 0


def _is_written(page: Path, text: str) -> bool:
    return page.exists() and page.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
