"""The query of `/logs/`: what of the node's own services is wanted, and which command shows it. Pure.

The kubelet's rules (`kubelet_server_journal.go`; KEP-2258): what cannot be read is 400, what makes no sense 406. Three
things are done otherwise. `untilTime` is used where the kubelet uses `sinceTime` by mistake; both are given to
journalctl in UTC and say so, where the kubelet lets it take them for local time; and a service is known to the journal
when its unit's name is there, not a name that ends with it.

The patterns are PCRE2, and journalctl says what is wrong with one: its words are in the answer, where the kubelet
refuses what its own engine cannot read with 406. Python's engine may take seconds to read a thousand characters.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

from trikubelet.api.timestamps import parse_time
from trikubelet.formats.values import frozen
from trikubelet.http.messages import HTTPError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")

JOURNALCTL: Final = "journalctl"
UNITS: Final = (JOURNALCTL, "--field", "_SYSTEMD_UNIT")
"""Lists the units that have written to the journal."""
MAX_SERVICES: Final = 4
MAX_TAIL: Final = 100_000
_MAX_SERVICE_LENGTH: Final = 256
_MAX_PATTERN_LENGTH: Final = 1024
_SERVICE: Final = re.compile(r"[a-zA-Z0-9_.:@-]+")
_NUMBER: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_PARAMETERS: Final = ("query", "sinceTime", "untilTime", "tailLines", "boot", "pattern")


@frozen
class JournalOptions:
    """What of a service's log is wanted."""

    since: datetime | None = None
    until: datetime | None = None
    tail_lines: int | None = None
    boot: int | None = None
    """0: the present one, -1 the one before."""
    pattern: str = ""


@frozen
class NodeLogQuery:
    """Services, or one file in the log folder."""

    services: tuple[str, ...] = ()
    file: str | None = None
    options: JournalOptions = JournalOptions()


def read_node_log_query(query: Mapping[str, Sequence[str]]) -> NodeLogQuery | None:
    """None when the request has nothing of the kind: it is one for a file. Raises HTTPError 400 and 406."""
    if not any(name in query for name in _PARAMETERS):
        return None
    problems: list[str] = []
    wanted = [text for text in query.get("query", ()) if text.strip()]
    if "query" in query and not wanted:
        problems.append(_invalid("query", list(query["query"]), "query cannot be empty"))
    options = JournalOptions(
        since=_read(query, "sinceTime", parse_time, "invalid time format", problems),
        until=_read(query, "untilTime", parse_time, "invalid time format", problems),
        tail_lines=_read(query, "tailLines", _number, "expected a whole number", problems),
        boot=_read(query, "boot", _number, "expected a whole number", problems),
        pattern=_first(query, "pattern"),
    )
    _refuse(400, problems)
    files = [text for text in wanted if "/" in text or "\\" in text]
    services = tuple(text for text in wanted if text not in files)
    _refuse(406, [*_problems_of_names(services, files, options), *_problems_of_options(options)])
    return NodeLogQuery(services, files[0].replace("\\", "/") if files else None, options)


def journal_command(services: Sequence[str], options: JournalOptions) -> list[str]:
    """Arguments for a program, no shell: what strangers say is never an option by itself."""
    command = [JOURNALCTL, "--utc", "--no-pager"]
    if options.since is not None:
        command.append(f"--since={_journal_time(options.since)}")
    if options.until is not None:
        command.append(f"--until={_journal_time(options.until)}")
    if options.tail_lines is not None:
        command += ["--pager-end", f"--lines={options.tail_lines}"]
    command += [f"--unit={service}" for service in services]
    if options.pattern:
        command += [f"--grep={options.pattern}", "--case-sensitive=false"]
    if options.boot is not None:
        command.append(f"--boot={options.boot}")
    return [*command, "--output=short-precise"]


def known_to_journal(service: str, units: bytes) -> bool:
    """Whether the journal has something of a service. `units`: what `UNITS` printed."""
    return f"{service}.service".encode() in units.split()


def file_names(service: str) -> tuple[str, ...]:
    """Where a service's log may be that is not in the journal, below the log folder; the first that is there is it."""
    return service, f"{service}.log", f"{service}/{service}.log"


def _problems_of_names(services: Sequence[str], files: Sequence[str], options: JournalOptions) -> list[str]:
    problems = []
    for service in services:
        if len(service) > _MAX_SERVICE_LENGTH:
            problems.append(_invalid("query", service, f"length must be less than {_MAX_SERVICE_LENGTH}"))
        elif not _SERVICE.fullmatch(service):
            problems.append(_invalid("query", service, "input contains unsupported characters"))
    if len(services) > MAX_SERVICES:
        problems.append(f"query: Too many: {len(services)}: must have at most {MAX_SERVICES} items")
    if not services and not files:
        problems.append("query: Required value: cannot be empty with options")
    elif services and files:
        problems.append(_invalid("query", [*files, *services], "cannot specify a file and service"))
    elif len(files) > 1:
        problems.append(_invalid("query", list(files), "cannot specify more than one file"))
    elif files and options != JournalOptions():
        problems.append(_invalid("query", list(files), "cannot specify file with options"))
    return problems


def _problems_of_options(options: JournalOptions) -> list[str]:
    problems = []
    if options.since is not None and options.until is not None and options.since > options.until:
        problems.append(_invalid("untilTime", options.until.isoformat(), "must be after `sinceTime`"))
    if options.boot is not None and options.boot > 0:
        problems.append(_invalid("boot", options.boot, "must be less than 1"))
    if options.tail_lines is not None and not 0 <= options.tail_lines <= MAX_TAIL:
        problems.append(_invalid("tailLines", options.tail_lines, f"must be between 0 and {MAX_TAIL}, inclusive"))
    if "\0" in options.pattern:
        problems.append(_invalid("pattern", options.pattern, "expected no null byte"))
    if len(options.pattern) > _MAX_PATTERN_LENGTH:
        problems.append(f"pattern: Too long: may not be more than {_MAX_PATTERN_LENGTH} characters")
    return problems


def _read(
    query: Mapping[str, Sequence[str]], name: str, parse: Callable[[str], T | None], wrong: str, problems: list[str]
) -> T | None:
    text = _first(query, name)
    if not text:
        return None
    value = parse(text)
    if value is None:
        problems.append(_invalid(name, text, wrong))
    return value


def _first(query: Mapping[str, Sequence[str]], name: str) -> str:
    return next(iter(query.get(name, ())), "")


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _journal_time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _invalid(field: str, value: object, problem: str) -> str:
    shown = f'"{value}"' if isinstance(value, str) else str(value).replace("'", '"')
    return f"{field}: Invalid value: {shown}: {problem}"


def _refuse(status: int, problems: list[str]) -> None:
    if problems:
        raise HTTPError(status, problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")
