"""What a forked process does until it has become a container, or a command inside one.

It talks to the keeper through a SEQPACKET pair whose end closes on exec: first the user it became, perhaps a terminal's
descriptor, then either silence (the exec worked) or the exact error. It never returns into the keeper's loop.

Until then it is a copy of the keeper, with its memory. It is born not dumpable, as the keeper is, and has of its
descriptors those alone that it needs (`Forker.fork`).
"""

from __future__ import annotations

import array
import binascii
import fcntl
import json
import os
import resource
import signal
import socket
import stat
import termios

from trikubelet.embedded.keeper import capabilities, identity, landlock, linux, reaper, rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from trikubelet.embedded.keeper.cgroups import ContainerCgroup

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ALL_SIGNALS = frozenset(signal.valid_signals())
# Not in the termios module of Python 3.11.
_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441
_PTMX = os.makedev(5, 2)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SetupError(Exception):
    """A step towards the container that failed; the text goes to the caller that asked for the container."""


class ChildContext:
    """What the keeper hands to the child besides the specification; descriptors are the keeper's own until the fork.

    A plain class with many fields, since the keeper has the standard library alone and starts fast.
    """

    __slots__ = (
        "born_in_cgroup",
        "cgroup",
        "folder",
        "in_user_namespace",
        "isolated",
        "limits",
        "namespace_flags",
        "namespaces",
        "one_user_only",
        "proc",
        "processes",
        "reaper_keeps_orphans",
        "reaper_program",
        "report",
        "shared_memory",
        "stage",
        "status_channel",
        "stderr",
        "stdin",
        "stdout",
        "target",
        "user",
    )

    def __init__(
        self,
        *,
        report: int,
        stdin: int,
        stdout: int,
        stderr: int,
        cgroup: ContainerCgroup | None,
        born_in_cgroup: bool,
        namespaces: list[tuple[int, int]],
        shared_memory: int | None,
        proc: int | None,
        status_channel: int | None,
        reaper_program: int | None,
        reaper_keeps_orphans: bool,
        target: int | None,
        namespace_flags: int,
        isolated: bool,
        in_user_namespace: bool,
        one_user_only: bool,
        limits: dict[int, tuple[int, int]],
    ) -> None:
        self.report = report
        self.stage = "setup"
        """What the child is at, for the text of an error."""
        self.processes: int | None = None
        """The machine's /proc, if an AppArmor profile is to be taken on: the container's may be anything."""
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.cgroup = cgroup
        self.born_in_cgroup = born_in_cgroup
        self.namespaces = namespaces
        """(descriptor, CLONE flag) of the pod's namespaces to enter."""
        self.proc = proc
        """The same with procfs, for a container in a shared PID namespace."""
        self.shared_memory = shared_memory
        """A mount namespace whose root is the pod's `/dev/shm`; None: the container has the machine's, or joins one."""
        self.status_channel = status_channel
        """Where a reaper tells the command's exit status; None: no reaper."""
        self.reaper_program = reaper_program
        self.reaper_keeps_orphans = reaper_keeps_orphans
        """Whether the reaper stays for what the command leaves behind, or hands that to the container's init."""
        self.target = target
        """pidfd of the container whose namespaces a command enters; None: this is the container."""
        self.namespace_flags = namespace_flags
        """CLONE flags of the pod's own namespaces, as against the machine's."""
        self.isolated = isolated
        self.in_user_namespace = in_user_namespace
        self.one_user_only = one_user_only
        self.limits = limits
        """Resource limits to restore: the keeper's own are higher."""
        self.user: identity.Identity | None = None
        self.folder = -1
        """Who it will be and where, once that is known."""


def run_container(spec: dict[str, Any], context: ChildContext) -> NoReturn:
    """Become the container that `spec` describes."""
    _run(context, lambda: _become_container(spec, context))


def enter_container(spec: dict[str, Any], context: ChildContext) -> None:
    """On the way to a container or command, outside of its PID namespace: all that needs the keeper's privileges.

    What the calling process then forks has no more than the container, and what it takes to become its user. Raises
    OSError with the stage in its text.
    """
    try:
        if context.target is None:
            _make(spec, context)
        else:
            _enter(spec, context)
        identity.keep_only(spec["bounding"] | _kept_until_exec(spec))
    except (SetupError, OSError, identity.IdentityError) as error:
        raise OSError(_text(error, context.stage)) from None


def run_command(spec: dict[str, Any], context: ChildContext) -> NoReturn:
    """Become a command inside a running container, which `enter_container` may have entered already."""
    _run(context, lambda: _become_command(spec, context))


def _run(context: ChildContext, become: Callable[[], None]) -> NoReturn:
    try:
        become()
    except (SetupError, OSError, identity.IdentityError, capabilities.UnknownCapabilityError) as error:
        _report(context.report, {"error": _text(error, context.stage)})
    except BaseException as error:  # noqa: BLE001 - nothing may travel up into the keeper's loop
        _report(context.report, {"error": f"{context.stage}: {type(error).__name__}: {error}"})
    finally:
        os._exit(127)


def _text(error: BaseException, stage: str) -> str:
    if isinstance(error, OSError):
        text = error.strerror or str(error)
        return f"{stage}: {text}" if error.filename is None else f"{stage}: {text}: {error.filename}"
    return str(error)


def _report(descriptor: int, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    payload = json.dumps(message).encode()
    if not descriptors:
        os.write(descriptor, payload)
        return
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]
    with socket.socket(fileno=os.dup(descriptor)) as channel:
        channel.sendmsg([payload], control)


def _become_container(spec: dict[str, Any], context: ChildContext) -> None:
    _reset_signals()
    if context.user is None:
        _make(spec, context)
    os.setsid()
    _become_program(spec, context)


def _make(spec: dict[str, Any], context: ChildContext) -> None:
    _open_processes(spec, context)
    context.stage = "cgroup"
    if context.cgroup is not None:
        context.cgroup.join(born_inside=context.born_in_cgroup)
        if not spec["privileged"]:
            context.cgroup.confine_devices([device["rule"] for device in spec["devices"]])
    if context.isolated:
        context.stage = "namespaces"
        linux.unshare(linux.CLONE_NEWNS | (linux.CLONE_NEWCGROUP if spec["cgroup_namespace"] else 0))
        for descriptor, flag in context.namespaces:
            linux.setns(descriptor, flag)
            os.close(descriptor)
        context.stage = "root filesystem"
        rootfs.RootBuilder(
            spec,
            in_user_namespace=context.in_user_namespace,
            own_network=bool(context.namespace_flags & linux.CLONE_NEWNET),
            own_ipc=bool(context.namespace_flags & linux.CLONE_NEWIPC),
            shared_memory=context.shared_memory,
            proc=context.proc,
        ).build()
    _look_up(spec, context)


def _become_command(spec: dict[str, Any], context: ChildContext) -> None:
    _reset_signals()
    if context.user is None:
        _enter(spec, context)
    _become_program(spec, context)


def _enter(spec: dict[str, Any], context: ChildContext) -> None:
    _open_processes(spec, context)
    context.stage = "cgroup"
    if context.cgroup is not None:
        context.cgroup.join(born_inside=context.born_in_cgroup)
    if context.isolated:
        assert context.target is not None
        context.stage = "namespaces"
        flags = linux.CLONE_NEWNS | context.namespace_flags
        linux.setns(context.target, flags | (linux.CLONE_NEWCGROUP if spec["cgroup_namespace"] else 0))
        os.close(context.target)
        os.chdir("/")
    _look_up(spec, context)


def _look_up(spec: dict[str, Any], context: ChildContext) -> None:
    """Find user and working folder in the container's files."""
    context.stage = "user"
    context.user = identity.resolve(spec["user"])
    context.folder = _working_folder(spec["cwd"], context.isolated)


def _become_program(spec: dict[str, Any], context: ChildContext) -> None:
    """From the right place to the right identity, and exec."""
    user, folder = context.user, context.folder
    assert user is not None
    if context.status_channel is not None:
        reaper.split(context.reaper_program, context.status_channel, keeps_orphans=context.reaper_keeps_orphans)
    stdin, stdout, stderr = context.stdin, context.stdout, context.stderr
    if spec["tty"]:
        stdin = stdout = stderr = _open_terminal(context.report)
    for target, source in enumerate((stdin, stdout, stderr)):
        os.dup2(source, target)
        _give_away(target, user.uid, is_terminal=spec["tty"])
    _restore_limits(context.limits)
    _report(context.report, {"uid": user.uid, "gid": user.gid, "groups": user.groups})
    # These are absent in what an older agent wrote.
    call_filter, writable = spec.get("seccomp"), spec.get("write_only_below")
    until_exec = _kept_until_exec(spec)
    may_confine = linux.permitted_capabilities() & until_exec == until_exec
    identity.assume(user, spec["bounding"], spec["ambient"], until_exec=until_exec, one_user_only=context.one_user_only)
    if spec["no_new_privs"] or not may_confine:
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.fchdir(folder)
    except OSError as error:
        raise SetupError(f'chdir to cwd ("{spec["cwd"]}"): {os.strerror(error.errno or 0).lower()}') from None
    if context.processes is not None:
        change_profile_on_exec(context.processes, spec["apparmor"])
    environment = _environment(spec["env"], user)
    executable = _find_program(spec["argv"][0], environment["PATH"])
    if writable is not None:
        landlock.write_only_below(writable)
    if call_filter:
        # At the very end: the profile is about the program, and need not allow what happens here.
        linux.filter_system_calls(binascii.a2b_base64(call_filter["program"]), call_filter["flags"])
    _execute(executable, spec["argv"], environment)


def _kept_until_exec(spec: dict[str, Any]) -> int:
    """Capabilities that it takes to be confined: the kernel takes a filter only from a process that has CAP_SYS_ADMIN,
    or can gain no privileges."""
    confined = spec.get("seccomp") or spec.get("write_only_below") is not None
    return linux.CAP_SYS_ADMIN if confined and not spec["no_new_privs"] else 0


def _open_processes(spec: dict[str, Any], context: ChildContext) -> None:
    if spec.get("apparmor"):  # absent in what an older agent wrote
        context.processes = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def change_profile_on_exec(processes: int, profile: str) -> None:
    """Have the next exec of this process start in an AppArmor profile. `processes`: a descriptor of /proc."""
    try:
        try:
            file = os.open("self/attr/apparmor/exec", os.O_WRONLY | os.O_CLOEXEC, dir_fd=processes)
        except FileNotFoundError:  # before Linux 5.1
            file = os.open("self/attr/exec", os.O_WRONLY | os.O_CLOEXEC, dir_fd=processes)
        os.write(file, f"exec {profile}".encode())
        os.close(file)
    except OSError as error:
        raise SetupError(f"AppArmor profile {profile}: {os.strerror(error.errno or 0).lower()}") from None


def _reset_signals() -> None:
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ALL_SIGNALS)


def _restore_limits(limits: dict[int, tuple[int, int]]) -> None:
    for number, pair in limits.items():
        resource.setrlimit(number, pair)


def _working_folder(path: str, isolated: bool) -> int:
    try:
        if isolated:
            return rootfs.open_folder(path)
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SetupError(f'working directory "{path}": {os.strerror(error.errno or 0).lower()}') from None


def _open_terminal(report: int) -> int:
    """A terminal of the container's own devpts as controlling terminal; the other end goes to the keeper."""
    # In a running container somebody may have put anything there, which must not even be opened.
    for flags in (os.O_PATH, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK):
        leader = linux.open_without_magic("/dev/ptmx", flags)
        if os.fstat(leader).st_rdev != _PTMX:
            raise SetupError("terminal: the container's /dev/ptmx is not the terminal multiplexer")
    fcntl.ioctl(leader, _TIOCSPTLCK, b"\0\0\0\0")
    follower = fcntl.ioctl(leader, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(follower, termios.TIOCSCTTY, 0)
    _report(report, {"terminal": True}, (leader,))
    os.close(leader)
    return follower


def _give_away(descriptor: int, uid: int, *, is_terminal: bool) -> None:
    """Let the command's user open its streams again by name (/dev/stdout, /dev/pts/0)."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or (is_terminal and stat.S_ISCHR(mode)):
        try:
            os.fchown(descriptor, uid, -1)
        except OSError:
            return  # not the machine's root: then the calling user owns them


def _environment(assignments: list[str], user: identity.Identity) -> dict[str, str]:
    environment: dict[str, str] = {}
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        environment[name] = value
    environment.setdefault("PATH", _DEFAULT_PATH)
    if not environment.get("HOME"):
        environment["HOME"] = user.home
    return environment


def _execute(program: str, argv: list[str], environment: dict[str, str]) -> NoReturn:
    try:
        os.execve(program, argv, environment)
    except OSError as error:
        raise SetupError(f"exec {program}: {os.strerror(error.errno or 0).lower()}") from None


def _find_program(name: str, search_path: str) -> str:
    """The file to execute, or SetupError in the words that users of containers know."""
    quoted = json.dumps(name)
    if "/" in name:
        try:
            descriptor = linux.open_without_magic(name, os.O_PATH)
        except OSError as error:
            raise SetupError(f"exec: {quoted}: stat {name}: {os.strerror(error.errno or 0).lower()}") from None
        os.close(descriptor)
        if os.path.isdir(name):
            raise SetupError(f"exec: {quoted}: is a directory")
        if not os.access(name, os.X_OK, effective_ids=True):
            raise SetupError(f"exec: {quoted}: permission denied")
        return name
    found_unusable = False
    for folder in search_path.split(":"):
        candidate = f"{folder or '.'}/{name}"
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK, effective_ids=True):
                return candidate
            found_unusable = True
    if found_unusable:
        raise SetupError(f"exec: {quoted}: permission denied")
    raise SetupError(f"exec: {quoted}: executable file not found in $PATH")
