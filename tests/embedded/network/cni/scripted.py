"""CNI plugins for tests: small shell scripts that note what they are asked and do what the test says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from trikubelet.embedded.network.cni.versions import KNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_SCRIPT: Final = """#!/bin/sh
cd {folder} || exit 1
name=${{0##*/}}
cat > "$name.$CNI_COMMAND.stdin"
cat /proc/self/environ > "$name.$CNI_COMMAND.env"
echo "$name $CNI_COMMAND" >> asked
[ ! -e "$name.$CNI_COMMAND.do" ] || . "./$name.$CNI_COMMAND.do"
"""
ADDRESS: Final = {"ips": [{"address": "10.9.0.2/24"}]}


class ScriptedPlugins:
    """A folder of plugins."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder

    def install(self, name: str, *, versions: Sequence[str] = KNOWN, result: Mapping[str, Any] | None = None) -> None:
        """A plugin that succeeds."""
        program = self.folder / name
        program.write_text(_SCRIPT.format(folder=self.folder))
        program.chmod(0o755)
        self.script(name, "VERSION", say({"cniVersion": versions[-1], "supportedVersions": list(versions)}))
        self.script(name, "ADD", say(ADDRESS if result is None else result))

    def script(self, name: str, command: str, code: str) -> None:
        """What it does when it is asked this: shell, in this folder."""
        (self.folder / f"{name}.{command}.do").write_text(code)

    def fail(self, name: str, command: str, message: str, code: int = 7) -> None:
        self.script(name, command, f"{say({'code': code, 'msg': message})}; exit 1")

    @property
    def asked(self) -> list[str]:
        """In its order, without the questions for versions: `bridge ADD`."""
        return [line for line in self.asked_all if not line.endswith(" VERSION")]

    @property
    def asked_all(self) -> list[str]:
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def forget(self) -> None:
        (self.folder / "asked").unlink(missing_ok=True)

    def stdin(self, name: str, command: str) -> dict[str, Any]:
        """What it got when it was asked this last."""
        got: dict[str, Any] = json.loads((self.folder / f"{name}.{command}.stdin").read_text())
        return got

    def environment(self, name: str, command: str) -> dict[str, str]:
        """The variables of CNI that it had then."""
        variables = (self.folder / f"{name}.{command}.env").read_text().split("\0")
        return dict(each.split("=", 1) for each in variables if each.startswith("CNI_"))

    def uninstall(self, name: str) -> None:
        (self.folder / name).unlink()


def say(document: object) -> str:
    return f"echo '{json.dumps(document)}'"


def network_list(*plugins: str | dict[str, Any], name: str = "net", version: str = "1.1.0", **more: Any) -> bytes:
    listed = [{"type": plugin} if isinstance(plugin, str) else plugin for plugin in plugins]
    return json.dumps({"cniVersion": version, "name": name, "plugins": listed, **more}).encode()
