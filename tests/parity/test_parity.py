"""The tables of what a kubelet has: whole, true of this code, and the page made of them as it is committed."""

from __future__ import annotations

import itertools
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import pytest

from tests.parity import known, upstream
from tests.parity.emitted import CONTAINER, POD, Emitted, emitted
from tests.parity.kubelet_events import FACTS, Fact
from tests.parity.report import PAGE, page
from tests.parity.source import PACKAGE
from tests.parity.tables import KINDS, Row, is_mentioned, problems, read, unknown, vanished
from trikubelet.config.kubelet_configuration import SUPPORTED

if TYPE_CHECKING:
    from pathlib import Path

OUR_EVENTS = {
    ("FailedSync", "The agent failed in the middle of work on the pod, and begins it again: "),
    ("FailedValidation", "Error reading pod "),
    ("StuckTerminating", "The pod has not ended within "),
    ("HostPortNotMapped", ""),
    ("InvalidManifest", ""),
    ("ManifestMended", ""),
}
"""Of faults that a kubelet does not survive, of objects that it cannot read, of why an end takes long, of a network
that it does not give, and of manifests, of which a kubelet only logs."""


@pytest.mark.parametrize("kind", KINDS)
def test_each_line_says_where_it_is_or_why_not(kind: str) -> None:
    assert list(problems(kind, read(kind))) == []


@pytest.mark.parametrize("kind", upstream.BY_KIND)
def test_each_name_of_the_kubelets_source_has_a_line(kind: str) -> None:
    lines = [row.name for row in read(kind)]
    assert [name for name in upstream.names(kind) if not any(covers(line, name) for line in lines)] == []


def covers(line: str, name: str) -> bool:
    """The line of a name, of a group of names, or of a part of what is named."""
    return fnmatchcase(name, line) or line.startswith(f"{name}.")


def test_names_are_read_from_the_kubelets_source(tmp_path: Path) -> None:
    for path, text in {
        "cmd/kubelet/app/options/options.go": 'fs.StringVar(&f.X, "node-ip", f.X, "The")\nfs.VarP(x, "v", "v", "")\n',
        "pkg/features/kube_features.go": 'A featuregate.Feature = "AGate"\n\tB featuregate.Feature = "BGate"\n',
        "pkg/kubelet/kubelet.go": "utilfeature.DefaultFeatureGate.Enabled(features.A)\n",
        "pkg/kubelet/kubelet_test.go": "features.B\n",
        "staging/src/k8s.io/kubelet/config/v1beta1/types.go": (
            'type KubeletConfiguration struct {\n\tA int `json:"a,omitempty"`\n}\n'
        ),
        "test/instrumentation/documentation/documentation-list.yaml": (
            "- {name: a, subsystem: kubelet, componentEndpoints: [{component: kubelet}]}\n"
            "- {name: b, componentEndpoints: [{component: kube-proxy}]}\n"
        ),
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert {kind: read(tmp_path) for kind, read in upstream.BY_KIND.items()} == {
        "fields": {"KubeletConfiguration.a"},
        "flags": {"node-ip", "v"},
        "gates": {"AGate"},
        "metrics": {"kubelet_a"},
    }


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "fields"])
def test_what_the_agent_has_is_in_the_table_and_what_the_table_has_is_there(kind: str) -> None:
    rows, there = read(kind), known.BY_KIND[kind]()
    assert unknown(rows, there) == [], "the agent has it, and no line says where"
    assert vanished(rows, there) == [], "a line says where it is, and the agent has it not"


def test_each_field_that_the_agent_knows_has_a_line() -> None:
    rows, there = read("fields"), known.fields()
    assert there - {row.name for row in rows} == set(), "it is known, and has no line"
    assert vanished(rows, there) == [], "a line says where it is, and it is not known"


def test_no_field_is_left_out_that_the_code_reads() -> None:
    here = {row.name for row in read("fields") if row.is_here}
    code = "".join(path.read_text() for path in PACKAGE.rglob("*.py") if PACKAGE / "api" not in path.parents)
    chains = (chain.split(".") for chain in set(re.findall(r"\w+(?:\.\w+)+", code)))
    written = {f"{holder}.{name}" for chain in chains for holder, name in itertools.pairwise(chain)}
    assert {
        name for how, names in known.accesses().items() if how in written and not names & here for name in names
    } == set()


def test_the_fields_of_the_configuration_that_have_an_effect_are_those_of_the_table() -> None:
    names = [row.name.split(".") for row in read("fields") if row.is_here]
    assert {name[1] for name in names if name[0] == "KubeletConfiguration"} == SUPPORTED


def test_the_page_is_made_of_the_tables() -> None:
    assert PAGE.read_text() == page({kind: read(kind) for kind in KINDS}), "run `make parity`"


def test_each_reason_of_the_kubelet_has_a_line() -> None:
    assert {fact.reason for fact in FACTS} - {row.name for row in read("events")} == set()


def test_every_event_has_a_reason_and_a_type_that_the_source_tells() -> None:
    assert [event for event in emitted() if event.reason is None or event.type is None] == []


def test_every_event_is_one_of_the_kubelets() -> None:
    """With its type, about the same kind of object, and beginning with the same words."""
    others = [event for event in emitted() if not any(is_as(event, fact) for fact in FACTS)]
    assert {(event.reason, event.text) for event in others} == OUR_EVENTS


def is_as(event: Emitted, fact: Fact) -> bool:
    about = {fact.about, POD} if fact.about == CONTAINER else {fact.about}
    begins_alike = event.text.startswith(fact.text) or fact.text.startswith(event.text.rstrip())
    return event.reason == fact.reason and event.type == fact.type and event.about in about and begins_alike


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (Emitted("Killing", "Normal", "container", "Stopping", ""), True),
        (Emitted("Killing", "Warning", "container", "", ""), False),
        (Emitted("Killing", "Normal", "node", "", ""), False),
        (Emitted("FailedToCreatePodContainer", "Warning", "pod", "", ""), False),
        (Emitted("BackOff", "Warning", "container", "Back-off pulling image ", ""), False),
        (Emitted("BackOff", "Normal", "pod", "Back-off pulling image ", ""), True),
    ],
)
def test_events_that_differ_from_the_kubelets_would_be_found(event: Emitted, found: bool) -> None:
    assert any(is_as(event, fact) for fact in FACTS) is found


def test_events_are_found_through_wrappers_variables_and_other_modules() -> None:
    """One of each way in which the agent names a reason."""
    found = {(event.reason, event.type, event.about) for event in emitted()}
    assert found >= {
        ("Killing", "Normal", "container"),
        ("Pulled", "Normal", "container"),  # through a function that is given the reason
        ("NodeNotSchedulable", "Normal", "node"),  # by a condition
        ("FailedMapVolume", "Warning", "pod"),  # returned by a function elsewhere
        ("PodOSNotSupported", "Warning", "pod"),  # a verdict
        ("Denied", "Warning", "pod"),  # of a condition
        ("FileSystemResizeSuccessful", "Normal", "claim"),  # of what pods use
        ("FailedMountOnFilesystemMismatch", "Warning", "volume"),
        ("NodeHasDiskPressure", "Normal", "node"),
        ("Rebooted", "Warning", "node"),
    }


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([Row("maxPods")], "neither where it is nor why not"),
        ([Row("maxPods", "agent/none.py")], "there is no agent/none.py"),
        ([Row("maxPods", "agent.py")], "does not mention it"),
        ([Row("maxPods", "agent.py", "in another word")], ""),
        ([Row("podsPerCore", "agent.py")], ""),
        ([Row("podsPerCore", "", "ours")], "what is ours is somewhere"),
        ([Row("podsPerCore", "", "not yet: soon")], "is no reason"),
        ([Row("podsPerCore", "agent.py", "Not yet all of it")], "is no reason"),
        ([Row("b", "", "left out"), Row("a", "", "left out")], "in order"),
        ([Row("a", "", "left out"), Row("a", "", "left out")], "each once"),
    ],
)
def test_a_wrong_line_would_be_found(tmp_path: Path, rows: list[Row], problem: str) -> None:
    (tmp_path / "agent.py").write_text("configuration.pods_per_core\n")
    found = list(problems("fields", rows, tmp_path))
    assert len(found) == bool(problem)
    assert all(problem in one for one in found)


@pytest.mark.parametrize(
    ("kind", "name", "text", "mentioned"),
    [
        ("fields", "KubeletConfiguration.kubeAPIQPS", "options.kube_api_qps", True),
        ("fields", "PodSpec.os", "cosmos", False),
        ("flags", "node-ip", '"--node-ip"', True),
        ("flags", "v", '"-v", "--v"', True),
        ("metrics", "container_fs_sector_reads_total", '("sector_reads_total", …)', True),
        ("metrics", "container_fs_sector_reads_total", "reads_total", False),
        ("events", "OutOf*", 'f"OutOf{resource}"', True),
        ("events", "Failed", '"FailedMount"', False),
        ("endpoints", "GET /pods", '"/pods"', True),
        ("endpoints", "POST /run/{namespace}", 'f"/run/{place}"', True),
    ],
)
def test_names_are_looked_for_as_code_writes_them(kind: str, name: str, text: str, mentioned: bool) -> None:
    assert is_mentioned(kind, name, text) is mentioned


def test_a_file_of_another_shape_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flags.csv").write_text("name,where\nv,a.py\n")
    with pytest.raises(ValueError, match="expected the columns"):
        read("flags", tmp_path)
    (tmp_path / "flags.csv").write_text("name,where,note\nv,a.py\n")
    with pytest.raises(ValueError, match="line 2"):
        read("flags", tmp_path)
