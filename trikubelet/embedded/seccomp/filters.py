"""The filter of a container: its profile compiled, once for all containers that have the same."""

from __future__ import annotations

import base64
import functools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trikubelet.embedded.seccomp.bpf import assemble
from trikubelet.embedded.seccomp.early import can_be_loaded_early
from trikubelet.embedded.seccomp.profile import ProfileError, Situation, parse_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

_RUNTIME_DEFAULT: Final = Path(__file__).with_name("runtime_default.json")
_LARGEST_PROFILE: Final = 1 << 20


def runtime_default(capabilities: Sequence[str]) -> dict[str, Any] | None:
    """The filter `RuntimeDefault` for a container with this bounding set (`CAP_…`). Raises ProfileError."""
    return _filter(_runtime_default_text(), tuple(capabilities))


def from_file(path: str, capabilities: Sequence[str]) -> dict[str, Any] | None:
    """The filter that a profile on the machine describes; None if it describes none. Raises ProfileError.

    The file is read for each container, so that a changed one counts; what it says is compiled once.
    """
    file = Path(path)
    try:
        if not file.is_absolute() or (file.exists() and not file.is_file()):
            raise ProfileError(f"cannot load seccomp profile {path}: expected the absolute path of a file")
        with file.open("rb") as stream:
            text = stream.read(_LARGEST_PROFILE + 1)
    except OSError as error:
        raise ProfileError(f"cannot load seccomp profile {path}: {error.strerror}") from None
    if len(text) > _LARGEST_PROFILE:
        raise ProfileError(f"seccomp profile {path}: larger than {_LARGEST_PROFILE} bytes")
    try:
        return _filter(text, tuple(capabilities))
    except ProfileError as error:
        raise ProfileError(f"seccomp profile {path}: {error}") from None


@functools.cache
def _runtime_default_text() -> bytes:
    return _RUNTIME_DEFAULT.read_bytes()


@functools.lru_cache(maxsize=64)
def _filter(text: bytes, capabilities: tuple[str, ...]) -> dict[str, Any] | None:
    machine = os.uname()
    version = re.match(r"(\d+)\.(\d+)", machine.release)
    kernel = (int(version[1]), int(version[2])) if version else (0, 0)
    profile = parse_profile(text, Situation(machine.machine, kernel, frozenset(capabilities)))
    if profile is None:
        return None
    return {
        "program": base64.b64encode(assemble(profile)).decode(),
        "flags": profile.flags,
        "early": can_be_loaded_early(profile),
    }
