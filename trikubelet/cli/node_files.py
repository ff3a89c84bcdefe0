"""The files that make a machine a node of a cluster, where kubeadm and the kubelet have them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from trikubelet.cli.failures import CommandError
from trikubelet.cli.output import echo
from trikubelet.cli.root_dir import ENVIRONMENT, KUBELET_ROOT
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.kube_client.cluster_info import JoinableCluster

KUBERNETES: Final = Path("/etc/kubernetes")
RUNTIMES: Final = (Path("/run/containerd/containerd.sock"), Path("/run/crio/crio.sock"))

kubernetes_dir_option = click.option(
    "--kubernetes-dir",
    type=click.Path(path_type=Path),
    default=KUBERNETES,
    show_default=True,
    callback=lambda _context, _parameter, value: Path.cwd() / value,
    help="The folder of the node's kubeconfigs, and of the cluster's authority.",
)
node_root_dir_option = click.option(
    "--root-dir",
    type=click.Path(path_type=Path),
    envvar=ENVIRONMENT,
    default=KUBELET_ROOT,
    callback=lambda _context, _parameter, value: Path.cwd() / value,
    help=f"The agent's state folder. [env: {ENVIRONMENT}; default: {KUBELET_ROOT}, where CSI drivers look]",
)
node_runtime_option = click.option(
    "--runtime-endpoint",
    callback=lambda _context, _parameter, value: value or machine_runtime(),
    help="The container runtime: unix:///PATH, or embedded.  [default: containerd or CRI-O where one runs]",
)


def machine_runtime() -> str:
    """The endpoint of the runtime that this machine has, by its socket."""
    return next((f"unix://{path}" for path in RUNTIMES if path.is_socket()), "embedded")


@frozen
class NodeFile:
    path: Path
    content: bytes
    mode: int


@frozen
class NodePaths:
    """Where a node's files are."""

    kubernetes_dir: Path
    root_dir: Path

    @property
    def kubeconfig(self) -> Path:
        """The agent writes it when it has a certificate, or is to get one."""
        return self.kubernetes_dir / "kubelet.conf"

    @property
    def bootstrap_kubeconfig(self) -> Path:
        return self.kubernetes_dir / "bootstrap-kubelet.conf"

    @property
    def authority(self) -> Path:
        return self.kubernetes_dir / "pki/ca.crt"

    @property
    def configuration(self) -> Path:
        return self.root_dir / "config.yaml"

    @property
    def certificates(self) -> Path:
        return self.root_dir / "pki"

    def flags(self, runtime_endpoint: str, node_name: str | None) -> list[str]:
        """Of `trikubelet run`, for the agent of this node."""
        return [
            f"--root-dir={self.root_dir}",
            f"--config={self.configuration}",
            f"--kubeconfig={self.kubeconfig}",
            f"--bootstrap-kubeconfig={self.bootstrap_kubeconfig}",
            f"--runtime-endpoint={runtime_endpoint}",
            *([f"--node-name={node_name}"] if node_name else []),
            # The cluster's configuration names the file where kubeadm has it.
            *([f"--client-ca-file={self.authority}"] if self.kubernetes_dir != KUBERNETES else []),
        ]

    def files(self, cluster: JoinableCluster, configuration: str) -> list[NodeFile]:
        """What `join` writes. The first one is the mark by which `leave` knows what to undo."""
        return [
            NodeFile(self.bootstrap_kubeconfig, cluster.kubeconfig, 0o600),
            NodeFile(self.authority, cluster.authority, 0o644),
            NodeFile(self.configuration, configuration.encode(), 0o644),
        ]

    def was_joined(self) -> bool:
        """Whether `join` has written the files. Raises CommandError."""
        from trikubelet.kube_client.cluster_info import WRITTEN_BY

        content = _content(self.bootstrap_kubeconfig)
        return content is not None and content.startswith(WRITTEN_BY.encode())


def refuse_node(paths: NodePaths, files: Sequence[NodeFile]) -> None:
    """Raises CommandError on a machine that is a node already, or has files of somebody else's in the way."""
    joined = paths.was_joined()
    undo = "`trikubelet leave` undoes that" if joined else "`kubeadm reset` undoes that, or see docs/joining.md"
    if _content(paths.kubeconfig) is not None:
        raise CommandError(f"this machine is a node of a cluster already, it has {paths.kubeconfig}: {undo}")
    if joined:
        return
    for file in files:
        if _content(file.path) not in (None, file.content):
            raise CommandError(f"{file.path} is there already, and says something else: move it away, {undo}")


def write_node_files(files: Sequence[NodeFile]) -> None:
    """All of them or, of those that were not there, none. Raises CommandError."""
    from trikubelet.linux.durable_files import write_atomically

    new: list[Path] = []
    try:
        for file in files:
            if not file.path.exists():
                new.append(file.path)
            file.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_atomically(file.path, file.content, mode=file.mode)
    except BaseException as error:
        for path in new:
            with suppress(OSError):
                path.unlink()
        if isinstance(error, OSError):
            raise CommandError(f"cannot write {error.filename}: {error.strerror}; nothing is changed") from None
        raise
    for file in files:
        echo(f"wrote {file.path}")


def _content(path: Path) -> bytes | None:
    """None when there is no such file. Raises CommandError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
