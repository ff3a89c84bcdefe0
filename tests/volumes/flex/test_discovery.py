"""Which flexVolume drivers there are: the kubelet's cases (`probe_test.go`), on a real folder with real events."""

from __future__ import annotations

import errno
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.patience import PATIENCE
from tests.volumes.flex.double import NAME, DriverDouble, tools
from tests.volumes.stage import pod
from trikubelet.linux.inotify import Inotify
from trikubelet.volumes.desired import resolve_now
from trikubelet.volumes.errors import TransientVolumeError
from trikubelet.volumes.flex import discovery
from trikubelet.volumes.flex.discovery import FlexDrivers
from trikubelet.volumes.flex.driver import FlexDriver
from trikubelet.volumes.kinds.protocol import Kinds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trikubelet.volumes.flex.answers import Answer


@asynccontextmanager
async def looking(folder: Path, kinds: Kinds | None = None) -> AsyncIterator[tuple[Kinds, FlexDrivers]]:
    kinds = Kinds.of([]) if kinds is None else kinds
    drivers = FlexDrivers(folder, kinds, tools(folder.parent / "root"))
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(drivers.run)
            yield kinds, drivers
            nursery.cancel_scope.cancel()


async def until(drivers: FlexDrivers, kinds: Kinds, *names: str) -> None:
    """Return when the drivers are those."""
    while sorted(kinds.by_plugin) != sorted(names):
        await drivers.changes.wait()


async def test_drivers_that_are_there_are_known_at_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "exec"
    double = DriverDouble(folder).install(attach=False)
    DriverDouble(folder, "plain").install()
    async with looking(folder) as (kinds, _):
        assert sorted(kinds.by_plugin) == ["plain", NAME]
        assert not kinds.by_plugin[NAME].staged
        assert kinds.by_plugin["plain"].staged
        assert double.calls() == [["init"]]


async def test_drivers_come_change_and_go(tmp_path: Path) -> None:
    folder = tmp_path / "exec"
    folder.mkdir()
    async with looking(folder) as (kinds, drivers):
        assert kinds.by_plugin == {}
        double = DriverDouble(folder).install(attach=False)
        await until(drivers, kinds, NAME)
        with drivers.changes.subscribe() as changes:
            double.answers("init", {"status": "Success", "capabilities": {"attach": True}})
            text = double.program.read_text()
            new = double.program.with_name(".new")
            new.write_text(text)
            new.chmod(0o755)
            new.rename(double.program)
            assert await changes.receive() == NAME
            assert kinds.by_plugin[NAME].staged
        other = DriverDouble(folder, "other/disks").install()
        await until(drivers, kinds, NAME, "other/disks")
        double.program.unlink()
        await until(drivers, kinds, "other/disks")
        other.program.parent.rename(tmp_path / "gone")
        await until(drivers, kinds)


async def test_a_driver_that_fails_after_a_change_is_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "exec"
    double = DriverDouble(folder).install(attach=False)
    async with looking(folder) as (kinds, drivers):
        kind = kinds.by_plugin[NAME]
        double.calls()
        double.does("init", "exit 1")
        double.program.write_text(f"{double.program.read_text()}# changed\n")
        for number in range(2):  # with the second the first look is over
            DriverDouble(folder, f"other-{number}").install()
            await until(drivers, kinds, NAME, *(f"other-{known}" for known in range(number + 1)))
        assert kinds.by_plugin[NAME] is kind
        assert ["init"] in double.calls()
        double.program.unlink()
        await until(drivers, kinds, "other-0", "other-1")


async def test_a_folder_that_comes_later_is_watched_then(tmp_path: Path) -> None:
    folder = tmp_path / "usr/libexec/exec"
    async with looking(folder) as (kinds, drivers):
        assert not (tmp_path / "usr").exists(), "it is not made"
        folder.mkdir(parents=True)
        double = DriverDouble(folder).install()
        await until(drivers, kinds, NAME)
        double.program.unlink()
        double.program.parent.rmdir()
        folder.rmdir()
        await until(drivers, kinds)
        folder.mkdir()
        double.install()
        await until(drivers, kinds, NAME)


async def test_a_driver_is_known_when_its_program_may_be_run(tmp_path: Path) -> None:
    folder = tmp_path / "exec"
    double = DriverDouble(folder).install()
    double.program.chmod(0o644)
    async with looking(folder) as (kinds, drivers):
        assert kinds.by_plugin == {}
        double.program.chmod(0o755)
        await until(drivers, kinds, NAME)


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", "exit 0", 'echo \'{"status": "Failure"}\''])
async def test_a_driver_that_fails_keeps_no_other_away(tmp_path: Path, script: str) -> None:
    folder = tmp_path / "exec"
    DriverDouble(folder).install()
    broken = DriverDouble(folder, "broken").install()
    broken.does("init", script)
    async with looking(folder) as (kinds, _):
        assert list(kinds.by_plugin) == [NAME]


async def test_a_driver_that_failed_is_asked_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "RETRY", 0.05)
    folder = tmp_path / "exec"
    double = DriverDouble(folder).install()
    double.does("init", "exit 1")
    async with looking(folder) as (kinds, drivers):
        assert kinds.by_plugin == {}
        double.answers("init")
        await until(drivers, kinds, NAME)


async def test_a_folder_that_cannot_be_listed_is_looked_at_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "RETRY", 0.05)
    folder = tmp_path / "exec"
    double = DriverDouble(folder).install()
    double.does("init", "exit 1")
    looks: list[float] = []
    programs = discovery._programs

    def refuse(_: Path) -> dict[str, discovery._Program]:
        looks.append(trio.current_time())
        raise OSError(errno.EIO, "Input/output error")

    async with looking(folder) as (kinds, drivers):
        monkeypatch.setattr(discovery, "_programs", refuse)
        await trio.sleep(0.5)
        assert 2 <= len(looks) <= 11
        double.answers("init")
        monkeypatch.setattr(discovery, "_programs", programs)
        await until(drivers, kinds, NAME)


async def test_a_driver_with_which_nobody_reckoned_keeps_no_agent_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "RETRY", 0.05)
    folder = tmp_path / "exec"
    DriverDouble(folder).install()
    DriverDouble(folder, "odd").install()
    odd = [RuntimeError("nobody thought of that")]
    call = FlexDriver.call

    async def call_oddly(self: FlexDriver, volume: str, *arguments: str, **options: Any) -> Answer:
        if volume == "odd" and odd:
            raise odd.pop()
        return await call(self, volume, *arguments, **options)

    monkeypatch.setattr(FlexDriver, "call", call_oddly)
    async with looking(folder) as (kinds, drivers):
        assert list(kinds.by_plugin) == [NAME]
        await until(drivers, kinds, NAME, "odd")


async def test_a_driver_that_writes_into_its_folder_is_asked_once(tmp_path: Path) -> None:
    folder = tmp_path / "exec"
    double = DriverDouble(folder).install()
    double.does("init", f"echo x >> {double.program.parent}/log; exit 1")
    async with looking(folder) as (kinds, drivers):
        for number in range(3):
            DriverDouble(folder, f"other-{number}").install()
            await until(drivers, kinds, *(f"other-{known}" for known in range(number + 1)))
        assert double.calls() == [["init"]]


async def test_a_driver_that_hangs_delays_the_start_only_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "INIT_DEADLINE", 0.3)
    folder = tmp_path / "exec"
    DriverDouble(folder).install().does("init", "sleep 1000")
    async with looking(folder) as (kinds, _):
        assert kinds.by_plugin == {}


async def test_names_that_are_no_drivers_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "exec"
    DriverDouble(folder).install()
    for name in (".hidden", "empty", "a~..~b", "~x", "file"):
        (folder / name).mkdir()
    (folder / "a~..~b/b").write_text("#!/bin/sh\n")
    (folder / ".hidden/.hidden").write_text("#!/bin/sh\n")
    (folder / "file").rmdir()
    (folder / "file").write_text("#!/bin/sh\n")
    async with looking(folder) as (kinds, _):
        assert list(kinds.by_plugin) == [NAME]


async def test_no_driver_takes_the_place_of_a_kind_that_the_agent_has(tmp_path: Path) -> None:
    from tests.volumes.fake_kind import FakeKind

    own = FakeKind(plugin="kubernetes.io/secret", root=tmp_path)
    kinds = Kinds.of([own])
    folder = tmp_path / "exec"
    double = DriverDouble(folder, "kubernetes.io/secret").install()
    async with looking(folder, kinds):
        assert kinds.by_plugin == {"kubernetes.io/secret": own}
        assert double.calls() == []
    found = resolve_now(pod("web", {"name": "data", "flexVolume": {"driver": "kubernetes.io/secret"}}))
    assert "no volume plugin matched" in found.problems["data"]


@pytest.mark.parametrize("call", ["__init__", "watch"])
async def test_without_inotify_the_folder_is_looked_at_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "raise the sysctl")

    monkeypatch.setattr(Inotify, call, refuse)
    monkeypatch.setattr(discovery, "RETRY", 0.05)
    folder = tmp_path / "exec"
    async with looking(folder) as (kinds, drivers):
        DriverDouble(folder).install()
        await until(drivers, kinds, NAME)


def test_a_volume_without_its_driver_may_get_it_later() -> None:
    volume = {"name": "data", "flexVolume": {"driver": NAME}}
    spec = resolve_now(pod("web", volume)).specs["data"]
    assert spec.plugin == NAME
    with pytest.raises(TransientVolumeError, match="put its flexVolume driver into volumePluginDir, or use a CSI"):
        Kinds.of([]).find(spec)
