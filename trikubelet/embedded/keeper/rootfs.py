"""A container's mounts, made inside its own mount namespace so that the host never sees one.

The order matters:

1. Copies of the host's trees that the container needs (volumes, devices) are taken as detached mounts while the host's
   paths still mean what they say. Bidirectional ones first: after that everything becomes a slave of the host, so that
   mounts of the host still arrive, and none of ours leaves.
   A detached mount does not get what is mounted on the host meanwhile. So volumes that shall show it wait for
   their places on a file system in memory, which lies on the root until all are where they belong.
   So is a new procfs: in a user namespace the kernel allows one only as long as the host's can be seen.
2. The root is mounted (overlay: image layers below, this container's own changes above), `pivot_root(".", ".")` makes
   it ours, and the old one is let go at once: it lies on top of "/", where any `..` beyond the root would find it.
   Or it never was there (`is_apart`): then the mount namespace has been made of the pod's, which holds one empty file
   system, and that has the root on top. Nothing is mounted in the machine's namespace on the way: all that is taken
   from there are detached copies.
3. Everything else is mounted *within* the new root. A symlink in an image can only lead to another place in the
   container; the magic links of procfs, which lead anywhere, are refused (`open_without_magic`).

`localhost/host` is an overlay too, with `/` as its layer: the container sees the machine's files and may change its own
view of them; the machine's stay as they are. Other file systems mounted on the host appear read-only. The folders of
the runtime and of the agent, with the node's keys and other pods' Secrets, are hidden wherever they can be seen.

What a container can change: its image's files, and volumes, also while it starts (another container of the pod runs).
Each place where something of that is opened or mounted, and why it is safe:

- Sources of volumes and layers: paths of the host, taken before the root changes; the agent has resolved a subPath.
- `/dev/null` and the other devices of the host: opened before the root changes, without following a link, their numbers
  checked (`_machine_device`). A mask is a copy of that mount, taken by descriptor.
- The mount points `/proc`, `/sys`, `/sys/fs/cgroup` and `/dev`: no part of the path may be a link (ELOOP), so what is
  masked or made read-only later is no other place than the kernel's file system. They come before all volumes.
- What a container sees of its cgroups: folders of the host, copied before the root changes; their places are in a tmpfs
  that is mounted on `/sys/fs/cgroup` first.
- Volumes that the image declares: filled before anything else is mounted in the root, which nobody else sees yet.
- Entries of `/dev`: made in an empty tmpfs that nobody else can see yet.
- Mount points of volumes, masks, read-only paths, the working folder, `/etc/passwd`, `/dev/ptmx`: looked up within the
  container's own root by openat2 without magic links, opened once, and mounted on or copied by that descriptor. A link
  that is exchanged meanwhile leads to another place of the same container at most. Missing ones are made relative to
  the descriptor of their parent, where a link that leads nowhere says (`places.py`).
- A mask or read-only path that cannot be opened, for any other reason than that it is not there, fails the start.
- Nothing is written to procfs, sysfs or a cgroup after the root has changed: sysctls are written by a process that
  never leaves the host's files (`sandbox.py`), the cgroup and the OOM score come before (`child.py`).
"""

from __future__ import annotations

import errno
import os
import stat

from trikubelet.embedded.keeper import declared_volumes, host_files, image_volumes, linux, other_mounts, overlays
from trikubelet.embedded.keeper.kernel_files import KernelFiles
from trikubelet.embedded.keeper.places import attach, open_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Spec = dict[str, Any]

_PLAIN_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_NUMBERS = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_LINKS = (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"))
_MORE_LINKS = (("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx"))
CGROUPS = "/sys/fs/cgroup"
FOLDERS = ("rootfs", "upper", "work", "pieces", "volumes")
"""What is made in a container's folder; pieces for the host's files in a user namespace, volumes for its image's."""
QUIET = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC


class RootBuilder:
    """Builds the root of one container in the calling process.

    That must be in a mount namespace of its own, or, if it `is_apart`, in the machine's.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        in_user_namespace: bool,
        own_network: bool = False,
        own_ipc: bool = True,
        shared_memory: int | None = None,
        proc: int | None = None,
        proc_of: int | None = None,
        cgroups: dict[str, str] | None = None,
        prepared: KernelFiles | None = None,
    ) -> None:
        """`own_network`, `own_ipc`: the calling process is in namespaces of the pod's, not in the machine's.

        `shared_memory`, `proc`: mount namespaces whose root is the pod's `/dev/shm`, or its procfs.
        `proc_of`: pidfd of a container whose PID namespace, and so whose procfs, this one shares.
        `cgroups`: folders of the host by the names that they get below `/sys/fs/cgroup`, "" for that itself.
        `prepared`: of a container that was expected as it is. Then `make_folders` has been called, too.
        """
        self._spec = spec
        self._label: str = (spec.get("selinux") or {"files": ""})["files"]  # absent in what an older agent wrote
        """SELinux's, of all files that are the container's own; empty: they get none."""
        self._shared_memory = shared_memory
        self._in_user_namespace = in_user_namespace
        self._own_network = own_network
        self._own_ipc = own_ipc
        self._targets = {_clean(mount["target"]) for mount in spec["mounts"]}
        self._trees: list[tuple[str, int]] = []
        self._shared: list[tuple[dict[str, Any], int]] = []
        """Copies of volumes whose mounts are to reach the host."""
        self._waiting: int | None = None
        """The root of the file system on which volumes wait."""
        self._host_trees: list[tuple[str, int]] = []
        self._pods_proc = proc
        self._proc_of = proc_of
        self._is_prepared = prepared is not None
        self._kernel = prepared or KernelFiles()
        self._cgroups = cgroups or {}
        self._queues: int | None = None
        """The machine's message queues, where a user namespace cannot mount them."""
        self._devices: dict[str, int] = {}
        self._null: int | None = None
        """A mount of the machine's null device, to mask files with: detached until the first one is masked."""
        self._null_is_attached = False
        self._hidden: list[str] = []
        """Of the host's files."""

    @property
    def is_apart(self) -> bool:
        """Whether it needs no copy of the machine's mounts. It does for volumes that show, or tell it, what is mounted
        later, and for those that have to be mounted somewhere before a part of them can be taken."""
        rootfs = self._spec["rootfs"]
        return (
            self._kernel.namespace is not None
            and rootfs["overlay"]
            and not rootfs["host"]
            and len(rootfs["layers"]) <= overlays.MOST_DETACHED_LAYERS
            and all(mount["propagation"] == "private" for mount in self._spec["mounts"])
        )

    def build(self) -> None:
        """All of it. Raises OSError; the process is of no further use then."""
        is_apart = self.is_apart
        self._take_host_trees(is_apart=is_apart)
        if is_apart:
            self._enter_apart()
        else:
            self._enter_root()
        self._mount_kernel_files()
        for target, tree in self._host_trees:
            attach(tree, target, follow=False)
        for path in self._hidden:
            self._hide(path)
        for target, tree in sorted(self._trees, key=lambda item: item[0].count("/")):
            attach(tree, target)
        if self._waiting is not None:
            os.fchdir(self._waiting)
            linux.unmount(".")
            os.chdir("/")
            os.close(self._waiting)
        for path in self._spec["masked_paths"]:
            self._mask(path)
        for path in self._spec["readonly_paths"]:
            _make_read_only(path)
        if self._spec["rootfs"]["readonly"]:
            linux.set_mount_attributes("/", read_only=True)

    def _enter_apart(self) -> None:
        namespace = self._kernel.namespace
        assert namespace is not None
        root = overlays.detached_overlay(self._spec["rootfs"]["layers"], self._make_ready(), self._label)
        self._make_declared_volumes(root)
        linux.setns(namespace, linux.CLONE_NEWNS)
        place = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        linux.move_mount(root, place, "/")
        os.fchdir(root)
        os.chroot(".")
        for descriptor in (namespace, place, root):
            os.close(descriptor)

    def _enter_root(self) -> None:
        old_root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._mount_root()
        root = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._make_declared_volumes(root)
        os.close(root)
        self._take_listening_volumes()
        linux.pivot_root(".", ".")
        os.fchdir(old_root)
        linux.unmount(".")
        os.chdir("/")
        os.close(old_root)

    # -- trees of the host ---------------------------------------------------------------------------------------

    def _take_kernel_files(self) -> None:
        if "/proc" not in self._targets:
            self._kernel.proc = self._take_proc()
        if "/sys" not in self._targets:
            self._take_sys()
        if not (self._spec["cgroup_namespace"] or self._targets & {CGROUPS, "/sys"}):
            self._kernel.take_cgroups(self._cgroups, read_only=not self._spec["privileged"])
        if self._shared_memory is not None and "/dev/shm" not in self._targets:
            self._kernel.shared_memory = other_mounts.take_root_of(self._shared_memory)

    def _take_proc(self) -> int:
        if self._proc_of is not None:
            return other_mounts.take_proc_of(self._proc_of)
        return linux.new_mount("proc") if self._pods_proc is None else other_mounts.take_root_of(self._pods_proc)

    def _leave_out_what_is_a_volume(self) -> None:
        if "/proc" in self._targets:
            self._kernel.proc = None
        if "/sys" in self._targets:
            self._kernel.sys = None
        if self._spec["cgroup_namespace"] or self._targets & {CGROUPS, "/sys"}:
            self._kernel.cgroups = {}
        if "/dev/shm" in self._targets:
            self._kernel.shared_memory = None

    def _take_host_trees(self, *, is_apart: bool) -> None:
        if self._is_prepared:
            self._leave_out_what_is_a_volume()
        else:
            self._take_kernel_files()
        if self._kernel.shared_memory is not None:
            self._set_label(f"/proc/self/fd/{self._kernel.shared_memory}")
            self._trees.append(("/dev/shm", self._kernel.shared_memory))
        mounts = self._spec["mounts"]
        for mount in mounts:
            if not os.path.exists(mount["source"]):
                os.makedirs(mount["source"], 0o755)
            if mount["propagation"] == "rshared":
                self._shared.append((mount, linux.open_tree(mount["source"])))
        if not is_apart:
            linux.mount(None, "/", None, linux.MS_REC | linux.MS_SLAVE)
        for mount in mounts:
            if mount["propagation"] == "image":
                place = f"{self._spec['directory']}/rootfs"
                tree = image_volumes.take(mount["layers"], mount["sub_path"], place, self._label)
                self._trees.append((_clean(mount["target"]), tree))
            elif mount["propagation"] == "private":
                tree = linux.open_tree(mount["source"])
                linux.set_mount_attributes("", descriptor=tree, propagation=linux.MS_PRIVATE, recursive=True)
                self._keep_volume(mount, tree)
        if self._in_user_namespace:
            if not self._own_ipc and os.path.isdir("/dev/mqueue"):
                self._queues = linux.open_tree("/dev/mqueue")
            self._devices = {name: _machine_device(name) for name in _PLAIN_DEVICES}
        if self._spec["rootfs"]["host"]:
            mounts_of_host = host_files.mount_table()
            hidden = [self._spec["runtime_root"], *self._spec.get("hidden", ())]
            self._hidden = host_files.everywhere(hidden, mounts_of_host)
            if not self._in_user_namespace:
                for path in host_files.file_systems(self._hidden, mounts_of_host):
                    self._take_host(path)
        if self._spec["masked_paths"] or self._hidden:
            self._null = _machine_device("null")

    def _take_sys(self) -> None:
        """A sysfs shows the network of the process that mounts it, which its user namespace must own.

        Read-only is the mount, never the file system: that is one for all containers of the pod.
        """
        if self._in_user_namespace and not self._own_network:
            self._take_host("/sys")
        else:
            read_only = self._in_user_namespace or not self._spec["privileged"]
            self._kernel.sys = linux.new_mount("sysfs", read_only=read_only)

    def _take_listening_volumes(self) -> None:
        """Those that shall show what is mounted on the host, from now on. The current folder is the new root."""
        slaves = [(mount, None) for mount in self._spec["mounts"] if mount["propagation"] == "rslave"]
        if not (self._shared or slaves):
            return
        root = f"{self._spec['directory']}/rootfs"
        linux.mount("tmpfs", ".", "tmpfs", QUIET, "mode=700,size=64k")
        self._waiting = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for number, (mount, tree) in enumerate((*self._shared, *slaves)):
            place = f"{root}/{number}"
            if os.path.isdir(mount["source"]):
                os.mkdir(place)
            else:
                os.mknod(place)
            if tree is None:
                linux.mount(mount["source"], place, None, linux.MS_BIND | linux.MS_REC)  # nothing comes in between
            else:
                below = os.open(place, os.O_PATH | os.O_CLOEXEC)
                linux.move_mount(tree, below, place)
                os.close(below)
                os.close(tree)
            self._keep_volume(mount, os.open(place, os.O_PATH | os.O_CLOEXEC))

    def _keep_volume(self, mount: dict[str, Any], tree: int) -> None:
        if mount["readonly"]:
            linux.set_mount_attributes("", descriptor=tree, read_only=True, recursive=mount["recursive_readonly"])
        self._trees.append((_clean(mount["target"]), tree))

    def _take_host(self, path: str) -> None:
        """A mount of the host at the same place, read-only."""
        tree = linux.open_tree(path)
        linux.set_mount_attributes("", descriptor=tree, read_only=True, propagation=linux.MS_PRIVATE, recursive=True)
        self._host_trees.append((path, tree))

    # -- the root --------------------------------------------------------------------------------------------------

    def _mount_root(self) -> None:
        """Mount the root on the container's own empty folder, and enter it."""
        directory, layers = self._make_ready(), self._spec["rootfs"]["layers"]
        target = f"{directory}/rootfs"
        if self._spec["rootfs"]["host"] and self._in_user_namespace:
            overlays.mount_host_in_pieces(directory, target, overlay=self._spec["rootfs"]["overlay"])
        elif self._spec["rootfs"]["overlay"]:
            is_inside = self._in_user_namespace
            overlays.mount_overlay(layers, directory, target, in_user_namespace=is_inside, label=self._label)
        else:
            linux.mount(layers[0], target, None, linux.MS_BIND | linux.MS_REC)
            linux.set_mount_attributes(target, read_only=True)
        os.chdir(target)

    def _make_ready(self) -> str:
        """The container's own folder."""
        directory: str = self._spec["directory"]
        if not self._is_prepared:
            make_folders(directory)
        os.chmod(f"{directory}/upper", stat.S_IMODE(os.stat(self._spec["rootfs"]["layers"][-1]).st_mode))
        return directory

    def _make_declared_volumes(self, root: int) -> None:
        """Those of the image, while there is nothing else in the root, and the container's folder can be seen."""
        paths = self._spec.get("volumes", ())  # absent in what an older agent wrote
        made = [
            declared_volumes.make(root, path, f"{self._spec['directory']}/volumes/{number}", self._label)
            for number, path in enumerate(paths)
        ]
        self._trees = [*zip(paths, made, strict=True), *self._trees]

    # -- what every container has ----------------------------------------------------------------------------------

    def _mount_kernel_files(self) -> None:
        if self._kernel.proc is not None:
            attach(self._kernel.proc, "/proc", follow=False)
        if self._kernel.sys is not None:
            attach(self._kernel.sys, "/sys", follow=False)
        if self._spec["cgroup_namespace"] and CGROUPS not in self._targets:
            _mount_new("cgroup2", CGROUPS, QUIET | linux.MS_RDONLY, follow=False)
        if self._kernel.cgroups:
            self._attach_cgroups()
        if "/dev" not in self._targets:
            self._mount_dev()
        if self._spec["rootfs"]["host"]:
            for path, mode in (("/run", "755"), ("/tmp", "1777")):
                if path not in self._targets:
                    options = overlays.labelled(f"mode={mode}", self._label)
                    _mount_new("tmpfs", path, linux.MS_NOSUID | linux.MS_NODEV, options)

    def _attach_cgroups(self) -> None:
        """As containerd has it: on v1 the container's own groups, on v2 all for a privileged one, which may write."""
        if "" in self._kernel.cgroups:
            attach(self._kernel.cgroups[""], CGROUPS, follow=False)
            return
        _mount_new("tmpfs", CGROUPS, QUIET, overlays.labelled("mode=755,size=64k", self._label), follow=False)
        folder = open_folder(CGROUPS, follow=False)  # empty, and nobody else sees it yet
        for name, tree in self._kernel.cgroups.items():
            os.mkdir(name, 0o755, dir_fd=folder)
            place = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=folder)
            linux.move_mount(tree, place, f"{CGROUPS}/{name}")
            os.close(place)
            os.close(tree)
            for part in name.split(",") if "," in name else ():
                os.symlink(name, part, dir_fd=folder)
        if not self._spec["privileged"]:
            linux.set_mount_attributes("", descriptor=folder, read_only=True)
        os.close(folder)

    def _mount_dev(self) -> None:
        options = overlays.labelled("mode=755,size=65536k", self._label)
        _mount_new("tmpfs", "/dev", linux.MS_NOSUID | linux.MS_STRICTATIME, options, follow=False)
        for name in _PLAIN_DEVICES:
            path = f"/dev/{name}"
            if name in self._devices:
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
                attach(self._devices[name], path)
            else:
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*_DEVICE_NUMBERS[name]))
                os.chmod(path, 0o666)
        for name, destination in (*_LINKS, *_MORE_LINKS):
            os.symlink(destination, f"/dev/{name}")
        for device in self._spec["devices"]:
            make_device(device)
        os.mkdir("/dev/pts")
        options = "newinstance,ptmxmode=0666,mode=0620" + ("" if self._in_user_namespace else ",gid=5")
        options = overlays.labelled(options, self._label)
        linux.mount("devpts", "/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, options)
        os.mkdir("/dev/mqueue")
        if self._queues is not None:
            attach(self._queues, "/dev/mqueue")
        elif self._own_ipc or not self._in_user_namespace:
            linux.mount("mqueue", "/dev/mqueue", "mqueue", QUIET)
            if self._own_ipc:  # it is there since its namespace is, and takes no label as an option any more
                self._set_label("/dev/mqueue")

    def _set_label(self, path: str) -> None:
        if self._label:
            os.setxattr(path, "security.selinux", self._label.encode())

    def _hide(self, path: str) -> None:
        """Mask a path of the host; what is not there yet, and could come, as a folder."""
        if _open_if_there(path) is None:
            try:
                os.close(open_folder(path))
            except OSError:
                return  # its parent cannot be written either, and is shown as it is
        self._mask(path)

    def _mask(self, path: str) -> None:
        place = _open_if_there(path)
        if place is None:
            return
        try:
            if stat.S_ISDIR(os.fstat(place).st_mode):
                os.fchdir(place)
                linux.mount("tmpfs", ".", "tmpfs", linux.MS_RDONLY, overlays.labelled("size=4k", self._label))
            else:
                assert self._null is not None
                # Before Linux 6.15 only a mount that is attached can be copied; to drop a detached one costs 0.1 ms.
                tree = (
                    linux.open_tree("", descriptor=self._null, recursive=False)
                    if self._null_is_attached
                    else self._null
                )
                linux.move_mount(tree, place, path)
                self._null_is_attached = True
        finally:
            os.chdir("/")
            os.close(place)


def make_folders(directory: str) -> None:
    """In a container's folder, for its root. Raises OSError, also if that is gone: nobody would delete another one."""
    for name in FOLDERS[:3]:
        try:
            os.mkdir(f"{directory}/{name}")
        except FileExistsError:
            continue


def enter_new_root(folder: str, kind: str, flags: int, options: str | None = None) -> None:
    """Leave every file behind: a new file system, mounted over `folder`, becomes the root of this mount namespace."""
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_SLAVE)
    linux.mount(kind, folder, kind, flags, options)
    os.chdir(folder)
    linux.pivot_root(".", ".")
    linux.unmount(".")
    os.chdir("/")


def make_device(device: dict[str, Any]) -> None:
    """A device node with the numbers that were read on the host."""
    path = _clean(device["path"])
    parent, name = os.path.split(path)
    folder = open_folder(parent)
    kind = stat.S_IFBLK if device["kind"] == "b" else stat.S_IFCHR
    try:
        os.mknod(name, kind | device["mode"], os.makedev(device["major"], device["minor"]), dir_fd=folder)
        os.chmod(name, device["mode"], dir_fd=folder)
    except FileExistsError:
        pass
    finally:
        os.close(folder)


def _mount_new(kind: str, target: str, flags: int, data: str | None = None, *, follow: bool = True) -> None:
    place = open_folder(target, follow=follow)
    try:
        # The folder itself, whatever symlinks led there: the old root's procfs is out of reach by now.
        os.fchdir(place)
        linux.mount(kind, ".", kind, flags, data)
    finally:
        os.chdir("/")
        os.close(place)


def _make_read_only(path: str) -> None:
    place = _open_if_there(path)
    if place is None:
        return
    try:
        tree = linux.open_tree("", descriptor=place)
        linux.set_mount_attributes("", descriptor=tree, read_only=True, recursive=True)
        linux.move_mount(tree, place, path)
        os.close(tree)
    finally:
        os.close(place)


def _open_if_there(path: str) -> int | None:
    try:
        return linux.open_without_magic(path, os.O_PATH)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _machine_device(name: str) -> int:
    """A detached copy of the mount of one of the machine's plain devices. Raises OSError if it is anything else."""
    device = os.open(f"/dev/{name}", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(device)
        if not stat.S_ISCHR(status.st_mode) or status.st_rdev != os.makedev(*_DEVICE_NUMBERS[name]):
            raise OSError(errno.ENODEV, "the machine's own is another file than that device", f"/dev/{name}")
        return linux.open_tree("", descriptor=device, recursive=False)
    finally:
        os.close(device)


def _clean(path: str) -> str:
    return os.path.normpath("/" + path.lstrip("/"))
