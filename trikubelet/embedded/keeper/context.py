"""What a process on its way to a container is told: its specification, its place, and the descriptors it needs.

It comes from the template (`template.py`), which knows nothing of any pod. The keeper writes to it alone, over the pair
that it reports to: so whoever looks into its memory finds what is its own container's.
"""

from __future__ import annotations

import marshal
import os
import socket

from trikubelet.embedded.keeper import protocol
from trikubelet.embedded.keeper.cgroups import ContainerCgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from trikubelet.embedded.keeper import identity
    from trikubelet.embedded.keeper.kernel_files import KernelFiles

_DESCRIPTORS = ("shared_memory", "proc", "proc_of", "pid_namespace", "target", "status_channel", "birth")
_LARGEST_INLINE = 48 * 1024
_IN_MEMFD = b"in a memfd"
_VALUES = ("reaper_keeps_orphans", "namespace_flags", "waits", "is_expected", "oom_score")


class Machine:
    """What every process that is forked for this keeper may know."""

    __slots__ = ("in_user_namespace", "isolated", "keyring_is_empty", "limits", "one_user_only", "program", "root")

    def __init__(
        self,
        root: str,
        *,
        isolated: bool,
        in_user_namespace: bool,
        one_user_only: bool,
        keyring_is_empty: bool,
        limits: dict[int, tuple[int, int]],
        program: int | None,
    ) -> None:
        self.root = root
        """The runtime's folder."""
        self.keyring_is_empty = keyring_is_empty
        """False if the keeper's session keyring may be that of the login or unit that the agent was started in."""
        self.isolated = isolated
        self.in_user_namespace = in_user_namespace
        self.one_user_only = one_user_only
        self.limits = limits
        """Resource limits to restore: the keeper's own are higher."""
        self.program = program
        """What a process executes that only reaps, from `reaper_program.open_program`."""


class ChildContext:
    """What the keeper hands to the child besides the specification, and what the child notes on its way.

    A plain class with many fields, since the keeper has the standard library alone and starts fast.
    """

    __slots__ = (
        *_DESCRIPTORS,
        *_VALUES,
        "cgroup",
        "environment",
        "executable",
        "folder",
        "is_filtered",
        "machine",
        "may_gain",
        "namespaces",
        "prepared",
        "processes",
        "report",
        "stage",
        "streams",
        "user",
    )

    machine: Machine

    def __init__(
        self,
        streams: tuple[int, ...],
        *,
        cgroup: ContainerCgroup | None,
        reaper_keeps_orphans: bool,
        namespaces: Sequence[tuple[int, int]] = (),
        shared_memory: int | None = None,
        proc: int | None = None,
        proc_of: int | None = None,
        pid_namespace: int | None = None,
        target: int | None = None,
        namespace_flags: int = 0,
        waits: bool = False,
        is_expected: bool = False,
        oom_score: int | None = None,
    ) -> None:
        self.streams = streams
        """stdin, stdout and stderr; none as long as the specification is not there."""
        self.cgroup = cgroup
        self.reaper_keeps_orphans = reaper_keeps_orphans
        """Whether the reaper stays for what the command leaves behind, or hands that to the container's init."""
        self.namespaces = namespaces
        """(descriptor, CLONE flag) of the pod's namespaces to enter."""
        self.namespace_flags = namespace_flags
        """CLONE flags of the pod's own namespaces, as against the machine's."""
        self.shared_memory = shared_memory
        """A mount namespace whose root is the pod's `/dev/shm`; None: the container has the machine's, or joins one."""
        self.proc = proc
        """The same with procfs, for a container in a shared PID namespace."""
        self.proc_of = proc_of
        """pidfd of the container whose PID namespace this one enters, and whose procfs it takes."""
        self.pid_namespace = pid_namespace
        """pidfd of a process in whose PID namespace it is to be; None: it is in the right one already."""
        self.target = target
        """pidfd of the container whose namespaces a command enters; None: this is the container."""
        self.waits = waits
        """Whether it is to be told before it executes its program."""
        self.is_expected = is_expected
        """Whether the specification is yet to come: what comes with this has no more than `expected_spec` says."""
        self.oom_score = oom_score
        """What it has to set itself; None: it was forked with the right one."""
        self.status_channel: int | None = None
        """Where a reaper tells the command's exit status; None: no reaper."""
        self.birth: int | None = None
        """A memfd: the pid of what the process in between has forked into the PID namespace, and why there is none."""
        # What the child alone knows.
        self.report = -1
        self.stage = "setup"
        """What the child is at, for the text of an error."""
        self.processes: int | None = None
        """The machine's /proc, if an AppArmor profile or a SELinux label is to be taken on: the container's may be
        anything."""
        self.user: identity.Identity | None = None
        self.folder: int | None = None
        """Who it will be and where, once that is known; no folder if root may not open it."""
        self.executable: str | None = None
        """What it will execute, when only that is left to be done."""
        self.environment: dict[str, str] = {}
        self.prepared: KernelFiles | None = None
        """Mounts that were taken before the specification was there."""
        self.may_gain = True
        """Whether the program may gain privileges by executing another."""
        self.is_filtered = False
        """Whether the filter has been loaded."""


def send(channel: socket.socket, spec: dict[str, Any], context: ChildContext) -> None:
    """Tell a process, which may be about to be forked. Does not wait; raises OSError."""
    handed: dict[int, int] = {}  # the place of each descriptor among those that go along

    def place(descriptor: int) -> int:
        return handed.setdefault(descriptor, len(handed))

    group = context.cgroup
    message: dict[str, Any] = {
        "spec": spec,
        "streams": [place(descriptor) for descriptor in context.streams],
        "namespaces": [(place(descriptor), flag) for descriptor, flag in context.namespaces],
        "cgroup": None if group is None else (group.unified, group.controllers, group.shared, group.views),
    }
    for name in _DESCRIPTORS:
        descriptor = getattr(context, name)
        message[name] = None if descriptor is None else place(descriptor)
    for name in _VALUES:
        message[name] = getattr(context, name)
    # Who receives it is a copy of this very program. As JSON it would take a fresh process 0.4 ms to read.
    payload = marshal.dumps(message)
    if len(payload) <= _LARGEST_INLINE:
        channel.sendmsg([payload], protocol.ancillary([*handed]), socket.MSG_DONTWAIT)
        return
    with os.fdopen(os.memfd_create("trikubelet-context", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        file.write(payload)
        channel.sendmsg([_IN_MEMFD], protocol.ancillary([*handed, file.fileno()]), socket.MSG_DONTWAIT)


def receive(channel: socket.socket) -> tuple[dict[str, Any], ChildContext] | None:
    """In the forked process; None when the keeper is gone."""
    payload, received = protocol.receive(channel, _LARGEST_INLINE)
    if not payload:
        return None
    if payload == _IN_MEMFD:
        with os.fdopen(received.pop(), "rb", buffering=0) as file:
            file.seek(0)
            payload = file.read()
    message = marshal.loads(payload)
    group = message["cgroup"]
    context = ChildContext(
        tuple(received[place] for place in message["streams"]),
        cgroup=None if group is None else ContainerCgroup(*group),
        reaper_keeps_orphans=message["reaper_keeps_orphans"],
        namespaces=[(received[place], flag) for place, flag in message["namespaces"]],
    )
    for name in _DESCRIPTORS:
        setattr(context, name, None if message[name] is None else received[message[name]])
    for name in _VALUES:
        setattr(context, name, message[name])
    return message["spec"], context
