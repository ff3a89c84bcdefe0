"""How far a pull is. Pure."""

from __future__ import annotations

from trikubelet.formats.values import define


@define
class PullProgress:
    """One pull at work. It changes in place as the pull goes on."""

    reference: str
    layers: int = 0
    """That the store lacks; 0 until the image's documents are here."""
    layers_done: int = 0
    """Unpacked."""
    total_bytes: int = 0
    """Of those layers, packed."""
    received_bytes: int = 0

    @property
    def known(self) -> bool:
        """Whether it is known what is to come."""
        return self.layers > 0

    def __str__(self) -> str:
        if not self.known:
            return "asking the registry"
        layers = f"{self.layers_done} of {self.layers} layers unpacked"
        return f"{human_size(self.received_bytes)} of {human_size(self.total_bytes)}, {layers}"


def human_size(size: int) -> str:
    """Bytes as people read them: `512B`, `1.5MiB`."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f}{unit}" if unit == "B" else f"{amount:.1f}{unit}"
        amount /= 1024
    return f"{amount:.1f}TiB"
