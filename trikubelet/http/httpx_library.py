"""httpx without its command line, which `import httpx` loads with what that needs: rich and pygments, 5 MiB.

Whoever uses httpx takes it from here. An installation without these two is one that httpx provides for.
"""

from __future__ import annotations

import sys
from typing import Final

_COMMAND: Final = "httpx._main"

if "httpx" in sys.modules:
    import httpx
else:
    sys.modules[_COMMAND] = None  # type: ignore[assignment]  # an import of it is an ImportError then
    try:
        import httpx
    finally:
        del sys.modules[_COMMAND]

__all__ = ("httpx",)
