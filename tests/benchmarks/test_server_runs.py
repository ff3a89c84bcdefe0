"""The benchmark of the node's API itself, on small numbers: it is not asked how fast anything is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from benchmarks.server import followers, requests
from benchmarks.server.__main__ import log_results, main
from benchmarks.server.logs import MIB, Speed

if TYPE_CHECKING:
    from pathlib import Path


def _aims(tmp_path: Path, *arguments: str) -> dict[str, float]:
    CliRunner().invoke(main, [*arguments, f"--json={tmp_path / 'aims.json'}"], catch_exceptions=False)
    return {aim["aim"]: aim["value"] for aim in json.loads((tmp_path / "aims.json").read_text())}


@pytest.mark.night
def test_logs_are_read_by_every_kind_of_socket_and_query(tmp_path: Path) -> None:
    aims = _aims(tmp_path, "--only=logs", "--size=2", "--rounds=1")
    assert len(aims) == 12
    assert min(aims.values()) > 0


@pytest.mark.night
def test_followers_are_seen_to_get_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "IDLE", 0.1)
    monkeypatch.setattr(followers, "STEADY_LINES", 10)
    aims = _aims(tmp_path, "--only=followers", "--follow=2", "--followers=3", "--rotations=2")
    lost = {aim: value for aim, value in aims.items() if "lost or doubled" in aim}
    assert len(lost) == 3
    assert set(lost.values()) == {0}


@pytest.mark.night
def test_handshakes_new_tokens_and_pages_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "SETTLE", 0.1)
    aims = _aims(tmp_path, "--only=requests", "--pods=2", "--requests=5")
    assert "/healthz with a new token: answered in" in aims
    assert len(aims) == 8
    assert min(aims.values()) > 0


@pytest.mark.night
@pytest.mark.root
def test_commands_are_timed_on_the_embedded_runtime(tmp_path: Path) -> None:
    aims = _aims(tmp_path, "--only=exec", "--runtime=embedded", "--commands=2")
    assert list(aims) == [
        "exec on embedded by spdy: beyond the direct call",
        "exec on embedded by websocket: beyond the direct call",
    ]


def test_logs_may_be_slow_where_cat_is() -> None:
    quick, slow = (Speed("TLS", "plain", 100 * MIB, 1.5, seconds_of_cat, 0.5) for seconds_of_cat in (0.2, 1.0))
    assert [result.met for result in log_results([quick, slow])] == [False, True]
