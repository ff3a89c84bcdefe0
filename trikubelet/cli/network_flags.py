"""Flags for the network of the embedded runtime's pods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trikubelet.embedded.network.choice import AUTO, WAYS
from trikubelet.embedded.network.cni.folder import DEFAULT_FOLDER, DEFAULT_PLUGIN_FOLDERS

if TYPE_CHECKING:
    from collections.abc import Callable


def network_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `pod_network`, `cluster_cidr`, `cni_conf_dir` and `cni_bin_dirs`."""
    function = click.option(
        "--cluster-cidr",
        default="",
        help="The addresses of all pods in the cluster, for pods on the bridge. Embedded runtime.",
    )(function)
    function = click.option(
        "--cni-bin-dir",
        "cni_bin_dirs",
        multiple=True,
        default=DEFAULT_PLUGIN_FOLDERS,
        show_default=True,
        type=click.Path(path_type=Path),
        help="A folder of CNI plugins; may be repeated. Embedded runtime.",
    )(function)
    function = click.option(
        "--cni-conf-dir",
        default=DEFAULT_FOLDER,
        show_default=True,
        type=click.Path(path_type=Path),
        help="The folder of CNI configurations. Embedded runtime.",
    )(function)
    return click.option(
        "--pod-network",
        type=click.Choice(WAYS),
        default=AUTO,
        show_default=True,
        help="How pods get networks on the embedded runtime: by CNI plugins, a bridge, pasta, or the machine's own.",
    )(function)


pod_cidr_flag = click.option(
    "--pod-cidr", default="", help="The addresses of pods on the bridge, one range for each family, with commas."
)
"""Adds `pod_cidr`; `run` has it as one of the kubelet's flags."""
