"""The `trikubelet` command. Each subcommand is a module of its own, imported when it is used or listed."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final

import click

from trikubelet import __version__

_COMMANDS: Final = {
    "run": "trikubelet.cli.run:run",
    "pods": "trikubelet.cli.pods:pods",
    "get": "trikubelet.cli.get:get",
    "describe": "trikubelet.cli.describe:describe",
    "why": "trikubelet.cli.why:why",
    "events": "trikubelet.cli.events:events",
    "wait": "trikubelet.cli.wait:wait",
    "apply": "trikubelet.cli.apply:apply",
    "delete": "trikubelet.cli.delete:delete",
    "restart": "trikubelet.cli.restart:restart",
    "stop": "trikubelet.cli.stop:stop",
    "logs": "trikubelet.cli.logs:logs",
    "exec": "trikubelet.cli.exec:exec_",
    "attach": "trikubelet.cli.attach:attach",
    "port-forward": "trikubelet.cli.port_forward:port_forward",
    "cp": "trikubelet.cli.cp:cp",
    "web": "trikubelet.cli.web:web",
    "top": "trikubelet.cli.top:top",
    "ui": "trikubelet.cli.ui.command:ui",
    "stats": "trikubelet.cli.stats:stats",
    "validate": "trikubelet.cli.validate:validate",
    "images": "trikubelet.cli.images:images",
    "check": "trikubelet.cli.check:check",
    "runtime": "trikubelet.cli.runtime:runtime",
    "install": "trikubelet.cli.install:install",
    "uninstall": "trikubelet.cli.install:uninstall",
    "join": "trikubelet.cli.join:join",
    "leave": "trikubelet.cli.leave:leave",
    "sim": "trikubelet.cli.sim:sim",
    "completion": "trikubelet.cli.completion:completion",
    "version": "trikubelet.cli.version:version",
}


_ELSEWHERE: Final = {
    "ps": "`trikubelet pods` lists what runs",
    "start": "`trikubelet run` starts the agent",
    "pull": "`trikubelet images pull` pulls an image",
    "inspect": "`trikubelet describe` tells about a pod",
}
"""Commands of other programs, and what does the same here."""


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = _COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, name = target.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises click.UsageError that names the command that is most like an unknown one."""
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches  # for mistakes alone

            close = get_close_matches(name, _COMMANDS, n=1)
            hint = _ELSEWHERE.get(name) or (f"did you mean {close[0]}?" if close else "")
            ctx.fail(f"No such command {name!r}" + (f"; {hint}" if hint else "."))
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="trikubelet %(version)s")
def cli() -> None:
    """A Kubernetes node agent: runs the pods of a folder on containerd or on its own runtime."""


def main() -> None:
    """The console script. Interrupted commands end quietly, and so do those whose reader went away."""
    try:
        code = cli.main(prog_name="trikubelet", standalone_mode=False)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output (head, less) has closed it; keep the interpreter from complaining at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    sys.exit(code if isinstance(code, int) else 0)
