"""`trikubelet leave`: what `join` did is undone."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from trikubelet.cli.failures import CommandError
from trikubelet.cli.install import refuse_running_pods, remove_folder, uninstall_service
from trikubelet.cli.node_files import NodePaths, kubernetes_dir_option, node_root_dir_option, node_runtime_option
from trikubelet.cli.output import echo
from trikubelet.cli.stop import end_everything

if TYPE_CHECKING:
    from pathlib import Path


@click.command(short_help="Undo join.")
@node_runtime_option
@node_root_dir_option
@kubernetes_dir_option
@click.option("--dry-run", is_flag=True, help="Only show what would be removed and run.")
@click.option("--purge", is_flag=True, help="Remove the state folder, too.")
def leave(runtime_endpoint: str, root_dir: Path, kubernetes_dir: Path, dry_run: bool, purge: bool) -> None:
    """Stop the service, end the node's pods, and remove the node's credentials and configuration.

    Drain the node before, and delete its object afterwards, both with kubectl: a node may do neither.
    """
    paths = NodePaths(kubernetes_dir, root_dir)
    if not paths.was_joined():
        raise CommandError(
            f"this machine has not joined a cluster with `trikubelet join`: {paths.bootstrap_kubeconfig} is not its "
            "file. `trikubelet uninstall` removes the service, `kubeadm reset` what kubeadm has made"
        )
    # The mark that says what is to be undone goes last.
    files = [paths.kubeconfig, paths.authority, paths.configuration, paths.bootstrap_kubeconfig]
    folder = root_dir if purge else paths.certificates
    uninstall_service(of_user=False, dry_run=dry_run)
    if dry_run:
        echo("end all pods")
        for path in (folder, *files):
            echo(f"remove {path}")
        return
    configuration = paths.configuration if paths.configuration.exists() else None
    if end_everything(root_dir, runtime_endpoint, configuration) != 0:
        raise CommandError("pods could not be ended; the node's files are left: run `trikubelet leave` again")
    if purge:
        refuse_running_pods(root_dir)
    if folder.exists():
        remove_folder(folder)
    for path in files:
        try:
            with suppress(FileNotFoundError):
                path.unlink()
                echo(f"removed {path}")
        except OSError as error:
            raise CommandError(f"{path} could not be removed: {error.strerror}") from None
    echo("This machine is no node any more. On the control plane, `kubectl delete node NAME` removes its object.")
