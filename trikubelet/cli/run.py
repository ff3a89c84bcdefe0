"""`trikubelet run`: gathers what flags and files say, and starts the agent."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import click

from trikubelet.cli.cluster_flags import cluster_flags, cluster_options, node_options
from trikubelet.cli.failures import CommandError
from trikubelet.cli.network_flags import network_flags
from trikubelet.cli.root_dir import registry_hosts_option, root_dir_option
from trikubelet.config.flags import CONFIG_FLAGS, ConfigFlag, FlagKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.agent.options import AgentOptions
    from trikubelet.config.loader import LoadedConfiguration

_NODE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PREFIX: Final = "config_flag_"


class _Duration(click.ParamType[float]):
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


class _Verbosity(click.IntRange):
    """Also `-v=2`, as people write it for the kubelet."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text: Any = value.removeprefix("=") if isinstance(value, str) else value
        return super().convert(text, param, ctx)


def _deprecated_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the kubelet's configuration flags, hidden from the help: the file is the place for them."""
    for flag in CONFIG_FLAGS:
        function = _option(flag)(function)
    return function


def _option(flag: ConfigFlag) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    name = _PREFIX + flag.name.replace("-", "_")
    if flag.kind is FlagKind.BOOL:
        # As in the kubelet: `--fail-swap-on` and `--fail-swap-on=false`.
        return click.option(f"--{flag.name}", name, is_flag=False, flag_value="true", default=None, hidden=True)
    return click.option(f"--{flag.name}", name, multiple=True, hidden=True)


@click.command(short_help="Run the agent.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="A KubeletConfiguration (YAML or JSON).")
@click.option("--config-dir", type=click.Path(path_type=Path), help="Drop-ins (*.conf) laid over --config.")
@click.option("--manifests", type=click.Path(path_type=Path), help="The folder (or file) of static pods.")
@root_dir_option
@click.option("--runtime-endpoint", help="The container runtime: embedded, or unix:///PATH.  [default: embedded]")
@click.option("--node-name", "--hostname-override", "node_name", help="This node's name.  [default: the host's name]")
@cluster_flags
@click.option(
    "--image-credential-provider-config",
    "credential_provider_config",
    type=click.Path(path_type=Path),
    help="A CredentialProviderConfig, or a folder of them: programs that know credentials for registries.",
)
@click.option(
    "--image-credential-provider-bin-dir",
    "credential_provider_bin_dir",
    type=click.Path(path_type=Path),
    help="The folder of these programs.",
)
@click.option("--minimum-container-ttl-duration", "container_ttl", type=_Duration(), default=0.0, hidden=True)
@click.option("--maximum-dead-containers-per-container", "dead_per_container", type=int, default=1, hidden=True)
@click.option("--maximum-dead-containers", "dead_containers", type=int, default=-1, hidden=True)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How logs are written."
)
@click.option("-v", "--v", "verbosity", type=_Verbosity(0, 10), default=0, help="Log verbosity, as the kubelet's -v.")
@click.option(
    "--drain-on-exit/--no-drain-on-exit",
    default=None,
    help="End every pod gracefully when the agent ends.  [default: with the embedded runtime, outside of clusters]",
)
@click.option(
    "--host-image/--no-host-image",
    default=None,
    help="Offer pods the machine's own root filesystem, as localhost/host.  [default: outside of clusters]",
)
@network_flags
@registry_hosts_option
@_deprecated_flags
def run(**arguments: Any) -> int:
    """Run the agent until it is interrupted. A second signal ends it at once.

    The kubelet's deprecated configuration flags (--sync-frequency, --max-pods, --feature-gates, …) are taken too, and
    win over the files.
    """
    options = attrs.evolve(build_options(**arguments), flags=_flags(click.get_current_context()))
    from trikubelet.agent.run import run_agent

    return run_agent(options)


def _flags(context: click.Context) -> dict[str, str]:
    """Every flag with its value, as `/flagz` shows them."""
    flags = {}
    for param in context.command.params:
        name = max(param.opts, key=len).removeprefix("--")
        value = context.params.get(param.name or "")
        values = value if isinstance(value, tuple) else (value,)
        flags[name] = ",".join(str(one) for one in values if one is not None)
    return flags


def build_options(
    *,
    config_file: Path | None,
    config_dir: Path | None,
    manifests: Path | None,
    root_dir: Path,
    runtime_endpoint: str | None,
    node_name: str | None,
    credential_provider_config: Path | None,
    credential_provider_bin_dir: Path | None,
    container_ttl: float,
    dead_per_container: int,
    dead_containers: int,
    log_format: Literal["text", "json"],
    verbosity: int,
    drain_on_exit: bool | None,
    host_image: bool | None,
    pod_network: str,
    cni_conf_dir: Path,
    cni_bin_dirs: tuple[Path, ...],
    hosts_dirs: tuple[Path, ...],
    kubeconfig: Path | None,
    bootstrap_kubeconfig: Path | None,
    cert_dir: Path | None,
    node_ips: str | None,
    node_labels: str,
    taints: str,
    cloud_provider: str,
    report_kubernetes_version: str | None,
    **deprecated: Any,
) -> AgentOptions:
    """What the agent is to do. Raises CommandError, after naming every problem on stderr."""
    from trikubelet.agent.options import AgentOptions
    from trikubelet.config.loader import ConfigurationError, load_configuration
    from trikubelet.embedded.network.choice import NetworkOptions
    from trikubelet.runtime.gc_choice import ContainerGCPolicy

    settings: dict[str, tuple[str, str]] = {}
    if manifests is not None:
        settings["--manifests"] = ("staticPodPath", str(Path.cwd() / manifests))
    if runtime_endpoint is not None:
        settings["--runtime-endpoint"] = ("containerRuntimeEndpoint", runtime_endpoint)
    try:
        loaded = load_configuration(config_file, config_dir, _given(deprecated), settings)
    except ConfigurationError as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        raise CommandError(f"the configuration cannot be used: {_count(len(error.problems), 'problem')}") from None
    configuration = _fit_to_user(loaded, root_dir)
    if config_file is None and config_dir is None and "failSwapOn" not in loaded.explicit:
        # A desktop machine has swap; a node's configuration says how it wants it.
        configuration = attrs.evolve(configuration, fail_swap_on=False)
    node, node_warnings = node_options(node_ips, node_labels, taints, cloud_provider, report_kubernetes_version)
    return AgentOptions(
        configuration=configuration,
        configured=config_file is not None or config_dir is not None or "failCgroupV1" in loaded.explicit,
        root_dir=root_dir,
        node_name=check_node_name(node_name),
        cluster=cluster_options(root_dir, kubeconfig, bootstrap_kubeconfig, cert_dir),
        node=node,
        runtime_endpoint=_as_url(configuration.container_runtime_endpoint),
        image_endpoint=_as_url(configuration.image_service_endpoint) or None,
        manifests=Path.cwd() / configuration.static_pod_path if configuration.static_pod_path else None,
        credential_provider_config=credential_provider_config,
        credential_provider_bin_dir=credential_provider_bin_dir,
        container_gc=ContainerGCPolicy(
            min_age=container_ttl, max_per_pod_container=dead_per_container, max_containers=dead_containers
        ),
        drain_on_exit=drain_on_exit,
        host_image=host_image,
        network=NetworkOptions(
            way=pod_network,
            pod_cidr=configuration.pod_cidr,
            in_cluster=kubeconfig is not None,
            cni_conf_dir=cni_conf_dir,
            cni_bin_dirs=cni_bin_dirs,
        ),
        registry_hosts_dirs=tuple(Path.cwd() / folder for folder in hosts_dirs),
        warnings=(*loaded.warnings, *node_warnings),
        log_format=log_format,
        verbosity=verbosity,
    )


def _given(deprecated: dict[str, Any]) -> dict[str, list[str]]:
    """The deprecated flags that were given, by name."""
    given: dict[str, list[str]] = {}
    for name, value in deprecated.items():
        if value not in (None, ()):
            flag = name.removeprefix(_PREFIX).replace("_", "-")
            given[flag] = [value] if isinstance(value, str) else list(value)
    return given


def _fit_to_user(loaded: LoadedConfiguration, root_dir: Path) -> Any:
    """Without root, `/var/log/pods` is out of reach: logs go below the root folder unless the user says where."""
    if os.geteuid() == 0 or "podLogsDir" in loaded.explicit:
        return loaded.config
    return attrs.evolve(loaded.config, pod_logs_dir=str(root_dir / "pod-logs"))


def _as_url(endpoint: str) -> str:
    """A bare path is a unix socket, as in the kubelet."""
    return f"unix://{endpoint}" if endpoint.startswith("/") else endpoint


def check_node_name(given: str | None) -> str:
    """The node's name in lower case, by default the host's (kubelet: `GetHostname`). Raises CommandError."""
    name = (given if given else socket.gethostname()).strip().lower()
    if len(name) > 253 or _NODE_NAME.fullmatch(name) is None:
        hint = "" if given else ": the host's name cannot be used, give one with --node-name"
        raise CommandError(f"expected letters, digits, '-' and '.' as node name, got {name!r}{hint}")
    return name


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
