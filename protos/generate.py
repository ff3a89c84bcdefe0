"""Generate the messages of every proto file here (`SOURCES`), or check that they are up to date.

    python protos/generate.py            writes trikubelet/rpc/cri/v1/__init__.py and the others
    python protos/generate.py --check    exits with 1 and a summary when committed code differs

The compiler is grpc_tools' protoc with betterproto's plugin, both from the environment of this very interpreter (extra
`dev`). The plugin formats its output with whatever black is installed, so the check compares syntax trees: a
new black does not make the code stale, a changed field number does.

Five things are done to the plugin's output. Stubs and bases of services are our own, which need no grpclib. Messages
get the base class of `trikubelet.rpc.cri.codec`, which is faster than betterproto's, takes no more than linear time,
makes dataclasses of them when they are used, and is otherwise the same; those that have what that codec does not know
keep betterproto's. Enums get `enum.IntEnum` as their base for type checkers, which do not see that betterproto's
own `Enum` is one and take its members for ints. Trailing blanks go. The header names the command that made the file.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

BETTERPROTO_BASE = "from betterproto.grpc.grpclib_server import ServiceBase"
OWN_BASE = "from trikubelet.rpc.service import ServiceBase, ServiceStub"
HEADER = """\
# Generated from protos/{proto} by `make protos`. Do not edit.
# This file has been @generated
"""

FAST_MESSAGE = "from trikubelet.rpc.cri.codec import Message\n\n"

ENUM = """\
if TYPE_CHECKING:
    from enum import IntEnum as Enum
else:
    from betterproto import Enum
"""


class Source(NamedTuple):
    """A proto file and what becomes of it."""

    proto: str
    package: str
    """As the proto file has it."""
    module: str
    """The folder of the generated package."""
    fast: bool = False
    """Its messages get our codec, which knows neither `oneof` nor wrappers."""

    @property
    def target(self) -> Path:
        return ROOT / self.module / "__init__.py"


SOURCES = (
    Source("runtime_v1.proto", "runtime.v1", "trikubelet/rpc/cri/v1", fast=True),
    Source("csi_v1.proto", "csi.v1", "trikubelet/rpc/csi/v1"),
    Source("plugin_registration_v1.proto", "pluginregistration", "trikubelet/rpc/plugin_registration/v1", fast=True),
    Source("device_plugin_v1beta1.proto", "v1beta1", "trikubelet/rpc/device_plugins/v1beta1", fast=True),
    Source("health_v1.proto", "grpc.health.v1", "trikubelet/rpc/health/v1", fast=True),
    Source("podresources_v1.proto", "v1", "trikubelet/rpc/pod_resources/v1", fast=True),
    Source("podresources_v1alpha1.proto", "v1alpha1", "trikubelet/rpc/pod_resources/v1alpha1", fast=True),
    Source("otlp_trace_v1.proto", "opentelemetry.proto.collector.trace.v1", "trikubelet/rpc/otlp/v1"),
    Source("dra_v1.proto", "k8s.io.kubelet.pkg.apis.dra.v1", "trikubelet/rpc/dra/v1", fast=True),
    Source("dra_health_v1alpha1.proto", "v1alpha1", "trikubelet/rpc/dra_health/v1alpha1", fast=True),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate Python from the proto files beside this script.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when the code is stale")
    arguments = parser.parse_args()
    generated = {source: adapt(source, compile_proto(source)) for source in SOURCES}
    if arguments.check:
        return 1 if sum(is_stale(source, code) for source, code in generated.items()) else 0
    for source, code in generated.items():
        source.target.parent.mkdir(parents=True, exist_ok=True)
        source.target.write_text(code)
    return 0


def is_stale(source: Source, generated: str) -> bool:
    """Whether what is committed means something else; says so."""
    committed = source.target.read_text() if source.target.exists() else ""
    if syntax(generated) == syntax(committed):
        return False
    print(f"{source.target.relative_to(ROOT)} is stale: run `make protos` and commit the result")
    print("\n".join(summary(committed, generated)))
    return True


def compile_proto(source: Source) -> str:
    """What betterproto makes of one file; of two at once whose packages have one name it would make one module.

    Exits with the compiler's message when it fails.
    """
    plugin = Path(sys.executable).parent / "protoc-gen-python_betterproto"
    if not plugin.exists():
        raise SystemExit(f"no betterproto plugin at {plugin}: pip install -e '.[dev]' with this Python")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--plugin=protoc-gen-python_betterproto={plugin}",
            f"--proto_path={HERE}",
            f"--python_betterproto_out={folder}",
            source.proto,
        ]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
        if result.returncode:
            raise SystemExit(f"protoc failed with {result.returncode}:\n{result.stderr}")
        return Path(folder, *source.package.split("."), "__init__.py").read_text()


def adapt(source: Source, code: str) -> str:
    """The plugin's output as we keep it."""
    lines = code.splitlines()
    while lines[0].startswith("#"):
        del lines[0]
    first_class = next(number for number, line in enumerate(lines) if line.startswith(("class ", "@dataclass")))
    head = "\n".join(lines[:first_class]).rstrip().replace(BETTERPROTO_BASE, OWN_BASE)
    body = "\n".join(line.rstrip() for line in lines[first_class:]).replace(
        "(betterproto.ServiceStub)", "(ServiceStub)"
    )
    bases = ""
    if source.fast:
        body = body.replace("(betterproto.Message):", "(Message):").replace("@dataclass(eq=False, repr=False)\n", "")
        head = head.replace("from dataclasses import dataclass\n", "")
        bases += FAST_MESSAGE
    if "(betterproto.Enum):" in body:
        body = body.replace("(betterproto.Enum):", "(Enum):")
        bases += ENUM
    parts = (head, bases.rstrip(), f"\n{body}\n")
    return HEADER.format(proto=source.proto) + "\n\n".join(part for part in parts if part)


def syntax(code: str) -> str:
    """The meaning of the code, without its layout."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = inspect.cleandoc(node.value).strip()
    return ast.dump(tree, indent=0)


def summary(committed: str, generated: str) -> list[str]:
    """The first lines of the difference, and how much more there is."""
    difference = list(
        difflib.unified_diff(committed.splitlines(), generated.splitlines(), "committed", "generated", "", "", 1, "")
    )
    shown = difference[:40]
    return [*shown, f"… and {len(difference) - 40} more lines"] if len(difference) > 40 else shown


if __name__ == "__main__":
    sys.exit(main())
