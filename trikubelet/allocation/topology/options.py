"""The options of the topology manager (kubelet: `topologymanager/policy_options.go`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.allocation.cpus.options import parse_boolean
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLOSEST: Final = "prefer-closest-numa-nodes"
_MAX_NODES: Final = "max-allowable-numa-nodes"
DEFAULT_MAX_NODES: Final = 8


@frozen
class TopologyOptions:
    prefer_closest: bool = False
    """Of sets with as many NUMA nodes prefer the one whose nodes are closest to each other."""
    max_nodes: int = DEFAULT_MAX_NODES
    """A machine with more NUMA nodes is refused: hints are as many as there are sets of nodes."""


DEFAULTS: Final = TopologyOptions()


def parse_options(texts: Mapping[str, str]) -> TopologyOptions:
    """Raises ValueError for the first thing that is wrong."""
    for name in texts:
        if name not in (_CLOSEST, _MAX_NODES):
            raise ValueError(f'expected "{_CLOSEST}" or "{_MAX_NODES}", got "{name}"')
    closest = _CLOSEST in texts and parse_boolean(_CLOSEST, texts[_CLOSEST])
    text = texts.get(_MAX_NODES, str(DEFAULT_MAX_NODES))
    if not text.isdecimal() or int(text) < DEFAULT_MAX_NODES:
        raise ValueError(f'the option "{_MAX_NODES}" must be a number from {DEFAULT_MAX_NODES} on, got "{text}"')
    return TopologyOptions(closest, int(text))
