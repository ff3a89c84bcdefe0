"""A container's root as an overlay: layers that nobody changes below, its own changes above."""

from __future__ import annotations

import os

from trikubelet.embedded.keeper import host_files, linux

MOST_DETACHED_LAYERS = 10
"""Their descriptors' names have to fit into the 255 bytes of an option."""


def labelled(options: str, label: str) -> str:
    """Mount options with the SELinux label that all files of a new file system are to have; empty: none."""
    return ",".join([*([options] if options else []), *([f'context="{label}"'] if label else [])])


def detached_overlay(layers: list[str], directory: str, label: str = "") -> int:
    """A mount as `mount_overlay` makes it, of no more than MOST_DETACHED_LAYERS, that is nowhere as yet."""
    held, named = _options(layers, directory)
    options: dict[str, str | None] = {"source": "overlay", **named, **({"context": label} if label else {})}
    try:
        mount = linux.new_mount("overlay", quiet=False, options={**options, "volatile": None})
    except OSError:
        mount = linux.new_mount("overlay", quiet=False, options=options)
    for descriptor in held:
        os.close(descriptor)
    return mount


def mount_overlay(layers: list[str], directory: str, target: str, *, in_user_namespace: bool, label: str = "") -> None:
    """Mount `layers` (lowest first) below the container's own changes. `label`: SELinux's of all files, if any."""
    held, named = _options(layers, directory)
    options = labelled(",".join(f"{name}={value}" for name, value in named.items()), label)
    if in_user_namespace:
        options += ",userxattr"
    try:
        # A container's changes live as long as the container: no need to flush them when it ends.
        linux.mount("overlay", target, "overlay", 0, options + ",volatile")
    except OSError:
        linux.mount("overlay", target, "overlay", 0, options)
    for descriptor in held:
        os.close(descriptor)


def _options(layers: list[str], directory: str) -> tuple[list[int], dict[str, str]]:
    """With the descriptors that they name, to be closed when it is mounted.

    Layers go in as descriptors: no path is too long or too many for what options may take, and none needs escaping.
    """
    held = [os.open(layer, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for layer in reversed(layers)]
    held += [os.open(f"{directory}/{name}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for name in ("upper", "work")]
    names = [f"/proc/self/fd/{descriptor}" for descriptor in held]
    return held, {"lowerdir": ":".join(names[:-2]), "upperdir": names[-2], "workdir": names[-1]}


def mount_host_in_pieces(directory: str, target: str, *, overlay: bool) -> None:
    """The host's root folder by folder, on a root of the container's own.

    In a user namespace the kernel refuses `/` as an overlay's layer, since that would show what the host's other mounts
    hide. A folder that has such a mount beneath is refused too: it is bound as it is, and stays read-only.
    """
    linux.mount(f"{directory}/upper", target, None, linux.MS_BIND)
    for name in os.listdir("/"):
        source, place = f"/{name}", f"{target}/{name}"
        if os.path.islink(source):
            os.symlink(os.readlink(source), place)
        elif os.path.isdir(source):
            os.mkdir(place)
            if not host_files.below(source, host_files.NOT_COPIED) and not (
                overlay and _overlay_piece(source, place, directory)
            ):
                linux.mount(source, place, None, linux.MS_BIND | linux.MS_REC)
                linux.set_mount_attributes(place, read_only=True, recursive=True)


def _overlay_piece(source: str, place: str, directory: str) -> bool:
    own = f"{directory}/pieces{source}"
    for name in ("upper", "work"):
        os.makedirs(f"{own}/{name}")
    try:
        mount_overlay([source], own, place, in_user_namespace=True)
    except OSError:
        return False
    return True
