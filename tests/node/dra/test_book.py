"""Which claims are prepared, and for which pods (`claiminfo_test.go`)."""

from __future__ import annotations

import pytest

from trikubelet.node.dra.book import ANY_DRIVER, ClaimBook
from trikubelet.node.dra.model import ClaimDevice, ClaimState
from trikubelet.runtime.sandboxes.sandbox import ResourceClaimError

C = ClaimState("c-uid", "c", "ns", drivers={"x": ()})
D = ClaimState("d-uid", "d", "ns", drivers={"x": (), "y": ()})
DEVICE = ClaimDevice("pool", "one", cdi_ids=("a/b=1",))


def test_a_claim_has_to_be_prepared_until_it_was() -> None:
    book = ClaimBook()
    assert [claim.name for claim in book.enter("p", [C, D])] == ["c", "d"]
    assert [claim.name for claim in book.enter("p", [C, D])] == ["c", "d"], "the first attempt has failed"
    book.set_prepared(C.key, {"x": (DEVICE,)})
    assert [claim.name for claim in book.enter("q", [C, D])] == ["d"]
    assert [(claim.name, sorted(claim.pods)) for claim in book] == [("c", ["p", "q"]), ("d", ["p", "q"])]
    assert book.pods() == {"p", "q"}
    assert book.used_by("p") == list(book)


def test_the_last_pod_has_it_undone() -> None:
    book = ClaimBook()
    book.enter("p", [C, D])
    book.enter("q", [C])
    book.set_prepared(C.key, {})
    assert [claim.name for claim in book.leave("p", [C.key, D.key])] == ["d"]
    assert book.leave("p", [C.key]) == [], "it does not use it any more, and another does"
    (last,) = book.leave("q", [C.key])
    assert (last.name, last.prepared, last.pods) == ("c", False, frozenset({"q"}))
    assert book.used_by("q") == [last], "it is not undone yet"
    book.forget([C.key, D.key, ("ns", "unknown")])
    assert list(book) == []
    assert book.leave("q", [C.key]) == []


def test_one_that_was_to_be_undone_is_prepared_again_for_the_next() -> None:
    book = ClaimBook()
    book.enter("p", [C])
    book.set_prepared(C.key, {})
    book.leave("p", [C.key])
    assert [claim.name for claim in book.enter("q", [C])] == ["c"]
    assert book.leave("p", [C.key]) == []


def test_another_object_of_the_same_name_is_refused() -> None:
    book = ClaimBook([C])
    with pytest.raises(ResourceClaimError, match="same name c and different UID c-uid still exists"):
        book.enter("p", [D, ClaimState("newer", "c", "ns")])
    assert list(book) == [C], "all or none"
    book.enter("p", [ClaimState("other", "c", "elsewhere")])


def test_claims_of_an_earlier_agent_are_not_known_to_be_prepared() -> None:
    book = ClaimBook([C])
    assert [claim.name for claim in book.enter("p", [C])] == ["c"]


@pytest.mark.parametrize(
    ("request_", "ids"),
    [("", ["1", "2", "3"]), ("r1", ["1", "3"]), ("r2", ["2", "3"]), ("unknown", ["3"])],
)
def test_a_request_gets_its_devices_and_those_of_all_requests(request_: str, ids: list[str]) -> None:
    devices = (
        ClaimDevice("p", "a", ("r1",), ("1",)),
        ClaimDevice("p", "b", ("r2", "r3"), ("2",)),
        ClaimDevice("p", "c", (), ("3",)),
        ClaimDevice("p", "d"),
    )
    claim = ClaimState("u", "c", "ns", drivers={"x": devices, "y": ()})
    assert list(claim.cdi_ids(request_)) == ids


def test_pods_are_found_by_their_devices() -> None:
    book = ClaimBook()
    book.enter("p", [C])
    book.enter("q", [D])
    book.set_prepared(C.key, {"x": (DEVICE,)})
    book.set_prepared(D.key, {"x": (ClaimDevice("pool", "two"),), "y": (DEVICE,)})
    assert book.pods_with("x", [("pool", "one")]) == {"p"}
    assert book.pods_with("x", [("pool", "one"), ("pool", "two")]) == {"p", "q"}
    assert book.pods_with("y", [("pool", "two"), ("other", "one")]) == frozenset()
    assert book.pods_with("z", [("pool", "one")]) == frozenset()


def test_prepared_claims_are_counted_by_driver_and_all_together() -> None:
    book = ClaimBook()
    assert book.in_use() == {ANY_DRIVER: 0}
    book.enter("p", [C, D])
    book.set_prepared(D.key, {})
    assert book.in_use() == {"x": 1, "y": 1, ANY_DRIVER: 1}
    book.set_prepared(C.key, {})
    assert book.in_use() == {"x": 2, "y": 1, ANY_DRIVER: 2}
