"""The screen, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.test_top import pod as pod_usage
from tests.cli.test_top import summary, usage
from tests.cli.ui.entries import START, at, entry, line, snapshot
from tests.cli.ui.test_model import RUNS, model, reported
from trikubelet.cli.ui.model import Model
from trikubelet.cli.ui.screen import KEYS, SPANS, Look, picture, span_text
from trikubelet.cli.ui.text import fitted, narrow, plain

if TYPE_CHECKING:
    from trikubelet.cli.ui.screen import Line


def live(*entries: dict[str, Any]) -> Model:
    made = model(*entries)
    made.fails("", at(0))
    made.take_pods(["uid-default/web"], [reported(**RUNS, podIP="10.0.0.7")])
    made.take_usage(summary(pod_usage("web", main=usage(250_000_001, 10 * 2**20))))
    return made


def text(lines: list[Line]) -> list[str]:
    return ["".join(part for _, part in each).rstrip() for each in lines]


def shown(of: Model, now: float, columns: int = 80, lines: int = 24, look: Look | None = None) -> list[str]:
    return text(picture(of, look or Look(span=0), columns, lines, at(now)))


def test_a_screen_of_eighty_by_twenty_four() -> None:
    made = live(*START, entry(9, "event", "Unhealthy", message="Readiness probe\nfailed:  no"))
    assert [row for row in shown(made, 18.5) if row] == [
        " node: 1 pod, 1 ready                                                      live",
        " NAME STATUS            READY RST   AGE   CPU    MEM 20s ago                now",
        ">web  Running             1/1   3   18s  251m   10Mi ..>>vv>>----==============",
        "-- default/web 10.0.0.7 --------------------------------------------------------",
        "    ....>>>>>vvvvvvv>>>>>------------==========================================",
        "... > start 1.0s > pull 2.0s > start 1.0s > not ready 3.0s > ready 10s",
        "  main: running 13s; not started, ready; 3 restarts",
        "   9s ago  Unhealthy: Readiness probe failed: no",
        "  14s ago  Pulled:",
        "  16s ago  Pulling:",
        KEYS,
    ]


def test_the_grace_runs_down() -> None:
    kill: dict[str, Any] = {"grace": 30, "until": at(45), "askedBy": ["manifest removed", "evicted"]}
    rows = shown(live(*START, entry(15, "phase", "Terminating", **kill)), 30)
    assert "Terminating 15s" in rows[2]
    assert rows[0].startswith(" node: 1 pod, 0 ready, 1 terminating ")
    assert "[##########..........] 15 s left of 30 s of grace; asked by: manifest removed, then evicted" in " ".join(
        shown(live(*START, entry(15, "phase", "Terminating", **kill)), 30, columns=100)
    )
    assert any(row.startswith("[##########..........] 15 s left of 30 s of grace; asked by: ") for row in rows)


@pytest.mark.parametrize(
    ("columns", "header"),
    [
        (200, [" NAME", "STATUS", "READY", "RST", "AGE", "CPU", "MEM", "20s ago", "now"]),
        (72, [" NAME", "STATUS", "READY", "RST", "AGE", "CPU", "20s ago", "now"]),
        (60, [" NAME", "STATUS", "READY", "RST", "20s ago", "now"]),
        (45, [" NAME", "STATUS", "20s ago", "now"]),
    ],
)
def test_what_has_no_room_is_left_out_from_the_right_and_timelines_stay(columns: int, header: list[str]) -> None:
    rows = shown(live(), 18.5, columns)
    assert rows[1].split() == " ".join(header).split()
    assert "=" * 5 in rows[2]


def test_long_names_give_way_to_timelines_until_there_is_room() -> None:
    made = live(*START, entry(0, "phase", "Syncing", "kube-system/" + "long-" * 10))
    assert any(row.startswith(" kube-system/long-~ ") for row in shown(made, 10))
    assert any(" kube-system/" + "long-" * 10 in row for row in shown(made, 10, columns=160))


def test_the_chosen_pod_is_on_the_screen_however_many_there_are() -> None:
    made, look = Model(), Look()
    for index in range(100):
        made.take(line(0, "phase", "Syncing", f"default/pod-{index:02}"))
    uids = [view.uid for view in made.shown(at(1))]

    def rows() -> list[str]:
        return [row.split()[0] for row in shown(made, 1, look=look) if "pod-" in row and row[0] in " >"]

    assert rows()[0] == ">pod-00"
    assert len(rows()) == 12
    look.choose(uids, 50)
    assert rows()[-1] == ">pod-50"
    look.choose(uids, -5)
    assert ">pod-45" in rows()
    assert rows()[-1] == "pod-50", "it moves no more than it has to"
    look.choose(uids, 10**6)
    assert rows()[-1] == ">pod-99"
    look.choose(uids, -(10**6))
    assert rows()[0] == ">pod-00"


def test_when_the_chosen_pod_goes_its_neighbour_is_chosen_and_with_none_nothing() -> None:
    made, look = Model(), Look()
    for name in ("a", "b", "c"):
        made.take(line(0, "phase", "Syncing", f"default/{name}"))
    look.choose([view.uid for view in made.shown(at(1))], 1)
    made.take(line(2, "phase", "Gone", "default/b"))
    assert any(row.startswith(">a") for row in shown(made, 100, look=look))
    made.take(snapshot())
    assert shown(made, 100, look=look)[2].strip() == ""
    assert look.chosen == ""


def test_an_agent_that_is_away_is_told_first() -> None:
    made = live()
    made.fails("no agent answers", at(20))
    rows = shown(made, 25)
    assert rows[0] == " NOT LIVE for 5s: no agent answers; trying again"
    assert ">web" in rows[2], "what was known is still there"


def test_a_message_takes_the_place_of_the_keys() -> None:
    assert shown(live(), 18, look=Look(message="restart default/web? y/n"))[-1] == "restart default/web? y/n"


def test_timelines_are_of_as_much_time_as_one_likes() -> None:
    look = Look()
    for _ in range(10):
        look.zoom(1)
    assert "24h ago" in shown(live(), 18, columns=120, look=look)[1]
    for _ in range(10):
        look.zoom(-1)
    assert "20s ago" in shown(live(), 18, columns=120, look=look)[1]
    assert [span_text(span) for span in SPANS] == ["20s", "60s", "5m", "30m", "3h", "24h"]


HOSTILE = "\x1b[2J\x1b[H\x1b]0;owned\x07\r\n\x9b1A\u202e\u2028\ud800\x00é中"


@given(
    columns=st.integers(1, 200),
    lines=st.integers(1, 60),
    name=st.text(max_size=80) | st.just(HOSTILE),
    message=st.text(max_size=300) | st.just(HOSTILE),
)
def test_whatever_pods_are_called_and_say_every_line_fits_and_moves_no_cursor(
    columns: int, lines: int, name: str, message: str
) -> None:
    made = live(
        *START,
        entry(9, "event", message, message=message),
        entry(9, "phase", "Terminating", "default/" + name, grace=3, until=at(11), askedBy=[message]),
    )
    for look in (Look(), Look(chosen="uid-default/" + name, message=message)):
        drawn = picture(made, look, columns, lines, at(10))
        assert len(drawn) == lines
        assert all(part.isprintable() for row in drawn for _, part in row)
        assert all(part.isascii() for row in drawn[:-1][:2] for _, part in row)


def test_texts_of_others() -> None:
    assert plain("a\tb\n") == "a       b"
    assert plain("é中") == "é中"
    assert plain("\x1b[2Jx") == "\N{REPLACEMENT CHARACTER}[2Jx"
    assert narrow("é\x07") == "??"
    assert len(plain("x" * 10**6)) < 10**4
    assert [fitted("abc", width) for width in (0, 1, 2, 3, 5)] == ["", "~", "a~", "abc", "abc  "]


BROKEN: dict[str, Any] = {
    "file": "/m/web.yaml",
    "pods": ["default/web-node"],
    "names": [],
    "problems": [{"line": line, "field": "spec", "message": "expected an object,\x1b[2J got 5"} for line in range(9)],
    "broken": True,
}


def test_manifests_with_problems_are_the_last_block() -> None:
    made = live(*START)
    made.take_manifests([BROKEN])
    rows = shown(made, 18.5)
    assert len(rows) == 24
    assert rows[-7:] == [
        "-- manifests -------------------------------------------------------------------",
        "manifest /m/web.yaml has 9 problems; of its last good version default/web-node ~",
        "  line 0: spec: expected an object,?[2J got 5",
        "  line 1: spec: expected an object,?[2J got 5",
        "  line 2: spec: expected an object,?[2J got 5",
        "  line 3: spec: expected an object,?[2J got 5",
        KEYS,
    ]
    made.take_manifests([])
    assert "-- manifests" not in "".join(shown(made, 18.5))


@given(st.integers(1, 200), st.integers(1, 60))
def test_manifests_with_problems_leave_the_screen_its_size(columns: int, lines: int) -> None:
    made = live(*START)
    made.take_manifests([BROKEN] * 20)
    assert len(shown(made, 18.5, columns, lines)) == lines
