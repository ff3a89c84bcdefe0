"""Documents that were whole, and of which parts were changed by chance: the same for the same `random.Random`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

_OTHERS: Final[tuple[Any, ...]] = (None, True, -1, 2**80, 1.5, "", "x" * 300, "\0", [], {}, [[]])


def changed_document(chance: random.Random, whole: Any, others: Sequence[Any] = ()) -> bytes:
    """JSON in which a few values are others, among them maybe `others`; one in five is broken as bytes are."""
    if chance.random() < 0.2:
        return changed_bytes(chance, json.dumps(whole).encode())
    return json.dumps(_changed(chance, whole, (*_OTHERS, *others), 0.06)).encode()


def _changed(chance: random.Random, value: Any, others: Sequence[Any], share: float) -> Any:
    if chance.random() < share:
        return chance.choice(others)
    if isinstance(value, dict):
        return {
            key: _changed(chance, item, others, share) for key, item in value.items() if chance.random() > share / 2
        }
    if isinstance(value, list):
        return [
            _changed(chance, item, others, share) for item in value for _ in range(1 + (chance.random() < share / 2))
        ]
    return value


def changed_bytes(chance: random.Random, whole: bytes) -> bytes:
    """Up to three places are overwritten, cut out, filled or repeated."""
    data = bytearray(whole)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                data[at : at + chance.randrange(1, 600)] = b""
            case 2:
                data[at:at] = chance.randbytes(chance.randrange(1, 20))
            case _:
                data[at:at] = data[max(0, at - chance.randrange(1, 600)) : at]
        if not data:
            return b""
    return bytes(data)
