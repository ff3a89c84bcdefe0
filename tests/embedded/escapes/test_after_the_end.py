"""What was hidden from a container stays hidden when its mount namespace has ended.

Mounts hide what lies below: masked files of procfs, the runtime's own folder. When the last process of a mount
namespace ends, the kernel takes its mounts apart, but a descriptor of a folder in it keeps the mount that it is on. A
neighbour takes one through `/proc/PID/root`, or is handed it over a socket in a volume.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.embedded.escapes.attack import needs_isolation
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root

SHARED_PID = v1.NamespaceOption(pid=v1.NamespaceMode.POD)
HIDDEN = [False, "Read-only file system", 0]
NEIGHBOUR = """
import json, os, time

def is_victim(pid):
    try:
        return pid != str(os.getpid()) and open(f"/proc/{pid}/cmdline").read().startswith("busybox")
    except OSError:
        return False

while not (found := [pid for pid in os.listdir("/proc") if pid.isdigit() and is_victim(pid)]):
    time.sleep(0.01)
root = os.open(f"/proc/{found[0]}/root", os.O_RDONLY)
proc = os.open("proc", os.O_RDONLY, dir_fd=root)

def seen():
    yield os.path.exists(f"/proc/self/fd/{root}FOLDER/keeper.sock")
    try:
        os.close(os.open("sys/kernel/core_pattern", os.O_WRONLY, dir_fd=proc))
    except OSError as error:
        yield error.strerror
    yield len(os.read(os.open("keys", os.O_RDONLY, dir_fd=proc), 100))

print(json.dumps([*seen()]), flush=True)
while os.path.exists(f"/proc/{found[0]}"):
    time.sleep(0.01)
# The namespace goes a little later than its last process.
looks = []
end = time.monotonic() + 0.5
while time.monotonic() < end:
    looks.append([*seen()])
    time.sleep(0.01)
print(json.dumps(max(looks)), flush=True)
"""


async def test_a_descriptor_of_a_container_that_has_ended_shows_nothing_more(node: Node) -> None:
    needs_isolation(node)
    security = v1.LinuxContainerSecurityContext(
        namespace_options=SHARED_PID, masked_paths=["/proc/keys"], readonly_paths=["/proc/sys"]
    )
    sandbox = await node.sandbox(options=SHARED_PID)
    victim = await node.launch(sandbox, ["busybox", "sleep", "1000"], security=security)
    script = NEIGHBOUR.replace("FOLDER", str(node.runtime.root))
    neighbour = await node.launch(sandbox, ["python3", "-c", script], security=security)
    await node.wait_for_output(neighbour, "]")
    await node.stop(victim, 0)
    out = (await node.ended(neighbour)).out.splitlines()
    assert [json.loads(line) for line in out] == [HIDDEN, HIDDEN]
