"""Names for what a runtime makes on the machine: short, stable, and different for each runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.formats.digests import sha256
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.linux.netlink.routes import Address

BRIDGES: Final = "tkb-"
"""What bridges of every runtime begin with."""
_VETHS: Final = "tv"


@frozen
class Names:
    """What belongs to the runtime in this folder. The kernel allows 15 characters."""

    root: str

    @property
    def bridge(self) -> str:
        return BRIDGES + self._digest[:8]

    @property
    def bridge_mac(self) -> bytes:
        return b"\x0a\x59" + bytes.fromhex(self._digest[:8])

    @property
    def table(self) -> str:
        """Of nf_tables; it has no other name than the bridge, so that who finds one finds the other."""
        return self.bridge

    @property
    def veths(self) -> str:
        """What the names of all its pods' links begin with."""
        return _VETHS + self._digest[:5]

    def veth(self, sandbox_id: str) -> str:
        return self.veths + sha256(sandbox_id.encode()).hexdigest()[:8]

    @property
    def _digest(self) -> str:
        return sha256(self.root.encode()).hexdigest()


def pod_mac(address: Address) -> bytes:
    """For who has this address: whoever has it later is found at once, with no neighbour's entry to be outdated."""
    return b"\x0a\x58" + address.packed[-4:]
