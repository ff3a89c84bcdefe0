"""The keeper as it begins to serve a runtime's folder: in a session of its own, with its lock, log, socket and name.

The process that the agent started ends as soon as the keeper serves: exit code 0 and a line on stdout, or 1 and the
reason on stderr. Code 3 means that another keeper serves this folder already.
"""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import signal
import socket
import sys
import time

from trikubelet.embedded.keeper import linux, protocol
from trikubelet.embedded.keeper.cgroups import Cgroups
from trikubelet.embedded.keeper.container import reap, write_json
from trikubelet.embedded.keeper.context import Machine
from trikubelet.embedded.keeper.environment import Environment
from trikubelet.embedded.keeper.event_loop import EventLoop
from trikubelet.embedded.keeper.forker import Forker
from trikubelet.embedded.keeper.identity import join_keyring
from trikubelet.embedded.keeper.log import log
from trikubelet.embedded.keeper.logfile import Stamp
from trikubelet.embedded.keeper.namespace_maker import NamespaceMaker
from trikubelet.embedded.keeper.probe import find_abilities
from trikubelet.embedded.keeper.reaper_program import open_program
from trikubelet.embedded.keeper.sandbox import remove_old_shared_memory
from trikubelet.embedded.keeper.server import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

ALREADY_RUNNING = 3
_LARGEST_LOG = 1 << 20


def start(root: str, name: str) -> None:
    """Have a fork of this process serve the folder. Does not return: this process ends, or becomes the fork."""
    os.umask(0o022)
    os.makedirs(root, exist_ok=True)
    os.chmod(root, 0o700)
    lock = os.open(f"{root}/keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(ALREADY_RUNNING)
    _detach(root, name)


def _detach(root: str, name: str) -> None:
    """Fork the keeper into a session of its own; the caller stays until it serves, and passes on what went wrong."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    if os.fork() == 0:
        os.close(reader)
        os.setsid()
        try:
            serve = _prepared(root, name)
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
            raise
        os.write(writer, b"serving")
        os.close(writer)
        serve()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "r", encoding="utf-8") as file:
        answer = file.read()
    if answer != "serving":
        sys.exit(answer or "the keeper ended before it served")
    print("serving", flush=True)
    os._exit(0)


def _prepared(root: str, name: str) -> Callable[[], None]:
    """Everything that can go wrong; what it returns serves until the keeper is asked to end."""
    _redirect(root)
    os.chdir("/")
    with open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write("trikube-keeper")
    for number in linux.IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _reap_ended(root)
    remove_old_shared_memory(name)
    abilities = find_abilities(root)
    cgroups = Cgroups(name)
    cgroups.leave_service()
    loop = EventLoop()
    machine = Machine(
        root,
        isolated=abilities.mode != "plain",
        in_user_namespace=abilities.mode == "user-namespace",
        one_user_only=abilities.one_user_only,
        keyring_is_empty=_leave_keyring(abilities.problems),
        limits=_raise_limits(),
        program=open_program(),
    )
    # Nor are its children: nothing of this process is to be seen in procfs by a container that a child is to become.
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    gc.collect()
    gc.freeze()
    forker = Forker(loop, machine)  # the last fork of this process itself, which knows nothing of a pod as yet
    environment = Environment(
        root=root,
        loop=loop,
        stamp=Stamp(),
        cgroups=cgroups,
        abilities=abilities,
        forker=forker,
        namespace_maker=NamespaceMaker(loop, forker, stays=abilities.mode == "root"),
    )
    listener = _listen(root)
    server = Server(environment, listener)
    identity = {
        "pid": os.getpid(),
        "start_ticks": protocol.process_start_ticks(os.getpid()),
        "boot_id": protocol.boot_id(),
        "version": protocol.VERSION,
    }
    write_json(f"{root}/{protocol.IDENTITY_NAME}", identity)

    def serve() -> None:
        loop.run()
        for leftover in (protocol.SOCKET_NAME, protocol.IDENTITY_NAME):
            try:
                os.unlink(f"{root}/{leftover}")
            except OSError:
                continue
        server.close()

    return serve


def _redirect(root: str) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    path = f"{root}/keeper.log"
    if os.path.exists(path) and os.path.getsize(path) > _LARGEST_LOG:
        os.replace(path, f"{path}.old")
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for target, source in enumerate((null, file, file)):
        os.dup2(source, target)
    os.close(null)
    os.close(file)
    log(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} keeper {os.getpid()} starts")


def _reap_ended(root: str) -> None:
    folder = f"{root}/containers"
    if os.path.isdir(folder):
        for container in os.listdir(folder):
            if reap(f"{folder}/{container}"):
                log(f"container {container} lost its keeper")


def _raise_limits() -> dict[int, tuple[int, int]]:
    """As many descriptors as allowed for the keeper; what containers get back.

    And as much locked memory, of which kernels before 5.11 take a page for each program of `device_program`.
    """
    originals = {number: resource.getrlimit(number) for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK)}
    for number, (_, most) in originals.items():
        resource.setrlimit(number, (most, most))
    return originals


def _leave_keyring(problems: list[str]) -> bool:
    """Leave the session keyring of the login or unit. False if that fails, and its keys can be read."""
    try:
        join_keyring(None, own_is_empty=False)
    except OSError as error:
        problems.append(f"session keyring: {error}; containers that get none of their own do not start")
        return False
    return True


def _listen(root: str) -> socket.socket:
    """The socket, bound by way of a descriptor: a path may be longer than a socket address."""
    path = f"{root}/{protocol.SOCKET_NAME}"
    if os.path.lexists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.setblocking(False)
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener.bind(f"/proc/self/fd/{folder}/{protocol.SOCKET_NAME}")
    os.close(folder)
    os.chmod(path, 0o600)
    listener.listen(16)
    return listener
