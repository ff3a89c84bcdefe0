"""Completion in shells: names of pods, containers and images, and `trikubelet completion`, which sets it up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from trikubelet.cli.failures import CommandError
from trikubelet.cli.find_pod import short_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trikubelet.cli.client import AgentClient

SHELLS: Final = ("bash", "zsh", "fish")
VARIABLE: Final = "_TRIKUBELET_COMPLETE"


def complete_pods(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of pods, without the ending that is the node\'s name."""
    return _items({short_name(pod) for pod in _pods(ctx)}, incomplete)


def complete_containers(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the containers of the pod that was named, else of all."""
    named = ctx.params.get("pod")
    pods = [pod for pod in _pods(ctx) if named in (None, short_name(pod), pod["metadata"]["name"])]
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return _items({one["name"] for pod in pods for kind in kinds for one in pod["spec"].get(kind, ())}, incomplete)


def complete_images(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the runtime\'s images."""
    images = _ask(ctx, "/images") or []
    return _items({name for image in images for name in image.get("repo_tags", ())}, incomplete)


def _items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def _pods(ctx: click.Context) -> list[dict[str, Any]]:
    answer: dict[str, list[dict[str, Any]]] = _ask(ctx, "/pods") or {"items": []}
    return answer["items"]


def _ask(ctx: click.Context, path: str) -> Any:
    """None when no agent answers: a shell that completes has no place for an error."""
    try:
        return _client(ctx).get(path)
    except CommandError:
        return None


def _client(ctx: click.Context) -> AgentClient:
    from trikubelet.cli.client import AgentClient
    from trikubelet.cli.root_dir import ENVIRONMENT, default_root_dir, running_agent_root_dir

    given = ctx.params.get("root_dir") or os.environ.get(ENVIRONMENT)
    return AgentClient(Path(given) if given else running_agent_root_dir(default_root_dir()))


@click.command(short_help="Complete commands in your shell.")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--install", is_flag=True, help="Write it to where the shell looks for it.")
def completion(shell: str | None, install: bool) -> None:
    """Print what makes SHELL complete commands and names, or install it.

    Without --install: source <(trikubelet completion bash)
    """
    from trikubelet.cli.main import cli

    chosen = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(chosen) if chosen in SHELLS else None
    if kind is None:
        raise CommandError(f"expected {', '.join(SHELLS)}, got {chosen or 'no SHELL'}: name your shell")
    script = kind(cli, {}, "trikubelet", VARIABLE).source()
    if not install:
        click.echo(script)
        return
    path = script_path(chosen, Path.home(), os.environ)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    click.echo(f"wrote {path}; a new shell uses it")
    if chosen == "zsh":
        click.echo(f"zsh looks there when ~/.zshrc has, before compinit: fpath+=({path.parent})")


def script_path(shell: str, home: Path, environment: Mapping[str, str]) -> Path:
    """Where a shell looks for the completion of a program, for one user."""
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local/share")
    match shell:
        case "bash":
            return data / "bash-completion/completions/trikubelet"
        case "zsh":
            return data / "zsh/site-functions/_trikubelet"
        case _:
            return Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "fish/completions/trikubelet.fish"
