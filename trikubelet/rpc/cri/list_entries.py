"""List entries for runtimes written in Python: serialised once, however many list replies they appear in.

Serialising one `Container` costs about 14 µs, so a list of 330 takes 5 ms or more; from entries that keep their bytes
it takes 0.4 ms. The price: an entry must not be changed once it was sent. Make a new one when the container changes.
"""

from __future__ import annotations

from trikubelet.rpc.cri import v1


class ListedContainer(v1.Container):
    """A `Container` that remembers its bytes."""

    __module__ = v1.__name__  # betterproto looks the types of the fields up there

    def __bytes__(self) -> bytes:
        data: bytes | None = self.__dict__.get("_serialised")
        if data is None:
            data = self.__dict__["_serialised"] = super().__bytes__()
        return data


class ListedSandbox(v1.PodSandbox):
    """A `PodSandbox` that remembers its bytes."""

    __module__ = v1.__name__  # betterproto looks the types of the fields up there

    def __bytes__(self) -> bytes:
        data: bytes | None = self.__dict__.get("_serialised")
        if data is None:
            data = self.__dict__["_serialised"] = super().__bytes__()
        return data
