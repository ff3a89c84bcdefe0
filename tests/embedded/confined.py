"""Containers that try what a profile forbids, run with the rights of this process: prints their answers as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import trio

from tests.embedded.runtime_node import running_node
from trikubelet.embedded.seccomp.syscalls import ABIS_OF_MACHINE
from trikubelet.rpc.cri import v1

PYTHON = str(Path(sys.executable).resolve())
"""Containers see this one too: a virtual environment may lie below /tmp, which is a folder of their own."""
CALLS = {
    "keyctl": (0, -3, 0),
    "unshare": (0x10000000,),
    "mount": (0, 0, 0, 0, 0),
    "clone": (0x10000000 | 17, 0, 0, 0, 0),
    "clone3": (0, 0),
    "personality": (0x0040000,),
    "mkdirat": (-1, 0, 0),
}
PROBE = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
answers = {}
for name, (number, arguments) in json.loads(sys.argv[1]).items():
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
        if result != 0 or name != "clone":
            os.write(writer, str(ctypes.get_errno() if result < 0 else 0).encode())
        os._exit(0)
    os.close(writer)
    answers[name] = int(os.read(reader, 10) or b"-1")
    os.waitpid(child, 0)
for line in open("/proc/self/status"):
    key, _, value = line.partition(":")
    if key in ("NoNewPrivs", "Seccomp", "CapEff", "CapAmb"):
        answers[key] = value.strip()
print(json.dumps(answers))
"""
WRITER = """
try() { ("$@") 2>/dev/null && echo done || echo refused; }
try mkdir $1/new; try touch $1/file; try rm -r $2/../logs; try ln -s x $1/link; try mv $1/denying.json $2/moved
try touch $2/file; try mkdir $2/folder; try mv $2/file $2/folder/; try rm -r $2/folder
try sh -c ": > /dev/null"
"""
DENYING = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 99}],
}


def probe() -> list[str]:
    numbers = ABIS_OF_MACHINE[os.uname().machine][0].numbers
    calls = {name: (numbers[name], arguments) for name, arguments in CALLS.items()}
    return [PYTHON, "-c", PROBE, json.dumps(calls)]


def cases(profile: Path) -> dict[str, dict[str, Any]]:
    kinds = v1.SecurityProfileProfileType
    default = v1.SecurityProfile(profile_type=kinds.RuntimeDefault)
    return {
        "silent": {},
        "default": {"seccomp": default},
        "default, no new privileges": {"seccomp": default, "no_new_privs": True},
        "unconfined": {"seccomp": v1.SecurityProfile(profile_type=kinds.Unconfined)},
        "no new privileges": {"no_new_privs": True},
        "localhost": {"seccomp": v1.SecurityProfile(profile_type=kinds.Localhost, localhost_ref=str(profile))},
    }


async def main(folder: Path) -> None:
    profile = folder / "denying.json"
    profile.write_text(json.dumps(DENYING))
    outcome: dict[str, Any] = {}
    async with running_node(folder / "runtime", folder / "logs") as node:
        outcome["mode"] = node.cri.capabilities()["mode"]
        sandbox = await node.sandbox()
        for name, fields in cases(profile).items():
            security = v1.LinuxContainerSecurityContext(**fields)
            ended = await node.run(sandbox, probe(), security=security)
            outcome[name] = json.loads(ended.out) if ended.exit_code == 0 else ended.err
        security = v1.LinuxContainerSecurityContext(**cases(profile)["default"])
        container = await node.launch(sandbox, ["sleep", "1000"], security=security)
        outcome["exec"] = json.loads((await node.exec(container, probe())).stdout)
        await node.stop(container, 0)
        shared = folder / "shared"
        shared.mkdir()
        ended = await node.run(
            sandbox,
            ["sh", "-c", WRITER, "sh", str(folder), str(shared)],
            security=v1.LinuxContainerSecurityContext(readonly_rootfs=True),
            mounts=[v1.Mount(host_path=str(shared), container_path=str(shared))],
        )
        outcome["read-only root"] = ended.out.split()
        await node.remove_everything()
        await node.runtime.shutdown()
    print("outcome=" + json.dumps(outcome))


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
