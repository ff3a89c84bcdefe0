"""Pages of what was measured, in the order and with the numbers of Go's library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.telemetry.families import Family, Sample
from trikubelet.telemetry.text_format import write_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.telemetry.metrics import Labels


def text_of(families: Iterable[Family]) -> bytes:
    """As `TextFormat.TEXT`: families by name, in each series by their labels, in each of these labels by name. Families
    without series are left out, and of two series with equal labels the second."""
    by_name = sorted(families, key=lambda family: family.name)
    return b"".join(write_text(_in_order(family) for family in by_name if family.samples))


def _in_order(family: Family) -> Family:
    order = sorted(range(len(family.label_names)), key=lambda index: family.label_names[index])
    by_labels: dict[Labels, Sample] = {}
    for sample in family.samples:
        labels = tuple([sample.labels[index] for index in order])
        if labels not in by_labels:
            # To Go every number is a float: `1e+06` also where we count.
            by_labels[labels] = Sample(labels, float(sample.value), sample.at)
    names = tuple(family.label_names[index] for index in order)
    return Family(family.name, family.kind, family.help, names, [by_labels[labels] for labels in sorted(by_labels)])
