"""What a forked process does until it has become a container, or a command inside one.

It talks to the keeper through a SEQPACKET pair whose end closes on exec: it hears what it is to become (`context.py`),
tells the user it became, perhaps a terminal's descriptor, then either silence (the exec worked) or the exact error.

Until then it is a copy of the template (`template.py`), which knows of no other container. It is born not dumpable, and
has the descriptors alone that it needs. What hangs on the way (a file system that does not answer) hangs here.
"""

from __future__ import annotations

import array
import binascii
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import stat
import termios

from trikubelet.embedded.keeper import capabilities, identity, kernel_files, landlock, linux, places, reaper, rootfs
from trikubelet.embedded.keeper import context as contexts
from trikubelet.embedded.keeper.cgroups import write_file
from trikubelet.embedded.keeper.reports import LONGEST_REASON, PID_SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from trikubelet.embedded.keeper.context import ChildContext, Machine
    from trikubelet.embedded.keeper.kernel_files import KernelFiles

START = b"start"
"""What the keeper tells a process that waits for it."""
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LONGEST_TEXT = 2000
_EXEC_HINTS = {
    errno.ENOENT: ": the file is there, but the interpreter that its first line names, or its loader, is not",
    errno.ENOEXEC: ": expected a program for this machine, or a script whose first line begins with #!",
    errno.E2BIG: ": an argument or variable is longer than 128 KiB, or all together are longer than 2 MiB",
}
# Not in the termios module of Python 3.11.
_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441
_PTMX = os.makedev(5, 2)


class SetupError(Exception):
    """A step towards the container that failed; the text goes to the caller that asked for the container."""


_EXPECTED = (SetupError, OSError, identity.IdentityError, capabilities.UnknownCapabilityError)


def become(channel: socket.socket, machine: Machine, *, born_in_cgroup: bool) -> NoReturn:
    """Become the container or command that the keeper tells at the other end of `channel`."""
    try:
        told = contexts.receive(channel)
        prepared = None
        if told is not None and told[1].is_expected:
            prepared = _take_place(*told, born_in_cgroup=born_in_cgroup)
            told = contexts.receive(channel)
        if told is not None:
            spec, context = told
            context.prepared = prepared
            context.machine, context.report = machine, channel.detach()
            if context.pid_namespace is not None:
                _go_in(spec, context, context.pid_namespace, born_in_cgroup=born_in_cgroup)
            run(spec, context, born_in_cgroup=born_in_cgroup)
    finally:
        os._exit(127)


def _take_place(spec: dict[str, Any], context: ChildContext, *, born_in_cgroup: bool) -> KernelFiles:
    """What can be done for a container of which nothing is known but its pod and its cgroup. Raises OSError."""
    _reset_signals()
    if context.cgroup is not None:
        context.cgroup.join(born_inside=born_in_cgroup)
    os.setsid()
    for descriptor, flag in context.namespaces:
        linux.setns(descriptor, flag)
        os.close(descriptor)
    rootfs.make_folders(spec["directory"])
    return kernel_files.expected(context.shared_memory, {} if context.cgroup is None else context.cgroup.views)


def _go_in(spec: dict[str, Any], context: ChildContext, namespace: int, *, born_in_cgroup: bool) -> None:
    """Fork into another process's PID namespace. Returns in the forked process only; this one ends.

    This process, in between, makes it not its own child but a sibling: the keeper's, which reads its pid, or why there
    is none, in a memfd that the forked one cannot write to. The kernel writes the pid there with the fork, so that the
    keeper hears of it even if this process is killed in that very moment. Descriptors are closed and
    privileges given up here, and the filter is loaded, where nobody in that namespace can see it: a process with
    SYS_PTRACE could take the forked one over.
    """
    birth = context.birth
    assert birth is not None
    page = linux.shared_page(birth)
    os.close(birth)
    try:
        # The same descriptor may be that of the container to enter, or to take procfs of, and is closed with that.
        enter(spec, context, os.dup(namespace), born_in_cgroup=born_in_cgroup)
        needed = (context.report, context.status_channel, context.machine.program, context.processes)
        linux.close_others(descriptor for descriptor in needed if descriptor is not None)
        if linux.plain_fork(linux.CLONE_PARENT, pid_at=page) == 0:
            return
        os._exit(0)
    except OSError as error:
        why = error.strerror or str(error)
    except Exception as error:  # noqa: BLE001 - the keeper is to hear of it, and nobody else can
        why = str(error)
    reason = why.encode(errors="backslashreplace")[:LONGEST_REASON]
    memoryview(page).cast("B")[PID_SIZE : PID_SIZE + len(reason)] = reason
    os._exit(0)


def enter(spec: dict[str, Any], context: ChildContext, namespace: int, *, born_in_cgroup: bool) -> None:
    """On the way to a container or command in a PID namespace with others, outside of it: all that needs privileges.

    What the calling process then forks is in that namespace, which is behind a pidfd, and can be taken over by a
    neighbour with SYS_PTRACE. So it has the user, the capabilities and the filter of the container already. What is
    forked before is not in there. Raises OSError with the stage in its text.
    """
    try:
        _reset_signals()
        _find_place(spec, context, born_in_cgroup=born_in_cgroup)
        linux.setns(namespace, linux.CLONE_NEWPID)
        rights = _prepare(spec, context, among_others=True)
        # Changing the user may have undone it, if the machine's sysctl fs.suid_dumpable says so.
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        if spec.get("seccomp") and context.may_gain:
            _load_filter(spec, context)
            linux.set_capabilities(rights[0], rights[0], rights[1])
    except _EXPECTED as error:
        raise OSError(_text(error, context.stage)) from None


def run(spec: dict[str, Any], context: ChildContext, *, born_in_cgroup: bool) -> NoReturn:
    """Become the container or command that `spec` describes; what `enter` has done already is not done again."""
    try:
        has_entered = context.executable is not None
        if not has_entered:
            if context.prepared is None:
                _reset_signals()
            _find_place(spec, context, born_in_cgroup=born_in_cgroup)
        if context.status_channel is not None:
            program, stays = context.machine.program, context.reaper_keeps_orphans
            reaper.split(program, context.status_channel, keeps_orphans=stays)
        elif context.prepared is None:
            os.setsid()
        if not has_entered:
            _prepare(spec, context, among_others=False)
        _become_program(spec, context)
    except _EXPECTED as error:
        _report(context.report, {"error": _text(error, context.stage)})
    except BaseException as error:  # noqa: BLE001 - nothing may travel up into the template's loop
        _report(context.report, {"error": f"{context.stage}: {type(error).__name__}: {error}"})
    finally:
        os._exit(127)


def _text(error: BaseException, stage: str) -> str:
    """What went wrong, in characters that any encoding takes: names of images and files may hold others."""
    text = str(error)
    if isinstance(error, OSError):
        text = f"{stage}: {error.strerror or error}" + ("" if error.filename is None else f": {error.filename}")
    return text[:_LONGEST_TEXT].encode(errors="backslashreplace").decode()


def _report(descriptor: int, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    payload = json.dumps(message).encode()
    if not descriptors:
        os.write(descriptor, payload)
        return
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]
    with socket.socket(fileno=os.dup(descriptor)) as channel:
        channel.sendmsg([payload], control)


def _find_place(spec: dict[str, Any], context: ChildContext, *, born_in_cgroup: bool) -> None:
    """Come to be where the program is to run, and look up user and working folder in the files there."""
    if spec.get("apparmor") or spec.get("selinux"):  # absent in what an older agent wrote
        context.processes = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    context.stage = "session keyring"
    _join_keyring(spec, context)
    context.stage = "cgroup"
    if context.oom_score is not None:
        _set_oom_score(context.oom_score)
    if context.cgroup is not None and context.prepared is None:
        context.cgroup.join(born_inside=born_in_cgroup)
    if context.target is None:
        _make(spec, context)
    elif context.machine.isolated:
        context.stage = "namespaces"
        flags = linux.CLONE_NEWNS | context.namespace_flags
        linux.setns(context.target, flags | (linux.CLONE_NEWCGROUP if spec["cgroup_namespace"] else 0))
        os.close(context.target)
        os.chdir("/")
    context.stage = "user"
    context.user = identity.resolve(spec["user"])
    try:
        context.folder = _working_folder(spec["cwd"], context.machine.isolated)
    except PermissionError:
        context.folder = None  # a user may reach what root may not: on a file system of FUSE or NFS


def _join_keyring(spec: dict[str, Any], context: ChildContext) -> None:
    """Join the container's session keyring, which has no key of the agent's login or unit.

    Commands find it by its name, as runc's do.
    """
    label = (spec.get("selinux") or {}).get("process")
    if label:
        _label_keys(context.processes, label)
    keyring = identity.join_keyring(f"_ses.{spec['container']}", own_is_empty=context.machine.keyring_is_empty)
    if keyring is not None and context.target is None:
        linux.let_user_search(keyring)
    if label:
        _label_keys(context.processes, "")


def _label_keys(processes: int | None, label: str) -> None:
    """Give new keyrings a SELinux label; an empty one is the default again."""
    assert processes is not None
    try:
        _write_attribute(processes, "self/attr/keycreate", label)
    except FileNotFoundError:
        return


def _set_oom_score(score: int) -> None:
    try:
        write_file("/proc/self/oom_score_adj", str(score))
    except OSError:
        return  # as in the template: a container that is killed a little earlier is better than none


def _make(spec: dict[str, Any], context: ChildContext) -> None:
    """The container's own devices, mounts and root."""
    if context.cgroup is not None and not spec["privileged"]:
        context.cgroup.confine_devices([device["rule"] for device in spec["devices"]])
    if context.machine.isolated:
        context.stage = "namespaces"
        builder = rootfs.RootBuilder(
            spec,
            in_user_namespace=context.machine.in_user_namespace,
            own_network=bool(context.namespace_flags & linux.CLONE_NEWNET),
            own_ipc=bool(context.namespace_flags & linux.CLONE_NEWIPC),
            shared_memory=context.shared_memory,
            proc=context.proc,
            proc_of=context.proc_of,
            cgroups={} if context.cgroup is None else context.cgroup.views,
            prepared=context.prepared,
        )
        wanted = linux.CLONE_NEWCGROUP if spec["cgroup_namespace"] else 0
        linux.unshare(wanted if builder.is_apart else wanted | linux.CLONE_NEWNS)
        for descriptor, flag in context.namespaces:
            linux.setns(descriptor, flag)
            os.close(descriptor)
        context.stage = "root filesystem"
        builder.build()
        if not spec["privileged"]:
            _lock_mounts()


def _lock_mounts() -> None:
    try:
        linux.lock_mounts()
    except OSError as error:
        # As on any other runtime then: `trikubelet check` tells of a kernel without user namespaces.
        if error.errno not in (errno.ENOSPC, errno.EPERM, errno.EINVAL, errno.ENOSYS):
            raise


def _prepare(spec: dict[str, Any], context: ChildContext, *, among_others: bool) -> tuple[int, int]:
    """From the right place to the right identity, with the program found. Returns the capabilities it is to have.

    What is needed to be confined is kept besides: the kernel takes a filter only from a process that has CAP_SYS_ADMIN,
    or can gain no privileges. `among_others`: the filter is loaded in this process, so it must let through what is
    still to be done; a program whose filter does not is denied privileges.
    """
    user = context.user
    assert user is not None
    # These are absent in what an older agent wrote.
    call_filter = spec.get("seccomp")
    until_exec = linux.CAP_SYS_ADMIN if call_filter or spec.get("write_only_below") is not None else 0
    may_confine = linux.permitted_capabilities() & until_exec == until_exec
    if call_filter and among_others:
        may_confine = may_confine and call_filter.get("early", False)
    context.may_gain = may_confine and not spec["no_new_privs"]
    if spec["tty"]:
        context.streams = (_open_terminal(context.report),) * 3
    for target, source in enumerate(context.streams):
        os.dup2(source, target)
        _give_away(target, user.uid, is_terminal=spec["tty"])
    # With all rights if possible, as runc: the user need not be able to enter the folder.
    is_inside = _enter_working_folder(spec, context)
    rights = identity.assume(
        user,
        spec["bounding"],
        spec["ambient"],
        until_exec=until_exec if context.may_gain else 0,
        one_user_only=context.machine.one_user_only,
    )
    if not (is_inside or _enter_working_folder(spec, context)):
        raise SetupError(f'working directory "{spec["cwd"]}": neither root nor user {user.uid} may enter it')
    context.environment = _environment(spec["env"], user)
    context.executable = _find_program(spec["argv"][0], context.environment["PATH"])
    return rights


def _become_program(spec: dict[str, Any], context: ChildContext) -> None:
    """The last steps: those that are about the process itself, and exec.

    The filter may have been loaded already: then each system call on the way is one of those in `seccomp/early.py`.
    """
    user = context.user
    assert user is not None
    assert context.executable is not None
    if spec["tty"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    _restore_limits(context.machine.limits)
    _report(context.report, {"uid": user.uid, "gid": user.gid, "groups": user.groups})
    if not context.may_gain:
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    if context.waits:
        # As in `enter`: nobody looks into it meanwhile, whatever the machine's sysctl says of other users' processes.
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        if os.read(context.report, len(START)) != START:
            os._exit(127)  # the keeper is gone
    if context.processes is not None:
        _confine_program(context.processes, spec)
    writable = spec.get("write_only_below")
    if writable is not None:
        landlock.write_only_below(writable)
    if spec.get("seccomp") and not context.is_filtered:
        # At the very end: the profile is about the program, and need not allow what happens here.
        _load_filter(spec, context)
    _execute(context.executable, spec["argv"], context.environment)


def _load_filter(spec: dict[str, Any], context: ChildContext) -> None:
    linux.filter_system_calls(binascii.a2b_base64(spec["seccomp"]["program"]), spec["seccomp"]["flags"])
    context.is_filtered = True


def _confine_program(processes: int, spec: dict[str, Any]) -> None:
    labels = spec.get("selinux")
    if labels and labels["process"]:
        change_label_on_exec(processes, labels["process"])
    if spec.get("apparmor"):
        change_profile_on_exec(processes, spec["apparmor"])


def change_label_on_exec(processes: int, label: str) -> None:
    """Have the next exec of this process get a SELinux label. `processes`: a descriptor of /proc."""
    try:
        _write_attribute(processes, "self/attr/exec", label)
    except OSError as error:
        raise SetupError(f"SELinux label {label}: {os.strerror(error.errno or 0).lower()}") from None


def change_profile_on_exec(processes: int, profile: str) -> None:
    """Have the next exec of this process start in an AppArmor profile. `processes`: a descriptor of /proc."""
    try:
        try:
            _write_attribute(processes, "self/attr/apparmor/exec", f"exec {profile}")
        except FileNotFoundError:  # before Linux 5.1
            _write_attribute(processes, "self/attr/exec", f"exec {profile}")
    except OSError as error:
        raise SetupError(f"AppArmor profile {profile}: {os.strerror(error.errno or 0).lower()}") from None


def _write_attribute(processes: int, name: str, value: str) -> None:
    file = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=processes)
    try:
        os.write(file, value.encode())
    finally:
        os.close(file)


def _reset_signals() -> None:
    for number in linux.IGNORED_SIGNALS:
        linux.default_signal(number)
    linux.unblock_signals()


def _restore_limits(limits: dict[int, tuple[int, int]]) -> None:
    for number, pair in limits.items():
        resource.setrlimit(number, pair)


def _enter_working_folder(spec: dict[str, Any], context: ChildContext) -> bool:
    """False where that is refused to the user that this process is now."""
    try:
        folder = context.folder
        if folder is None:
            folder = _working_folder(spec["cwd"], context.machine.isolated)
        os.fchdir(folder)
    except PermissionError:
        return False
    except OSError as error:
        raise SetupError(f'working directory "{spec["cwd"]}": {os.strerror(error.errno or 0).lower()}') from None
    return True


def _working_folder(path: str, isolated: bool) -> int:
    """Raises PermissionError, and SetupError for everything else."""
    try:
        if isolated:
            return places.open_folder(path)
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        raise
    except OSError as error:
        raise SetupError(f'working directory "{path}": {os.strerror(error.errno or 0).lower()}') from None


def _open_terminal(report: int) -> int:
    """A terminal of the container's own devpts; the other end goes to the keeper."""
    # In a running container somebody may have put anything there, which must not even be opened.
    for flags in (os.O_PATH, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK):
        leader = linux.open_without_magic("/dev/ptmx", flags)
        if os.fstat(leader).st_rdev != _PTMX:
            raise SetupError("terminal: the container's /dev/ptmx is not the terminal multiplexer")
    fcntl.ioctl(leader, _TIOCSPTLCK, b"\0\0\0\0")
    follower = fcntl.ioctl(leader, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
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
        hint = _EXEC_HINTS.get(error.errno or 0, "")
        raise SetupError(f"exec {program}: {os.strerror(error.errno or 0).lower()}{hint}") from None


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
