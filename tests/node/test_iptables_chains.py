"""The chains that others look for: what iptables is asked for, also after a flush, and what the real one makes of it.

The machine's own rules are never touched: the real programs run in a network namespace that ends with its test.
"""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import attrs
import pytest
import trio
import trio.testing

from tests.agent.real_node import WITHOUT_CGROUPS
from tests.captured_logs import capture_logs
from tests.own_machine import run, run_there
from tests.patience import PATIENCE
from trikubelet.linux.programs import Finished, run_program
from trikubelet.node import iptables_chains
from trikubelet.node.iptables_chains import (
    CANARIES,
    IPV4,
    IPV6,
    IptablesError,
    call_program,
    keep_chains,
    keep_chains_by,
    make_chains,
)
from trikubelet.rpc.grpc import Server
from trikubelet.sim import SimulatedRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

DROP = (
    "KUBE-FIREWALL -t filter -m comment --comment block incoming localnet connections --dst 127.0.0.0/8 "
    "! --src 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
)
CANARY = "KUBE-KUBELET-CANARY"
NEW_CHAINS_OF_IPV4 = [
    "-N KUBE-IPTABLES-HINT -t mangle",
    "-N KUBE-FIREWALL -t filter",
    "-C OUTPUT -t filter -j KUBE-FIREWALL",
    "-I OUTPUT -t filter -j KUBE-FIREWALL",
    "-C INPUT -t filter -j KUBE-FIREWALL",
    "-I INPUT -t filter -j KUBE-FIREWALL",
    f"-C {DROP}",
    f"-A {DROP}",
    *(f"-N {CANARY} -t {table}" for table in ("mangle", "nat", "filter")),
]
NEW_CHAINS_OF_IPV6 = ["-N KUBE-IPTABLES-HINT -t mangle", *NEW_CHAINS_OF_IPV4[-3:]]


@attrs.define
class Tables:
    """Stands in for both programs: chains and rules by what they are called with."""

    kept: set[tuple[str, ...]] = attrs.field(factory=set)
    calls: list[str] = attrs.field(factory=list)
    """Without `-w 5`, which each has."""
    absent: frozenset[str] = frozenset()
    """Programs that are not installed."""
    busy: bool = False

    async def call(self, program: str, arguments: Sequence[str]) -> Finished:
        await trio.lowlevel.checkpoint()
        wait, seconds, action, *rest = arguments
        assert (wait, seconds) == ("-w", "5")
        if program in self.absent:
            raise IptablesError(f"{program} is not installed")
        self.calls.append(f"{program} {' '.join([action, *rest])}")
        if self.busy:
            return Finished(4, b"", b"Another app is currently holding the xtables lock.")
        key = (program, *rest)
        there = key in self.kept or rest[0] == "POSTROUTING"
        if action in ("-C", "-S"):
            return Finished(0 if there else 1, b"", b"")
        self.kept.add(key)
        return Finished(1 if there and action == "-N" else 0, b"", b"")

    def flush(self, *tables: str) -> None:
        self.kept = {key for key in self.kept if key[3] not in tables}
        self.calls.clear()

    def calls_of(self, program: str) -> list[str]:
        return [call.removeprefix(f"{program} ") for call in self.calls if call.startswith(f"{program} ")]


@asynccontextmanager
async def kept(tables: Tables) -> AsyncIterator[None]:
    """The chains are made, and kept."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_chains_by, tables.call)
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("family", "expected"), [(IPV4, NEW_CHAINS_OF_IPV4), (IPV6, NEW_CHAINS_OF_IPV6)], ids=["IPv4", "IPv6"]
)
async def test_what_is_asked_for_and_in_which_order(family: iptables_chains.Family, expected: list[str]) -> None:
    tables = Tables()
    await make_chains(tables.call, family)
    assert tables.calls_of(family.program) == expected == [call.split(" ", 1)[1] for call in tables.calls]


async def test_what_is_there_is_left_as_it_is() -> None:
    tables = Tables()
    await make_chains(tables.call, IPV4)
    tables.calls.clear()
    await make_chains(tables.call, IPV4)
    assert tables.calls_of("iptables") == [call for call in NEW_CHAINS_OF_IPV4 if call[:2] in ("-N", "-C")]


@pytest.mark.parametrize("code", [2, 3, 4, -9])
async def test_a_failure_says_what_was_called_and_how_that_ended(code: int) -> None:
    async def call(_program: str, _arguments: Sequence[str]) -> Finished:
        await trio.lowlevel.checkpoint()
        return Finished(code, b"", b"reason\n")

    with pytest.raises(IptablesError, match=r"expected `iptables -N KUBE-IPTABLES-HINT -t mangle` to succeed.*reason$"):
        await make_chains(call, IPV4)


async def test_after_a_flush_all_is_made_again_within_a_minute(autojump_clock: trio.testing.MockClock) -> None:
    tables = Tables()
    async with kept(tables):
        await trio.sleep(600)
        made = set(tables.kept)
        tables.flush("mangle", "nat", "filter")
        await trio.sleep(iptables_chains.CHECK_PERIOD)
        await trio.testing.wait_all_tasks_blocked()
        assert tables.kept == made
        assert len([key for key in made if key[1] == CANARY]) == 6
        tables.calls.clear()
        await trio.sleep(600)
        assert set(tables.calls) == {f"{program} -S {CANARY} -t mangle" for program in ("iptables", "ip6tables")}


async def test_while_a_flush_goes_on_nothing_is_made(autojump_clock: trio.testing.MockClock) -> None:
    tables = Tables()
    async with kept(tables):
        tables.flush("mangle")
        await trio.sleep(iptables_chains.CHECK_PERIOD + 1)
        tables.flush("nat")
        await trio.sleep(1)
        assert not any(call.split()[1] == "-N" for call in tables.calls)
        tables.flush("filter")
        await trio.sleep(1)
        assert tables.calls_of("iptables")[-len(NEW_CHAINS_OF_IPV4) :] == NEW_CHAINS_OF_IPV4


async def test_a_flush_of_some_tables_is_repaired_after_a_while(autojump_clock: trio.testing.MockClock) -> None:
    tables = Tables()
    async with kept(tables):
        made = set(tables.kept)
        tables.flush("mangle")
        await trio.sleep(iptables_chains.CHECK_PERIOD + iptables_chains.FLUSH_TIMEOUT + 1)
        assert tables.kept == made


async def test_a_lock_that_somebody_holds_is_no_flush(autojump_clock: trio.testing.MockClock) -> None:
    tables = Tables()
    async with kept(tables):
        tables.busy = True
        tables.calls.clear()
        await trio.sleep(600)
        assert {call.split()[1] for call in tables.calls} == {"-S"}


async def test_what_fails_at_the_start_is_told_once_and_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    tables = Tables()

    async def call(program: str, arguments: Sequence[str]) -> Finished:
        if trio.current_time() - began < 200 and "-N" in arguments:
            raise IptablesError("not now")
        return await tables.call(program, arguments)

    began = trio.current_time()
    with capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_chains_by, call)
            await trio.sleep(300)
            nursery.cancel_scope.cancel()
    assert {("iptables", chain.name, "-t", chain.table) for chain in CANARIES} <= tables.kept
    told = [line["program"] for line in lines if line["log_level"] == "warning"]
    assert sorted(told) == ["ip6tables", "iptables"]


async def test_one_family_alone() -> None:
    tables = Tables(absent=frozenset({"ip6tables"}))
    async with kept(tables):
        assert tables.calls_of("iptables")[1:] == NEW_CHAINS_OF_IPV4
        assert tables.calls_of("ip6tables") == []


async def test_without_iptables_one_line_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(iptables_chains, "_SYSTEM", ())
    with capture_logs() as lines:
        await keep_chains()
    (line,) = lines
    assert line["log_level"] == "info"
    assert line["event"] == "no iptables on this machine: the chain KUBE-IPTABLES-HINT is not made"
    assert line["why"] == "iptables is not installed"


@pytest.mark.parametrize(
    ("script", "problem"),
    [("exec cat /dev/zero", "cannot run .*printed more than"), ("exec sleep 600", "did not end within 0.2 s")],
)
async def test_a_program_that_misbehaves_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, problem: str
) -> None:
    (tmp_path / "iptables").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "iptables").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(iptables_chains, "CALL_TIMEOUT", 0.2 if "sleep" in script else PATIENCE)
    with pytest.raises(IptablesError, match=problem):
        await call_program("iptables", ["-S"])


# --- The real one -----------------------------------------------------------------------------------------------------

real = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("iptables", "unshare")),
    reason="needs iptables: apt-get install iptables",
)
AGENT = """
from unittest.mock import patch
from trikubelet.cli.main import main
from trikubelet.node import start_checks

with patch.dict(start_checks.KERNEL_SETTINGS, clear=True):
    main()
"""
EMPTY = "".join(f"*{table}\\nCOMMIT\\n" for table in ("mangle", "nat", "filter"))
FILTER = {
    ":KUBE-FIREWALL - [0:0]",
    f":{CANARY} - [0:0]",
    "-A INPUT -j KUBE-FIREWALL",
    "-A OUTPUT -j KUBE-FIREWALL",
    '-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" '
    "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
}
MANGLE = {":KUBE-IPTABLES-HINT - [0:0]", f":{CANARY} - [0:0]"}


def saved(program: str, table: str) -> list[str]:
    """What is in a table beside its own chains."""
    lines = run(f"{program}-save", "-t", table).splitlines()
    return [line for line in lines if line.startswith("-A") or (line.startswith(":") and line.endswith("- [0:0]"))]


def as_wanted() -> bool:
    six = {table: set(saved("ip6tables", table)) for table in ("filter", "mangle", "nat")}
    return (
        sorted(saved("iptables", "filter")) == sorted(FILTER)
        and set(saved("iptables", "mangle")) == MANGLE
        and saved("iptables", "nat") == [f":{CANARY} - [0:0]"]
        and six == {"filter": {f":{CANARY} - [0:0]"}, "mangle": MANGLE, "nat": {f":{CANARY} - [0:0]"}}
    )


async def made_kept_and_repaired(_folder: Path) -> None:
    run("iptables", "-A", "INPUT", "-j", "ACCEPT")
    async with trio.open_nursery() as nursery:
        with patch.object(iptables_chains, "CHECK_PERIOD", 0.05), capture_logs() as lines:
            nursery.start_soon(keep_chains)
            for program in ("iptables", "ip6tables"):  # what is made last
                await until(partial(has_canary, program))
            assert [line for line in saved("iptables", "filter") if line.startswith("-A INPUT")] == [
                "-A INPUT -j KUBE-FIREWALL",
                "-A INPUT -j ACCEPT",
            ]
            run("iptables", "-D", "INPUT", "-j", "ACCEPT")
            await until(as_wanted)
            for program in ("iptables", "ip6tables"):
                run("sh", "-c", f"printf '{EMPTY}' | {program}-restore")  # as a firewall does that is loaded again
            await until(lambda: repaired(lines) == {"IPv4", "IPv6"})
            await until(as_wanted)
        nursery.cancel_scope.cancel()
    for family in (IPV4, IPV6):
        await make_chains(call_program, family)  # the next agent finds them
    assert as_wanted()


def has_canary(program: str) -> bool:
    return f":{CANARY} - [0:0]" in saved(program, "filter")


def repaired(lines: list[Any]) -> set[str]:
    """The protocols of which a flush was told."""
    return {line["protocol"] for line in lines if line["event"].startswith("iptables was flushed:")}


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.05)


async def made_by_an_agent(folder: Path) -> None:
    fields = {"enableServer": False, "healthzPort": 0, "failSwapOn": False, **WITHOUT_CGROUPS}
    kind = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    (folder / "config.json").write_text(json.dumps({**kind, **fields, "podLogsDir": str(folder / "logs")}))
    (folder / "pods").mkdir()
    arguments = [
        f"--config={folder}/config.json",
        f"--manifests={folder}/pods",
        f"--root-dir={folder}/root",
        f"--runtime-endpoint={folder}/cri.sock",
    ]
    async with trio.open_nursery() as nursery:
        await nursery.start(Server(SimulatedRuntime(seed=1).handlers).serve_unix, folder / "cri.sock")
        agent = partial(trio.run_process, [sys.executable, "-c", AGENT, "run", "--node-name=n", *arguments])
        process = await nursery.start(agent)
        await until(as_wanted)
        process.terminate()
        with trio.fail_after(PATIENCE):
            assert await process.wait() == 0
        nursery.cancel_scope.cancel()
    assert as_wanted(), "they stay"


async def refused_without_root(_folder: Path) -> None:
    with capture_logs() as lines, patch.object(iptables_chains, "run_program", as_nobody):
        await keep_chains()
    (line,) = lines
    assert "you must be root" in line["why"], line


async def as_nobody(command: Sequence[str], **options: Any) -> Finished:
    drop = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    return await run_program([*drop, *command], **options)


@real
@pytest.mark.root
async def test_the_real_iptables_has_them_and_has_them_again_after_a_flush(tmp_path: Path) -> None:
    await run_there(made_kept_and_repaired, tmp_path)


@real
@pytest.mark.root
async def test_an_agent_on_somebodys_runtime_makes_them(tmp_path: Path) -> None:
    await run_there(made_by_an_agent, tmp_path)


@real
@pytest.mark.root
async def test_without_root_one_line_says_so(tmp_path: Path) -> None:
    await run_there(refused_without_root, tmp_path)
