"""What `check` says of the pods' network, and of the names that they can resolve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trikubelet.cli import network_checks
from trikubelet.cli.machine_checks import Level, Machine
from trikubelet.cli.network_checks import check_networks, check_resolver

if TYPE_CHECKING:
    from pathlib import Path


def test_this_machines_networks_can_be_checked(root_dir: Path) -> None:
    results = list(check_networks(root_dir, Machine()))
    *network, servers = [result.subject for result in results]
    assert (set(network), servers) == ({"pod network"}, "name servers")
    assert all(result.fix or result.level is Level.OK for result in results), "what is not well has its remedy"


@pytest.mark.parametrize(
    ("server", "upstream", "level", "finding"),
    [
        ("192.0.2.53", False, Level.OK, "those of"),
        ("127.0.0.53", True, Level.OK, "the machine's loopback alone"),
        ("127.0.0.1", False, Level.WARN, "cannot reach"),
    ],
)
def test_name_servers_that_pods_cannot_reach_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, upstream: bool, level: Level, finding: str
) -> None:
    own, behind = tmp_path / "resolv.conf", tmp_path / "upstream"
    own.write_text(f"nameserver {server}\n")
    if upstream:
        behind.write_text("nameserver 192.0.2.1\n")
    monkeypatch.setattr(network_checks, "RESOLV_CONF", own)
    monkeypatch.setattr(network_checks, "SYSTEMD_RESOLV_CONF", behind)
    result = check_resolver()
    assert result.level is level
    assert finding in result.finding
