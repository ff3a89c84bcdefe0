"""What the probes say now, and who learns that it is something new."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trikubelet.container.model import ContainerID
from trikubelet.container.probe_results import ProbeResult
from trikubelet.probes.results import NO_RESULTS, ProbeResultBook
from trikubelet.probes.types import ProbeKind

A, B = ContainerID("test", "a"), ContainerID("test", "b")
LIVENESS, READINESS, STARTUP = ProbeKind.LIVENESS, ProbeKind.READINESS, ProbeKind.STARTUP
SUCCESS, FAILURE, UNKNOWN = ProbeResult.SUCCESS, ProbeResult.FAILURE, ProbeResult.UNKNOWN


def test_of_a_pod_that_nobody_probed_nothing_is_known() -> None:
    book = ProbeResultBook()
    assert book.of_pod("u") is NO_RESULTS
    assert book.get("u", LIVENESS, A) is None
    assert len(book) == 0


def test_each_reader_gets_its_part() -> None:
    book = ProbeResultBook()
    book.set("u", LIVENESS, A, FAILURE)
    book.set("u", READINESS, A, SUCCESS)
    book.set("u", READINESS, B, FAILURE)
    book.set("u", STARTUP, A, SUCCESS)
    book.set("u", STARTUP, B, UNKNOWN)
    book.set("other", LIVENESS, B, FAILURE)
    results = book.of_pod("u")
    assert results.plan.liveness == {A: FAILURE}
    assert results.plan.startup == {A: SUCCESS, B: UNKNOWN}
    assert results.outcomes.readiness == {"test://a": True, "test://b": False}
    assert results.outcomes.startup == {"test://a": True, "test://b": False}
    assert book.get("u", STARTUP, B) is UNKNOWN
    assert len(book) == 6


def test_only_another_result_is_news() -> None:
    book = ProbeResultBook()
    assert book.set("u", LIVENESS, A, SUCCESS)
    assert not book.set("u", LIVENESS, A, SUCCESS)
    assert book.set("u", LIVENESS, A, FAILURE)
    assert book.set("u", LIVENESS, B, FAILURE)
    assert book.set("u", READINESS, A, FAILURE)


def test_a_reader_gets_the_same_object_until_something_changes() -> None:
    book = ProbeResultBook()
    book.set("u", LIVENESS, A, SUCCESS)
    first = book.of_pod("u")
    assert book.of_pod("u") is first
    book.set("u", LIVENESS, A, SUCCESS)
    book.set("other", LIVENESS, A, FAILURE)
    book.forget("u", LIVENESS, B)
    assert book.of_pod("u") is first

    book.set("u", LIVENESS, A, FAILURE)
    second = book.of_pod("u")
    assert second is not first
    assert first.plan.liveness == {A: SUCCESS}
    assert second.plan.liveness == {A: FAILURE}


def test_readiness_is_no_news_for_the_plan() -> None:
    book = ProbeResultBook()
    book.set("u", LIVENESS, A, SUCCESS)
    before = book.of_pod("u")
    book.set("u", READINESS, A, SUCCESS)
    after = book.of_pod("u")
    assert after.plan is before.plan
    assert after.outcomes != before.outcomes


def test_what_changed_back_before_anybody_read_it_is_no_news() -> None:
    book = ProbeResultBook()
    book.set("u", READINESS, A, SUCCESS)
    before = book.of_pod("u")
    book.set("u", READINESS, A, FAILURE)
    book.set("u", READINESS, A, SUCCESS)
    assert book.of_pod("u") is before


def test_a_forgotten_result_leaves_the_others_alone() -> None:
    book = ProbeResultBook()
    for kind in ProbeKind:
        book.set("u", kind, A, SUCCESS)
    book.set("u", LIVENESS, B, SUCCESS)
    before = book.of_pod("u")
    book.forget("u", LIVENESS, A)
    assert book.get("u", LIVENESS, A) is None
    assert book.get("u", READINESS, A) is SUCCESS
    after = book.of_pod("u")
    assert after is not before
    assert after.plan.liveness == {B: SUCCESS}


def test_the_last_result_of_a_pod_takes_the_pod_with_it() -> None:
    book = ProbeResultBook()
    book.set("u", LIVENESS, A, SUCCESS)
    assert book.of_pod("u") is not NO_RESULTS
    book.forget("u", LIVENESS, A)
    assert book.of_pod("u") is NO_RESULTS
    book.forget("u", LIVENESS, A)

    book.set("u", READINESS, A, SUCCESS)
    book.set("u", LIVENESS, A, SUCCESS)
    book.set("other", LIVENESS, A, SUCCESS)
    book.forget_pod("u")
    book.forget_pod("u")
    assert book.of_pod("u") is NO_RESULTS
    assert len(book) == 1


changes = st.tuples(
    st.sampled_from(["u", "v"]),
    st.sampled_from(ProbeKind),
    st.sampled_from([A, B]),
    st.sampled_from([*ProbeResult, None]),
)


@given(st.lists(changes))
def test_a_reader_sees_a_new_object_exactly_when_the_content_is_new(
    story: list[tuple[str, ProbeKind, ContainerID, ProbeResult | None]],
) -> None:
    book = ProbeResultBook()
    known: dict[tuple[str, ProbeKind, ContainerID], ProbeResult] = {}
    for uid, kind, container_id, result in story:
        before = book.of_pod(uid)
        if result is None:
            book.forget(uid, kind, container_id)
            known.pop((uid, kind, container_id), None)
        else:
            news = known.get((uid, kind, container_id)) is not result
            assert book.set(uid, kind, container_id, result) is news
            known[uid, kind, container_id] = result
        after = book.of_pod(uid)
        assert (after is before) is (after == before)
        assert after.plan.liveness == {
            id_: one for (pod, of, id_), one in known.items() if (pod, of) == (uid, LIVENESS)
        }
        assert len(book) == len(known)
