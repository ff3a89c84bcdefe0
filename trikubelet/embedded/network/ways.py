"""All the ways there are to give pods networks, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trikubelet.embedded.network.bridge.addresses import parse_subnets
from trikubelet.embedded.network.choice import BRIDGE, CNI, PASTA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trikubelet.embedded.network.choice import NetworkOptions
    from trikubelet.embedded.network.model import PodNetwork
    from trikubelet.embedded.network.pasta import StartHelper


class Networks(Mapping[str, "PodNetwork"]):
    """By name. Each is imported and made when it is asked for: most agents use one."""

    def __init__(self, makers: Mapping[str, Callable[[], PodNetwork]]) -> None:
        self._makers = makers
        self._made: dict[str, PodNetwork] = {}

    def __getitem__(self, way: str) -> PodNetwork:
        if way not in self._made:
            self._made[way] = self._makers[way]()
        return self._made[way]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def all_networks(root: Path, options: NetworkOptions, start_helper: StartHelper | None = None) -> Networks:
    """`root`: the runtime's folder, which tells what is its own from what is another runtime's.

    `start_helper`: see `PastaNetwork`. Raises NetworkError for addresses that are none.
    """
    addresses = subnets(options.pod_cidr)
    parse_subnets(addresses)
    cluster = subnets(options.cluster_cidr)
    parse_subnets(cluster, "cluster CIDR")

    def cni() -> PodNetwork:
        from trikubelet.embedded.network.cni.network import CniFolders, CniNetwork

        return CniNetwork(root, CniFolders(configuration=options.cni_conf_dir, plugins=options.cni_bin_dirs))

    def bridge() -> PodNetwork:
        from trikubelet.embedded.network.bridge.network import BridgeNetwork

        return BridgeNetwork(str(root), subnets=addresses, cluster=cluster)

    def pasta() -> PodNetwork:
        from trikubelet.embedded.network.pasta import PastaNetwork

        return PastaNetwork(str(root), subnets=addresses, start=start_helper)

    return Networks({CNI: cni, BRIDGE: bridge, PASTA: pasta})


def subnets(pod_cidr: str) -> list[str]:
    """As the kubelet writes them: with a comma between those of two families."""
    return [part.strip() for part in pod_cidr.split(",") if part.strip()]
