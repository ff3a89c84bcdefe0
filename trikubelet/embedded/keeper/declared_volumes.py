"""Volumes that an image declares (`VOLUME`): a folder of the container's own each, with what the image has there.

It is a plain folder of the host's file system, not a part of the container's overlay: programs put things there that an
overlay does not take, such as other overlays. It is filled while the container has its root to itself, and nothing but
the image is in there.
"""

from __future__ import annotations

import errno
import os
import stat

from trikubelet.embedded.keeper import linux

_NOT_COPIED = ("security.selinux", "trusted.overlay.", "user.overlay.")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST_STEP = 1 << 30
_DEEPEST = 200
"""Each takes two descriptors."""


def make(root: int, path: str, folder: str, label: str = "") -> int:
    """Make `folder` with what the image has at `path`, as a detached mount. Raises OSError.

    `root`: a descriptor of the container's root. `label`: SELinux's of all files, if any.
    """
    try:
        os.makedirs(os.path.dirname(folder), 0o700, exist_ok=True)
        os.mkdir(folder, 0o755)
        copy = os.open(folder, _FOLDER)
        try:
            original = linux.open_in_root(root, path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            _set_label(copy, label)
        else:
            _Copier(copy, label).copy_folder(original, copy)
            os.close(original)
        os.close(copy)
        tree = linux.open_tree(folder)
        linux.set_mount_attributes("", descriptor=tree, propagation=linux.MS_PRIVATE)
    except OSError as error:
        is_file = error.errno == errno.ENOTDIR
        why = "expected a folder there, the image has a file" if is_file else error.strerror
        raise OSError(error.errno, f"VOLUME {path} of the image: {why}") from None
    return tree


class _Copier:
    """Copies one tree of an image that nobody changes meanwhile, by descriptors."""

    def __init__(self, top: int, label: str) -> None:
        self._top = top
        self._label = label
        self._path: list[str] = []
        """Of the folder that is being copied."""
        self._linked: dict[tuple[int, int], str] = {}
        """Where the first of several names of a file is."""

    def copy_folder(self, original: int, copy: int) -> None:
        for name in os.listdir(original):
            status = os.stat(name, dir_fd=original, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                if len(self._path) == _DEEPEST:
                    raise OSError(errno.ENAMETOOLONG, f"expected at most {_DEEPEST} folders within one another")
                os.mkdir(name, 0o700, dir_fd=copy)
                inner = os.open(name, _FOLDER, dir_fd=original), os.open(name, _FOLDER, dir_fd=copy)
                self._path.append(name)
                self.copy_folder(*inner)
                self._path.pop()
                for descriptor in inner:
                    os.close(descriptor)
            else:
                self._copy_entry(name, status, original, copy)
        _set_attributes(os.fstat(original), original, copy)
        _set_label(copy, self._label)

    def _copy_entry(self, name: str, status: os.stat_result, original: int, copy: int) -> None:
        first = self._linked.get((status.st_dev, status.st_ino))
        if first is not None:
            os.link(first, name, src_dir_fd=self._top, dst_dir_fd=copy, follow_symlinks=False)
            return
        if status.st_nlink > 1:
            self._linked[status.st_dev, status.st_ino] = "/".join((*self._path, name))
        if stat.S_ISREG(status.st_mode):
            source = os.open(name, _READ, dir_fd=original)
            target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=copy)
            _copy_data(source, target, status.st_size)
            _set_attributes(status, source, target)
            _set_label(target, self._label)
            os.close(source)
            os.close(target)
            return
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=original), name, dir_fd=copy)
        else:
            os.mknod(name, status.st_mode, status.st_rdev, dir_fd=copy)
        os.chown(name, status.st_uid, status.st_gid, dir_fd=copy, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=copy)
        os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=copy, follow_symlinks=False)
        if self._label:
            path = f"/proc/self/fd/{copy}/{name}"
            os.setxattr(path, "security.selinux", self._label.encode(), follow_symlinks=False)


def _copy_data(source: int, target: int, size: int) -> None:
    """What is in a file, with its holes."""
    at = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # the rest is a hole
        end = os.lseek(source, at, os.SEEK_HOLE)
        os.lseek(target, at, os.SEEK_SET)
        while at < end:
            sent = os.sendfile(target, source, at, min(end - at, _LARGEST_STEP))
            if not sent:
                raise OSError(errno.EIO, "a file of the image is shorter than it says")
            at += sent
    os.ftruncate(target, size)


def _set_attributes(status: os.stat_result, source: int, target: int) -> None:
    """Owner first: to change it takes the other ones away."""
    os.fchown(target, status.st_uid, status.st_gid)
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    for name in os.listxattr(source):
        if name.startswith(_NOT_COPIED):
            continue
        try:
            os.setxattr(target, name, os.getxattr(source, name))
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP):  # as where the image was unpacked
                raise
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _set_label(descriptor: int, label: str) -> None:
    if label:
        os.setxattr(descriptor, "security.selinux", label.encode())
