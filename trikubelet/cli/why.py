"""`trikubelet why POD`: what a pod waits for now, and how it came to that."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.failures import CommandError
from trikubelet.cli.manifest_problems import (
    MOST_PROBLEMS,
    broken_manifest_of,
    is_called,
    is_file_name,
    manifest_lines,
    manifest_named,
    node_name,
)
from trikubelet.cli.output import echo, echo_wrapped
from trikubelet.cli.root_dir import agent_root_dir_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

RUNS_SHOWN: Final = 3
"""The last runs of each container."""
LINES_SHOWN: Final = 5
"""The last lines of each container's log."""


@click.command(short_help="Explain what a pod is waiting for.")
@click.argument("name", metavar="POD|FILE")
@click.option("-n", "--namespace", help="The pod's namespace, when its name is not enough.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="Print the agent's answer as JSON.")
@agent_root_dir_option
def why(name: str, namespace: str | None, output: str | None, root_dir: Path) -> None:
    """Explain what the pod POD is waiting for, and how it got there.

    The first line is the cause, and who asked for the pod's end. Below it: each phase of the pod's life, when it began
    and how long it took, the last runs of each container with their exit codes, and the last lines of their logs. A
    pod can still be asked about for two minutes after it is gone.

    With a manifest FILE, or the name of a pod whose manifest is broken: what is wrong with the file.
    """
    client = AgentClient(root_dir)
    answers = _answers(client, name, namespace)
    if output == "json":
        from trikubelet.cli.output import print_json

        for answer in answers:
            print_json(answer)
        return
    for answer in answers:
        if "problems" in answer:
            for line in manifest_lines(answer):
                echo_wrapped(line)
            continue
        for line in why_lines(answer):
            echo_wrapped(line)
        for line in _last_lines(client, answer):
            echo(line)


def _answers(client: AgentClient, name: str, namespace: str | None) -> list[Mapping[str, Any]]:
    """What there is to say of a name: a manifest with problems, or lives of pods. Raises CommandError."""
    if is_file_name(name):
        manifest = manifest_named(client.get("/manifests"), name)
        if manifest is None:
            raise CommandError(f"the agent reads no manifest {name}: `trikubelet validate {name}` checks it")
        if manifest["pods"] and not manifest["broken"] and not manifest["problems"]:
            return [client.get(f"/pods/{pod}/why") for pod in manifest["pods"]]
        return [manifest, *(client.get(f"/pods/{pod}/why") for pod in manifest["pods"] if manifest["broken"])]
    try:
        return [ask_why(client, name, namespace)]
    except CommandError:
        manifest = broken_manifest_of(client, name, namespace)
        if manifest is None:
            raise
        return [manifest]


def ask_why(client: AgentClient, name: str, namespace: str | None) -> dict[str, Any]:
    """The agent's answer. Raises CommandError."""
    from trikubelet.cli.find_pod import find_pod

    try:
        metadata = find_pod(client, name, namespace).metadata
        path = f"/pods/{metadata.namespace}/{metadata.name}/why"
    except CommandError as error:
        where, _, short = name.rpartition("/")
        gone = _known_of_gone(client, namespace or where or None, short)
        if gone is None:
            raise error from None
        path = f"/pods/{gone}/why"
    answer: dict[str, Any] = client.get(path)
    return answer


def _known_of_gone(client: AgentClient, namespace: str | None, name: str) -> str | None:
    """Namespace and name of a pod that is gone, from the journal."""
    pods = [pod["pod"] for pod in client.get("/journal")["pods"]]
    node = node_name(client) if pods else ""
    found = [pod for pod in pods if is_called(pod, namespace, name, node)]
    return found[-1] if found else None


def why_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """The answer for people, the cause first."""
    yield f"{answer['pod']}: {answer['cause']}"
    for wait in answer["waits"][1:]:
        yield f"  and {wait['text']}"
    if "manifest" in answer:
        yield from (f"  {line}" for line in manifest_lines(answer["manifest"], MOST_PROBLEMS))
    if answer["phases"]:
        yield "Phases:"
        yield from _phase_lines(answer["phases"])
    runs = _last_runs(answer["runs"])
    if runs:
        yield "Last runs:"
        yield from (f"  {line}" for line in runs)


def _phase_lines(phases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A phase that was told several times, since its end was hastened, is one; it is told how at last."""
    merged: list[dict[str, Any]] = []
    for phase in phases:
        if merged and merged[-1]["phase"] == phase["phase"]:
            merged[-1] |= {**phase, "at": merged[-1]["at"]}
        else:
            merged.append(dict(phase))
    width = max(len(phase["phase"]) for phase in merged)
    for phase in merged:
        began, ended = _time(phase["at"]), _time(phase["end"])
        lasted = "" if phase["phase"] in ("Gone", "Finished") else f"{(ended - began).total_seconds():.1f} s"
        grace = f"  grace {phase['grace']} s, until {_clock(_time(phase['until']))[11:19]}" if "until" in phase else ""
        yield f"  {phase['phase']:<{width}}  {_clock(began)} {lasted:>7}{grace}".rstrip()


def _last_runs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The last runs of each container, as far as the journal has them, the newest last."""
    by_id: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        known = by_id.setdefault((run["container"], run["id"]), {"container": run["container"], "id": run["id"]})
        if run["what"] == "Started":
            known["began"] = run["at"]
        else:
            known |= {"ended": run["at"], "exitCode": run["exitCode"], "reason": run.get("reason", "")}
            known["message"] = run.get("message", "")
            if "startedAt" in run:
                known["began"] = run["startedAt"]
    names = dict.fromkeys(container for container, _ in by_id)
    width = max(map(len, names), default=0)
    shown = [[run for run in by_id.values() if run["container"] == name][-RUNS_SHOWN:] for name in names]
    return [f"{run['container']:<{width}}  {_run(run)}" for runs in shown for run in runs]


def _run(run: Mapping[str, Any]) -> str:
    began = _time(run["began"]) if "began" in run else None
    head = f"{run['id']}  {_clock(began) if began else '<unknown>':<20}"
    if "ended" not in run:
        return f"{head}  runs"
    ran = f"ran {(_time(run['ended']) - began).total_seconds():.1f} s: " if began else ""
    reason = f" ({run['reason']})" if run["reason"] else ""
    message = f": {run['message']}" if run["message"] else ""
    return f"{head}  {ran}{exit_words(run['exitCode'])}{reason}{message}"


def exit_words(code: int) -> str:
    """An exit code for people: `exit code 1`, `signal 15 (exit code 143)`."""
    return f"signal {code - 128} (exit code {code})" if 128 < code < 160 else f"exit code {code}"


def _last_lines(client: AgentClient, answer: Mapping[str, Any]) -> Iterator[str]:
    """The last lines of the logs of containers that have run; none where there is no log any more."""
    for name in dict.fromkeys(run["container"] for run in answer["runs"]):
        path = f"/containerLogs/{answer['pod']}/{name}"
        try:
            lines = [*client.lines(path, {"tailLines": LINES_SHOWN})]
        except CommandError:
            continue
        if lines:
            yield f"Log of {name}:"
            yield from (f"  {line.decode(errors='replace')}" for line in lines)


def _time(text: str) -> datetime:
    from trikubelet.api.timestamps import parse_time

    found = parse_time(text)
    assert found is not None, f"expected a time from the agent, got {text!r}"
    return found


def _clock(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")  # as in descriptions and logs
