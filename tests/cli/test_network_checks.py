"""What `check` says of the pods' network, and of the names that they can resolve."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import run_command
from trikubelet.cli import network_checks
from trikubelet.cli.machine_checks import Level, Machine
from trikubelet.cli.network_checks import check_networks, check_resolver
from trikubelet.embedded.network.choice import NetworkOptions


def test_this_machines_networks_can_be_checked(root_dir: Path) -> None:
    results = list(check_networks(root_dir, Machine(), NetworkOptions()))
    *network, servers = [result.subject for result in results]
    assert (set(network), servers) == ({"pod network"}, "name servers")
    assert all(result.fix or result.level is Level.OK for result in results), "what is not well has its remedy"


def found(*arguments: str | Path) -> list[str]:
    """What the command says of the pods' network, a finding or a remedy a line."""
    lines = run_command("check", *arguments).out.splitlines()
    before = ["", *lines]
    return [line for previous, line in zip(before, lines, strict=False) if "pod network" in previous + line]


def test_the_network_that_the_flags_choose_is_checked(root_dir: Path, tmp_path: Path) -> None:
    assert found("--root-dir", root_dir, "--pod-network", "host")[0] == (
        "ok    pod network: the machine's: two pods cannot listen on the same port"
    )
    first, second = found("--root-dir", root_dir, "--pod-network", "cni", "--cni-conf-dir", tmp_path)[:2]
    assert first.startswith("warn  pod network: by the CNI plugins that are configured, for which pods have to wait: ")
    file, heading = "docs/embedded.md", "Network"
    assert second.strip() == f"→ see {heading} in {file}"
    assert f"\n## {heading}\n" in (Path(__file__).parents[2] / file).read_text()


def test_addresses_that_are_none_are_told(root_dir: Path, tmp_path: Path) -> None:
    assert found("--root-dir", root_dir, "--pod-cidr", "somewhere")[0].startswith("fail  pod network: pod subnet ")
    assert found("--root-dir", root_dir, "--cluster-cidr", "x")[0].startswith("fail  pod network: cluster CIDR 'x': ")
    configuration = tmp_path / "config.yaml"
    configuration.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\npodCIDR: 10.0.0.0/31\n"
    )
    assert "has no room" in found("--root-dir", root_dir, "--config", configuration)[0]


@pytest.mark.root
def test_a_node_of_a_cluster_waits_for_its_plugins(root_dir: Path, tmp_path: Path) -> None:
    assert "by the CNI plugins" in found("--root-dir", root_dir, "--cni-conf-dir", tmp_path, "--in-cluster")[0]
    assert "by the CNI plugins" not in found("--root-dir", root_dir, "--cni-conf-dir", tmp_path)[0]


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
