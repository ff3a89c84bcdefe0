"""Build what people install: `python packaging/build.py wheel|pex|deb|binary|image [--out dist]`.

wheel   for pip, pipx and uvx
pex     one file with all of its packages: needs this Python's version and kind of machine, and nothing else
deb     a Debian package of that file with the service; Debian's Python has to be of that version
binary  one file with its own Python: needs this kind of machine and a glibc as new as this one's
image   a container image as an OCI archive
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import binary
import image

ROOT: Final = Path(__file__).resolve().parent.parent
NAME: Final = "trikubelet"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def version() -> str:
    """That of the package, which the release's tag repeats."""
    found = re.search(r'__version__ = "(.+)"', (ROOT / NAME / "__init__.py").read_text())
    assert found is not None
    return found[1]


def build_wheel(out: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(ROOT)]
    subprocess.run(command, check=True)
    return out / f"{NAME}-{version()}-py3-none-any.whl"


def build_pex(out: Path) -> Path:
    """It unpacks itself once for each user, so that later starts are as fast as those of an installed one."""
    target = out / f"{NAME}.pex"
    with TemporaryDirectory() as name:
        wheel = build_wheel(Path(name))
        command = [sys.executable, "-m", "pex", str(wheel), "--console-script", NAME, "--venv", "--compile"]
        shebang = f"/usr/bin/env python{sys.version_info.major}.{sys.version_info.minor}"
        subprocess.run([*command, "--python-shebang", shebang, "--output-file", str(target)], check=True)
    return target


def build_deb(out: Path) -> Path:
    architecture = _ARCHITECTURES[platform.machine()]
    target = out / f"{NAME}_{version()}_{architecture}.deb"
    major, minor = sys.version_info[:2]
    with TemporaryDirectory() as name:
        tree = Path(name)
        tree.chmod(0o755)
        program = tree / "usr/bin" / NAME
        program.parent.mkdir(parents=True)
        shutil.copy(build_pex(Path(name)), program)
        (tree / f"{NAME}.pex").unlink()
        install = [
            sys.executable,
            "-m",
            NAME,
            "install",
            "--system",
            "--destdir",
            name,
            "--program",
            f"/usr/bin/{NAME}",
        ]
        subprocess.run(install, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        _move(tree / "etc/systemd/system", tree / "lib/systemd/system")
        _move(tree / "etc/tmpfiles.d", tree / "usr/lib/tmpfiles.d")
        _move(tree / "etc/sysctl.d", tree / "usr/lib/sysctl.d")
        shutil.rmtree(tree / "etc")
        control = tree / "DEBIAN"
        control.mkdir()
        (control / "control").write_text(
            f"Package: {NAME}\nVersion: {version()}\nArchitecture: {architecture}\nSection: admin\nPriority: optional\n"
            f"Maintainer: trikubelet maintainers <maintainers@users.noreply.trikubelet.example>\n"
            f"Depends: python3 (>= {major}.{minor}), python3 (<< {major}.{minor + 1})\n"
            "Recommends: iproute2, passt\n"
            "Description: Kubernetes node agent on Trio\n"
            " Runs the pods of a folder, or of a cluster, on containerd, CRI-O or a runtime of its own.\n"
        )
        for script, text in _SCRIPTS.items():
            (control / script).write_text(f"#!/bin/sh\nset -e\n{text}")
            (control / script).chmod(0o755)
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", name, str(target)], check=True)
    return target


def build_binary(out: Path) -> Path:
    target = out / binary.file_name()
    with TemporaryDirectory() as name:
        binary.build_binary(build_wheel(Path(name)), version(), target)
    return target


def build_image(out: Path) -> Path:
    target = out / f"{NAME}-{version()}.oci.tar"
    with TemporaryDirectory() as name:
        image.build_image(build_wheel(Path(name)), version(), target)
    return target


_RUNS: Final = "[ -d /run/systemd/system ]"
_SCRIPTS: Final = {
    # It is enabled and started by whoever has said what it is to run.
    "postinst": f"if {_RUNS}; then systemctl daemon-reload; systemd-tmpfiles --create {NAME}.conf || true; fi\n",
    "prerm": f'if [ "$1" = remove ] && {_RUNS}; then systemctl disable --now {NAME}.service || true; fi\n',
    "postrm": f"if {_RUNS}; then systemctl daemon-reload; fi\n",
}


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


BUILDS: Final = {
    "wheel": build_wheel,
    "pex": build_pex,
    "deb": build_deb,
    "binary": build_binary,
    "image": build_image,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=BUILDS)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder for it (default: dist)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(BUILDS[arguments.what](arguments.out.resolve()))


if __name__ == "__main__":
    main()
