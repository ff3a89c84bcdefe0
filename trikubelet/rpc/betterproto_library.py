"""betterproto and grpclib without what our messages and calls do not need: 2.5 MiB and 20 ms.

Imported with this package, so before every module that betterproto has generated.
"""

from __future__ import annotations

import sys
from typing import Any, Concatenate, Final, ParamSpec, Self

from trikubelet.linux.libraries import module_of, standing_in
from trikubelet.rpc.service import ServiceStub


class _NotLoaded:
    """In the place of a message of Google's. No message of ours has one in it (the codec refuses them), and betterproto
    makes eighty classes for them."""

    def __init__(self, *_: object, **__: object) -> None:
        raise NotImplementedError("betterproto was loaded without Google's messages")


def _isoparse(text: str) -> Any:
    """For messages from JSON."""
    from dateutil.parser import isoparse  # type: ignore[import-untyped]

    return isoparse(text)


def _multi_dict() -> Any:
    """For metadata, when somebody asks for it."""
    from multidict import MultiDict

    return MultiDict()


_GOOGLES: Final = (
    *("BoolValue", "BytesValue", "DoubleValue", "EnumValue", "FloatValue", "Int32Value", "Int64Value", "StringValue"),
    *("UInt32Value", "UInt64Value", "Duration", "Timestamp"),
)
_STAND_INS: Final[dict[str, dict[str, object]]] = {
    # Its version it reads with `importlib.metadata`, which brings email and zipfile.
    "betterproto._version": {"__version__": "unknown"},
    # asyncio
    "betterproto.grpc.grpclib_client": {"ServiceStub": ServiceStub},
    "betterproto.lib.google.protobuf": dict.fromkeys(_GOOGLES, _NotLoaded),
    "dateutil.parser": {"isoparse": _isoparse},
    "multidict": {"MultiDict": _multi_dict},
    # Python's own has all that it is asked for.
    "typing_extensions": {"Concatenate": Concatenate, "ParamSpec": ParamSpec, "Self": Self},
}


def load() -> None:
    """Import both, unless betterproto is there already."""
    if "betterproto" in sys.modules:
        return
    with standing_in(*(module_of(name, contents) for name, contents in _STAND_INS.items())):
        import betterproto  # noqa: F401
        import grpclib.metadata  # noqa: F401
