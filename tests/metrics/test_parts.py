"""The parts that only metrics have, and the bounds of what labels may say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.api import PodStatus, from_dict
from trikubelet.metrics.health_checks import HealthChecks
from trikubelet.metrics.http_requests import PATHS, RequestCounts, path_label
from trikubelet.metrics.node import boot_times
from trikubelet.metrics.runtime import operation_type
from trikubelet.node.startup import NodeStartup
from trikubelet.runtime.metrics import image_size_word
from trikubelet.status.metrics import StatusMetrics

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rpc", "operation"),
    [
        ("Version", "version"),
        ("RunPodSandbox", "run_podsandbox"),
        ("ListPodSandboxStats", "list_podsandbox_stats"),
        ("PodSandboxStatus", "podsandbox_status"),
        ("UpdatePodSandboxResources", "update_podsandbox_resources"),
        ("ListPodSandboxMetrics", "list_podsandbox_metrics"),
        ("UpdateContainerResources", "update_container"),
        ("ReopenContainerLog", "reopen_container_log"),
        ("ExecSync", "exec_sync"),
        ("PortForward", "port_forward"),
        ("GetContainerEvents", "get_container_events"),
        ("ImageFsInfo", "image_fs_info"),
        ("UpdateRuntimeConfig", "update_runtime_config"),
    ],
)
def test_calls_have_the_kubelets_names(rpc: str, operation: str) -> None:
    assert operation_type(rpc) == operation


@pytest.mark.parametrize(
    ("size", "word"),
    [(0, "N/A"), (1, "0-10MB"), (10 * 2**20, "0-10MB"), (10 * 2**20 + 1, "10MB-100MB"), (2**40, "GT100GB")],
)
def test_images_are_told_apart_by_their_size(size: int, word: str) -> None:
    assert image_size_word(size) == word


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/pods", "pods"),
        ("/metrics", "metrics"),
        ("/metrics/", "metrics"),
        ("/metrics/cadvisor", "metrics/cadvisor"),
        ("/metrics/secret", "other"),
        ("/exec/default/web/main", "exec"),
        ("/logs/../../etc", "logs"),
        ("/", "other"),
        ("", "other"),
        ("/favicon.ico", "other"),
    ],
)
def test_paths_are_told_apart_by_their_first_part(path: str, label: str) -> None:
    assert path_label(path) == label


@given(st.text())
def test_no_path_makes_a_label_of_its_own(path: str) -> None:
    assert path_label(path) in PATHS | {"other"}


async def test_requests_are_counted_while_they_last(autojump_clock: MockClock) -> None:
    counts = RequestCounts()
    labels = ("GET", "exec", "readwrite", "true")
    with counts.request("GET", "/exec/default/web/main"):
        assert counts.in_flight[labels] == 1
        await trio.sleep(3)
    with pytest.raises(ConnectionError), counts.request("BREW", "/exec"):
        raise ConnectionError
    assert counts.requests == {labels: 1, ("other", *labels[1:]): 1}
    assert not any(counts.in_flight.values())
    assert counts.durations[labels].sum == 3


def test_health_checks_count_whoever_asks_until_they_are_reset() -> None:
    problems = {"ping": None, "pleg": "it is stuck"}
    checks = HealthChecks(lambda: problems)
    checks.check()
    checks.observe("pleg", True)
    assert checks.results == {"ping": True, "pleg": True}
    assert checks.counts == {("ping", "success"): 1, ("pleg", "error"): 1, ("pleg", "success"): 1}
    checks.reset()
    assert not checks.results
    assert not checks.counts


def ended(code: int, reason: str) -> PodStatus:
    state = {"terminated": {"exitCode": code, "reason": reason}}
    return from_dict(PodStatus, {"containerStatuses": [status_of("main", state)]})


def status_of(name: str, state: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "state": state, "image": "i", "imageID": "", "ready": False, "restartCount": 0}


def test_an_end_is_counted_once() -> None:
    metrics, running = StatusMetrics(), PodStatus()
    first = ended(137, "OOMKilled")
    metrics.changed(running, first)
    metrics.changed(first, attrs.evolve(first, phase="Failed"))
    assert metrics.ends == {("container", "137", "OOMKilled"): 1}


@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.text(max_size=5)), max_size=30))
def test_no_runtime_makes_labels_without_end(ends: list[tuple[int, str]]) -> None:
    metrics = StatusMetrics()
    for code, reason in ends:
        metrics.changed(PodStatus(), ended(code, reason))
    for _, code_label, reason_label in metrics.ends:
        assert code_label == "other" or 0 <= int(code_label) <= 255
        assert reason_label in ("other", "", "Error", "Completed")


@pytest.mark.parametrize(
    ("reason", "label"),
    [("OutOfcpu", "OutOfcpu"), ("OutOfexample.com/gpu", "OutOfExtendedResources"), ("Made up", "Other")],
)
def test_rejections_are_counted_by_known_reasons(reason: str, label: str) -> None:
    metrics = StatusMetrics()
    metrics.rejected(reason)
    assert metrics.rejections == {(label,): 1}


def test_the_start_of_the_machine_and_of_the_process_are_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "stat").write_text("cpu  1 2\nbtime 1700000000\nprocesses 5\n")
    fields = " ".join(["S", *map(str, range(4, 22)), "12345", "0"])
    (tmp_path / "self/stat").write_text(f"17 (a) name (x) {fields}\n")
    times = boot_times(tmp_path)
    assert times is not None
    assert (times.machine, times.agent) == (1700000000, 1700000000 + 123.45)
    (tmp_path / "stat").write_text("nothing")
    assert boot_times(tmp_path) is None


def test_a_node_that_was_there_before_never_becomes_a_new_one() -> None:
    startup = NodeStartup()
    startup.attempt(NOW)
    startup.ready(NOW)
    assert attrs.asdict(startup) == {"attempted_at": NOW, "created_at": None, "ready_at": None}
    startup.created(NOW + timedelta(seconds=1))
    startup.ready(NOW + timedelta(seconds=2))
    startup.ready(NOW + timedelta(seconds=9))
    startup.attempt(NOW + timedelta(seconds=9))
    assert (startup.attempted_at, startup.ready_at) == (NOW, NOW + timedelta(seconds=2))
