"""An open file or a folder as an HTTP answer, the way of Go's `http.FileServer`.

What clients of logs use is there: listings, one range, `If-Modified-Since`, `If-Range`, `HEAD`. Several ranges at once
are answered with the whole file, which HTTP allows.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from trikubelet.http.messages import TEXT, AnyResponse, Request, Response, StreamResponse, Writer
from trikubelet.node_api.log_file import BLOCK

if TYPE_CHECKING:
    from trikubelet.node_api.node_files import NodeFile, NodeFolder

_HTML: Final = "text/html; charset=utf-8"
_BINARY: Final = "application/octet-stream"
_TYPES: Final = {".gz": "application/gzip", ".json": "application/json"}
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""What no text has (a terminal's escape may be in a log)."""
_SNIFF: Final = 512
_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)
_MOST_DIGITS: Final = 18


def listing(folder: NodeFolder) -> Response:
    """A page of links."""
    from html import escape  # which knows the names of two thousand characters

    lines = []
    for entry in folder.entries:
        name = os.fsencode(entry.name) + (b"/" if entry.is_folder else b"")
        lines.append(f'<a href="./{quote(name)}">{escape(name.decode(errors="replace"))}</a>\n')
    return Response(f"<pre>\n{''.join(lines)}</pre>\n".encode(), content_type=_HTML)


async def file_response(file: NodeFile, request: Request, name: str) -> AnyResponse:
    """The file or what is wanted of it. Owns the file from now on. Raises OSError."""
    headers = [("Last-Modified", _http_date(file.modified)), ("Accept-Ranges", "bytes")]
    if _is_known(file, request):
        file.close()
        return Response(status=304, headers=tuple(headers))
    start, end, status = 0, file.size, 200
    if (wanted := request.headers.get("range")) and _range_holds(file, request):
        match _wanted_range(wanted, file.size):
            case None:
                pass
            case (first, behind) if first < behind:
                start, end, status = first, behind, 206
                headers.append(("Content-Range", f"bytes {start}-{end - 1}/{file.size}"))
            case _:
                file.close()
                return Response(b"invalid range\n", 416, headers=(("Content-Range", f"bytes */{file.size}"),))
    headers.append(("Content-Length", str(end - start)))
    try:
        content_type = await _content_type(file, name)
    except BaseException:
        file.close()
        raise
    if request.method == "HEAD":  # the body is not sent
        file.close()
    return StreamResponse(_Sending(file, start, end).produce, status, content_type, tuple(headers))


class _Sending:
    def __init__(self, file: NodeFile, start: int, end: int) -> None:
        self._file = file
        self._position = start
        self._end = end

    async def produce(self, writer: Writer) -> None:
        """Raises OSError, also when the file became shorter than what was announced."""
        try:
            while self._position < self._end:
                block = await self._file.read(self._position, min(BLOCK, self._end - self._position))
                if not block:
                    raise OSError("the file was truncated while it was being sent")
                self._position += len(block)
                await writer.write(block)
        finally:
            self._file.close()


async def _content_type(file: NodeFile, name: str) -> str:
    for suffix, kind in _TYPES.items():
        if name.endswith(suffix):
            return kind
    begin = await file.read(0, _SNIFF)
    return _BINARY if _CONTROL.search(begin) else TEXT


def _is_known(file: NodeFile, request: Request) -> bool:
    """The client has it as it is."""
    since = _date(request.headers.get("if-modified-since"))
    return since is not None and file.modified <= since and request.method in ("GET", "HEAD")


def _range_holds(file: NodeFile, request: Request) -> bool:
    """A range of what the client has a part of, or does not care."""
    condition = request.headers.get("if-range")
    return condition is None or _date(condition) == file.modified


def _wanted_range(text: str, size: int) -> tuple[int, int] | None:
    """Where it begins and ends; None for what is no single range. One that is empty cannot be had."""
    match = _RANGE.fullmatch(text.replace(" ", ""))
    if match is None or match.group(0) == "bytes=-" or max(map(len, match.groups())) > _MOST_DIGITS:
        return None
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    behind = min(int(last) + 1, size) if last else size
    if last and int(last) < int(first):
        return None
    return int(first), behind


def _http_date(seconds: int) -> str:
    from email.utils import format_datetime  # which only those need who read files by HTTP

    return format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)


def _date(text: str | None) -> int | None:
    """Seconds since 1970; None for what is no date."""
    from email.utils import parsedate_to_datetime

    try:
        found = None if text is None else parsedate_to_datetime(text)
    except (ValueError, OverflowError, TypeError):
        return None
    if found is None:
        return None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
