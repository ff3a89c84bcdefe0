"""Which version of the specification a network is run with."""

from __future__ import annotations

from typing import Any

import pytest

from trikubelet.embedded.network.cni.documents import CniDataError
from trikubelet.embedded.network.cni.versions import KNOWN, choose_version, configured_versions, spoken_versions

DEBIAN = frozenset(KNOWN[:-1])
NEW = frozenset(KNOWN)


@pytest.mark.parametrize(
    ("fields", "versions"),
    [
        ({}, ("0.1.0",)),
        ({"cniVersion": "1.0.0"}, ("1.0.0",)),
        ({"cniVersion": ""}, ("0.1.0",)),
        ({"cniVersions": ["1.1.0", "0.3.1"]}, ("0.3.1", "1.1.0")),
        ({"cniVersion": "0.4.0", "cniVersions": ["1.0.0"]}, ("0.4.0", "1.0.0")),
        ({"cniVersion": "1.0.0", "cniVersions": ["1.10.0", "1.9.0"]}, ("1.0.0", "1.9.0", "1.10.0")),
    ],
)
def test_a_configuration_names_versions(fields: dict[str, Any], versions: tuple[str, ...]) -> None:
    assert configured_versions(fields, "conf") == versions


@pytest.mark.parametrize("version", ["1.0.0.0", "v1", "1.x", "1.-1.0", "1" * 40, 1, ["1.0.0"]])
def test_what_is_no_version_is_refused(version: Any) -> None:
    with pytest.raises(CniDataError, match="expected a"):
        configured_versions({"cniVersion": version, "cniVersions": ["1.0.0"]}, "conf")


@pytest.mark.parametrize(
    ("configured", "spoken", "chosen"),
    [
        (("1.0.0",), {"bridge": DEBIAN}, "1.0.0"),
        (("1.1.0",), {"bridge": NEW}, "1.1.0"),
        (("0.3.1", "0.4.0", "1.0.0", "1.1.0"), {"bridge": DEBIAN, "cilium": NEW}, "1.0.0"),
        (("0.3.1", "1.1.0"), {"bridge": DEBIAN}, "0.3.1"),
        (("1.0",), {"bridge": DEBIAN}, "1.0.0"),
        # Only a newer one is configured than the plugins speak.
        (("1.1.0",), {"bridge": DEBIAN}, "1.0.0"),
        (("2.0.0",), {"bridge": NEW}, "1.1.0"),
        (("1.0.0",), {"old": frozenset(("0.1.0", "0.2.0"))}, "0.2.0"),
        # A version that we do not know cannot be run.
        (("1.1.0",), {"own": frozenset(("1.0.0", "1.0.5"))}, "1.0.0"),
    ],
)
def test_all_plugins_are_run_with_one_version(
    configured: tuple[str, ...], spoken: dict[str, frozenset[str]], chosen: str
) -> None:
    assert choose_version(configured, spoken, "net") == chosen


@pytest.mark.parametrize(
    ("configured", "spoken"),
    [
        (("0.4.0",), {"new": frozenset(("1.0.0", "1.1.0"))}),
        (("1.0.0",), {"old": frozenset(("0.1.0",)), "new": frozenset(("1.0.0",))}),
        (("1.0.0",), {"odd": frozenset(("7.0.0",))}),
    ],
)
def test_without_a_common_version_both_sides_are_named(
    configured: tuple[str, ...], spoken: dict[str, frozenset[str]]
) -> None:
    with pytest.raises(CniDataError) as raised:
        choose_version(configured, spoken, "CNI network net")
    assert configured[0] in str(raised.value)
    for plugin, versions in spoken.items():
        assert f"{plugin} speaks {', '.join(sorted(versions))}" in str(raised.value)


@pytest.mark.parametrize(
    ("answer", "versions"),
    [
        ({"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}, {"0.4.0", "1.0.0"}),
        ({"cniVersion": "0.2.0"}, {"0.1.0", "0.2.0"}),
    ],
)
def test_a_plugin_names_its_versions(answer: dict[str, Any], versions: set[str]) -> None:
    assert spoken_versions(answer, "plugin") == versions


@pytest.mark.parametrize("answer", [{}, {"cniVersion": "1.0.0"}, {"supportedVersions": [1]}, {"supportedVersions": {}}])
def test_an_answer_without_versions_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(CniDataError):
        spoken_versions(answer, "plugin")
