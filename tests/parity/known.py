"""What the agent knows, by kind of table: read from its own tables, so that this cannot drift from it."""

from __future__ import annotations

import re
import typing
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from tests.node_api.handlers.stage import FakeNode, clock, fake_parts
from tests.parity.emitted import emitted
from tests.parity.source import PACKAGE
from trikubelet.api.decode import resolve_annotation
from trikubelet.api.decode import wire_name as name_in_object
from trikubelet.api.meta import ObjectMeta
from trikubelet.api.pod_spec import PodSpec
from trikubelet.api.schema import APIObject
from trikubelet.cli.pod_flags import POD_ARGUMENTS
from trikubelet.cli.run import run
from trikubelet.config import kubelet_configuration as configuration
from trikubelet.config.feature_gates import ALL_ALPHA, ALL_BETA, Effect
from trikubelet.config.gate_table import GATES
from trikubelet.node.stats import cadvisor_catalogue, resource_metrics
from trikubelet.node_api.node_api import Switches, node_api

if TYPE_CHECKING:
    from collections.abc import Iterator

METRICS_PAGE: Final = PACKAGE.parent / "docs" / "metrics.md"
_CADVISOR: Final = PACKAGE / "node" / "stats" / "cadvisor_metrics.py"


def fields() -> set[str]:
    """`KubeletConfiguration.a.b`, and `Type.field` of all that a pod's spec is made of."""
    return {f"KubeletConfiguration.{path}" for path in _paths(configuration.KubeletConfiguration)} | set(_of_pods())


def flags() -> set[str]:
    """Of `trikubelet run` for the agent, without the dashes."""
    found = set()
    for option in run.get_params(click.Context(run)):
        if option.name in POD_ARGUMENTS:
            continue
        assert isinstance(option, click.Option)
        # Once somebody has asked for help, its option has a short name too.
        names = ["--help"] if "--help" in option.opts else [*option.opts, *option.secondary_opts]
        found |= {name.lstrip("-") for name in names}
    return found


def gates() -> set[str]:
    """Those that are switched, and those of what the agent has in any case."""
    here = {name for name, gate in GATES.items() if gate.effect not in (Effect.LACKING, Effect.FOREIGN)}
    return here | {ALL_ALPHA, ALL_BETA}


def metrics() -> set[str]:
    """Those of the documentation, which is held against what an agent serves, and those of the other two pages."""
    documented = re.findall(r"^\| `(\w+)` \| \w+ \|", METRICS_PAGE.read_text(), re.MULTILINE)
    of_machine = re.findall(
        r'"(machine_(?:cpu|memory|swap)_\w+|cadvisor_\w+|container_scrape_error)"', _CADVISOR.read_text()
    )
    return {*documented, *resource_metrics.FAMILIES, *cadvisor_catalogue.FAMILIES, *of_machine}


def events() -> set[str]:
    """Reasons."""
    return {one.reason for one in emitted() if one.reason is not None}


def endpoints() -> set[str]:
    """`METHOD /path/{part}` of the node's ports; any method is `*`."""
    routes = node_api(FakeNode(), fake_parts(), Switches(), clock()).routes
    return {f"{route.method} {route.pattern}" for route in routes}


BY_KIND: Final = {
    "fields": fields,
    "flags": flags,
    "gates": gates,
    "metrics": metrics,
    "events": events,
    "endpoints": endpoints,
}


def _paths(cls: type[Any], prefix: str = "") -> Iterator[str]:
    hints = typing.get_type_hints(cls)
    for attribute in attrs.fields(cls):
        name = prefix + configuration.wire_name(attribute)
        inner = [one for one in _classes(hints[attribute.name]) if attrs.has(one)]
        for one in inner:
            yield from _paths(one, f"{name}.")
        if not inner:
            yield name


def accesses() -> dict[str, set[str]]:
    """The fields of pods' specs, by how code reads them: `resources.claims` is `ResourceRequirements.claims`."""
    found: dict[str, set[str]] = {}
    for holder, cls in _held_by_pods():
        for attribute in _attributes(cls):
            found.setdefault(f"{holder}.{attribute.name}", set()).add(f"{cls.__name__}.{name_in_object(attribute)}")
    return found


def _of_pods() -> Iterator[str]:
    for cls in {cls for _, cls in _held_by_pods()}:
        for attribute in _attributes(cls):
            yield f"{cls.__name__}.{name_in_object(attribute)}"


def _held_by_pods() -> set[tuple[str, type[APIObject]]]:
    """A pod's spec and the classes below it, each with the names of the attributes that hold it."""
    waiting: list[type[APIObject]] = [PodSpec]
    seen: set[type[APIObject]] = set()
    found: set[tuple[str, type[APIObject]]] = {("spec", PodSpec)}
    while waiting:
        cls = waiting.pop()
        if cls in seen:
            continue
        seen.add(cls)
        for attribute in _attributes(cls):
            held = [one for one in _classes(resolve_annotation(cls, attribute.type)) if issubclass(one, APIObject)]
            found |= {(attribute.name, one) for one in held}
            waiting += held
    return found


def _attributes(cls: type[APIObject]) -> list[attrs.Attribute[Any]]:
    return [] if cls is ObjectMeta else [one for one in attrs.fields(cls) if one.name != "unknown_fields"]


def _classes(hint: Any) -> Iterator[type[Any]]:
    """Those in a type, whatever is around them."""
    inner = typing.get_args(hint)
    if isinstance(hint, type) and not inner:
        yield hint
    for one in inner:
        yield from _classes(one)
