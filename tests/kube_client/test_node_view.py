"""The node as others see it, and its addresses as pods are told them."""

from __future__ import annotations

import pytest
import trio

from trikubelet.api import Node, NodeAddress, NodeStatus, ObjectMeta, Quantity
from trikubelet.kube_client.node_view import LocalNodeView, NodeView, host_ips


def node(*addresses: tuple[str, str]) -> Node:
    return Node(
        metadata=ObjectMeta(name="a"),
        status=NodeStatus(
            addresses=tuple(NodeAddress(type_, address) for type_, address in addresses),
            allocatable={"cpu": Quantity("2")},
        ),
    )


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ((), ()),
        ((("Hostname", "a"),), ()),
        ((("InternalIP", "192.168.1.1"), ("Hostname", "a")), ("192.168.1.1",)),
        ((("ExternalIP", "1.1.1.1"), ("InternalIP", "192.168.1.1")), ("192.168.1.1",)),
        ((("Hostname", "a"), ("ExternalIP", "1.1.1.1")), ("1.1.1.1",)),
        ((("InternalIP", "192.168.1.1"), ("InternalIP", "192.168.1.2")), ("192.168.1.1",)),
        ((("InternalIP", "192.168.1.1"), ("InternalIP", "fd00::1")), ("192.168.1.1", "fd00::1")),
        ((("InternalIP", "fd00::1"), ("InternalIP", "192.168.1.1")), ("fd00::1", "192.168.1.1")),
        ((("InternalIP", "192.168.1.1"), ("ExternalIP", "2001:db8:0::1")), ("192.168.1.1", "2001:db8::1")),
        ((("InternalIP", "nonsense"), ("ExternalIP", "1.1.1.1")), ("1.1.1.1",)),
    ],
)
def test_pods_are_told_one_address_of_each_family(
    addresses: tuple[tuple[str, str], ...], expected: tuple[str, ...]
) -> None:
    assert host_ips(node(*addresses)) == expected


async def test_a_node_without_a_cluster_is_what_it_was_at_the_start(autojump_clock: trio.testing.MockClock) -> None:
    initial = node(("InternalIP", "10.0.0.1"))
    view: NodeView = LocalNodeView(initial)
    assert view.cached() is initial
    assert await view.fetch() is initial
    assert view.host_ips() == ("10.0.0.1",)
    assert view.allocatable() == {"cpu": Quantity("2")}
    assert not view.registered
    assert view.uid is None
    with trio.move_on_after(3600) as waiting:
        await view.wait_registered()
    assert waiting.cancelled_caught
