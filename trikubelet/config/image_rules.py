"""What may be in the list of images that need no credentials (preloadedImagesVerificationAllowlist)."""

from __future__ import annotations

from typing import Final

from trikubelet.formats.image_names import InvalidImageNameError, without_tag_and_digest

ANYTHING_BELOW: Final = "/*"
"""The end of an entry that names a registry, or a part of one."""


def allowlist_problem(pattern: str) -> str | None:
    """Why an entry of `preloadedImagesVerificationAllowlist` is none, or None.

    An entry is an image name without tag and digest, or a registry or part of one followed by `/*`.
    """
    if pattern != pattern.strip():
        return f"leading/trailing spaces are not allowed: {pattern}"
    name = pattern.removesuffix("*") if pattern.endswith(ANYTHING_BELOW) else pattern
    if not name:
        return f"the supplied pattern is too short: {pattern}"
    if "*" in name:
        return f"not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"
    if name != pattern:
        return "at least registry hostname is required" if name == "/" else None
    try:
        bare = without_tag_and_digest(name)
    except InvalidImageNameError as error:
        return f"failed to parse as an image name: {error.problem}"
    return None if bare == name else f"neither tag nor digest is accepted in an image reference: {pattern}"
