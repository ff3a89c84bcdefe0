"""Which of an archive's images is meant for this machine. Pure: `host_platform` takes uname's words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

# The words of uname -m as OCI (Go) spells them.
_ARCHITECTURES = {
    "x86_64": ("amd64", ""),
    "amd64": ("amd64", ""),
    "aarch64": ("arm64", "v8"),
    "arm64": ("arm64", "v8"),
    "armv8l": ("arm", "v7"),
    "armv7l": ("arm", "v7"),
    "armv6l": ("arm", "v6"),
    "armv5l": ("arm", "v5"),
    "i386": ("386", ""),
    "i686": ("386", ""),
}
_ARM_VARIANT = re.compile(r"v[0-9]")


@frozen
class Platform:
    """An operating system and processor, in OCI's words."""

    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Platform:
        """Read a descriptor's `platform` or the top of an image configuration. Missing words are empty."""
        os_name, architecture, variant = (str(value.get(key) or "") for key in ("os", "architecture", "variant"))
        if architecture == "arm64" and not variant:
            variant = "v8"
        if architecture == "arm" and not variant:
            variant = "v7"
        return cls(os_name, architecture, variant)

    def rank_on(self, host: Platform) -> int | None:
        """How well an image of this platform suits the host: 0 best, None not at all.

        Words that the image does not say are taken as fitting. An ARM processor runs the programs of earlier variants.
        """
        if self.os not in ("", host.os) or self.architecture not in ("", host.architecture):
            return None
        if self.variant in ("", host.variant):
            return 0
        if host.architecture == "arm" and self.variant < host.variant:
            return int(host.variant[1:]) - int(self.variant[1:]) if _ARM_VARIANT.fullmatch(self.variant) else None
        return None if host.architecture in ("arm", "arm64") else 1


def host_platform(machine: str) -> Platform:
    """This machine's platform. `machine` is what `uname -m` says."""
    architecture, variant = _ARCHITECTURES.get(machine, (machine, ""))
    return Platform("linux", architecture, variant)
