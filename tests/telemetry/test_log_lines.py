"""What lines of the log look like, with structlog as the judge of all that steers no terminal."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.formats.terminal_text import plain, plain_lines
from trikubelet.telemetry.log_lines import as_colored_text, as_json, as_text, with_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

levels = st.sampled_from(("debug", "info", "warning", "error"))
names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(
    lambda name: name not in ("level", "event", "logger", "logger_name", "timestamp", "exc_info", "exception", "stack")
)
texts = st.text(max_size=20).map(plain)
values = st.one_of(
    texts,
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(),
    st.binary(max_size=4),
    st.lists(st.text(max_size=5), max_size=3),
    st.text(max_size=20).map(lambda text: [text]),
    st.frozensets(st.integers(), max_size=3),
    st.just(timedelta(seconds=3)),
)
times = st.datetimes(timezones=st.just(UTC))
_COLOUR = re.compile(r"\033\[\d{1,2}m")
FORMS: dict[str, tuple[Callable[[Mapping[str, Any]], str], Any]] = {
    "json": (as_json, structlog.processors.JSONRenderer()),
    "text": (as_text, structlog.dev.ConsoleRenderer(colors=False, pad_event_to=40)),
    "colored": (as_colored_text, structlog.dev.ConsoleRenderer(colors=True, pad_event_to=40)),
}


def structlogs(renderer: Any, level: str, event: str, fields: Mapping[str, object], now: datetime) -> str:
    """The line that structlog makes of it."""

    def timestamp(_: object, __: str, line: Any) -> Any:
        return line | {"timestamp": now.isoformat().replace("+00:00", "Z")}

    line: Any = {**fields, "event": event}
    for step in (structlog.processors.add_log_level, timestamp, structlog.processors.format_exc_info, renderer):
        line = step(None, level, line)
    return str(line)


@pytest.mark.parametrize("form", FORMS)
@given(
    level=levels, event=st.text(max_size=50).map(plain), fields=st.dictionaries(names, values, max_size=5), now=times
)
def test_a_line_is_as_structlog_writes_it(
    form: str, level: str, event: str, fields: dict[str, object], now: datetime
) -> None:
    render, renderer = FORMS[form]
    fields = {"logger": "status-writer", **fields}
    assert render(with_facts(level, event, fields, now)) == structlogs(renderer, level, event, fields, now)


@pytest.mark.parametrize("form", FORMS)
def test_a_traceback_is_as_structlog_writes_it(form: str) -> None:
    def fails() -> None:
        raise ValueError("outer") from ExceptionGroup("several", [OSError(5, "an inner one"), KeyError("k")])

    with pytest.raises(ValueError, match="outer") as caught:
        fails()
    render, renderer = FORMS[form]
    now = datetime(2026, 1, 31, tzinfo=UTC)
    fields = {"logger": "agent", "pod": "a b", "exc_info": caught.value}
    line = render(with_facts("error", "it failed", fields, now))
    theirs = structlogs(renderer, "error", "it failed", fields, now)
    assert line == (theirs if form == "json" else theirs.replace("\n", "\n  ")), "indented, where lines are"
    assert "an inner one" in line
    assert "exc_info" not in line


hostile = st.text(st.characters(), max_size=30)


@given(level=levels, event=hostile, fields=st.dictionaries(names, hostile | st.lists(hostile), max_size=4), now=times)
def test_no_text_of_others_steers_a_terminal_or_begins_a_line(
    level: str, event: str, fields: dict[str, object], now: datetime
) -> None:
    fault = ValueError(f"{event}\n2026-01-31T12:00:00Z [info     ] forged")
    for facts in (fields, fields | {"exc_info": fault}):
        line = with_facts(level, event, {"logger": "pods", **facts}, now)
        text = as_text(line)
        assert text == plain_lines(text)
        assert all(part.startswith("  ") for part in text.split("\n")[1:])
        assert ("\n" in text) == (facts is not fields)
        assert _COLOUR.sub("", as_colored_text(line)).isprintable() or facts is not fields
        assert as_json(line).isprintable()


def test_a_line_for_people() -> None:
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    fields = {"logger": "pods", "pod": "default/a", "reason": "it is late", "count": 2}
    assert as_text(with_facts("info", "pod ended", fields, now)) == (
        "2026-01-31T12:00:00Z [info     ] pod ended                                [pods] "
        "count=2 pod=default/a reason='it is late'"
    )
