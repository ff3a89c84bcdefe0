"""Which network a new pod gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.embedded.fake_network import FakeNetwork
from trikubelet.embedded.network.choice import BRIDGE, CNI, HOST, PASTA, Choice, NetworkOptions, choose

WORKS, LACKS = FakeNetwork(), FakeNetwork(trouble="it lacks")
NOTHING = Path("/nowhere")


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def configured(folder: Path) -> NetworkOptions:
    (folder / "10-net.conflist").write_text("{}")
    return NetworkOptions(cni_conf_dir=folder)


async def test_plugins_that_are_configured_come_first_even_when_they_do_not_work(tmp_path: Path) -> None:
    networks = {CNI: LACKS, BRIDGE: WORKS}
    assert await choose(configured(tmp_path), networks, "") == Choice(CNI)


async def test_without_a_configuration_the_first_that_works_is_taken() -> None:
    options = NetworkOptions(cni_conf_dir=NOTHING)
    assert await choose(options, {CNI: WORKS, BRIDGE: WORKS, PASTA: WORKS}, "") == Choice(BRIDGE)
    assert await choose(options, {CNI: WORKS, BRIDGE: LACKS, PASTA: WORKS}, "") == Choice(PASTA)


async def test_where_none_works_it_is_the_machines_and_every_reason_is_told() -> None:
    choice = await choose(NetworkOptions(cni_conf_dir=NOTHING), {CNI: WORKS, BRIDGE: LACKS}, "")
    assert choice == Choice(HOST, "cni: nothing is configured in /nowhere; bridge: it lacks")


async def test_plugins_are_not_for_who_is_not_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert await choose(configured(tmp_path), {CNI: WORKS, BRIDGE: LACKS, PASTA: WORKS}, "") == Choice(PASTA)


async def test_a_node_of_a_cluster_waits_for_its_plugins() -> None:
    options = NetworkOptions(cni_conf_dir=NOTHING, in_cluster=True)
    assert await choose(options, {CNI: LACKS, BRIDGE: WORKS}, "") == Choice(CNI)


async def test_a_network_that_was_chosen_stays_so_in_trouble_until_plugins_are_configured(tmp_path: Path) -> None:
    networks = {CNI: WORKS, BRIDGE: LACKS, PASTA: WORKS}
    assert await choose(NetworkOptions(cni_conf_dir=NOTHING), networks, "", before=BRIDGE) == Choice(BRIDGE)
    assert await choose(configured(tmp_path), networks, "", before=BRIDGE) == Choice(CNI)


async def test_what_is_asked_for_is_taken_as_far_as_there_are_namespaces() -> None:
    assert await choose(NetworkOptions(way=PASTA), {PASTA: LACKS}, "") == Choice(PASTA)
    assert await choose(NetworkOptions(way=HOST), {PASTA: WORKS}, "") == Choice(HOST, "as configured")
    assert await choose(NetworkOptions(way=PASTA), {PASTA: WORKS}, "no namespaces") == Choice(HOST, "no namespaces")
