"""What configurations say, and what a plugin gets of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from trikubelet.embedded.network.cni.configuration import parse_list, parse_single, request
from trikubelet.embedded.network.cni.documents import MOST_BYTES, CniDataError
from trikubelet.embedded.network.cni.folder import find_plugin, read_networks
from trikubelet.embedded.network.model import NetworkError

if TYPE_CHECKING:
    from pathlib import Path

BRIDGE: dict[str, Any] = {"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local"}}
PORTMAP: dict[str, Any] = {"type": "portmap", "capabilities": {"portMappings": True, "other": False}}
LIST: dict[str, Any] = {"cniVersion": "1.0.0", "name": "net", "plugins": [BRIDGE, PORTMAP]}


def listed(**changes: Any) -> bytes:
    return json.dumps({**LIST, **changes}).encode()


def test_a_list_has_a_name_and_plugins() -> None:
    network = parse_list(listed(disableGC="True", disableCheck=False), "file")
    assert (network.name, network.versions, network.disable_gc) == ("net", ("1.0.0",), True)
    assert [plugin.type for plugin in network.plugins] == ["bridge", "portmap"]
    assert network.plugins[1].capabilities == {"portMappings"}


def test_a_single_configuration_is_a_list_of_one() -> None:
    single = {"cniVersion": "0.3.1", "name": "net", **BRIDGE}
    network = parse_single(json.dumps(single).encode(), "file")
    assert (network.name, network.versions) == ("net", ("0.3.1",))
    assert [dict(plugin.fields) for plugin in network.plugins] == [single]
    assert parse_list(network.source, "again").plugins == network.plugins


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "expected a name"),
        ({"name": "../x"}, "expected a name"),
        ({"name": 7}, "expected a string as name"),
        ({"plugins": []}, "at least one plugin"),
        ({"plugins": None}, "at least one plugin"),
        ({"plugins": ["bridge"]}, "list of objects as plugins"),
        ({"plugins": [{}]}, "plugin 0: expected the name of a program as type"),
        ({"plugins": [BRIDGE, {"type": "/bin/sh"}]}, "plugin 1: expected the name of a program"),
        ({"plugins": [{"type": "x", "capabilities": {"a": "yes"}}]}, "true or false as capability 'a'"),
        ({"disableGC": 1}, "true or false as disableGC"),
        ({"disableCheck": "no"}, "true or false as disableCheck"),
        ({"cniVersions": ["x"]}, "expected a version"),
        ({"deep": json.loads("[" * 100 + "]" * 100)}, "nested deeper"),
    ],
)
def test_what_is_no_list_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CniDataError, match=said):
        parse_list(listed(**changes), "file")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"\xff", b'{"a": NaN}', b'{"a": 1e999}', b"[" * 100_000, b" " * (MOST_BYTES + 1)]
)
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(CniDataError, match="file: expected"):
        parse_list(data, "file")


def test_a_list_in_a_file_for_a_single_plugin_is_told_its_name() -> None:
    with pytest.raises(CniDataError, match=r"\*\.conflist"):
        parse_single(listed(), "10-net.conf")


def test_a_plugin_gets_only_what_it_asks_for() -> None:
    network = parse_list(listed(), "file")
    told = {"portMappings": [1], "other": 2, "dns": 3}
    first = request(network, network.plugins[0], "0.4.0", capability_arguments=told)
    assert first == {**BRIDGE, "name": "net", "cniVersion": "0.4.0"}
    second = request(network, network.plugins[1], "0.4.0", capability_arguments=told, previous={"ips": []})
    assert second["runtimeConfig"] == {"portMappings": [1]}
    assert second["prevResult"] == {"ips": []}


def write(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_the_first_files_in_order_are_taken(tmp_path: Path) -> None:
    write(tmp_path, "20-b.conflist", listed(name="b"))
    write(tmp_path, "10-a.json", json.dumps({"name": "a", **BRIDGE}).encode())
    write(tmp_path, "00-no.txt", b"")
    write(tmp_path, "00.conf/x", b"")
    assert [network.name for network in read_networks(tmp_path, 1)] == ["a"]
    assert [network.name for network in read_networks(tmp_path, 9)] == ["a", "b"]
    write(tmp_path, "05-half.conf", b'{"na')
    with pytest.raises(NetworkError, match="05-half"):
        read_networks(tmp_path, 1)
    (tmp_path / "05-half.conf").unlink()
    assert [network.name for network in read_networks(tmp_path, 1)] == ["a"]


@pytest.mark.parametrize("folder", ["", "missing"])
def test_an_empty_folder_says_what_is_missing(tmp_path: Path, folder: str) -> None:
    with pytest.raises(NetworkError, match="no CNI network is configured"):
        read_networks(tmp_path / folder, 1)


def test_plugins_are_added_from_the_folder_of_the_networks_name(tmp_path: Path) -> None:
    write(tmp_path, "net.conflist", listed())
    write(tmp_path, "net/90-own.conf", b'{"type": "own"}')
    [network] = read_networks(tmp_path, 1)
    assert [plugin.type for plugin in network.plugins] == ["bridge", "portmap", "own"]
    assert parse_list(network.source, "cached").plugins == network.plugins
    write(tmp_path, "net.conflist", listed(loadOnlyInlinedPlugins=True))
    [network] = read_networks(tmp_path, 1)
    assert [plugin.type for plugin in network.plugins] == ["bridge", "portmap"]
    write(tmp_path, "net.conflist", b'{"name": "net"}')
    [network] = read_networks(tmp_path, 1)
    assert [plugin.type for plugin in network.plugins] == ["own"]
    write(tmp_path, "net.conflist", b'{"name": "other"}')
    with pytest.raises(NetworkError, match="it has no plugins"):
        read_networks(tmp_path, 1)


def test_the_first_program_of_a_plugins_name_is_taken(tmp_path: Path) -> None:
    folders = (tmp_path / "first", tmp_path / "second")
    write(tmp_path, "first/folder/x", b"")
    write(tmp_path, "second/folder", b"")
    (tmp_path / "second/folder").chmod(0o755)
    assert find_plugin("folder", folders) == tmp_path / "second/folder"
    write(tmp_path, "first/plain", b"")
    (tmp_path / "first/plain").chmod(0o644)
    with pytest.raises(NetworkError, match="cannot be executed"):
        find_plugin("plain", folders)
    with pytest.raises(NetworkError, match=r"gone is not installed.*first or .*second"):
        find_plugin("gone", folders)
