"""What keeps an agent from starting, as its user reads it: one line, before anything was started."""

from __future__ import annotations

import json
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.forked import fork
from trikubelet.node.start_checks import kernel_settings

if TYPE_CHECKING:
    from pathlib import Path


def run(tmp_path: Path, *flags: str) -> list[str]:
    """The log's events of an agent that ends by itself with 1, the first one (that it starts) left out."""
    always = ["run", f"--root-dir={tmp_path / 'root'}", "--node-name=given", "--log-format=json"]
    with tempfile.TemporaryFile() as log:
        code = fork("trikubelet.cli.main", [*always, *flags], stdout=log, stderr=log).wait(60)
        log.seek(0)
        told = log.read().decode()
    assert code == 1, told
    lines = [json.loads(line) for line in told.splitlines()]
    # The second without CAP_SYS_RESOURCE, the third where other tests run agents.
    of_this_machine = ("starting", "the agent's OOM score cannot be set", "other programs manage pods on this machine")
    return [f"{line['level']}: {line['event']}" for line in lines if not line["event"].startswith(of_this_machine)]


def configuration(tmp_path: Path, **fields: Any) -> str:
    file = tmp_path / "config.yaml"
    file.write_text(
        json.dumps({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", **fields})
    )
    return f"--config={file}"


def kubeconfig(path: Path, user: dict[str, str], cluster: dict[str, str] | None = None) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1", **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return path


def test_an_agent_that_reserves_more_than_there_is_does_not_start(tmp_path: Path) -> None:
    runtime = f"--runtime-endpoint=unix://{tmp_path}/none.sock"
    (line,) = run(tmp_path, runtime, configuration(tmp_path, failSwapOn=False, kubeReserved={"cpu": "100k"}))
    assert line.startswith(
        'error: invalid Node Allocatable configuration. Resource "cpu" has a reservation of 100k but capacity of '
    )
    assert "Expected capacity >= reservation. Lower what the configuration keeps with kubeReserved, " in line


def test_an_agent_that_shall_find_the_kernel_set_right_does_not_start_on_another(tmp_path: Path) -> None:
    wrong = [setting for setting in kernel_settings() if not setting.right]
    if not wrong:
        pytest.skip("this machine's kernel is set as a node's should be")
    runtime = f"--runtime-endpoint=unix://{tmp_path}/none.sock"
    (line,) = run(tmp_path, runtime, configuration(tmp_path, failSwapOn=False, protectKernelDefaults=True))
    assert line.startswith("error: invalid kernel flag: ")
    assert all(f"{setting.name}, expected value: {setting.expected}, actual" in line for setting in wrong)


def test_an_agent_whose_kubeconfig_names_files_that_are_not_there_does_not_start(tmp_path: Path) -> None:
    user = {"client-certificate": "node.crt", "client-key": "node.key"}
    file = kubeconfig(tmp_path / "kubelet.conf", user, {"certificate-authority": "ca.crt"})
    (tmp_path / "node.crt").write_text("there")
    (line,) = run(tmp_path, f"--kubeconfig={file}")
    what_to_do = "No such file or directory: put it there, or correct the kubeconfig"
    assert line == (
        f"error: {file}: invalid configuration: ["
        f"unable to read certificate-authority {tmp_path}/ca.crt due to {what_to_do}, "
        f"unable to read client-key {tmp_path}/node.key due to {what_to_do}]"
    )
    assert not (tmp_path / "root" / "runtime").exists()


def test_newcomers_credentials_that_are_not_there_are_told_too(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path / "bootstrap.conf", {"tokenFile": "token"})
    *_, line = run(tmp_path, f"--kubeconfig={tmp_path / 'none'}", f"--bootstrap-kubeconfig={file}")
    assert line.startswith(f"error: {file}: invalid configuration: unable to read tokenFile {tmp_path}/token due to ")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("allocated_pods_state", "drain this node, delete the file, then start the agent again"),
        ("actuated_pods_state", "pods go on running, and the runtime is asked what they have"),
    ],
)
@pytest.mark.parametrize(
    ("content", "problem"), [('{"data":"{}","checksum":1}', "its data has the checksum "), ("", "expected JSON: ")]
)
def test_an_agent_of_a_cluster_that_cannot_read_what_pods_were_given_does_not_start(
    tmp_path: Path, name: str, advice: str, content: str, problem: str
) -> None:
    (tmp_path / "root").mkdir()
    file = tmp_path / "root" / name
    file.write_text(content)
    cluster = f"--kubeconfig={kubeconfig(tmp_path / 'kubelet.conf', {'token': 'secret'})}"
    *_, line = run(tmp_path, f"--runtime-endpoint=unix://{tmp_path}/none.sock", cluster)
    assert line.startswith(f"error: checkpoint {file}: {problem}")
    assert line.endswith(advice)
    assert file.read_text() == content
