"""The identity of a container's process: user, groups, capabilities, keyring.

Names of users and groups are looked up in the container's own files.

Those files come with an image and may be anything: they are opened as regular files only, read up to a limit, and
parsed as text, so that a FIFO, a device or a gigabyte in the place of `/etc/passwd` is an error and no trap.
"""

from __future__ import annotations

import errno
import os
import stat

from trikubelet.embedded.keeper import capabilities, linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LARGEST_DATABASE = 1 << 20
_LONGEST_ID = 10
_NO_KEYS = (errno.ENOSYS, errno.EPERM)
"""Answers of a kernel without keys, or of a system call filter, behind which no container can read a key either."""


class IdentityError(Exception):
    """A user or group that the container's files do not know, or that this runtime cannot be."""


class Identity:
    """Numeric user and groups, and the home folder that belongs to the user."""

    __slots__ = ("gid", "groups", "home", "uid")

    def __init__(self, uid: int, gid: int, groups: list[int], home: str) -> None:
        self.uid = uid
        self.gid = gid
        self.groups = groups
        self.home = home


def resolve(user: dict[str, Any]) -> Identity:
    """The identity that a specification asks for, by the user database of the current root.

    `user`: uid, gid (numbers or None), name (`user[:group]`, each by name or number), groups (supplemental), strict
    (leave the image's own group memberships out).
    """
    passwd, group = _database("/etc/passwd"), _database("/etc/group")
    name, _, group_name = user["name"].partition(":")
    uid = user["uid"]
    if uid is None:
        uid, entry = _find_user(name, passwd)
    else:
        entry = next((line for line in passwd if len(line) > 3 and line[2] == str(uid)), None)
        group_name = ""
    gid = user["gid"]
    if gid is None:
        gid = _find_group(group_name, group) if group_name else (_number(entry[3]) or 0 if entry else 0)
    groups = {gid, *user["groups"]}
    for kind, number in (("user", uid), *(("group", number) for number in groups)):
        if not 0 <= number < 1 << 31:
            raise IdentityError(f"cannot run as {kind} {number}: expected an id from 0 to {(1 << 31) - 1}")
    if entry and not user["strict"]:
        groups |= {
            int(line[2]) for line in group if len(line) > 3 and entry[0] in line[3].split(",") and _is_id(line[2])
        }
    home = entry[5] if entry and len(entry) > 5 and entry[5] else "/"
    return Identity(uid, gid, sorted(groups), home)


def _find_user(name: str, passwd: list[list[str]]) -> tuple[int, list[str] | None]:
    wanted = name or "0"
    is_number = _is_number(wanted)
    for line in passwd:
        if len(line) > 3 and line[2 if is_number else 0] == wanted and _is_id(line[2]):
            return int(line[2]), line
    if not is_number:
        raise IdentityError(f"unable to find user {name}: no matching entries in the container's /etc/passwd")
    return _id_of("user", wanted), None


def _find_group(name: str, group: list[list[str]]) -> int:
    if _is_number(name):
        return _id_of("group", name)
    for line in group:
        if len(line) > 2 and line[0] == name and _is_id(line[2]):
            return int(line[2])
    raise IdentityError(f"unable to find group {name}: no matching entries in the container's /etc/group")


def _is_number(text: str) -> bool:
    """Whether it is an id and no name. A number is never looked up as a name: the image's files could make it root."""
    return text.isascii() and text.isdigit()


def _is_id(text: str) -> bool:
    return _is_number(text) and len(text) <= _LONGEST_ID and int(text) < 1 << 31


def _id_of(kind: str, text: str) -> int:
    if not _is_id(text):
        raise IdentityError(f"unable to find {kind} {text[:40]}: a number is an id, which is below {1 << 31}")
    return int(text)


def _number(text: str) -> int | None:
    return int(text) if _is_id(text) else None


def _database(path: str) -> list[list[str]]:
    """The lines of a colon-separated file; none if it is missing or no regular file."""
    try:
        probe = linux.open_without_magic(path, os.O_PATH)
        try:
            if not stat.S_ISREG(os.fstat(probe).st_mode):
                return []
        finally:
            os.close(probe)
        descriptor = linux.open_without_magic(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return []
    try:
        content = os.read(descriptor, min(os.fstat(descriptor).st_size, _LARGEST_DATABASE))
    finally:
        os.close(descriptor)
    lines = content.decode("utf-8", "surrogateescape").splitlines()
    return [line.split(":") for line in lines if line and not line.startswith("#")]


def assume(identity: Identity, bounding: int, ambient: int, *, until_exec: int, one_user_only: bool) -> tuple[int, int]:
    """Become the user with these capabilities at most; the program to be executed gets them by the kernel's rules.

    Returns its permitted and inheritable ones. `until_exec`: those to keep besides until then or be given up;
    neither root's nor another user's program inherits them.
    `one_user_only`: this process is not the machine's root, or root of a user namespace with a single id, and can only
    keep its identity. Raises IdentityError if it should not.
    """
    if one_user_only and (identity.uid, identity.gid) != (os.getuid(), os.getgid()):
        raise IdentityError(
            f"cannot run as user {identity.uid}, group {identity.gid}: this runtime does not run as root, so its "
            f"containers are user {os.getuid()}, group {os.getgid()}; run the agent as root or change runAsUser"
        )
    held = linux.permitted_capabilities()
    _drop_from_bounding_set(bounding, held)
    if one_user_only:
        identity.groups = os.getgroups()
    else:
        os.setgroups(identity.groups)
        os.setresgid(identity.gid, identity.gid, identity.gid)
        linux.prctl(linux.PR_SET_KEEPCAPS, 1)
        os.setresuid(identity.uid, identity.uid, identity.uid)
    permitted = (bounding if identity.uid == 0 else ambient) & held
    now = permitted | (until_exec & held)
    linux.set_capabilities(now, now, ambient & permitted)
    for number in range(len(capabilities.NAMES)):
        if ambient & permitted & (1 << number):
            linux.prctl(linux.PR_CAP_AMBIENT, linux.PR_CAP_AMBIENT_RAISE, number)
    return permitted, ambient & permitted


def _drop_from_bounding_set(bounding: int, held: int) -> None:
    for number in range(len(capabilities.NAMES)):
        if held and not bounding >> number & 1:
            try:
                linux.prctl(linux.PR_CAPBSET_DROP, number)
            except OSError:
                # The kernel is older than the capability, or this root may not, or it is done already.
                continue


def join_keyring(name: str | None, *, own_is_empty: bool) -> int | None:
    """Join the session keyring of that name, or a new one. Returns its serial number.

    None: this process goes on with its own, since the user's quota of keys is used up and its own is empty, or since
    the kernel or a filter forbids `keyctl`. Raises OSError.
    """
    try:
        return linux.join_session_keyring(name)
    except OSError as error:
        if error.errno in _NO_KEYS or (error.errno == errno.EDQUOT and own_is_empty):
            return None
        raise


def drop_everything() -> None:
    """No capabilities at all, for a process that only has to be there."""
    linux.prctl(linux.PR_CAP_AMBIENT, linux.PR_CAP_AMBIENT_CLEAR_ALL)
    linux.set_capabilities(0, 0, 0)
