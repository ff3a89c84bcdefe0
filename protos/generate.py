"""Generate trikubelet/cri/v1 from runtime_v1.proto, or check that it is up to date.

    python protos/generate.py            writes trikubelet/cri/v1/__init__.py
    python protos/generate.py --check    exits with 1 and a summary when the committed code differs

The compiler is grpc_tools' protoc with betterproto's plugin, both from the environment of this very interpreter (extra
`dev`). The plugin formats its output with whatever black is installed, so the check compares syntax trees: a
new black does not make the code stale, a changed field number does.

Four things are done to the plugin's output. Messages get the base class of `trikubelet.cri.codec`, which is faster than
betterproto's and otherwise the same. Enums get `enum.IntEnum` as their base for type checkers, which do not see that
betterproto's own `Enum` is one and take its members for ints. Trailing blanks go. The header names the command that
made the file.
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

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "runtime_v1.proto"
TARGET = HERE.parent / "trikubelet" / "cri" / "v1" / "__init__.py"

HEADER = """\
# Generated from protos/runtime_v1.proto by `make protos`. Do not edit.
# This file has been @generated
"""

BASES = """\
from trikubelet.cri.codec import Message

if TYPE_CHECKING:
    from enum import IntEnum as Enum
else:
    from betterproto import Enum
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate trikubelet/cri/v1 from protos/runtime_v1.proto.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when the code is stale")
    arguments = parser.parse_args()
    generated = adapt(compile_protos())
    if not arguments.check:
        TARGET.write_text(generated)
        return 0
    committed = TARGET.read_text() if TARGET.exists() else ""
    if syntax(generated) == syntax(committed):
        return 0
    print(f"{TARGET.relative_to(HERE.parent)} is stale: run `make protos` and commit the result")
    print("\n".join(summary(committed, generated)))
    return 1


def compile_protos() -> str:
    """What betterproto makes of the proto file. Exits with the compiler's message when it fails."""
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
            SOURCE.name,
        ]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
        if result.returncode:
            raise SystemExit(f"protoc failed with {result.returncode}:\n{result.stderr}")
        return Path(folder, "runtime", "v1", "__init__.py").read_text()


def adapt(code: str) -> str:
    """The plugin's output as we keep it."""
    lines = code.splitlines()
    while lines[0].startswith("#"):
        del lines[0]
    first_class = next(number for number, line in enumerate(lines) if line.startswith(("class ", "@dataclass")))
    head = "\n".join(lines[:first_class]).rstrip()
    body = "\n".join(line.rstrip() for line in lines[first_class:])
    body = body.replace("(betterproto.Enum):", "(Enum):").replace("(betterproto.Message):", "(Message):")
    return f"{HEADER}{head}\n\n{BASES}\n\n{body}\n"


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
