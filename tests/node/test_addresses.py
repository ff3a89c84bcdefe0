"""The node's address, from the kernel's own tables."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from trikubelet.node.addresses import (
    LOOPBACK,
    InterfaceAddress,
    interface_address,
    interface_addresses,
    primary_address,
    read_host_addresses,
)

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"


def route(interface: str, destination: str, metric: int, mask: str) -> str:
    return f"{interface}\t{destination}\t0100007F\t0003\t0\t0\t{metric}\t{mask}\t0\t0\t0\n"


def test_loopback_has_its_well_known_address() -> None:
    assert interface_address("lo") == LOOPBACK


def test_an_unknown_interface_has_none() -> None:
    assert interface_address("no-such-interface-at-all") is None


def test_the_primary_address_is_one_even_without_a_route_table(tmp_path: Path) -> None:
    address = ipaddress.ip_address(primary_address(tmp_path / "missing"))
    assert address.version == 4


def test_a_loopback_address_is_taken_only_when_there_is_no_other(tmp_path: Path) -> None:
    table = tmp_path / "route"
    table.write_text(HEADER + route("lo", "00000000", 0, "00000000"))
    without = tmp_path / "missing"
    assert primary_address(table) == primary_address(without)


def test_the_kernel_tells_the_addresses_of_all_interfaces() -> None:
    assert InterfaceAddress("lo", ipaddress.ip_address(LOOPBACK)) in interface_addresses()


def test_addresses_of_interfaces_with_a_default_route_are_preferred(tmp_path: Path) -> None:
    found = read_host_addresses(tmp_path / "none", tmp_path / "none")
    assert ipaddress.ip_address(LOOPBACK) in found.local
    assert not any(ip.is_loopback or ip.is_link_local for ip in found.preferred)
    table = tmp_path / "route"
    table.write_text(HEADER + route("no-such-interface", "00000000", 0, "00000000"))
    assert read_host_addresses(table, tmp_path / "none").preferred == ()
