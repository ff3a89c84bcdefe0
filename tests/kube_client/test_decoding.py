"""What is decoded again, and what is not."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.api import ConfigMap, Node, Pod, from_dict, to_dict
from trikubelet.kube_client.decoding import Known, decode_answer, decode_event, decode_item
from trikubelet.kube_client.types import PODS, Undecodable, WatchEvent

REQUEST = "GET /api/v1/pods"
SPEC = {"containers": [{"name": "a", "image": "i", "env": [{"name": "N", "value": "1"}]}], "futureField": {"x": [1]}}


def pod(version: str = "1", uid: str = "u", phase: str = "Pending", **fields: Any) -> dict[str, Any]:
    metadata = {"name": "a", "namespace": "default", "uid": uid, "resourceVersion": version}
    return {"kind": "Pod", "metadata": metadata, "spec": SPEC, "status": {"phase": phase}, **fields}


def event(document: dict[str, Any], known: Known) -> Any:
    line = json.dumps({"type": "MODIFIED", "object": document}).encode()
    found = decode_event(PODS, line, REQUEST, known)
    assert isinstance(found, WatchEvent)
    return found.object


def test_the_answer_to_a_write_is_what_the_watch_tells_of_then() -> None:
    known = Known()
    answer = decode_answer(Pod, json.dumps(pod()).encode(), REQUEST, known)
    assert event(pod(), known) is answer
    assert event(pod(uid="another"), known) is not answer
    assert decode_item(Pod, pod(), Known()) is not answer


def test_versions_of_a_pod_have_one_spec() -> None:
    known = Known()
    first, second = event(pod(), known), event(pod("2", phase="Running"), known)
    assert second == from_dict(Pod, pod("2", phase="Running"))
    assert second.spec is first.spec
    assert to_dict(second)["spec"]["futureField"] == {"x": [1]}
    third = event(pod("3", spec={**SPEC, "futureField": {"x": [True]}}), known)
    assert third.spec is not first.spec
    assert third.spec.unknown_fields == {"futureField": {"x": [True]}}


def test_what_nobody_has_is_forgotten() -> None:
    known = Known()
    first = event(pod(), known)
    assert (len(known._objects), len(known._specs)) == (1, 1)
    del first
    gc.collect()
    assert (len(known._objects), len(known._specs)) == (0, 0)


@pytest.mark.parametrize("metadata", [{"uid": "u"}, {"resourceVersion": "1"}, {"uid": "", "resourceVersion": "1"}])
def test_what_has_no_version_is_decoded_each_time(metadata: dict[str, Any]) -> None:
    known = Known()
    one, other = (decode_item(ConfigMap, {"metadata": metadata, "data": {"a": "b"}}, known) for _ in range(2))
    assert one == other
    assert one is not other


def test_classes_do_not_meet() -> None:
    known = Known()
    document = {"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": {}}
    found = [decode_item(cls, document, known) for cls in (Pod, Node, ConfigMap)]
    assert [type(one) for one in found] == [Pod, Node, ConfigMap]
    assert found[2].unknown_fields == {"spec": {}}  # type: ignore[union-attr]


def test_what_cannot_be_read_is_so_each_time() -> None:
    known = Known()
    broken = pod(spec={"containers": "none"})
    for _ in range(2):
        found = decode_item(Pod, json.loads(json.dumps(broken)), known)
        assert isinstance(found, Undecodable)
        assert [problem.path for problem in found.problems] == ["spec.containers"]
    assert isinstance(decode_item(Pod, pod(), known), Pod)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.integers(1, 3), st.dictionaries(st.sampled_from(("x", "y")), values)), max_size=6))
def test_a_version_is_decoded_as_if_nothing_were_known(versions: list[tuple[int, dict[str, Any]]]) -> None:
    known, kept = Known(), []
    for number, (uid, more) in enumerate(versions):
        document = pod(str(number), uid=f"u{uid}", spec={**SPEC, **more})
        kept.append(event(document, known))
        assert kept[-1] == decode_item(Pod, json.loads(json.dumps(document)), Known())
        assert to_dict(kept[-1]) == to_dict(from_dict(Pod, json.loads(json.dumps(document))))
