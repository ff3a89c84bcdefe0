"""`trikubelet run`: gathers what flags and files say, and starts the agent."""

from __future__ import annotations

import gc
import ipaddress
import os
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
from click.core import ParameterSource

from trikubelet.cli.cluster_flags import cluster_flags, cluster_options, node_options
from trikubelet.cli.failures import CommandError
from trikubelet.cli.kubelet_flags import configuration_flags, hyphens, kubelet_flags, meaningless_flags
from trikubelet.cli.network_flags import network_flags
from trikubelet.cli.output import echo
from trikubelet.cli.pod_flags import POD_ARGUMENTS, check_flags, pod_flags
from trikubelet.cli.root_dir import own_manifests, registry_hosts_option, root_dir_option, running_agent_root_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.agent.options import AgentOptions
    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.config.loader import LoadedConfiguration
    from trikubelet.embedded.network.choice import NetworkOptions
    from trikubelet.runtime.gc_choice import ContainerGCPolicy

_NODE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
KUBELET_RUNTIME: Final = "unix:///run/containerd/containerd.sock"
"""The kubelet's default."""


def _ui_address(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, int] | None:
    """IP address and port."""
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    host = "127.0.0.1" if host == "localhost" else host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise click.BadParameter(f"expected an IP address and a port, such as 127.0.0.1:8080, got {text!r}") from None
    if not (colon and port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 2**16):
        raise click.BadParameter(f"expected a port from 0 to 65535 after the address, got {text!r}")
    return host, int(port)


@click.command(short_help="Run the agent, or an image.", context_settings={"token_normalize_func": hyphens})
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="A KubeletConfiguration (YAML or JSON).")
@click.option("--config-dir", type=click.Path(path_type=Path), help="Drop-ins (*.conf) laid over --config.")
@click.option(
    "--manifests",
    type=click.Path(path_type=Path),
    help="Your folder (or file) of static pods.  [default: ROOT/manifests, outside of clusters]",
)
@root_dir_option
@click.option(
    "--runtime-endpoint",
    help="The container runtime: embedded, or unix:///PATH.  [default: embedded; in clusters with --config containerd]",
)
@click.option("--node-name", "--hostname-override", "node_name", help="This node's name.  [default: the host's name]")
@cluster_flags
@click.option(
    "--image-credential-provider-config",
    "credential_provider_config",
    type=click.Path(path_type=Path),
    help="A CredentialProviderConfig, or a folder of them: which programs to ask for registry credentials.",
)
@click.option(
    "--image-credential-provider-bin-dir",
    "credential_provider_bin_dir",
    type=click.Path(path_type=Path),
    help="The folder with those programs.",
)
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
@click.option(
    "--ui",
    "ui_address",
    metavar="ADDRESS",
    callback=_ui_address,
    help="Serve a live page of the pods, as on 127.0.0.1:8080; `trikubelet web` prints the link. Other addresses than "
    "loopback ones need the node's authentication.",
)
@network_flags
@registry_hosts_option
@kubelet_flags
@pod_flags
def run(**arguments: Any) -> int:
    """Run the agent until it is interrupted. A second signal ends it at once.

    With an IMAGE: tell the running agent to run a pod of it, with COMMAND instead of the image's own.

    The kubelet's flags for its configuration (--sync-frequency, --max-pods, --feature-gates, …) are taken too, and win
    over the files.
    """
    check_flags(context := click.get_current_context())
    if arguments["image"]:
        from trikubelet.cli.run_pod import run_pod

        root_dir = arguments["root_dir"]
        if context.get_parameter_source("root_dir") is ParameterSource.DEFAULT:
            root_dir = running_agent_root_dir(root_dir)
        return run_pod(root_dir, arguments["image"], arguments["command"], arguments)
    # Only young garbage is looked for now: nearly all that is imported and built stays. `agent.run` ends this.
    gc.set_threshold(5000, 1000)
    options = attrs.evolve(build_options(arguments), flags=_flags(context))
    from trikubelet.agent.run import run_agent

    return run_agent(options)


def _flags(context: click.Context) -> dict[str, str]:
    """Every flag with its value, as `/flagz` shows them."""
    flags = {}
    for param in context.command.params:
        if param.name in POD_ARGUMENTS:
            continue
        name = max(param.opts, key=len).removeprefix("--")
        value = context.params.get(param.name or "")
        values = value if isinstance(value, tuple) else (value,)
        flags[name] = ",".join(str(one) for one in values if one is not None)
    return flags


def build_options(arguments: Mapping[str, Any]) -> AgentOptions:
    """What the agent is to do. Raises CommandError, after naming every problem on stderr."""
    from trikubelet.agent.options import AgentOptions

    root_dir: Path = arguments["root_dir"]
    loaded = _load(arguments)
    configured = arguments["config_file"] is not None or arguments["config_dir"] is not None
    in_cluster = arguments["kubeconfig"] is not None
    configuration = _with_defaults(loaded, root_dir, configured=configured, in_cluster=in_cluster)
    node, node_warnings = node_options(arguments)
    return AgentOptions(
        configuration=configuration,
        configured=configured or "failCgroupV1" in loaded.explicit,
        root_dir=root_dir,
        node_name=check_node_name(arguments["node_name"]),
        cluster=cluster_options(arguments),
        node=node,
        runtime_endpoint=_as_url(configuration.container_runtime_endpoint),
        image_endpoint=_as_url(configuration.image_service_endpoint) or None,
        manifests=_manifests(configuration, root_dir, in_cluster=in_cluster),
        **_passed_on(arguments),
        container_gc=_container_gc(arguments),
        network=_network(arguments, configuration.pod_cidr),
        registry_hosts_dirs=tuple(Path.cwd() / folder for folder in arguments["hosts_dirs"]),
        console=_has_console(loaded),
        warnings=(*loaded.warnings, *node_warnings, *meaningless_flags(arguments)),
    )


def _has_console(loaded: LoadedConfiguration) -> bool:
    """A person at a terminal who has said nothing of the log sees what happens to pods, and others see the log."""
    return (
        sys.stdout.isatty()
        and sys.stderr.isatty()
        and not any(name.partition(".")[0] == "logging" for name in loaded.explicit)
    )


def _manifests(configuration: KubeletConfiguration, root_dir: Path, *, in_cluster: bool) -> Path | None:
    """A person's folder. An agent by itself that is told of no pods has one for those that it is given later.

    Raises CommandError for a folder that commands write into.
    """
    if configuration.static_pod_path:
        from trikubelet.sources.manifest_folder import APPLIED, REMOVED, WRITTEN

        path = Path.cwd() / configuration.static_pod_path
        if path.resolve() in {(root_dir / name).resolve() for name in (APPLIED, REMOVED, WRITTEN)}:
            raise CommandError(f"{path}: commands write into this folder, give --manifests another one for your files")
        return path
    return None if in_cluster or configuration.static_pod_url else own_manifests(root_dir)


_PASSED_ON: Final = (
    "credential_provider_config",
    "credential_provider_bin_dir",
    "drain_on_exit",
    "host_image",
    "runtime_cgroups",
    "lock_file",
    "exit_on_lock_contention",
    "ignores_eviction",
    "ui_address",
)
"""Flags that the agent gets as they are."""


def _passed_on(arguments: Mapping[str, Any]) -> dict[str, Any]:
    if arguments["exit_on_lock_contention"] and arguments["lock_file"] is None:
        raise CommandError("cannot exit on lock file contention: no lock file specified, give --lock-file")
    return {name: arguments[name] for name in _PASSED_ON}


def _load(arguments: Mapping[str, Any]) -> LoadedConfiguration:
    """The configuration, of files and flags. Raises CommandError, after naming every problem on stderr."""
    from trikubelet.config.loader import ConfigurationError, load_configuration

    settings: dict[str, tuple[str, str]] = {}
    if arguments["manifests"] is not None:
        settings["--manifests"] = ("staticPodPath", str(Path.cwd() / arguments["manifests"]))
    if arguments["runtime_endpoint"] is not None:
        settings["--runtime-endpoint"] = ("containerRuntimeEndpoint", arguments["runtime_endpoint"])
    given = configuration_flags(arguments)
    try:
        return load_configuration(arguments["config_file"], arguments["config_dir"], given, settings)
    except ConfigurationError as error:
        for problem in error.problems:
            echo(str(problem), err=True)
        raise CommandError(f"the configuration cannot be used: {_count(len(error.problems), 'problem')}") from None


def _container_gc(arguments: Mapping[str, Any]) -> ContainerGCPolicy:
    from trikubelet.runtime.gc_choice import ContainerGCPolicy

    return ContainerGCPolicy(
        min_age=arguments["container_ttl"],
        max_per_pod_container=arguments["dead_per_container"],
        max_containers=arguments["dead_containers"],
    )


def _network(arguments: Mapping[str, Any], pod_cidr: str) -> NetworkOptions:
    from trikubelet.embedded.network.choice import NetworkOptions

    return NetworkOptions(
        way=arguments["pod_network"],
        pod_cidr=pod_cidr,
        cluster_cidr=arguments["cluster_cidr"],
        in_cluster=arguments["kubeconfig"] is not None,
        cni_conf_dir=arguments["cni_conf_dir"],
        cni_bin_dirs=arguments["cni_bin_dirs"],
    )


def _with_defaults(
    loaded: LoadedConfiguration, root_dir: Path, *, configured: bool, in_cluster: bool
) -> KubeletConfiguration:
    """What depends on the machine and on what this is to be, where nobody says otherwise.

    The kubelet's cgroups and log folder belong to nodes of clusters: without one, the agent has its own, so that it
    and a kubelet leave each other alone. Without root `/var/log/pods` is out of reach anyway. A desktop machine has
    swap, while a node's configuration says how it wants it. Chains in iptables are for kube-proxy and network plugins:
    without a cluster somebody's firewall is left alone.
    """
    from trikubelet.agent.options import own_pod_logs
    from trikubelet.cgroups.ownership import own_cgroup_root
    from trikubelet.config.kubelet_configuration import EMBEDDED_RUNTIME

    endpoint = runtime_of(loaded, configured=configured, in_cluster=in_cluster)
    configuration = attrs.evolve(loaded.config, container_runtime_endpoint=endpoint)
    if (os.geteuid() != 0 or not in_cluster) and "podLogsDir" not in loaded.explicit:
        configuration = attrs.evolve(configuration, pod_logs_dir=str(own_pod_logs(root_dir)))
    if not in_cluster and "cgroupRoot" not in loaded.explicit:
        configuration = attrs.evolve(configuration, cgroup_root=own_cgroup_root(root_dir))
    if not configured and "failSwapOn" not in loaded.explicit:
        configuration = attrs.evolve(configuration, fail_swap_on=False)
    alone = not in_cluster and configuration.container_runtime_endpoint == EMBEDDED_RUNTIME
    if alone and "makeIPTablesUtilChains" not in loaded.explicit:
        configuration = attrs.evolve(configuration, make_iptables_util_chains=False)
    return configuration


def runtime_of(loaded: LoadedConfiguration, *, configured: bool, in_cluster: bool) -> str:
    """The endpoint: a node of a cluster with a kubelet's configuration has the kubelet's runtime."""
    if configured and in_cluster and "containerRuntimeEndpoint" not in loaded.explicit:
        return KUBELET_RUNTIME
    return loaded.config.container_runtime_endpoint


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
