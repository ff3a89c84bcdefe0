"""The files that make the agent a service of systemd. Pure: settings in, paths and texts out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trikubelet.formats.values import frozen

NAME: Final = "trikubelet"
UNIT: Final = f"{NAME}.service"


@frozen(kw_only=True)
class ServiceSettings:
    """What somebody wants of the service."""

    program: Sequence[str]
    """The words that start `trikubelet`."""
    manifests: Path
    arguments: Sequence[str] = ()
    """More flags of `trikubelet run`."""
    user: bool = False
    """A service of one user's, without root."""


@frozen
class ServiceFile:
    path: Path
    text: str


def service_files(settings: ServiceSettings, home: Path) -> list[ServiceFile]:
    """In the order in which they are written. `home`: of the user whose service it is, where it is one's."""
    if settings.user:
        return [ServiceFile(home / ".config/systemd/user" / UNIT, unit(settings))]
    return [
        ServiceFile(Path(f"/etc/tmpfiles.d/{NAME}.conf"), _tmpfiles(settings)),
        ServiceFile(Path(f"/etc/sysctl.d/90-{NAME}.conf"), SYSCTLS),
        ServiceFile(Path("/etc/systemd/system") / UNIT, unit(settings)),
    ]


def run_command(settings: ServiceSettings) -> list[str]:
    """How the agent is started. Pods outlive it, so that it can be restarted and upgraded."""
    return [*settings.program, "run", "--manifests", str(settings.manifests), "--no-drain-on-exit", *settings.arguments]


def unit(settings: ServiceSettings) -> str:
    """The unit."""
    after = "" if settings.user else "After=network-online.target containerd.service crio.service\n"
    wants = "" if settings.user else "Wants=network-online.target\n"
    return f"""\
[Unit]
Description=trikubelet, a Kubernetes node agent
{after}{wants}
[Service]
Type=notify
ExecStart={_quoted(run_command(settings))}
Restart=always
RestartSec=1
WatchdogSec=60
# The lock against a shutdown of the machine stays while the agent is restarted.
FileDescriptorStoreMax=1
# The containers, and the keeper that holds those of the embedded runtime, are not the service's to kill.
KillMode=process
Delegate=yes
TimeoutStopSec=5min
LimitNOFILE=1048576

[Install]
WantedBy={"default.target" if settings.user else "multi-user.target"}
"""


def _tmpfiles(settings: ServiceSettings) -> str:
    return f"# The folder of static pods.\nd {settings.manifests} 0755 root root -\n"


SYSCTLS: Final = """\
# What a node's kernel is to be set to; the agent sets it too, unless protectKernelDefaults forbids it.
vm.overcommit_memory = 1
kernel.panic = 10
kernel.panic_on_oops = 1
# Each followed log and watched folder takes one.
fs.inotify.max_user_instances = 1024
"""


def _quoted(words: Sequence[str]) -> str:
    """As systemd reads a command line, which is not as a shell does: `%` and `$` are its own."""
    return " ".join(map(_quoted_word, words))


def _quoted_word(word: str) -> str:
    escaped = word.replace("%", "%%").replace("$", "$$")
    if word and not set(word) & set(" \t\n'\"\\;"):
        return escaped
    for character, sequence in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t")):
        escaped = escaped.replace(character, sequence)
    return f'"{escaped}"'
