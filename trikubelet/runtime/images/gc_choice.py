"""The choice of images to remove. Pure; the rules are the kubelet's (`image_gc_manager.go`).

An image may go when no container, ended ones included, was made of it or has it mounted, and when the runtime does not
pin it. Those that were not used for the longest time go first; of those that were never seen in use, the ones that have
been there longest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

_UNITS: Final = ("KiB", "MiB", "GiB")


@frozen
class ImageGCPolicy:
    """When images are removed. Ages in seconds."""

    high_threshold_percent: int = 85
    """Use of the file system from which on images are removed; 100: never (imageGCHighThresholdPercent)."""
    low_threshold_percent: int = 80
    """Use that is then aimed at (imageGCLowThresholdPercent)."""
    min_age: float = 120.0
    """Images that were first seen more recently stay (imageMinimumGCAge)."""
    max_age: float = 0.0
    """Images unused for longer go, full disk or not; 0: never (imageMaximumGCAge)."""

    @property
    def collects(self) -> bool:
        """False when no image is ever removed for age or space."""
        return self.high_threshold_percent < 100 or self.max_age > 0


@frozen
class SeenImage:
    """An image as the runtime lists it."""

    id: str
    size: int
    """Bytes."""
    pinned: bool = False
    names: frozenset[str] = frozenset()
    """Tags and digests."""


@frozen
class ImageRecord:
    """An image, and since when it is known. Moments in seconds of whatever clock the caller uses."""

    image: SeenImage
    first_detected: float
    last_used: float | None = None
    """When it was last seen in use, None for never."""


@frozen
class DiskSpace:
    """Size and free space of the file system that holds the images, in bytes."""

    capacity: int
    available: int

    @property
    def usage_percent(self) -> int:
        return 100 - min(self.available, self.capacity) * 100 // self.capacity

    def bytes_to_free(self, policy: ImageGCPolicy) -> int | None:
        """How much is to go, None while the use is below the high threshold."""
        if self.usage_percent < policy.high_threshold_percent:
            return None
        return self.capacity * (100 - policy.low_threshold_percent) // 100 - min(self.available, self.capacity)


def used_images(images: Iterable[SeenImage], references: Collection[str]) -> frozenset[str]:
    """The ids of the images that are meant by what containers say they were made of."""
    wanted = frozenset(references)
    return frozenset(image.id for image in images if image.id in wanted or not wanted.isdisjoint(image.names))


def detect(
    records: Mapping[str, ImageRecord], images: Iterable[SeenImage], used: Collection[str], now: float
) -> dict[str, ImageRecord]:
    """The records by id after one more look at the node; `used` are ids."""
    found = {}
    for image in images:
        known = records.get(image.id) or ImageRecord(image, first_detected=now)
        found[image.id] = attrs.evolve(known, image=image, last_used=now if image.id in used else known.last_used)
    return found


def in_order_of_removal(records: Iterable[ImageRecord], used: Collection[str]) -> list[ImageRecord]:
    """The images that may go, the first to go first."""
    candidates = [record for record in records if record.image.id not in used and not record.image.pinned]
    return sorted(candidates, key=_age)


def too_old(candidates: Sequence[ImageRecord], policy: ImageGCPolicy, *, now: float, began: float) -> list[ImageRecord]:
    """The images to remove for their age. None before the agent, which runs since `began`, is that old itself."""
    if policy.max_age == 0 or now - began <= policy.max_age:
        return []
    return [one for one in candidates if one.last_used is None or now - one.last_used > policy.max_age]


def old_enough(candidates: Sequence[ImageRecord], policy: ImageGCPolicy, *, now: float) -> list[ImageRecord]:
    """The images that may go to free space: a younger one may just have been pulled, for a container to come."""
    return [one for one in candidates if now - one.first_detected >= policy.min_age]


def insufficient_space(space: DiskSpace, freed: int) -> str:
    """The event's message when too little could be freed."""
    return (
        f"Insufficient free disk space on the node's image filesystem ({space.usage_percent}% of "
        f"{describe_size(space.capacity)} used). Failed to free sufficient space by deleting unused images "
        f"(freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, "
        "or other data."
    )


def describe_size(size: int) -> str:
    """Bytes with one decimal in the unit that fits: `512 B`, `1.0 GiB`."""
    if size < 1024:
        return f"{size} B"
    value = size / 1024
    for unit in _UNITS:
        if value < 1024:
            return f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def describe_problems(problems: Sequence[str]) -> str:
    """Several errors as Go's `errors.Aggregate` prints them: each text once, in brackets where there are more."""
    distinct = list(dict.fromkeys(problems))
    return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"


def _age(record: ImageRecord) -> tuple[float, float, str]:
    """The id makes the order the same every time."""
    used = float("-inf") if record.last_used is None else record.last_used
    return used, record.first_detected, record.image.id
