"""How the agent that runs was started: its process, its configuration, and its flags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trikubelet.cli.client import AgentClient
from trikubelet.cli.failures import CommandError
from trikubelet.cli.root_dir import agent_pid
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.embedded.network.choice import NetworkOptions
from trikubelet.formats.values import frozen

_FLAGS_FORM: Final = "application/json;as=Flagz;g=config.k8s.io;v=v1beta1"


@frozen
class RunningAgent:
    """An agent that answers."""

    pid: int
    configuration: KubeletConfiguration
    """What is in force, with the agent's own defaults."""
    flags: Mapping[str, str]
    """Its command line, by name without dashes."""

    @property
    def configured(self) -> bool:
        """As `AgentOptions.configured`."""
        return bool(self.flags.get("config") or self.flags.get("config-dir"))

    @property
    def in_cluster(self) -> bool:
        return bool(self.flags.get("kubeconfig"))

    @property
    def network(self) -> NetworkOptions:
        """How its pods get networks."""
        default = NetworkOptions()
        folders = tuple(Path(folder) for folder in self.flags.get("cni-bin-dir", "").split(",") if folder)
        return NetworkOptions(
            way=self.flags.get("pod-network") or default.way,
            pod_cidr=self.configuration.pod_cidr,
            cluster_cidr=self.flags.get("cluster-cidr", ""),
            in_cluster=self.in_cluster,
            cni_conf_dir=Path(self.flags.get("cni-conf-dir") or default.cni_conf_dir),
            cni_bin_dirs=folders or default.cni_bin_dirs,
        )


def running_agent(root_dir: Path) -> RunningAgent | None:
    """Return the agent of this root folder, or None where none listens. Raises CommandError if it does not answer."""
    from trikubelet.config.decode import decode_configuration

    pid = agent_pid(root_dir)
    if pid is None:
        return None
    client = AgentClient(root_dir)
    decoded = decode_configuration(client.get("/configz")["kubeletconfig"])
    if decoded.problems:
        raise CommandError(f"the configuration of the agent with pid {pid} cannot be read: {decoded.problems[0]}")
    return RunningAgent(pid, decoded.config, client.get("/flagz", accept=_FLAGS_FORM).get("flags", {}))
