"""Images as read-only volumes: their layers merged, and one folder of that taken as a detached mount."""

from __future__ import annotations

import os

from trikubelet.embedded.keeper import linux, overlays


def take(layers: list[str], sub_path: str, place: str, label: str = "") -> int:
    """The folder `sub_path` of an image (empty: all of it), to be attached somewhere. Raises OSError.

    `layers`: lowest first. `place`: a folder on which the image is mounted meanwhile, in the caller's own mount
    namespace. Links in the image lead within the image. `label`: SELinux's of all files, if any.
    """
    os.makedirs(place, exist_ok=True)
    if len(layers) > 1:
        _mount_merged(layers, place, label)
    elif label:
        _mount_merged([place, *layers], place, label)  # an overlay needs two: the place itself is empty
    else:
        linux.mount(layers[0], place, None, linux.MS_BIND)
    try:
        root = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        folder = linux.open_in_root(root, sub_path or ".", os.O_PATH | os.O_DIRECTORY)
        tree = linux.open_tree(f"/proc/self/fd/{folder}", recursive=False)
        os.close(folder)
        os.close(root)
    finally:
        linux.unmount(place)
    linux.set_mount_attributes("", descriptor=tree, read_only=True, propagation=linux.MS_PRIVATE)
    return tree


def _mount_merged(layers: list[str], place: str, label: str) -> None:
    """As descriptors: no path is too long for the mount options, and none needs escaping."""
    held = [os.open(layer, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for layer in reversed(layers)]
    names = [f"/proc/self/fd/{descriptor}" for descriptor in held]
    options = overlays.labelled(f"lowerdir={':'.join(names)}", label)
    linux.mount("overlay", place, "overlay", linux.MS_RDONLY, options)
    for descriptor in held:
        os.close(descriptor)
