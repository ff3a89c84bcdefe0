"""Names of archive entries, checked before anything touches the disk. Pure."""

from __future__ import annotations

from trikubelet.embedded.images.errors import ArchiveError

WHITEOUT_PREFIX = ".wh."
"""A file of this name in a layer deletes the file of the rest of the name from the layers below (OCI image layers)."""
OPAQUE_WHITEOUT = ".wh..wh..opq"
"""Deletes everything that the layers below have in this directory."""

_MAX_COMPONENT_BYTES = 255


def split_entry_name(name: str, *, max_depth: int) -> list[str]:
    """The components of an entry's name, `[]` for the root. Raises ArchiveError for a name that leads elsewhere.

    An absolute name is one below the image's root. `..` takes back the component before it, as in other runtimes,
    whatever that is on disk.
    """
    if "\0" in name:
        raise ArchiveError("its name holds a NUL character", entry=name)
    parts: list[str] = []
    for part in name.split("/"):
        if part == "..":
            if not parts:
                raise ArchiveError("its name climbs out of the image with '..'", entry=name)
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    if len(parts) > max_depth:
        raise ArchiveError(f"it is nested {len(parts)} directories deep, more than {max_depth}", entry=name[:100] + "…")
    if any(len(part.encode("utf-8", "surrogateescape")) > _MAX_COMPONENT_BYTES for part in parts):
        raise ArchiveError(f"a part of its name is longer than {_MAX_COMPONENT_BYTES} bytes", entry=name[:100] + "…")
    return parts


def whiteout_target(basename: str, *, entry: str) -> str | None:
    """The name that a whiteout file deletes, None for other files. Raises ArchiveError when it would delete a parent.

    To be asked after `OPAQUE_WHITEOUT`. Other names in the `.wh..wh.` space are a union filesystem's own bookkeeping:
    they delete nothing, and an empty string is returned for them.
    """
    if not basename.startswith(WHITEOUT_PREFIX):
        return None
    target = basename[len(WHITEOUT_PREFIX) :]
    if target.startswith(WHITEOUT_PREFIX):
        return ""
    if target in ("", ".", ".."):
        raise ArchiveError("a whiteout that would delete its own directory or a directory above it", entry=entry)
    return target
