"""Which network new pods get: what the options say, or the first that this machine has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.embedded.network.cni.folder import DEFAULT_FOLDER, DEFAULT_PLUGIN_FOLDERS, configuration_files
from trikubelet.embedded.network.model import NetworkError
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.embedded.network.model import PodNetwork

AUTO: Final = "auto"
CNI: Final = "cni"
BRIDGE: Final = "bridge"
PASTA: Final = "pasta"
HOST: Final = "host"
WAYS: Final = (AUTO, CNI, BRIDGE, PASTA, HOST)


@frozen(kw_only=True)
class NetworkOptions:
    """What flags and the configuration say of the pods' network."""

    way: str = AUTO
    """One of WAYS."""
    pod_cidr: str = ""
    """The addresses of this node's pods; several families are separated by commas. Empty: the default."""
    cluster_cidr: str = ""
    """The addresses of all pods of the cluster, likewise. Empty: all that leaves the machine has its address."""
    in_cluster: bool = False
    cni_conf_dir: Path = DEFAULT_FOLDER
    cni_bin_dirs: tuple[Path, ...] = DEFAULT_PLUGIN_FOLDERS


@frozen
class Choice:
    """One of WAYS, and why, where it is the machine's network."""

    way: str
    why: str = ""


async def choose(
    options: NetworkOptions, networks: Mapping[str, PodNetwork], impossible: str, before: str = HOST
) -> Choice:
    """The network for a new pod. `impossible`: why no pod can have a network namespace; empty when it can.

    `before` is what was chosen last. A network that has trouble later on is still the one: pods wait for it.

    By itself an agent takes CNI plugins when they are configured, a bridge of its own, or pasta: the first that can
    work here. A node of a cluster waits for a configuration, as it does on containerd: its network plugin usually comes
    as a pod on the machine's network and writes one, and pods that are started before would have addresses that the
    rest of the cluster cannot reach.
    """
    if options.way == HOST:
        return Choice(HOST, "as configured")
    if impossible:
        return Choice(HOST, impossible)
    if options.way != AUTO:
        return Choice(options.way)
    problems = []
    for way in networks:
        problem = _cni_problem(options) if way == CNI else await networks[way].problem()
        if not problem or (way == before and way != CNI):
            return Choice(way)
        problems.append(f"{way}: {problem}")
    return Choice(HOST, "; ".join(problems))


def _cni_problem(options: NetworkOptions) -> str:
    """Why pods should not wait for CNI plugins. A configuration that does not work is none: it was made to be used."""
    if os.geteuid() != 0:
        return "plugins need root"
    try:
        configured = configuration_files(options.cni_conf_dir)
    except NetworkError as error:
        return str(error)
    return "" if configured or options.in_cluster else f"nothing is configured in {options.cni_conf_dir}"
