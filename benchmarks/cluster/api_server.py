"""The test API server as a process: `python -m benchmarks.cluster.api_server FOLDER --node NAME …`.

It serves on a port of this machine until SIGTERM, after it has written kubeconfigs into the folder: one for each node,
and then an administrator's, which also works for kubectl. What it holds is gone with it.
"""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import trio

from tests.apiserver.server import open_api_server
from tests.apiserver.users import AUTHENTICATED, MASTERS, User
from trikubelet.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

ADMIN_KUBECONFIG: Final = "admin.kubeconfig"
"""Is there when the server answers."""


def node_kubeconfig(folder: Path, node: str) -> Path:
    return folder / f"{node}.kubeconfig"


async def serve(folder: Path, nodes: Sequence[str], port: int, tokens: int = 0) -> None:
    """Until SIGTERM or SIGINT. `token-0` and so on are the tokens of so many users who may do everything."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with open_api_server(SystemClock()) as server, trio.open_nursery() as nursery:
            for number in range(tokens):
                server.identities.add_token(f"token-{number}", User(f"user-{number}", (MASTERS, AUTHENTICATED)))
            port = await nursery.start(partial(server.serve_tcp, port=port))
            url = f"https://127.0.0.1:{port}"
            for node in nodes:
                _write(node_kubeconfig(folder, node), server.kubeconfig(server.node_certificate(node), url))
            _write(folder / ADMIN_KUBECONFIG, server.kubeconfig(server.admin_certificate(), url))
            await anext(signals)
            nursery.cancel_scope.cancel()


def _write(file: Path, text: str) -> None:
    """Nobody sees half of it, and only its owner sees any of it: it holds a key."""
    unfinished = file.with_name(f".{file.name}")
    unfinished.touch(mode=0o600)
    unfinished.write_text(text)
    unfinished.rename(file)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--node", "nodes", multiple=True, required=True, help="A node that may join.")
@click.option("--port", default=0, show_default=True, help="0: any.")
@click.option("--tokens", default=0, show_default=True, help="So many users have tokens: token-0, token-1, …")
def main(folder: Path, nodes: tuple[str, ...], port: int, tokens: int) -> None:
    """Serve the Kubernetes API of an empty cluster."""
    trio.run(serve, folder, nodes, port, tokens)


if __name__ == "__main__":
    main()
