"""`trikubelet wait`: until something is so of a pod, like `kubectl wait`."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.failures import CommandError
from trikubelet.cli.find_pod import Item, find_item
from trikubelet.cli.output import echo
from trikubelet.cli.root_dir import agent_root_dir_option
from trikubelet.cli.waiting import Waiting, raise_together

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

Condition: TypeAlias = Callable[[Item | None], bool]
"""Whether it is so of a pod; None when there is no such pod."""

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}


@click.command(short_help="Wait until pods meet a condition.")
@click.argument("names", metavar="POD...", nargs=-1, required=True)
@click.option(
    "--for",
    "awaited",
    required=True,
    metavar="WHAT",
    help="condition=TYPE[=STATUS], delete, or jsonpath='{.PATH}'[=VALUE].",
)
@click.option("-n", "--namespace", help="The pods' namespace, when their names are not enough.")
@click.option("--timeout", default="30s", show_default=True, help="How long to wait, such as 90s or 5m; 0 asks once.")
@agent_root_dir_option
def wait(names: tuple[str, ...], awaited: str, namespace: str | None, timeout: str, root_dir: Path) -> None:
    """Wait until the pods POD meet a condition. They need not exist yet.

    Exits 1 if that does not happen in time, and says what each pod is waiting for.
    """
    condition = read_condition(awaited)
    client = AgentClient(root_dir)
    seconds = read_duration(timeout)
    seen: dict[str, str | None] = dict.fromkeys(names)
    """Names that are waited for, with the pod that was seen last."""
    waiting = Waiting(client)
    with waiting.shown(), time_limit(seconds):
        for line in client.lines("/pods", {"watch": True}, waiting.tick):
            pods = json.loads(line)["pods"]
            for name in list(seen):
                found = find_item(pods, name, namespace)
                if found is not None:
                    seen[name] = f"{found['metadata']['namespace']}/{found['metadata']['name']}"
                if condition(found):
                    waiting.clear()
                    met = "deleted" if awaited == "delete" else "condition met"
                    echo(f"pod/{seen.pop(name) or name} {met}")
            waiting.pods = dict.fromkeys(pod for pod in seen.values() if pod is not None)
            if not seen:
                return
            if seconds <= 0:
                break
    errors: list[CommandError] = []
    for name, pod in seen.items():
        try:
            errors.append(_late(client, awaited, name, pod))
        except CommandError as error:
            errors.append(error)
    raise_together(errors)


def _late(client: AgentClient, awaited: str, name: str, pod: str | None) -> CommandError:
    cause = "" if pod is None else f": {client.get(f'/pods/{pod}/why')['cause']}"
    return CommandError(f"timed out waiting for {awaited} of pod {pod or name}{cause}")


class _LateError(Exception):
    """The time is over."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """The block is left after so many seconds, wherever it waits. In the main thread only; 0 sets no limit."""

    def late(_: int, __: FrameType | None) -> None:
        raise _LateError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0))
    try:
        yield
    except _LateError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read_condition(text: str) -> Condition:
    """What `--for` says. Raises CommandError."""
    kind, _, rest = text.partition("=")
    if text == "delete":
        return lambda pod: pod is None
    if kind == "condition" and rest:
        name, _, status = rest.partition("=")
        return lambda pod: pod is not None and _has_condition(pod, name, status or "True")
    if kind == "jsonpath" and rest:
        path, closed, value = rest.strip("'\"").partition("}")
        if path.startswith("{") and closed and value[:1] in ("", "="):
            return _path_condition(path + closed, value[1:] if value else None)
    raise CommandError(f"expected condition=TYPE, delete or jsonpath='{{.PATH}}'[=VALUE] after --for, got {text!r}")


def _has_condition(pod: Item, name: str, status: str) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"].lower() == name.lower() and one["status"].lower() == status.lower() for one in conditions)


def _path_condition(template: str, wanted: str | None) -> Condition:
    """Whether the template leads to something; with `wanted`, to that. Raises CommandError."""
    from trikubelet.formats.jsonpath import JSONPath, JSONPathError

    try:
        path = JSONPath(template)
    except JSONPathError as error:
        raise CommandError(f"expected a path such as {{.status.phase}} after --for, got {template}: {error}") from None

    def is_met(pod: Item | None) -> bool:
        is_there = any(value is not None for value in path.values(pod))
        return is_there and wanted in (None, path.render(pod))

    return is_met


def read_duration(text: str) -> float:
    """Seconds of `90s`, `5m`, `1h30m` or `45`. Raises CommandError."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    try:
        return float(text)
    except ValueError:
        raise CommandError(f"expected a duration such as 90s or 5m, got {text!r}") from None
