"""Mounts of what the kernel shows a container: they depend on its pod and its cgroup, hardly on what it is itself.

So they can be taken, detached from everything, while nobody has said yet what the container is.
"""

from __future__ import annotations

from trikubelet.embedded.keeper import linux, other_mounts


class KernelFiles:
    """Detached mounts, each None where the container has something else at that place."""

    __slots__ = ("cgroups", "namespace", "proc", "shared_memory", "sys")

    def __init__(self, proc: int | None = None, sys: int | None = None, shared_memory: int | None = None) -> None:
        self.proc = proc
        self.sys = sys
        self.shared_memory = shared_memory
        """The pod's `/dev/shm`."""
        self.namespace: int | None = None
        """A mount namespace for the container, in which there is nothing of the machine; None: it gets a copy."""
        self.cgroups: dict[str, int] = {}
        """By the name below `/sys/fs/cgroup`, "" for that itself."""

    def take_cgroups(self, folders: dict[str, str], *, read_only: bool) -> None:
        for name, folder in folders.items():
            tree = self.cgroups[name] = linux.open_tree(folder, recursive=False)
            linux.set_mount_attributes(
                "", descriptor=tree, read_only=read_only, quiet=True, propagation=linux.MS_PRIVATE
            )


def expected(shared_memory: int | None, cgroups: dict[str, str]) -> KernelFiles:
    """Those of a container of which no more is known than its pod and its cgroup: it is not privileged.

    The calling process is in the machine's mount namespace, and in the container's other ones. Raises OSError.
    """
    files = KernelFiles(linux.new_mount("proc"), linux.new_mount("sysfs", read_only=True))
    # v2 as a whole is for privileged containers; others get a new mount of it.
    files.take_cgroups({name: folder for name, folder in cgroups.items() if name}, read_only=True)
    if shared_memory is not None:
        files.shared_memory, files.namespace = other_mounts.take_copy_of(shared_memory)
    return files
