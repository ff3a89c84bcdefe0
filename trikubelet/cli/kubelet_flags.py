"""The kubelet's flags that `trikubelet run` takes beside those of its own: for fields of the configuration, and others.

Those of the configuration are in one table (`CONFIG_FLAGS`). A flag of the kubelet's that means nothing here is taken,
and said once; one that the kubelet does not know is refused, as by the kubelet.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from trikubelet.cli.output import echo
from trikubelet.config.flags import CONFIG_FLAGS, ConfigFlag, FlagKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_CONFIG: Final = "config_flag_"
_IGNORED: Final = "ignored_flag_"
_VERSION_TAIL: Final = re.compile(
    r"(-(?!0\d+(?![0-9A-Za-z-]))[0-9A-Za-z-]+(\.(?!0\d+(?![0-9A-Za-z-]))[0-9A-Za-z-]+)*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
"""What a semantic version may have behind its three numbers."""

MEANINGLESS: Final = {
    "experimental-mounter-path": "volumes are mounted by the system's mount",
    **dict.fromkeys(
        (
            "housekeeping-interval",
            "max-housekeeping-interval",
            "global-housekeeping-interval",
            "application-metrics-count-limit",
            "boot-id-file",
            "container-hints",
            "containerd",
            "containerd-namespace",
            "event-storage-age-limit",
            "event-storage-event-limit",
            "machine-id-file",
            "storage-driver-user",
            "storage-driver-password",
            "storage-driver-host",
            "storage-driver-db",
            "storage-driver-table",
            "storage-driver-buffer-duration",
        ),
        "there is no cAdvisor here",
    ),
    **dict.fromkeys(("enable-load-reader", "log-cadvisor-usage", "storage-driver-secure"), "there is no cAdvisor here"),
}
"""Flags of the kubelet, and why they mean nothing."""
_MEANINGLESS_SWITCHES: Final = frozenset({"enable-load-reader", "log-cadvisor-usage", "storage-driver-secure"})


class Duration(click.ParamType[float]):
    """As Go writes it: `1m30s`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from trikubelet.formats.durations import parse_duration

        if isinstance(value, float):
            return value
        try:
            return parse_duration(value).total_seconds()
        except ValueError as error:
            self.fail(str(error), param, ctx)


def hyphens(name: str) -> str:
    """The kubelet takes `--node_ip` for `--node-ip`."""
    return name.replace("_", "-")


def kubelet_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds all flags of this module."""
    for flag in CONFIG_FLAGS:
        function = _config_option(flag)(function)
    for name in MEANINGLESS:
        function = _option(name, _IGNORED, switch=name in _MEANINGLESS_SWITCHES)(function)
    for option in _OTHERS:
        function = option(function)
    return function


def _config_option(flag: ConfigFlag) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return _option(flag.name, _CONFIG, *flag.spellings, switch=flag.kind is FlagKind.BOOL, text=flag.help or None)


def _option(
    flag: str, prefix: str, *spellings: str, switch: bool, text: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    names = (f"--{flag}", *spellings, prefix + flag.replace("-", "_"))
    if switch:
        # As in the kubelet: `--fail-swap-on` and `--fail-swap-on=false`.
        return click.option(*names, is_flag=False, flag_value="true", default=None, hidden=text is None, help=text)
    return click.option(*names, multiple=True, hidden=text is None, help=text)


def _print_version(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
    """What `kubelet --version` prints; for `--version=v1.36.2-x` the version that the node is to name, whose numbers
    must be those of this release (kubelet: `SetDynamicVersion`)."""
    from trikubelet.node.facts import DEFAULT_KUBERNETES_VERSION

    if value is None or value.lower() in ("false", "f", "0"):
        return None
    own, found, tail = value.partition(DEFAULT_KUBERNETES_VERSION)
    if found and not own and _VERSION_TAIL.fullmatch(tail):
        return value
    if value == "raw":
        major, minor = DEFAULT_KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
        echo(f'version.Info{{Major:"{major}", Minor:"{minor}", GitVersion:"{DEFAULT_KUBERNETES_VERSION}"}}')
    elif value.lower() in ("true", "t", "1"):
        echo(f"Kubernetes {DEFAULT_KUBERNETES_VERSION}")
    else:
        allowed = f"{DEFAULT_KUBERNETES_VERSION} with or without a suffix, as in {DEFAULT_KUBERNETES_VERSION}-site.4"
        raise click.BadParameter(f"expected true, false, raw or a version {allowed}, got {value!r}")
    context.exit()
    raise AssertionError("unreachable")


_PATH: Final = click.Path(path_type=Path)
_OTHERS: Final = (
    click.option("--minimum-container-ttl-duration", "container_ttl", type=Duration(), default=0.0, hidden=True),
    click.option("--maximum-dead-containers-per-container", "dead_per_container", type=int, default=1, hidden=True),
    click.option("--maximum-dead-containers", "dead_containers", type=int, default=-1, hidden=True),
    click.option(
        "--experimental-allocatable-ignore-eviction",
        "ignores_eviction",
        is_flag=False,
        flag_value=True,
        default=False,
        type=bool,
        hidden=True,
    ),
    click.option("--runtime-cgroups", default="", help="The runtime's cgroup, for its statistics."),
    click.option(
        "--lock-file", type=_PATH, help="A file that the agent locks while it runs. It waits until the lock is free."
    ),
    click.option(
        "--exit-on-lock-contention",
        is_flag=False,
        flag_value=True,
        default=False,
        type=bool,
        help="End when another process opens --lock-file.",
    ),
    click.option(
        "--version",
        "reported_version",
        is_flag=False,
        flag_value="true",
        is_eager=True,
        callback=_print_version,
        help="Print the Kubernetes version that this agent corresponds to, and exit.",
    ),
)


def configuration_flags(arguments: Mapping[str, Any]) -> dict[str, list[str]]:
    """Those for fields of the configuration that were given, by name, with every text."""
    return {
        name.removeprefix(_CONFIG).replace("_", "-"): [value] if isinstance(value, str) else list(value)
        for name, value in arguments.items()
        if name.startswith(_CONFIG) and value not in (None, ())
    }


def meaningless_flags(arguments: Mapping[str, Any]) -> Iterator[str]:
    """A sentence about each that was given and means nothing."""
    for name, value in arguments.items():
        if name.startswith(_IGNORED) and value not in (None, ()):
            flag = name.removeprefix(_IGNORED).replace("_", "-")
            yield f"--{flag} means nothing to this agent: {MEANINGLESS[flag]}"
