"""What the pages show to be typed or saved: commands, configurations and manifests."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
GENERATED: Final = {"parity.md", "cli.md", "configuration-fields.md", "events.md"}

FENCE: Final = re.compile(r"^(```+)[^\n]*\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
_INDENTED: Final = re.compile(r"(?:^\n|\A)((?:^(?:    .*)?\n)*^    .*\n)", re.MULTILINE)
_INLINE: Final = re.compile(r"`(trikubelet [^`]+)`")
_HEREDOC: Final = re.compile(r"<<'(\w+)'\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
_CALL: Final = re.compile(r"^(?:\$ )?(?:sudo )?(?:\.venv/bin/)?(trikubelet .*)$")
_ENDS: Final = {"|", ">", "<", "&", "&&", ";", "||", ">>"}


@attrs.frozen
class Found:
    """A piece of a page."""

    page: str
    text: str
    is_inline: bool = False
    """Within a sentence."""

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0]}"


def blocks() -> Iterator[Found]:
    """Every block of code, without its indentation."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for fence in FENCE.finditer(text):
            yield Found(page.name, fence[2])
        for indented in _INDENTED.finditer(FENCE.sub("\n", text)):
            yield Found(page.name, textwrap.dedent(indented[1]))


def commands() -> list[Found]:
    """Every command line that starts with `trikubelet`, in blocks and within sentences."""
    found = []
    for block in blocks():
        if block.page in GENERATED:
            continue
        lines = _HEREDOC.sub("", block.text).replace("\\\n", " ").splitlines()
        if any(line.startswith("$ ") for line in lines):  # the others are what it prints
            lines = [line for line in lines if line.startswith("$ ")]
        found += [Found(block.page, call[1]) for line in lines if (call := _CALL.match(line))]
    for page in PAGES:
        text = FENCE.sub("\n", page.read_text(encoding="utf-8"))
        found += [Found(page.name, " ".join(call[1].split()), is_inline=True) for call in _INLINE.finditer(text)]
    return sorted(set(found), key=str)


def arguments(command: str) -> list[str]:
    """What the shell would hand to `trikubelet`; what a page leaves open (`[-- COMMAND…]`) is not there."""
    shell = shlex.shlex(re.sub(r"\[[^\]]*\]|…", "", command), posix=True, punctuation_chars=True)
    shell.wordchars += ",:@%+{}\\*~"
    words = []
    for word in shell:
        if word in _ENDS:
            break
        words.append(word)
    return words[1:]


def documents() -> Iterator[tuple[Found, Any]]:
    """Every YAML document that is an object, in blocks and in here-documents within them."""
    for block in blocks():
        for text in (block.text, *(match[2] for match in _HEREDOC.finditer(block.text))):
            text = re.sub(r"\A\$ cat \S+\n(.*?)(?:^\$ .*)?\Z", r"\1", text, flags=re.DOTALL | re.MULTILINE)
            try:
                read = list(yaml.safe_load_all(text))
            except yaml.YAMLError:
                continue
            yield from ((Found(block.page, text), one) for one in read if isinstance(one, dict))
