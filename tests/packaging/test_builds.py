"""What people install, built and tried as they would: in an environment that has nothing else."""

from __future__ import annotations

import gzip
import hashlib
import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.agent.real_node import RealNode
from tests.embedded.runtime_node import processes_with
from tests.patience import SLOWER
from trikubelet import __version__

pytestmark = pytest.mark.together("machine")  # pip fetches what it builds with

ROOT = Path(__file__).parents[2]
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: main, image: localhost/host}]}
"""


def build(what: str, out: Path) -> Path:
    done = subprocess.run(
        [sys.executable, str(ROOT / "packaging/build.py"), what, f"--out={out}"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    return Path(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("dist"))


@pytest.mark.night
def test_the_wheel_installs_into_an_empty_environment_and_runs(wheel: Path, tmp_path: Path) -> None:
    assert wheel.name == f"trikubelet-{__version__}-py3-none-any.whl"
    commands = tmp_path / "venv/bin"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(commands / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", wheel], check=True)
    (tmp_path / "web.yaml").write_text(POD)
    for command in (("version",), ("validate", str(tmp_path / "web.yaml")), ("sim", "--pods=2", "--hours=0.1")):
        done = subprocess.run(
            [commands / "trikubelet", *command], cwd=tmp_path, check=False, capture_output=True, text=True, env={}
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    # The keeper's program and the data of the embedded runtime are files beside the code.
    found = subprocess.run(
        [commands / "python", "-c", "from trikubelet.embedded.keeper_client import _MAIN; print(_MAIN.exists())"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout == "True\n"


@pytest.mark.night
@pytest.mark.root
@pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2")
def test_the_first_two_minutes_of_somebody_new(wheel: Path, tmp_path: Path) -> None:
    """The script types and looks, and fails when anything is not as it should be: see its steps."""
    picture = tmp_path / "session.svg"
    with TemporaryDirectory() as short:  # paths in the picture are replaced where no line was broken in them
        done = subprocess.run(
            [sys.executable, str(ROOT / "docs/record_session.py"), f"--wheel={wheel}", f"--out={picture}"],
            env={**os.environ, "TMPDIR": short},
            check=False,
            capture_output=True,
            text=True,
            timeout=300 * SLOWER,
        )
        left = list(Path(short).iterdir())
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    told = re.fullmatch(
        r"3 commands to the first running pod, .*; (\d+) lines on the screen, .* (\d+) columns\n", done.stdout
    )
    assert told is not None, done.stdout
    assert int(told[1]) <= 15
    assert int(told[2]) <= 120
    drawn = html.unescape(re.sub("<[^>]*>", "", picture.read_text())).replace("\xa0", " ")
    assert "Ending. Ctrl-C again leaves pods running." in drawn
    assert short not in drawn, "nobody else has this machine's folders"
    assert left == []
    assert processes_with(short) == []


@pytest.mark.night
def test_the_one_file_runs_with_python_alone(tmp_path: Path) -> None:
    pex = build("pex", tmp_path)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PEX_ROOT": str(tmp_path / "pex"),
    }
    done = subprocess.run([pex, "version"], env=environment, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"trikubelet {__version__}\n")


WITHOUT_PYTHON = """
for folder in {hidden}; do mount -t tmpfs none $folder; done
for file in {files}; do mount --bind /dev/null $file; done
ip link set lo up
set -e
! python3 --version 2>/dev/null
{binary} version
{binary} run --manifests pods --node-name n >log 2>&1 &
n=0
until {binary} wait web-n --for condition=Ready --timeout 30s; do n=$((n+1)); test $n -lt {attempts}; sleep 0.5; done
{binary} exec web -- hostname
kill -INT %1
wait %1
"""


@pytest.mark.night
@pytest.mark.root
def test_the_binary_runs_a_pod_on_a_machine_without_python(tmp_path: Path) -> None:
    binary = Path(os.environ.get("TRIKUBELET_BINARY") or build("binary", tmp_path / "dist"))
    (tmp_path / "pods").mkdir()
    command = "command: [sh, -c, 'trap exit TERM; while :; do sleep 1; done']"
    (tmp_path / "pods/web.yaml").write_text(POD.replace("image: localhost/host", f"image: localhost/host, {command}"))
    copy = tmp_path / "trikubelet"
    shutil.copy(binary, copy)
    folders = {
        Path(sys.base_prefix) / "lib",
        *Path("/usr/lib").glob("python3*"),
        *Path("/usr/local/lib").glob("python3*"),
    }
    files = [*Path("/usr/bin").glob("python3*"), *Path("/usr/local/bin").glob("python3*")]
    script = WITHOUT_PYTHON.format(
        hidden=" ".join(map(str, folders - {Path("/usr/lib")})),
        files=" ".join(str(file) for file in files if file.is_file()),
        binary=copy,
        attempts=round(60 * SLOWER),
    )
    done = subprocess.run(
        ["unshare", "--mount", "--net", "bash", "-mc", script],
        cwd=tmp_path,
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(tmp_path),
            "TRIKUBELET_ROOT": str(tmp_path / "state"),
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=300 * SLOWER,
    )
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "log").read_text()
    assert done.stdout.startswith(f"trikubelet {__version__}\n")
    assert "\nweb-n\n" in done.stdout
    assert processes_with(str(tmp_path)) == []


def blobs(archive: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The index of an OCI archive, and its blobs, each of which is what its name says."""
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        content = {name: file.read() for name, file in files.items() if file is not None}
    assert json.loads(content.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(content.pop("index.json"))
    for name, blob in content.items():
        assert name == f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}"
    return index, {f"sha256:{Path(name).name}": blob for name, blob in content.items()}


@pytest.mark.night
@pytest.mark.root
def test_the_image_that_is_made_without_docker_is_one_and_runs(tmp_path: Path) -> None:
    archive = Path(os.environ.get("TRIKUBELET_IMAGE") or build("image", tmp_path / "dist"))
    index, found = blobs(archive)
    (listed,) = index["manifests"]
    assert listed["annotations"]["org.opencontainers.image.ref.name"] == f"localhost/trikubelet:{__version__}"
    manifest = json.loads(found[listed["digest"]])
    (layer,) = manifest["layers"]
    for described in (listed, manifest["config"], layer):
        assert described["size"] == len(found[described["digest"]])
    assert {listed["digest"], manifest["config"]["digest"], layer["digest"]} == set(found)
    config = json.loads(found[manifest["config"]["digest"]])
    assert (config["os"], config["architecture"]) == (listed["platform"]["os"], listed["platform"]["architecture"])
    unpacked = gzip.decompress(found[layer["digest"]])
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(unpacked).hexdigest()}"]

    root = tmp_path / "root"
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
        assert {(member.uid, member.gid) for member in tar} == {(0, 0)}
        tar.extraction_filter = getattr(tarfile, "tar_filter", lambda member, _: member)
        tar.extractall(root)
    (root / "proc").mkdir()  # as every runtime does; the loader finds libraries by it
    alone = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={root / 'proc'}", "chroot", str(root)]
    done = subprocess.run(
        [*alone, *config["config"]["Entrypoint"], "version"],
        env=dict(line.split("=", 1) for line in config["config"]["Env"]),
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.splitlines()[:1]) == (0, [f"trikubelet {__version__}"]), done.stderr


@pytest.mark.root
@pytest.mark.skipif("TRIKUBELET_IMAGE" not in os.environ, reason="`make image`, and name it in TRIKUBELET_IMAGE")
def test_the_embedded_runtime_takes_the_image_and_runs_it(tmp_path: Path) -> None:
    node = RealNode(tmp_path, f"localhost/trikubelet:{__version__}")
    try:
        node.start()
        imported = node.cli("images", "import", os.environ["TRIKUBELET_IMAGE"])
        assert imported.stdout == f"imported {node.image}\n", imported.stderr
        simulated = {"name": "main", "image": node.image, "args": ["sim", "--pods=2", "--hours=0.1"]}
        node.run("sim", simulated, restartPolicy="Never")
        node.until_phase("sim", "Succeeded")
        assert any("everything held" in line for line in node.logs("sim"))
    finally:
        node.stop()
    node.until(lambda: not node.leftovers(), f"nothing is left of {node.leftovers()}")
