"""Every configuration and every pod in the documentation is one that the agent takes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import yaml

from tests.docs.blocks import Found, blocks, documents
from trikubelet.config.kubelet_configuration import API_VERSION, KIND, KubeletConfiguration, wire_name
from trikubelet.config.loader import ConfigurationError, load_configuration
from trikubelet.sources.manifests import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = {wire_name(field) for field in attrs.fields(KubeletConfiguration)} | {"apiVersion", "kind"}
DOCUMENTS = list(documents())
CONFIGURATIONS = [one for one in DOCUMENTS if one[1].get("kind") == KIND or (one[1] and one[1].keys() <= FIELDS)]
PODS = [one for one in DOCUMENTS if one[1].get("kind") == "Pod"]
AROUND: dict[str, dict[str, Any]] = {
    "full-pcpus-only": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"},
}
"""What a page says before a snippet and what it needs, by a word of it."""


def load(snippet: Found, content: dict[str, Any], folder: Path) -> tuple[str, ...]:
    """The warnings about the snippet as a file."""
    around = {key: value for word, needed in AROUND.items() if word in snippet.text for key, value in needed.items()}
    file = folder / "kubelet.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": API_VERSION, "kind": KIND, **around, **content}))
    return load_configuration(file).warnings


def test_every_configuration_and_every_pod_that_the_pages_show_is_read() -> None:
    assert len(CONFIGURATIONS) > 10
    shown = [re.findall(r"^kind: (?:KubeletConfiguration|Pod)$", block.text, re.MULTILINE) for block in blocks()]
    read = [one for _, one in DOCUMENTS if one.get("kind") in (KIND, "Pod")]
    assert len(read) == sum(map(len, shown)) > 5


@pytest.mark.parametrize(("snippet", "content"), CONFIGURATIONS, ids=str)
def test_the_configuration_can_be_used(snippet: Found, content: dict[str, Any], tmp_path: Path) -> None:
    assert load(snippet, content, tmp_path) == ()


def test_a_field_that_is_none_is_noticed(tmp_path: Path) -> None:
    assert load(Found("", ""), {"maxPod": 3}, tmp_path)
    with pytest.raises(ConfigurationError):
        load(Found("", ""), {"maxPods": -3}, tmp_path)


@pytest.mark.parametrize(("snippet", "content"), PODS, ids=str)
def test_the_pod_is_valid(snippet: Found, content: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(content))
    manifest = read_manifest(file, "node1")
    assert [str(one) for one in (*manifest.problems, *manifest.warnings)] == []
    assert len(manifest.pods) == 1
