"""What pasta cannot do is refused before it is started."""

from __future__ import annotations

import pytest

from tests.embedded.network.machine import specification
from tests.network_namespace import network_namespace
from trikubelet.embedded.network.model import NetworkError, PortMapping
from trikubelet.embedded.network.pasta import PastaNetwork


@pytest.mark.root
async def test_host_ports_of_other_protocols_than_tcp_and_udp_are_refused() -> None:
    network = PastaNetwork("/runtime")
    diameter = PortMapping(host_port=3868, container_port=1, protocol="sctp")
    with network_namespace() as namespace, pytest.raises(NetworkError, match="3868/sctp: pasta forwards tcp and udp"):
        await network.attach(specification("a", diameter), namespace)
