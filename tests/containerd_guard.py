"""Ends a containerd of the tests whose process was killed: `python -m tests.containerd_guard PARENT ROOT BRIDGE`.

A session that ends by itself stops its containerd. After a SIGKILL nobody would: containerd would run on, and so would
its shims, which are nobody's children, with their containers, mounts and network namespaces. That signal cannot be had
for containerd from the kernel (PR_SET_PDEATHSIG), which sends it when the thread that forked ends, and tests start
containerd in threads that come and go; and the shims would stay all the same. So each `ContainerdNode` has one of these
processes beside it. It sleeps until its parent has ended, and then stops the node as the parent would have done.

It is in the network namespace that the node has for its machine, which lasts as long, and knows nothing of it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from pathlib import Path

SHIM = b"containerd-shim"


def main(arguments: list[str]) -> None:
    parent, root, bridge = arguments
    wait_for_end(int(parent))
    # What costs time and memory, only now.
    from tests.containerd_node import ContainerdNode
    from tests.embedded.runtime_node import processes_with

    # Whoever else works with it would start again what is ended. Shims are containerd's to end, with all they hold.
    for pid in processes_with(f"{root}/"):
        kill_unless_shim(pid)
    ContainerdNode(Path(root), bridge).stop()


def wait_for_end(parent: int) -> None:
    """Of the process that has started this one."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(parent)
        if os.getppid() == parent:  # else the pid may be another's already
            select.select([pidfd], [], [])


def kill_unless_shim(pid: int) -> None:
    """Returns when it has ended."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        pidfd = os.pidfd_open(pid)
        if not is_shim(pid):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [])


def is_shim(pid: int) -> bool:
    """Raises FileNotFoundError."""
    return SHIM in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]


if __name__ == "__main__":
    main(sys.argv[1:])
