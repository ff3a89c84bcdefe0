from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from trikubelet.node_api import log_records
from trikubelet.node_api.log_records import LogOptions, RecordFilter
from trikubelet.node_api.log_stamps import fixed_width, nanoseconds, nanoseconds_of

STAMP = "2016-10-20T18:39:20.57606443Z"
FULL_STAMP = "2016-10-20T18:39:20.576064430Z"


def filtered(text: str | bytes, options: LogOptions | None = None, *, block: int = 10**9) -> bytes:
    records = RecordFilter(options or LogOptions())
    data = text.encode() if isinstance(text, str) else text
    out = b"".join(records.feed(data[start : start + block]) for start in range(0, len(data), block))
    return out + records.finish()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (f"{STAMP} stdout F cri stdout test log\n", "cri stdout test log\n"),
        (f"{STAMP} stderr F cri stderr test log\n", "cri stderr test log\n"),
        (f"{STAMP} stdout P cri stdout partial test log\n", "cri stdout partial test log"),
        (f"{STAMP} stdout P:TAG1:TAG2 cri stdout partial test log\n", "cri stdout partial test log"),
        (f"{STAMP} stdout F:TAG1 full\n", "full\n"),
        (f"{STAMP} stdout PX unknown tags are full\n", "unknown tags are full\n"),
        (f"{STAMP} stdout  no tag is full\n", "no tag is full\n"),
        (f"{STAMP} stdout F \n", "\n"),
        (f"{STAMP} stdout F  a  b\r\n", " a  b\r\n"),
        ("2016-10-20T18:39:20Z stdout F no fraction\n", "no fraction\n"),
        ("2016-10-20T18:39:20.5-05:00 stdout F a zone\n", "a zone\n"),
        (f"{STAMP} stdout F no newline", "no newline"),
        ("unsupported log format test log\n", ""),
        (f"{STAMP} stdin F no such stream\n", ""),
        (f"{STAMP} stdout F\n", ""),
        (f"{STAMP}\n", ""),
        ("2016-13-20T18:39:20Z stdout F no such month\n", ""),
        ("2016-10-20T25:39:20Z stdout F no such hour\n", ""),
        ("0000-10-20T18:39:20Z stdout F no such year\n", ""),
        ("\n", ""),
        ('{"log":"docker\\n","stream":"stdout","time":"2016-10-20T18:39:20Z"}\n', ""),
    ],
)
def test_a_record_has_its_text_and_another_line_none(line: str, text: str) -> None:
    assert filtered(line) == text.encode()
    assert filtered(line, LogOptions(since=datetime(2000, 1, 1, tzinfo=UTC))) == text.encode()


def test_lines_that_are_no_records_are_left_out_and_counted() -> None:
    records = RecordFilter(LogOptions())
    assert records.feed(f"garbage\n{STAMP} stdout F a\n\0\xff\n{STAMP} stdout F b\n".encode("latin-1")) == b"a\nb\n"
    assert records.skipped == 2


def test_pieces_are_joined_and_stamped_once() -> None:
    zone = "2022-10-29T16:10:22.592603036-05:00"
    text = (f"{zone} stdout P x\n" * 1000 + f"{zone} stdout F \n") * 2
    assert filtered(text, LogOptions(timestamps=True)) == f"{zone} {'x' * 1000}\n".encode() * 2


def test_a_stamp_is_put_where_a_line_begins_for_the_reader() -> None:
    text = f"{STAMP} stdout P a\n{STAMP} stderr F other\n{STAMP} stdout F b\n"
    assert filtered(text, LogOptions(timestamps=True, stream="stdout")) == f"{FULL_STAMP} ab\n".encode()


SAMPLE = "".join(f"2020-09-27T11:18:0{n}.00000000Z stdout F line{n}\n" for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (LogOptions(limit_bytes=0), ""),
        (LogOptions(limit_bytes=3), "lin"),
        (LogOptions(limit_bytes=9), "line1\nlin"),
        (LogOptions(limit_bytes=100), "line1\nline2\nline3\n"),
        (LogOptions(limit_bytes=34, timestamps=True), "2020-09-27T11:18:01.000000000Z lin"),
        (LogOptions(since=datetime(2020, 9, 27, 11, 18, 2, tzinfo=UTC)), "line2\nline3\n"),
        (LogOptions(since=datetime(2020, 9, 27, 11, 18, 2, 1, tzinfo=UTC)), "line3\n"),
        (LogOptions(since=datetime(2020, 9, 27, 13, 18, 2, tzinfo=timezone(timedelta(hours=2)))), "line2\nline3\n"),
        (LogOptions(since=datetime(2030, 1, 1, tzinfo=UTC)), ""),
        (LogOptions(stream="stderr"), ""),
    ],
)
def test_only_what_is_wanted_comes_out(options: LogOptions, expected: str) -> None:
    for block in (1, 7, 1000):
        assert filtered(SAMPLE, options, block=block) == expected.encode()


@pytest.mark.parametrize(("fed", "done"), [(44, False), (60, True)])
def test_a_limit_says_when_it_is_reached(fed: int, done: bool) -> None:
    records = RecordFilter(LogOptions(limit_bytes=6))
    records.feed(SAMPLE[:fed].encode())
    assert records.done is done
    assert RecordFilter(LogOptions(limit_bytes=0)).done


@pytest.mark.parametrize("garbage", [False, True])
@pytest.mark.parametrize("tag", ["F", "P"])
def test_a_huge_line_passes_through_in_bounded_memory(tag: str, garbage: bool) -> None:
    records = RecordFilter(LogOptions())
    head = b"garbage" if garbage else f"{STAMP} stdout {tag} ".encode()
    out, held = records.feed(head), 0
    for _ in range(100):
        out += records.feed(b"x" * 100_000)
        held = max(held, len(records._rest))
    assert records.mid_record
    out += records.feed(f"x\n{STAMP} stdout F next\n".encode())
    assert held <= log_records.LONGEST_WAITING + 100_000
    expected = b"" if garbage else b"x" * 10_000_001 + (b"\n" if tag == "F" else b"")
    assert out == expected + b"next\n"
    assert records.skipped == garbage


def test_an_unfinished_record_waits_for_its_end() -> None:
    records = RecordFilter(LogOptions())
    assert records.feed(f"{STAMP} stdout F torn".encode()) == b""
    assert records.mid_record
    assert records.feed(b" apart\n") == b"torn apart\n"


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1970-01-01T00:00:00.0000000019Z", 1),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1969-12-31T18:30:00-05:30", 0),
        ("2016-02-29T00:00:00.123456789Z", 1456704000123456789),
        ("2015-02-29T00:00:00Z", 1425168000 * 10**9),
    ],
)
def test_a_stamp_is_a_time_in_nanoseconds(stamp: str, expected: int) -> None:
    assert nanoseconds(stamp.encode()) == expected


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)))
def test_stamps_and_times_agree(time: datetime) -> None:
    assert nanoseconds(time.isoformat().replace("+00:00", "Z").encode()) == nanoseconds_of(time)


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        (STAMP, FULL_STAMP),
        ("2016-10-20T18:39:20Z", "2016-10-20T18:39:20.000000000Z"),
        ("2016-10-20T18:39:20.1234567891+00:00", "2016-10-20T18:39:20.123456789Z"),
        ("2016-10-20T18:39:20.1-05:00", "2016-10-20T18:39:20.100000000-05:00"),
    ],
)
def test_printed_stamps_have_one_width(stamp: str, expected: str) -> None:
    assert fixed_width(stamp.encode()) == expected.encode()


STAMPS = st.sampled_from(
    [
        b"2026-01-01T00:00:00.123456789Z",
        b"2026-01-01T00:00:00.987654321Z",
        b"2026-01-01T00:00:00.1234567891Z",
        b"2026-01-01T00:00:00.123456789+02:00",
        b"2026-01-01T00:00:00.123456789+00:00",
        b"2026-01-01T00:00:00Z",
        b"2026-01-01T00:00:00.5Z",
        b"2026-01-01T00:00:01.25+01:00",
        b"2026-02-31T23:59:59.9Z",
    ]
)
TEXTS = st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"")) | st.sampled_from(
    [
        b"",
        b"2026-01-01T00:00:00Z stdout F nested",
        b"2026-01-01T00:00:00.123456789Z stdout F nested",
        b"std stdout F std",
        b" ",
        b"P F P",
    ]
)
STREAMS = st.sampled_from([b"stdout", b"stderr"])
RECORDS = st.builds(
    lambda *parts: b"%s %s %s %s\n" % parts,
    STAMPS,
    STREAMS,
    st.sampled_from([b"F", b"P", b"F:x", b"P:x", b"PP", b""]),
    TEXTS,
)
WHOLE = st.builds(
    lambda *parts: b"%s %s %s %s\n" % parts, STAMPS, STREAMS, st.sampled_from([b"F", b"F:x", b"PP"]), TEXTS
)
LOGS = st.lists(RECORDS | TEXTS.map(lambda text: text + b"\n"), max_size=12).map(b"".join)
OPTIONS = st.builds(
    LogOptions,
    since=st.none() | st.datetimes(datetime(2025, 12, 31, 22), datetime(2026, 3, 4), timezones=st.just(UTC)),
    timestamps=st.booleans(),
    limit_bytes=st.none() | st.integers(0, 200),
    stream=st.none() | st.sampled_from(["stdout", "stderr"]),
)


def naive(log: bytes, options: LogOptions) -> bytes:
    """Line by line, the slow and obvious way."""
    out = b""
    for line in log.split(b"\n")[:-1]:
        parts = line.split(b" ", 3)
        if len(parts) < 4 or not parts[0].startswith(b"2026-") or parts[1] not in (b"stdout", b"stderr"):
            continue
        stamp, stream, tags, text = parts
        if options.stream is not None and stream.decode() != options.stream:
            continue
        if options.since is not None and nanoseconds(stamp) < nanoseconds_of(options.since):
            continue
        if options.timestamps and (not out or out.endswith(b"\n")):
            out += fixed_width(stamp) + b" "
        out += text + (b"" if tags.split(b":")[0] == b"P" else b"\n")
    return out if options.limit_bytes is None else out[: options.limit_bytes]


@given(LOGS, OPTIONS, st.integers(1, 100))
@settings(max_examples=examples(400))
def test_any_log_in_any_blocks_gives_what_the_naive_reader_gives(log: bytes, options: LogOptions, block: int) -> None:
    assert filtered(log, options, block=block) == naive(log, options)


@given(st.lists(WHOLE, max_size=12).map(b"".join) | LOGS, OPTIONS)
@settings(max_examples=examples(600))
def test_blocks_as_a_whole_give_what_their_records_give_one_by_one(log: bytes, options: LogOptions) -> None:
    slow = RecordFilter(options)
    slow._blocks.filter = lambda lines: None  # type: ignore[method-assign]
    expected = slow.feed(log)
    fast = RecordFilter(options)
    assert fast.feed(log) == expected
    assert (fast.skipped, fast._at_line_start, fast._left) == (slow.skipped, slow._at_line_start, slow._left)


NANO = "2026-01-01T00:00:00.123456789Z"


@pytest.mark.parametrize(
    "options",
    [
        LogOptions(),
        LogOptions(timestamps=True),
        LogOptions(stream="stdout"),
        LogOptions(stream="stderr", timestamps=True),
        LogOptions(since=datetime(2025, 1, 1, tzinfo=UTC)),
        LogOptions(since=datetime(2027, 1, 1, tzinfo=UTC), timestamps=True),
    ],
)
def test_usual_blocks_need_no_look_at_each_record(options: LogOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    log = "".join(
        f"{stamp} {stream} F text\n" for stamp in (NANO, STAMP[:-1] + "1Z") for stream in ("stdout", "stderr")
    )
    log = log.replace("2016", "2026")
    expected = filtered(log, options)
    monkeypatch.setattr(RecordFilter, "_one", lambda *_: pytest.fail("one by one"))
    assert filtered(log, options) == expected


@given(st.binary(max_size=300), OPTIONS, st.integers(1, 50))
def test_random_bytes_never_raise_and_blocks_make_no_difference(log: bytes, options: LogOptions, block: int) -> None:
    assert filtered(log, options, block=block) == filtered(log, options)
