"""The embedded runtime beside containerd with runc: time to a container's first instruction, to its end, and memory.

    python -m benchmarks.runtimes [--json FILE] [--runs N] [--pods N]

Both serve CRI on a socket from a process of their own, and take turns, so that noise hits both alike. The container is
a shell that opens a pipe first of all; that is its first instruction. Where crun or runc is installed, its command line
starts the same shell as the floor: no service, no image, no pod. (crun refuses machines with both versions of cgroups;
there it is started where it sees the second one alone, and without rules for devices.) The network is the machine's, or
a pod's own where the runtime has one for it. Debian's crun is a package of that name; nothing else needs it.

Memory is what is there for containers that run, beside the containers themselves (PSS): the one keeper with the
processes that fork and make namespaces for it, or a shim and a pause process for each pod. Needs root, containerd with
runc and the CNI plugins, and busybox (`make packages`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import attrs
import click
import trio

from benchmarks.agent_process import COMMAND, PATIENCE, interruptible_once
from benchmarks.first_instruction import first_instruction
from benchmarks.picture import picture_option
from benchmarks.report import Result, print_table, report
from tests.containerd_node import TEST_IMAGE, ContainerdNode
from tests.oci_image import make_root_folder, write_oci_archive
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel
from trikubelet.telemetry.logs import silence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

SCRIPT: Final = "trap 'exit 0' TERM; : > /sign/%s; while :; do sleep 1000 & wait $!; done"
STOP_WITHIN: Final = 30
NETWORKS: Final = {"the machine's network": v1.NamespaceMode.NODE, "a network of its own": v1.NamespaceMode.POD}
GOALS: Final = {"the machine's network": 10, "a network of its own": 20}
"""Milliseconds from the first call to the first instruction."""
MEBIBYTE: Final = 2**20


@attrs.frozen
class Times:
    """Of one pod, in milliseconds."""

    network: str
    own_address: bool
    pod: float
    """From the first call to the first instruction."""
    container: float
    """From StartContainer to the first instruction."""
    stop: float
    """Of a container that ends at once when it is asked to."""
    remove: float
    """Of what is left then."""


@attrs.frozen
class Contestant:
    """A runtime that serves CRI."""

    name: str
    calls: RuntimeClient
    sign: Path
    memory: Callable[[], int]
    """Bytes that it takes for what runs, beside the containers."""

    def configurations(self, name: str, network: v1.NamespaceMode) -> tuple[v1.PodSandboxConfig, v1.ContainerConfig]:
        options = v1.NamespaceOption(network=network, pid=v1.NamespaceMode.CONTAINER)
        sandbox = v1.PodSandboxConfig(
            metadata=v1.PodSandboxMetadata(name=name, namespace="benchmark", uid=name),
            linux=v1.LinuxPodSandboxConfig(security_context=v1.LinuxSandboxSecurityContext(namespace_options=options)),
        )
        if network is v1.NamespaceMode.POD:
            sandbox.hostname = name
        container = v1.ContainerConfig(
            metadata=v1.ContainerMetadata(name="main"),
            image=v1.ImageSpec(image=TEST_IMAGE),
            command=["sh", "-c", SCRIPT % name],
            mounts=[v1.Mount(container_path="/sign", host_path=str(self.sign))],
            linux=v1.LinuxContainerConfig(security_context=v1.LinuxContainerSecurityContext(namespace_options=options)),
        )
        return sandbox, container

    async def time_pod(self, name: str, network: str) -> Times:
        """One pod's life."""
        sandbox, container = self.configurations(name, NETWORKS[network])
        async with first_instruction(self.sign / name) as signed:
            began = time.perf_counter()
            sandbox_id = await self.calls.run_pod_sandbox(sandbox)
            container_id = await self.calls.create_container(sandbox_id, container, sandbox)
            starting = time.perf_counter()
            await self.calls.start_container(container_id)
        status = (await self.calls.pod_sandbox_status(sandbox_id)).status
        stopping = time.perf_counter()
        await self.calls.stop_container(container_id, STOP_WITHIN)
        stopped = time.perf_counter()
        await self.remove(sandbox_id)
        removed = time.perf_counter()
        return Times(
            network=network,
            own_address=_is_a_pods(status.network.ip),
            pod=1000 * (signed.at - began),
            container=1000 * (signed.at - starting),
            stop=1000 * (stopped - stopping),
            remove=1000 * (removed - stopped),
        )

    async def remove(self, sandbox_id: str) -> None:
        await self.calls.stop_pod_sandbox(sandbox_id)
        await self.calls.remove_pod_sandbox(sandbox_id)

    async def measure_memory(self, pods: int) -> int:
        """Bytes that so many pods with a container each take."""
        before, made = self.memory(), []
        try:
            for number in range(pods):
                sandbox, container = self.configurations(f"many-{number}", v1.NamespaceMode.NODE)
                async with first_instruction(self.sign / f"many-{number}"):
                    made.append(await self.calls.run_pod_sandbox(sandbox))
                    await self.calls.start_container(await self.calls.create_container(made[-1], container, sandbox))
            return self.memory() - (before if self.name == "containerd" else 0)
        finally:
            for sandbox_id in made:
                await self.remove(sandbox_id)


# The contestants


@asynccontextmanager
async def on_containerd(node: ContainerdNode, sign: Path) -> AsyncIterator[Contestant]:
    def memory() -> int:
        return sum(_memory(pid) for pid in _processes() if _is_of(pid, node))

    async with open_unix_channel(node.socket) as channel:
        yield Contestant("containerd", RuntimeClient(channel, timeout=PATIENCE), sign, memory)


def _is_of(pid: int, node: ContainerdNode) -> bool:
    """Whether a process is a shim of this containerd, or what a sandbox is kept by."""
    words = _command_line(pid)
    if "containerd-shim" in words:
        return str(node.socket) in words
    return words.startswith("/bin/sleep infinity") and "containerd-shim" in _command_line(_parent(pid))


@asynccontextmanager
async def on_embedded(folder: Path, archive: Path) -> AsyncIterator[Contestant]:
    sign, root, path = folder / "sign", folder / "runtime", folder / "cri.sock"
    sign.mkdir()
    done = [*COMMAND, "images", "import", str(archive), f"--runtime-root={root}"]
    await trio.run_process(done, capture_stdout=True)
    command = [*COMMAND, "runtime", "serve", f"--listen=unix://{path}", f"--root={root}"]
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: ASYNC220
    with trio.fail_after(PATIENCE):
        while b"serving CRI" not in (folder / "serve.log").read_bytes():  # noqa: ASYNC110
            await trio.sleep(0.05)
    keeper = int(json.loads((root / "keeper.json").read_text())["pid"])
    try:
        async with open_unix_channel(path) as channel:
            calls = RuntimeClient(channel, timeout=PATIENCE)
            yield Contestant("embedded", calls, sign, lambda: _memory_of_keeper(keeper))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        shutil.rmtree(root)  # which is how the keeper ends, with its cgroups
        with trio.fail_after(PATIENCE, shield=True):
            while Path(f"/proc/{keeper}").exists():  # noqa: ASYNC110, ASYNC240
                await trio.sleep(0.1)


@attrs.frozen
class Tool:
    """crun's or runc's command line."""

    program: str
    bundle: Path
    sign: Path
    prefix: tuple[str, ...] = ()
    """What enters the namespace that it is to run in."""

    @classmethod
    def make(cls, program: str, folder: Path, rootfs: Path) -> Tool:
        bundle, sign = folder / program, folder / program / "sign"
        sign.mkdir(parents=True)
        subprocess.run([program, "spec"], cwd=bundle, check=True)
        configuration = json.loads((bundle / "config.json").read_text())
        configuration["process"]["terminal"] = False
        configuration["root"] = {"path": str(rootfs), "readonly": True}
        mount = {"destination": "/sign", "type": "bind", "source": str(sign), "options": ["bind"]}
        configuration["mounts"].append(mount)
        kept = configuration["linux"]["namespaces"]
        configuration["linux"]["namespaces"] = [one for one in kept if one["type"] != "network"]
        configuration["linux"].pop("resources", None)
        (bundle / "config.json").write_text(json.dumps(configuration))
        return cls(program, bundle, sign)

    async def works(self) -> bool:
        """Whether it starts containers here."""
        failed = False
        try:
            await self.time_container("try")
        except* (subprocess.CalledProcessError, trio.TooSlowError):
            failed = True
        return not failed

    async def time_container(self, name: str) -> float:
        """Milliseconds from the command to the first instruction."""
        path = self.bundle / "config.json"
        configuration = json.loads(path.read_text())
        configuration["process"]["args"] = ["sh", "-c", SCRIPT % name]
        path.write_text(json.dumps(configuration))
        async with first_instruction(self.sign / name) as signed:
            began = time.perf_counter()
            run = [*self.prefix, self.program, "run", "--detach", f"--bundle={self.bundle}", f"benchmark-{name}"]
            await trio.run_process(run, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        await trio.run_process([*self.prefix, self.program, "delete", "--force", f"benchmark-{name}"])
        return 1000 * (signed.at - began)


@contextmanager
def cgroup_v2_alone() -> Iterator[tuple[str, ...]]:
    """Words that begin a command which sees no cgroups of version 1."""
    script = "umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup && echo made && exec sleep infinity"
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", script], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        try:
            holder.stdout.readline()
            yield ("nsenter", f"--mount=/proc/{holder.pid}/ns/mnt")
        finally:
            holder.kill()


async def working_tools(folder: Path, rootfs: Path, prefix: tuple[str, ...]) -> list[Tool]:
    """Those that are installed and start containers, with `prefix` where they do not without it."""
    found = []
    for program in ("crun", "runc"):
        if shutil.which(program) is None:
            continue
        tool = Tool.make(program, folder, rootfs)
        if await tool.works() or await (tool := attrs.evolve(tool, prefix=prefix)).works():
            found.append(tool)
        else:
            click.echo(f"{program} is left out, since it starts no container here", err=True)
    return found


# What the machine tells


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _memory(pid: int) -> int:
    """Bytes, what is shared counted in parts."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _memory_of_keeper(keeper: int) -> int:
    """With the processes that fork and make namespaces for it."""
    program = _command_line(keeper)
    others = [pid for pid in _processes() if _parent(pid) == keeper and _command_line(pid) == program]
    return sum(_memory(pid) for pid in (keeper, *others))


def _is_a_pods(address: str) -> bool:
    """Whether it is none of the machine's own."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return True
    return False


# The benchmark


@attrs.frozen
class Measured:
    """Everything."""

    times: dict[str, list[Times]]
    """By contestant."""
    floors: dict[str, list[float]]
    memory: dict[str, int]


async def measure(folder: Path, node: ContainerdNode, archive: Path, rootfs: Path, runs: int, pods: int) -> Measured:
    """The first turn of each only warms up."""
    sign = folder / "containerd-sign"
    sign.mkdir()
    (folder / "embedded").mkdir()
    times: dict[str, list[Times]] = {}
    floors: dict[str, list[float]] = {}
    memory = {}
    with cgroup_v2_alone() as prefix:
        tools = await working_tools(folder, rootfs, prefix)
        async with on_embedded(folder / "embedded", archive) as embedded, on_containerd(node, sign) as containerd:
            for run in range(runs + 1):
                for network in NETWORKS:
                    for one in (embedded, containerd):
                        taken = await one.time_pod(f"pod-{run}-{NETWORKS[network].value}", network)
                        times.setdefault(one.name, []).extend([taken] if run else [])
                for tool in tools:
                    floor = await tool.time_container(f"floor-{run}")
                    floors.setdefault(tool.program, []).extend([floor] if run else [])
            for one in (embedded, containerd):
                memory[one.name] = await one.measure_memory(pods)
    return Measured(times, floors, memory)


def show(measured: Measured, pods: int) -> None:
    def line(name: str, network: str, of: list[Times]) -> list[str]:
        fields = ([getattr(one, field) for one in of] for field in ("pod", "container", "stop", "remove"))
        return [f"{name}, {network}", *(f"{median(values):.1f} ({min(values):.1f})" for values in fields)]

    rows = []
    for network in NETWORKS:
        for name, times in measured.times.items():
            of = [one for one in times if one.network == network]
            what = network if network == "the machine's network" or of[0].own_address else f"{network}: has none"
            rows.append(line(name, what, of))
    rows += [
        [f"floor: {name} run", f"{median(values):.1f} ({min(values):.1f})", "", "", ""]
        for name, values in measured.floors.items()
    ]
    columns = ["", "pod to 1st instruction", "StartContainer to it", "stop", "remove"]
    print_table(f"Milliseconds: median (fastest), load {os.getloadavg()[0]:.1f}", columns, rows)
    memory = [
        [name, f"{value / MEBIBYTE:.1f}", f"{value / pods / 1024:.0f}"] for name, value in measured.memory.items()
    ]
    print_table(f"Memory for {pods} pods with a container each", ["", "MiB", "KiB per pod"], memory)


def aims(measured: Measured, pods: int) -> list[Result]:
    """Of networks of their own only where the runtime gave the pods one."""
    results = []
    for network, goal in GOALS.items():
        of = [one for one in measured.times["embedded"] if one.network == network]
        if goal == GOALS["the machine's network"] or of[0].own_address:
            value = median(one.pod for one in of)
            results.append(Result(f"embedded: pod to its first instruction, {network}", "ms", value, goal))
    if pods >= 100:
        kept = measured.memory["embedded"] / MEBIBYTE
        results.append(Result(f"embedded: the keeper with {pods} containers", "MiB", kept, 15))
    return results


@contextmanager
def a_containerd(folder: Path) -> Iterator[ContainerdNode]:
    node = ContainerdNode(folder / "containerd", f"br-rt{os.getpid() % 10000}")
    with interruptible_once() as stack:
        stack.callback(node.stop)
        node.start()
        node.import_images()
        yield node


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the aims as JSON to this file.")
@picture_option
@click.option("--runs", type=click.IntRange(min=1), default=15, show_default=True, help="Pods of each kind.")
@click.option("--pods", type=click.IntRange(min=1), default=100, show_default=True, help="Pods for the memory.")
def main(json_file: Path | None, runs: int, pods: int) -> None:
    """Measure the embedded runtime beside containerd."""
    silence()
    with TemporaryDirectory(prefix="trikubelet-runtimes-") as name, a_containerd(Path(name)) as node:
        folder, archive = Path(name), Path(name) / "image.tar"
        rootfs = make_root_folder(folder / "rootfs")
        write_oci_archive(archive, rootfs, TEST_IMAGE, {"Cmd": ["sh"]})
        measured = trio.run(measure, folder, node, archive, rootfs, runs, pods)
    show(measured, pods)
    sys.exit(0 if report(aims(measured, pods), json_file) else 1)


if __name__ == "__main__":
    main()
