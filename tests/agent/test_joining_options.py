"""What an agent makes of the options with which it joins a cluster, before it asks any API server."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import attrs
import pytest

from trikubelet.agent.node import node_settings
from trikubelet.agent.options import AgentOptions, NodeOptions
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.node.capacity import DEFAULT_EVICTION

if TYPE_CHECKING:
    from pathlib import Path


def test_the_node_goes_by_one_name_also_as_a_host(tmp_path: Path) -> None:
    options = AgentOptions(configuration=KubeletConfiguration(), root_dir=tmp_path, node_name="given")
    assert node_settings(options).addresses.hostname == "given"
    other = attrs.evolve(options, node=NodeOptions(hostname="host"))
    assert node_settings(other).addresses.hostname == "host"


@pytest.mark.parametrize(
    ("hard", "ignored", "kept"),
    [
        (None, False, DEFAULT_EVICTION),
        ({}, False, {}),
        (None, True, {}),
        ({"memory.available": "5%"}, False, {"memory.available": "5%"}),
    ],
)
def test_what_hard_eviction_keeps_free_is_kept_from_pods(
    tmp_path: Path, hard: dict[str, str] | None, ignored: bool, kept: dict[str, str]
) -> None:
    configuration = KubeletConfiguration(eviction_hard=hard)
    options = AgentOptions(configuration=configuration, root_dir=tmp_path, node_name="given", ignores_eviction=ignored)
    assert node_settings(options).reservations.eviction == kept


def test_a_kubeconfig_that_cannot_be_used_ends_the_agent_before_anything_is_started(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from trikubelet.cli.main import main; main()", "run"]
    flags = [f"--root-dir={tmp_path / 'root'}", f"--kubeconfig={tmp_path / 'none'}", "--node-name=given"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"{tmp_path / 'none'}: invalid configuration: cannot be read" in done.stdout + done.stderr
    assert not (tmp_path / "root" / "runtime").exists()
