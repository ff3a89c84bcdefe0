from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.list_cache import EntryCache, RawReply, entry_key, split_entries

MAP_TAGS = frozenset({(8 << 3) | 2, (9 << 3) | 2})

maps = st.dictionaries(st.text(max_size=5), st.text(max_size=200), max_size=4)
containers = st.builds(
    v1.Container,
    id=st.text(max_size=70),
    metadata=st.builds(v1.ContainerMetadata, name=st.text(max_size=5), attempt=st.integers(0, 2**32 - 1)),
    state=st.sampled_from(list(v1.ContainerState)),
    created_at=st.integers(-(2**63), 2**63 - 1),
    labels=maps,
    annotations=maps,
)


def cache() -> EntryCache[v1.Container]:
    return EntryCache(v1.Container.FromString, map_fields=(8, 9))


def shuffled(container: v1.Container, seed: int) -> v1.Container:
    """The same container, its maps written in another order."""
    order = random.Random(seed)
    labels, annotations = list(container.labels.items()), list(container.annotations.items())
    order.shuffle(labels)
    order.shuffle(annotations)
    copy = v1.Container.FromString(bytes(container))
    copy.labels, copy.annotations = dict(labels), dict(annotations)
    return copy


def reply(*items: v1.Container) -> bytes:
    return bytes(v1.ListContainersResponse(containers=list(items)))


@given(st.lists(containers, max_size=5))
def test_entries_are_what_a_full_parse_gives(items: list[v1.Container]) -> None:
    assert (
        cache().entries(reply(*items), complete=True) == v1.ListContainersResponse.FromString(reply(*items)).containers
    )


@given(containers, st.integers())
def test_the_order_of_labels_does_not_make_an_entry_new(container: v1.Container, seed: int) -> None:
    assert entry_key(bytes(container), MAP_TAGS) == entry_key(bytes(shuffled(container, seed)), MAP_TAGS)


@given(containers, containers)
def test_different_entries_have_different_keys(one: v1.Container, other: v1.Container) -> None:
    same = entry_key(bytes(one), MAP_TAGS) == entry_key(bytes(other), MAP_TAGS)
    assert same == (one == other)


def test_an_unchanged_entry_is_the_same_object() -> None:
    lists = cache()
    web = v1.Container(id="web", labels={"a": "1", "b": "2"})
    job = v1.Container(id="job")
    (first_web, first_job) = lists.entries(reply(web, job), complete=True)
    job.state = v1.ContainerState.CONTAINER_EXITED
    web.labels = {"b": "2", "a": "1"}
    (second_job, second_web) = lists.entries(reply(job, web), complete=True)
    assert second_web is first_web
    assert second_job is not first_job
    assert second_job.state == v1.ContainerState.CONTAINER_EXITED
    assert (lists.statistics().hits, lists.statistics().parses) == (1, 3)


def test_only_the_last_complete_reply_is_remembered() -> None:
    lists = cache()
    web, job = v1.Container(id="web"), v1.Container(id="job")
    (before,) = lists.entries(reply(web), complete=True)
    lists.entries(reply(job), complete=True)
    assert len(lists) == 1
    (after,) = lists.entries(reply(web), complete=True)
    assert after is not before


def test_a_filtered_reply_uses_the_memory_but_does_not_replace_it() -> None:
    lists = cache()
    web, job = v1.Container(id="web"), v1.Container(id="job")
    known = lists.entries(reply(web, job), complete=True)
    (filtered,) = lists.entries(reply(job), complete=False)
    assert filtered is known[1]
    lists.entries(reply(v1.Container(id="new")), complete=False)
    assert len(lists) == 2


def test_fields_that_are_no_entries_are_skipped() -> None:
    strange = b"\x10\x96\x01" + b"\x1a\x02hi" + b"\x25abcd" + b"\x29abcdefgh" + b"\x0a\x03abc"
    assert split_entries(strange) == [b"abc"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x0a\x05abc", "ends early"),
        (b"\x0a", "within a number"),
        (b"\x0a\xff", "within a number"),
        (b"\x0b", "wire type 3"),
        (b"\xff" * 11, "longer than 10 bytes"),
        (b"\x0a\x03\x42\x05a", "reaches to byte"),
    ],
)
def test_nonsense_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        cache().entries(data, complete=True)


def test_a_raw_reply_keeps_its_bytes() -> None:
    assert RawReply.FromString(b"abc").SerializeToString() == b"abc"
