"""An agent's process that attaches one pod, for tests that kill it: `python -c ... ROOT SPEC NAMESPACE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from trikubelet.embedded.network.cni.network import CniFolders, CniNetwork
from trikubelet.embedded.network.model import PodNetworkSpec

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence


@attrs.frozen
class NamespaceAt:
    """A network namespace by its path."""

    path: str

    async def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        raise NotImplementedError("plugins need none")


def folders_in(root: Path, *plugins: Path) -> CniFolders:
    """The folders of a test's own machine."""
    return CniFolders(
        configuration=root / "net.d",
        plugins=(root / "bin", *plugins),
        cache=root / "cache",
        namespaces=root / "netns",
    )


def attaching_command(root: Path, spec: PodNetworkSpec, namespace: str, *plugins: Path) -> Sequence[str]:
    """For pods without ports."""
    code = "from tests.embedded.network.cni.attaching import main; main()"
    known = {name: getattr(spec, name) for name in ("sandbox_id", "namespace", "name", "uid")}
    return [sys.executable, "-c", code, str(root), json.dumps(known), namespace, *map(str, plugins)]


def main() -> None:
    root, spec, namespace, *plugins = sys.argv[1:]
    network = CniNetwork(Path(root) / "runtime", folders_in(Path(root), *map(Path, plugins)))
    trio.run(network.attach, PodNetworkSpec(**json.loads(spec)), NamespaceAt(namespace))
