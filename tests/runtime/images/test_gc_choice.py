"""Which images go, and in which order."""

from __future__ import annotations

import pytest

from trikubelet.runtime.images.gc_choice import (
    DiskSpace,
    ImageGCPolicy,
    ImageRecord,
    SeenImage,
    describe_problems,
    describe_size,
    detect,
    in_order_of_removal,
    insufficient_space,
    old_enough,
    too_old,
    used_images,
)

GIB = 2**30


def image(name: str, *, size: int = 100, pinned: bool = False) -> SeenImage:
    return SeenImage(f"sha256:{name}", size, pinned, frozenset({f"docker.io/library/{name}:1", f"{name}@sha256:d"}))


def record(
    name: str, first_detected: float = 0, last_used: float | None = None, *, pinned: bool = False
) -> ImageRecord:
    return ImageRecord(image(name, pinned=pinned), first_detected, last_used)


def names(records: list[ImageRecord]) -> list[str]:
    return [one.image.id.removeprefix("sha256:") for one in records]


def test_images_are_in_use_by_id_or_digest_not_by_a_short_name() -> None:
    images = [image("a"), image("b"), image("c")]
    assert used_images(images, {"sha256:a", "b@sha256:d", "c", ""}) == {"sha256:a", "sha256:b"}


def test_a_record_begins_when_an_image_is_first_seen_and_ends_with_it() -> None:
    first = detect({}, [image("a"), image("b")], {"sha256:a"}, now=10)
    assert first == {"sha256:a": record("a", 10, 10), "sha256:b": record("b", 10)}
    second = detect(first, [image("a", size=7), image("c")], set(), now=20)
    assert second["sha256:a"] == ImageRecord(image("a", size=7), 10, 10)
    assert second["sha256:c"] == record("c", 20)
    assert "sha256:b" not in second


def test_the_longest_unused_goes_first_then_the_longest_there() -> None:
    records = [record("new", 5), record("used", 0, 9), record("used-before", 8, 8), record("old", 1)]
    assert names(in_order_of_removal(records, set())) == ["old", "new", "used-before", "used"]


def test_used_and_pinned_images_never_go() -> None:
    records = [record("used"), record("pinned", pinned=True), record("free")]
    assert names(in_order_of_removal(records, {"sha256:used"})) == ["free"]


@pytest.mark.parametrize(
    ("now", "gone"),
    [(100, []), (101, ["never"]), (150, ["never"]), (151, ["never", "at 50"])],
    ids=["the agent is too young", "never used", "exactly as old", "older"],
)
def test_images_go_for_their_age(now: float, gone: list[str]) -> None:
    candidates = [record("never", 99), record("at 50", 0, 50)]
    assert names(too_old(candidates, ImageGCPolicy(max_age=100), now=now, began=0)) == gone
    assert too_old(candidates, ImageGCPolicy(), now=10**9, began=0) == []


def test_young_images_are_not_removed_for_space() -> None:
    candidates = [record("119 s", 1), record("120 s", 0), record("young but used once", 50, 60)]
    assert names(old_enough(candidates, ImageGCPolicy(), now=120)) == ["120 s"]
    assert len(old_enough(candidates, ImageGCPolicy(min_age=0), now=120)) == 3


@pytest.mark.parametrize(
    ("available", "percent", "wanted"),
    [(1000, 0, None), (2000, 0, None), (151, 85, 49), (160, 84, None), (150, 85, 50), (0, 100, 200)],
)
def test_space_is_freed_down_to_the_low_threshold(available: int, percent: int, wanted: int | None) -> None:
    space = DiskSpace(1000, available)
    assert space.usage_percent == percent
    assert space.bytes_to_free(ImageGCPolicy()) == wanted


@pytest.mark.parametrize(
    ("policy", "collects"),
    [
        (ImageGCPolicy(), True),
        (ImageGCPolicy(high_threshold_percent=100), False),
        (ImageGCPolicy(high_threshold_percent=100, max_age=60), True),
    ],
)
def test_a_policy_may_be_to_remove_nothing(policy: ImageGCPolicy, collects: bool) -> None:
    assert policy.collects == collects


def test_texts_are_those_that_users_know() -> None:
    assert insufficient_space(DiskSpace(GIB, GIB // 10), 5) == (
        "Insufficient free disk space on the node's image filesystem (91% of 1.0 GiB used). Failed to free sufficient "
        "space by deleting unused images (freed 5 bytes). Investigate disk usage, as it could be used by active "
        "images, logs, volumes, or other data."
    )
    sizes = (0, 1023, 1024, 1536 * 1024, GIB, 2**40, 2**50)
    assert [describe_size(size) for size in sizes] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
        "1.0 GiB",
        "1.0 TiB",
        "1024.0 TiB",
    ]
    assert describe_problems(["a", "b", "a"]) == "[a, b]"
    assert describe_problems(["a", "a"]) == "a"
