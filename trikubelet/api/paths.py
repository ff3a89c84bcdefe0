"""Checks of paths that must stay inside a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trikubelet.api.field_errors import Place


def check_no_backsteps(path: str, place: Place) -> None:
    """No component is `..`."""
    if ".." in path.split("/"):
        place.invalid(path, "must not contain '..'")


def check_descending_path(path: str, place: Place) -> None:
    """Relative, and nowhere a step up."""
    if path.startswith("/"):
        place.invalid(path, "must be a relative path")
    check_no_backsteps(path, place)


def check_volume_file_path(path: str, place: Place) -> None:
    """A descending path that does not begin like the `..data` links of volumes."""
    check_descending_path(path, place)
    if path.startswith("..") and not path.startswith("../") and path != "..":
        place.invalid(path, "must not start with '..'")
