"""Makes a site of pages that are read beside the code: what they link to outside of this folder is not there.

Called by MkDocs (`mkdocs.yml`).
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).parent
_LINK: Final = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)(?:#[^)]*)?\)")
_log: Final = logging.getLogger("mkdocs.hooks")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Leave the text of such links. One to a file that is not there is a warning, so that a strict build fails."""

    def text_alone(link: re.Match[str]) -> str:
        if not (DOCS / link[2]).exists():
            _log.warning("%s: there is no %s", page.file.src_path, link[2])
        return link[1]

    return _LINK.sub(text_alone, markdown)
