"""`trikubelet join` and `leave` on a test API server behind a real port, and what is left when a join fails."""

from __future__ import annotations

import random
import shlex
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
import pytest
import trio
import trio.testing
from click.testing import CliRunner, Result

from tests.apiserver.controllers import Controllers
from tests.apiserver.kubeadm import KUBELET_CONFIGURATION, Kubeadm
from tests.apiserver.server import ApiServer, open_api_server
from trikubelet.cli import install as install_module
from trikubelet.cli import join as join_module
from trikubelet.cli.main import cli
from trikubelet.clock import SystemClock
from trikubelet.kube_client.certificates.bootstrap import BootstrapOptions, prepare_identity
from trikubelet.kube_client.client import open_client
from trikubelet.kube_client.dialing import open_access
from trikubelet.kube_client.kubeconfig import read_kubeconfig
from trikubelet.kube_client.types import NODES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.cli.machine_checks import CheckResult

TOKEN = "abcdef.0123456789abcdef"


@attrs.define
class Machine:
    """One that is to be a node, with folders of its own for what is to be written."""

    server: ApiServer
    kubeadm: Kubeadm
    port: int
    folder: Path

    @property
    def kubernetes(self) -> Path:
        return self.folder / "kubernetes"

    @property
    def root_dir(self) -> Path:
        return self.folder / "root"

    def folders(self) -> list[str]:
        return [f"--kubernetes-dir={self.kubernetes}", f"--root-dir={self.root_dir}", "--runtime-endpoint=embedded"]

    async def join(self, *more: str, token: str = TOKEN, ca_hash: str | None = None, start: bool = False) -> Result:
        pinned = [] if ca_hash == "" else [f"--discovery-token-ca-cert-hash={ca_hash or self.kubeadm.ca_hash}"]
        where = f"--server=127.0.0.1:{self.port}"
        started = [] if start else ["--no-start"]
        words = ["join", where, f"--token={token}", *pinned, *self.folders(), "--node-name=n1", *started, *more]
        return await self.run(*words)

    async def run(self, *words: str) -> Result:
        def invoke() -> Result:
            return CliRunner().invoke(cli, words, standalone_mode=False)

        return await trio.to_thread.run_sync(invoke)

    def files(self) -> dict[str, int]:
        """Every file there is, with its mode."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.stat().st_mode & 0o777 for path in found}


JOINED = {"kubernetes/bootstrap-kubelet.conf": 0o600, "kubernetes/pki/ca.crt": 0o644, "root/config.yaml": 0o644}


@asynccontextmanager
async def machine_beside_a_cluster(folder: Path) -> AsyncIterator[Machine]:
    async with open_api_server(SystemClock()) as server, trio.open_nursery() as nursery:
        port: int = await nursery.start(server.serve_tcp)
        kubeadm = Kubeadm(server, f"https://127.0.0.1:{port}")
        kubeadm.create_token(TOKEN)
        yield Machine(server, kubeadm, port, folder)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machine]:
    monkeypatch.setattr(join_module, "_check", lambda options, ignored: None)
    async with machine_beside_a_cluster(tmp_path) as one:
        yield one


def problem(done: Result) -> str:
    assert isinstance(done.exception, click.ClickException), (done.exception, done.output)
    return done.exception.format_message()


async def test_a_machine_joins_and_what_is_written_lets_it_become_a_node(machine: Machine) -> None:
    done = await machine.join("--", "--node-ip=192.0.2.7")
    assert done.exception is None, done.output
    assert machine.files() == JOINED
    assert (machine.root_dir / "config.yaml").read_text() == KUBELET_CONFIGURATION
    assert (machine.kubernetes / "pki/ca.crt").read_bytes() == machine.server.ca_pem
    assert TOKEN not in done.output
    command = shlex.split(done.output.splitlines()[-1])
    kubeconfig = machine.kubernetes / "kubelet.conf"
    assert command[command.index("run") :] == [
        "run",
        "--manifests",
        "/etc/kubernetes/manifests",
        "--no-drain-on-exit",
        f"--root-dir={machine.root_dir}",
        f"--config={machine.root_dir}/config.yaml",
        f"--kubeconfig={kubeconfig}",
        f"--bootstrap-kubeconfig={machine.kubernetes}/bootstrap-kubelet.conf",
        "--runtime-endpoint=embedded",
        "--node-name=n1",
        f"--client-ca-file={machine.kubernetes}/pki/ca.crt",
        "--node-ip=192.0.2.7",
    ]
    # What the agent does with these files.
    clock = SystemClock()
    newcomer = machine.kubernetes / "bootstrap-kubelet.conf"
    options = BootstrapOptions(kubeconfig, machine.root_dir / "pki", "n1", newcomer, rotate=True)
    identity = prepare_identity(
        options, lambda access: open_client(open_access(access, clock=clock)), clock=clock, rng=random.Random(1)
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(identity.run)
        with trio.fail_after(60):
            while not (machine.root_dir / "pki/kubelet-client-current.pem").exists():
                Controllers(machine.server).approve_all(lifetime=3600)
                await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    assert read_kubeconfig(kubeconfig).server == f"https://127.0.0.1:{machine.port}"
    # A node that is one does not join again.
    assert "is a node of a cluster already" in problem(await machine.join())
    async with open_client(open_access(kubeconfig, clock=clock)) as client:
        with pytest.raises(Exception, match='User "system:node:n1" cannot'):
            await client.get(NODES, "another")
    left = await machine.run("leave", *machine.folders())
    assert left.exception is None, left.output
    assert machine.files() == {}


@pytest.mark.parametrize("case", ["hash", "secret", "id", "expired", "no hash", "bad hash", "bad token", "bad server"])
async def test_a_join_that_is_refused_leaves_nothing(machine: Machine, case: str) -> None:
    match case:
        case "hash":
            done, expected = await machine.join(ca_hash="sha256:" + "0" * 64), "or the hash is wrong"
        case "secret":
            done, expected = await machine.join(token="abcdef.fedcba9876543210"), "second half is wrong"
        case "id":
            done, expected = await machine.join("--timeout=3", token="fedcba.0123456789abcdef"), "has expired"
        case "expired":
            machine.kubeadm.expire_token(TOKEN)
            done, expected = await machine.join("--timeout=3"), "has expired"
        case "no hash":
            done, expected = await machine.join(ca_hash=""), "unsafe-skip-ca-verification"
        case "bad hash":
            done, expected = await machine.join(ca_hash="sha256:12"), "expected the hash"
        case "bad token":
            done, expected = await machine.join(token="secret"), "expected a token"
        case _:
            done, expected = await machine.join("--server=http://127.0.0.1:1"), "expected HOST:PORT or https"
    assert expected in problem(done)
    assert list(machine.folder.iterdir()) == []
    assert not any(one.call.user.startswith("system:bootstrap:") for one in machine.server.calls)


async def test_a_server_that_is_away_is_told_and_leaves_nothing(machine: Machine) -> None:
    machine.server.faults.unreachable()
    await trio.testing.wait_all_tasks_blocked()
    done = await machine.join("--timeout=5")
    assert "given up after 5 s" in problem(done)
    assert "connection refused" in problem(done)
    assert list(machine.folder.iterdir()) == []


async def test_without_a_hash_one_says_so(machine: Machine) -> None:
    done = await machine.join("--discovery-token-unsafe-skip-ca-verification", ca_hash="")
    assert done.exception is None, done.output
    assert machine.files() == JOINED


async def test_a_configuration_that_the_agent_would_not_take_leaves_nothing(machine: Machine) -> None:
    machine.kubeadm.configure(KUBELET_CONFIGURATION + "maxPods: many\n")
    done = await machine.join()
    assert "the configuration cannot be used" in problem(done)
    assert "maxPods" in done.stderr
    machine.kubeadm.configure(KUBELET_CONFIGURATION)
    assert "No such option" in problem(await machine.join("--", "--nonsense"))
    assert list(machine.folder.iterdir()) == []


async def test_a_machine_that_lacks_something_is_left_alone_unless_one_insists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trikubelet.cli import check
    from trikubelet.cli.machine_checks import fail, ok

    def found(*_: Any, configured: bool) -> list[CheckResult]:
        assert configured, "what the cluster's configuration refuses is refused"
        return [ok("python", "3.13"), fail("cgroups", "none", "mount them")]

    monkeypatch.setattr(check, "check_node", found)
    async with machine_beside_a_cluster(tmp_path) as machine:
        machine.kubeadm.configure(KUBELET_CONFIGURATION + "resolvConf: /run/not-here/resolv.conf\n")
        done = await machine.join()
        assert "--ignore-checks" in problem(done)
        assert "cgroups: none" in done.output
        assert "python" not in done.output
        assert "/run/not-here/resolv.conf, which is not here" in done.output
        assert list(tmp_path.iterdir()) == []
        assert (await machine.join("--ignore-checks")).exception is None
        assert machine.files() == JOINED


async def test_files_of_somebody_else_s_are_left_as_they_are(machine: Machine) -> None:
    (machine.kubernetes / "pki").mkdir(parents=True)
    (machine.kubernetes / "pki/ca.crt").write_text("another cluster's")
    done = await machine.join()
    assert f"{machine.kubernetes}/pki/ca.crt is there already" in problem(done)
    assert machine.files() == {"kubernetes/pki/ca.crt": 0o644}
    assert "has not joined a cluster with" in problem(await machine.run("leave", *machine.folders()))


async def test_when_one_file_cannot_be_written_none_is(machine: Machine) -> None:
    machine.root_dir.symlink_to(machine.folder / "nowhere")
    done = await machine.join()
    assert f"cannot write {machine.root_dir}" in problem(done)
    assert "nothing is changed" in problem(done)
    assert machine.files() == {}


async def test_who_joins_again_before_it_is_a_node_does_so_with_the_new_token(machine: Machine) -> None:
    assert (await machine.join()).exception is None
    machine.kubeadm.expire_token(TOKEN)
    machine.kubeadm.create_token("fedcba.0123456789abcdef")
    machine.kubeadm.configure(KUBELET_CONFIGURATION + "maxPods: 50\n")
    assert (await machine.join(token="fedcba.0123456789abcdef")).exception is None
    access = read_kubeconfig(machine.kubernetes / "bootstrap-kubelet.conf")
    assert access.credentials.token == "fedcba.0123456789abcdef"
    assert "maxPods: 50" in (machine.root_dir / "config.yaml").read_text()


async def test_a_dry_run_asks_and_writes_nothing(machine: Machine) -> None:
    done = await machine.join("--dry-run", start=True)
    assert done.exception is None, done.output
    for path in JOINED:
        assert f"write {machine.folder / path}" in done.output
    assert "# /etc/systemd/system/trikubelet.service" in done.output
    assert "$ systemctl enable --now trikubelet.service" in done.output
    assert TOKEN not in done.output
    assert list(machine.folder.iterdir()) == []
    assert "second half is wrong" in problem(await machine.join("--dry-run", token="abcdef.fedcba9876543210"))


async def test_the_agent_becomes_a_service_with_these_flags_and_leave_ends_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    wrote: dict[Path, str] = {}
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(install_module, "_run", commands.append)
    monkeypatch.setattr(install_module, "RUNS_SYSTEMD", machine.folder)
    monkeypatch.setattr(install_module, "_make_folder", lambda folder: None)
    monkeypatch.setattr(install_module, "_write", lambda path, file: wrote.update({path: file.text}))
    done = await machine.join(start=True)
    assert done.exception is None, done.output
    [start] = [line for line in wrote[UNIT].splitlines() if line.startswith("ExecStart=")]
    assert f"--kubeconfig={machine.kubernetes}/kubelet.conf" in start
    assert commands[-1] == ["systemctl", "enable", "--now", "trikubelet.service"]
    assert "The agent of node n1 runs" in done.output
    shown = await machine.run("leave", "--dry-run", *machine.folders())
    assert "$ systemctl disable --now trikubelet.service" in shown.output
    assert machine.files() == JOINED


UNIT = Path("/etc/systemd/system/trikubelet.service")


async def test_a_service_is_root_s(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "use sudo, or --no-start" in problem(await machine.join(start=True))
    assert list(machine.folder.iterdir()) == []
