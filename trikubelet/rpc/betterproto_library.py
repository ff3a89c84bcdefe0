"""betterproto without what messages do not need: grpclib's client, which brings asyncio, and its own version, for which
it loads `importlib.metadata` with email and zipfile.

Imported with this package, so before every module that betterproto has generated. The two modules are stood in for
while betterproto is imported, and no longer; who asks for them afterwards gets the real ones.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Final

from trikubelet.rpc.service import ServiceStub

_STAND_INS: Final[dict[str, dict[str, object]]] = {
    "betterproto._version": {"__version__": "unknown"},
    "betterproto.grpc.grpclib_client": {"ServiceStub": ServiceStub},
}


def load() -> None:
    """Import betterproto, unless it is there already."""
    if "betterproto" in sys.modules:
        return
    for name, contents in _STAND_INS.items():
        module = ModuleType(name)
        vars(module).update(contents)
        sys.modules[name] = module
    try:
        import betterproto  # noqa: F401
    finally:
        for name in _STAND_INS:
            del sys.modules[name]
