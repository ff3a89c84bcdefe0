"""The names of what a kubelet has, from its source: `python -m tests.parity.upstream KUBERNETES` writes the lists anew.

KUBERNETES is a checkout of the release. The lists are in `kubelet_names/`, so that the tests need no source: each name
has to have a line in `docs/parity`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES: Final = Path(__file__).parent / "kubelet_names"
ON_NODE: Final = (
    "cmd/kubelet",
    "pkg/kubelet",
    "pkg/volume",
    "pkg/probe",
    "pkg/credentialprovider",
    "staging/src/k8s.io/cri-client",
    "staging/src/k8s.io/kubelet",
)
"""Where the code is that a kubelet is made of."""
_FLAG: Final = re.compile(r'\bfs\.\w*Var\w*\([^"\n]*?"([a-z0-9-]+)"')
_GATE: Final = re.compile(r'^\s*(\w+)\s+featuregate\.Feature = "(\w+)"', re.MULTILINE)
_USED: Final = re.compile(r"\b\w*features\.([A-Z]\w*)")
_CONFIGURATION: Final = re.compile(r"^type KubeletConfiguration struct \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD: Final = re.compile(r'json:"(\w+)')


def flags(kubernetes: Path) -> set[str]:
    """Without the dashes. Those of its libraries are not among them."""
    options = kubernetes / "cmd/kubelet/app/options"
    return {name for path in _go_files(options) for name in _FLAG.findall(path.read_text())}


def gates(kubernetes: Path) -> set[str]:
    """Those that the code of a node asks for."""
    features = kubernetes.glob("**/features/*.go")
    names = {variable: name for path in features for variable, name in _GATE.findall(path.read_text())}
    code = [path.read_text() for part in ON_NODE for path in _go_files(kubernetes / part)]
    used = {variable for text in code for variable in _USED.findall(text)}
    return {names[variable] for variable in used & names.keys()}


def metrics(kubernetes: Path) -> set[str]:
    """All that the release's list says of kubelets."""
    listed = yaml.safe_load((kubernetes / "test/instrumentation/documentation/documentation-list.yaml").read_text())
    return {
        "_".join(part for part in (one.get("namespace"), one.get("subsystem"), one["name"]) if part)
        for one in listed
        if any(place.get("component") == "kubelet" for place in one.get("componentEndpoints") or ())
    }


def fields(kubernetes: Path) -> set[str]:
    """Of the configuration file, the first part of their paths."""
    types = (kubernetes / "staging/src/k8s.io/kubelet/config/v1beta1/types.go").read_text()
    (found,) = _CONFIGURATION.findall(types)
    return {f"KubeletConfiguration.{name}" for name in _FIELD.findall(found)}


BY_KIND: Final = {"fields": fields, "flags": flags, "gates": gates, "metrics": metrics}


def names(kind: str) -> list[str]:
    """As they were read last."""
    return (NAMES / f"{kind}.txt").read_text().split()


def _go_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*.go") if not path.name.endswith(("_test.go", "windows.go")))


def main() -> None:
    (kubernetes,) = sys.argv[1:]
    for kind, read in BY_KIND.items():
        (NAMES / f"{kind}.txt").write_text("".join(f"{name}\n" for name in sorted(read(Path(kubernetes)))))


if __name__ == "__main__":
    main()
