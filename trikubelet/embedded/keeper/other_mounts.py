"""Copies of what is mounted in other mount namespaces: those that hold a pod's mounts, and other containers' own."""

from __future__ import annotations

import os

from trikubelet.embedded.keeper import linux


def take_root_of(namespace: int) -> int:
    """A detached copy of the root of another mount namespace, whose descriptor is closed.

    Leaves the caller at the root of its own.
    """
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    linux.setns(namespace, linux.CLONE_NEWNS)
    tree = linux.open_tree("/")
    linux.setns(own, linux.CLONE_NEWNS)
    os.close(own)
    os.close(namespace)
    return tree


def take_copy_of(namespace: int) -> tuple[int, int]:
    """The same, and the descriptor of a new mount namespace in which there is nothing but such a copy, as its root."""
    namespaces = os.open("/proc/self/ns", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    own = os.open("mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=namespaces)
    linux.setns(namespace, linux.CLONE_NEWNS)
    tree = linux.open_tree("/")
    linux.unshare(linux.CLONE_NEWNS)
    made = os.open("mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=namespaces)
    linux.setns(own, linux.CLONE_NEWNS)
    for descriptor in (namespaces, own, namespace):
        os.close(descriptor)
    return tree, made


def take_proc_of(container: int) -> int:
    """A detached copy of the procfs of the container behind a pidfd, with the masks that are mounted in it.

    Only a process inside a PID namespace can mount its procfs, with privileges that a neighbour there could take over.
    What the container has at `/proc` may be anything: it is taken only if it shows that namespace. The masks are locked
    to it (see `linux.lock_mounts`). Leaves the caller at the root of its own mount namespace.
    """
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    with open(f"/proc/self/fdinfo/{container}", encoding="ascii") as file:
        pid = next(line.split()[1] for line in file if line.startswith("Pid:"))
    expected = os.stat(f"/proc/{pid}/ns/pid")
    linux.setns(container, linux.CLONE_NEWNS)
    place = linux.open_without_magic("/proc", os.O_PATH | os.O_DIRECTORY, follow=False)
    if not os.path.samestat(os.stat("1/ns/pid", dir_fd=place), expected):
        raise OSError(0, "the target container has something else than its procfs at /proc")
    tree = linux.open_tree("", descriptor=place)
    os.close(place)
    linux.setns(own, linux.CLONE_NEWNS)
    os.close(own)
    os.close(container)
    return tree
