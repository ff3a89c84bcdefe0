"""Hints: on which NUMA nodes a resource could be given (kubelet: `topologymanager.TopologyHint`).

A set of NUMA nodes is an integer (`trikubelet.formats.cpu_list`). Of two sets the narrower one is that with fewer
nodes, then that with the smaller number: with lower nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

UNEXPECTED: Final = "UnexpectedAdmissionError"


@frozen
class TopologyHint:
    nodes: int | None
    """None: any."""
    preferred: bool = False
    """Whether nothing narrower would do, also with nothing else on the machine."""


Hints = Mapping[str, Sequence[TopologyHint] | None]
"""By resource name. None: the resource may come from anywhere; an empty list: it can come from nowhere."""


@frozen
class AllocationError(Exception):
    """A pod cannot have what it asks for. It is rejected with the reason and the message."""

    message: str
    reason: str = UNEXPECTED
    resource: str = ""
    """What there is none of: `cpu`, `memory`; empty where it is something else, or no single one."""

    def __str__(self) -> str:
        return self.message


@contextmanager
def giving(resource: str) -> Iterator[None]:
    """What is raised in the block is raised for this resource."""
    try:
        yield
    except AllocationError as error:
        raise attrs.evolve(error, resource=resource) from error


def narrowness(nodes: int) -> tuple[int, int]:
    """The narrowest set is the least by this key."""
    return nodes.bit_count(), nodes


def node_sets(nodes: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """All sets of these nodes but the empty one, each in the given order: those of one node first."""
    numbers = tuple(nodes)
    for size in range(1, len(numbers) + 1):
        yield from combinations(numbers, size)
