"""`trikubelet install` and `uninstall`: the files, and what systemd is asked."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from trikubelet.cli import install as install_module
from trikubelet.cli.failures import CommandError
from trikubelet.cli.main import cli
from trikubelet.cli.service_files import ServiceSettings, service_files, unit

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[list[str]]]:
    """The commands that were run, on a machine with systemd."""
    commands: list[list[str]] = []
    monkeypatch.setattr(install_module, "_run", commands.append)
    monkeypatch.setattr(install_module, "RUNS_SYSTEMD", tmp_path)
    return iter([commands])


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, standalone_mode=False)


def test_a_program_that_unpacks_its_python_is_started_by_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_module.this_program() != ["/opt/trikubelet"]
    monkeypatch.setenv("TRIKUBELET_PROGRAM", "/opt/trikubelet")
    assert install_module.this_program() == ["/opt/trikubelet"]


def test_the_unit_starts_the_program_with_what_was_said_quoted_as_systemd_reads_it() -> None:
    settings = ServiceSettings(
        program=["/opt/tri kubelet"],
        manifests=Path("/etc/pods"),
        arguments=["--node-labels", 'a=$b%c "d"\\', ""],
    )
    [line] = [line for line in unit(settings).splitlines() if line.startswith("ExecStart=")]
    assert line == (
        'ExecStart="/opt/tri kubelet" run --manifests /etc/pods --no-drain-on-exit --node-labels '
        '"a=$$b%%c \\"d\\"\\\\" ""'
    )


def test_the_machine_s_service_has_settings_of_the_machine_and_a_user_s_has_not() -> None:
    of_machine = service_files(ServiceSettings(program=["t"], manifests=Path("/m")), Path("/home/me"))
    assert [str(file.path) for file in of_machine] == [
        "/etc/tmpfiles.d/trikubelet.conf",
        "/etc/sysctl.d/90-trikubelet.conf",
        "/etc/systemd/system/trikubelet.service",
    ]
    [of_user] = service_files(ServiceSettings(program=["t"], manifests=Path("/m"), user=True), Path("/home/me"))
    assert str(of_user.path) == "/home/me/.config/systemd/user/trikubelet.service"
    assert "WantedBy=default.target" in of_user.text
    assert "network-online" not in of_user.text


def test_a_dry_run_shows_everything_and_writes_nothing(tmp_path: Path) -> None:
    done = run("install", "--user", "--dry-run", "--manifests", "pods", "--", "-v", "2")
    assert "enable --now trikubelet.service" in done.output
    assert f"--manifests {Path.cwd() / 'pods'} --no-drain-on-exit -v 2" in done.output
    assert "$ systemctl --user daemon-reload" in done.output


def test_what_is_installed_is_started_and_uninstall_leaves_nothing(
    asked: Iterator[list[list[str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = next(asked)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home/state"))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert run("install").exit_code == 0
    assert commands == [
        ["systemctl", "--user", "daemon-reload"],
        ["systemctl", "--user", "enable", "--now", "trikubelet.service"],
    ]
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["trikubelet.service"]
    assert (tmp_path / "home/.config/trikubelet/manifests").is_dir()
    (tmp_path / "home/state/trikubelet/pods").mkdir(parents=True)
    commands.clear()
    done = run("uninstall", "--purge")
    assert done.exit_code == 0, done.output
    assert commands == [
        ["systemctl", "--user", "disable", "--now", "trikubelet.service"],
        ["systemctl", "--user", "daemon-reload"],
    ]
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert not (tmp_path / "home/state/trikubelet").exists()


def test_manifests_of_a_person_stay_when_the_state_folder_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("manifests", "removed", "applied", "pods"):
        (tmp_path / "state" / name).mkdir(parents=True)
        (tmp_path / "state" / name / "web.yaml").touch()
    install_module.remove_folder(tmp_path / "state")
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["manifests", "removed"]
    assert capsys.readouterr().out.splitlines() == [
        f"emptied {tmp_path}/state",
        f"kept {tmp_path}/state/manifests, which holds manifests of yours",
        f"kept {tmp_path}/state/removed, which holds manifests of yours",
    ]


@pytest.mark.root
def test_a_state_folder_that_is_a_disk_of_its_own_is_emptied(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "disk", state], check=True)
    try:
        (state / "pods/uid/volume").mkdir(parents=True)
        (state / "config.yaml").touch()
        subprocess.run(["mount", "-t", "tmpfs", "volume", state / "pods/uid/volume"], check=True)
        with pytest.raises(CommandError, match="pods/uid/volume is mounted in there"):
            install_module.refuse_running_pods(state)
        subprocess.run(["umount", state / "pods/uid/volume"], check=True)
        install_module.refuse_running_pods(state)
        install_module.remove_folder(state)
        assert (list(state.iterdir()), state.is_mount()) == ([], True)
    finally:
        subprocess.run(["umount", "--recursive", state], check=True)
    install_module.remove_folder(state)
    assert not state.exists()


def test_uninstall_of_what_is_not_there_stops_nothing(
    asked: Iterator[list[list[str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = next(asked)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run("uninstall", "--user").exit_code == 0
    assert commands == [["systemctl", "--user", "daemon-reload"]]


def test_packages_get_the_files_below_their_folder(tmp_path: Path) -> None:
    done = run("install", "--system", "--destdir", str(tmp_path), "--program", "/usr/bin/trikubelet")
    assert done.exit_code == 0, done.output
    written = (tmp_path / "etc/systemd/system/trikubelet.service").read_text()
    assert "ExecStart=/usr/bin/trikubelet run --manifests /etc/kubernetes/manifests" in written


def test_the_machine_s_service_is_root_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    done = run("install", "--system", "--dry-run")
    assert "use sudo, or --user" in str(done.exception)
