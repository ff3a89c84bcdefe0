"""`trikubelet pods` and `get pods`: the pods of the agent, like `kubectl get pods`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from trikubelet.cli.client import AgentClient, agent_gone
from trikubelet.cli.completion import complete_pods
from trikubelet.cli.failures import CommandError
from trikubelet.cli.find_pod import did_you_mean, refuse_broken_manifest, short_name
from trikubelet.cli.manifest_problems import broken_manifests, problem_lines
from trikubelet.cli.output import (
    column_widths,
    echo,
    echo_wrapped,
    format_row,
    print_json,
    print_table,
    print_template,
    print_yaml,
)
from trikubelet.cli.root_dir import agent_root_dir_option
from trikubelet.clock import SystemClock
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

_HEADER = ("NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE")
_WIDE = (*_HEADER, "IP", "NODE")
_STATUS_COLUMN = 3
OUTPUTS: Final = "wide, json, yaml, name, jsonpath=TEMPLATE or custom-columns=NAME:PATH,…"


@frozen
class Output:
    """How pods are shown."""

    kind: str = ""
    """Empty: the usual columns."""
    argument: str = ""

    @property
    def header(self) -> tuple[str, ...]:
        if self.kind == "custom-columns":
            return tuple(name for name, _ in self._columns())
        return _WIDE if self.kind == "wide" else _HEADER

    @property
    def is_table(self) -> bool:
        return self.kind in ("", "wide", "custom-columns")

    def cells(self, item: Mapping[str, Any]) -> tuple[str, ...]:
        """A row of the table."""
        if self.kind == "custom-columns":
            return tuple(_column(item, path) for _, path in self._columns())
        from trikubelet.api import pod_from_dict
        from trikubelet.cli.pod_columns import pod_row

        row = pod_row(pod_from_dict(item), SystemClock().now())
        cells = (row.namespace, row.name, row.ready, row.status, row.restarts, row.age)
        return (*cells, row.ip, row.node) if self.kind == "wide" else cells

    def _columns(self) -> list[tuple[str, str]]:
        pairs = [part.partition(":") for part in self.argument.split(",")]
        if not all(name and path for name, _, path in pairs):
            raise CommandError(f"expected custom-columns=NAME:PATH,NAME:PATH, got {self.argument!r}")
        return [(name, path) for name, _, path in pairs]


class OutputType(click.ParamType[Output]):
    """`-o`, as kubectl has it."""

    name = "format"
    _PLAIN: Final = ("wide", "json", "yaml", "name")
    _WITH_ARGUMENT: Final = ("jsonpath", "custom-columns")

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Output:
        if isinstance(value, Output):
            return value
        kind, given, argument = str(value).partition("=")
        if not ((kind in self._PLAIN and not given) or (kind in self._WITH_ARGUMENT and argument)):
            self.fail(f"expected {OUTPUTS}, got {value!r}", param, ctx)
        return Output(kind, argument)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        values = (*self._PLAIN, *(f"{name}=" for name in self._WITH_ARGUMENT))
        return [click.shell_completion.CompletionItem(value) for value in values if value.startswith(incomplete)]


def pods_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of `kubectl get pods`."""
    for option in reversed(
        (
            click.option("-o", "--output", type=OutputType(), default=Output(), help=f"{OUTPUTS}."),
            click.option("-w", "--watch", is_flag=True, help="Keep running, and print every change."),
            click.option("-n", "--namespace", help="Only those of this namespace."),
            click.option("-A", "--all-namespaces", is_flag=True, help="Those of all namespaces, as without -n."),
            click.option("-l", "--selector", default="", help="Only those with these labels: app=web,!old."),
            click.option("--field-selector", default="", help="Only those with these fields: status.phase!=Running."),
            click.option("--no-headers", is_flag=True, help="Without the first line."),
            agent_root_dir_option,
        )
    ):
        command = option(command)
    return command


@click.command(short_help="List pods.")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_pods)
@pods_options
def pods(names: tuple[str, ...], **options: Any) -> None:
    """List the agent's pods and what state they are in: all, or those called NAME."""
    show_pods(names, **options)


def show_pods(
    names: tuple[str, ...],
    *,
    output: Output,
    watch: bool,
    namespace: str | None,
    all_namespaces: bool,
    selector: str,
    field_selector: str,
    no_headers: bool,
    root_dir: Path,
) -> None:
    """Raises CommandError."""
    client = AgentClient(root_dir)
    chosen = _filter(None if all_namespaces else namespace, selector, field_selector)
    if watch:
        _watch(client, output, lambda item: chosen(item) and (not names or _is_called(item, names)), no_headers)
        return
    answer = client.get("/pods")
    items = [item for item in answer["items"] if chosen(item)]
    if names:
        items = _named(client, items, names)
    if output.is_table:
        if items:
            column = None if output.kind == "custom-columns" else _STATUS_COLUMN
            rows = [output.cells(item) for item in items]
            print_table(output.header, rows, status_column=column, headers=not no_headers)
        else:
            where = f" in {namespace} namespace" if namespace and not all_namespaces else ""
            echo(f"No pods{where}." if not (selector or field_selector) else "No such pods.", err=True)
        if not names:
            sys.stdout.flush()
            for line in problem_lines(broken_manifests(client)):
                echo_wrapped(line, err=True)
    elif output.kind == "name":
        for item in items:
            echo(f"pod/{item['metadata']['name']}")
    else:
        whole = items[0] if len(names) == len(items) == 1 else answer | {"items": items}
        _print_document(output, whole)


def _print_document(output: Output, value: Any) -> None:
    if output.kind == "json":
        print_json(value)
    elif output.kind == "yaml":
        print_yaml(value)
    else:
        from trikubelet.formats.jsonpath import JSONPath, JSONPathError

        try:
            print_template(JSONPath(output.argument).render(value))
        except JSONPathError as error:
            raise CommandError(f"error parsing jsonpath {output.argument}, {error}") from None


def _column(item: Mapping[str, Any], path: str) -> str:
    from trikubelet.formats.jsonpath import JSONPath, JSONPathError

    try:
        values = JSONPath(path).values(item)
    except JSONPathError as error:
        raise CommandError(f"error parsing the column {path}: {error}") from None
    return ",".join("<nil>" if value is None else str(value) for value in values) or "<none>"


def _filter(namespace: str | None, labels: str, fields: str) -> Callable[[Mapping[str, Any]], bool]:
    from trikubelet.formats.selectors import SelectorError, field_selector, label_selector

    try:
        has_labels, has_fields = label_selector(labels), field_selector(fields)
    except SelectorError as error:
        raise CommandError(str(error)) from None
    return lambda item: (
        namespace in (None, item["metadata"].get("namespace", ""))
        and has_labels(item["metadata"].get("labels", {}))
        and has_fields(item)
    )


def _is_called(item: Mapping[str, Any], names: Iterable[str]) -> bool:
    """With or without the ending that is the node's name, and with or without the namespace."""
    every = {item["metadata"]["name"], short_name(item)}
    every |= {f"{item['metadata'].get('namespace', '')}/{each}" for each in every}
    return not every.isdisjoint(each.removeprefix("pod/") for each in names)


def _named(client: AgentClient, items: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Raises CommandError for a name that no pod has."""
    for name in names:
        if not any(_is_called(item, (name,)) for item in items):
            refuse_broken_manifest(client, name, None)
            known = {short_name(item): item["metadata"]["name"] for item in items}
            raise CommandError(f"the agent has no pod {name}" + did_you_mean(name, known))
    return [item for item in items if _is_called(item, names)]


def _watch(client: AgentClient, output: Output, chosen: Callable[[Mapping[str, Any]], bool], no_headers: bool) -> None:
    show: Callable[[dict[str, Any]], None] | None = None
    known: dict[str, dict[str, Any]] = {}
    for line in client.lines("/pods", {"watch": True}):
        if show is None:
            show = _line_printer(output, no_headers)
        pods = {item["metadata"]["uid"]: item for item in json.loads(line)["pods"] if chosen(item)}
        for change in pod_changes(known, pods):
            show(change)
        sys.stdout.flush()
        known = pods
    raise agent_gone(client.socket)  # a watch has no end of its own


def pod_changes(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What happened between two states of the agent's pods (by UID), as Kubernetes' watch events."""
    for uid, item in before.items():
        if uid not in now:
            yield {"type": "DELETED", "object": item}
    for uid, item in now.items():
        if uid not in before:
            yield {"type": "ADDED", "object": item}
        elif before[uid] != item:
            yield {"type": "MODIFIED", "object": item}


def _line_printer(output: Output, no_headers: bool) -> Callable[[dict[str, Any]], None]:
    if output.kind == "json":
        return print_json
    if output.kind == "yaml":

        def document(change: dict[str, Any]) -> None:
            echo("---")
            print_yaml(change)

        return document
    if output.kind == "name":
        return lambda change: echo(f"pod/{change['object']['metadata']['name']}")
    if output.kind == "jsonpath":
        return lambda change: _print_document(output, change["object"])
    least = (9, 30, 5, 18, 13, 5, 15, 9)
    widths = [max(len(name), width) for name, width in zip(output.header, least, strict=False)]
    widths += [len(name) for name in output.header[len(widths) :]]
    if not no_headers:
        echo(format_row(output.header, widths))

    def row(change: dict[str, Any]) -> None:
        cells = list(output.cells(change["object"]))
        if change["type"] == "DELETED" and output.kind != "custom-columns":
            cells[_STATUS_COLUMN] = "Deleted"
        for index, width in enumerate(column_widths(cells, [])):
            widths[index] = max(widths[index], width)
        echo(format_row(cells, widths))

    return row
