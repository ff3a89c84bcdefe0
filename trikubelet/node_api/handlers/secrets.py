"""What is not shown of the configuration and the command line: headers that fetch static pods, and passwords in URLs.

The kubelet masks the headers in its log and the values of flags that are marked. Here they are masked wherever the API
shows them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MASK: Final = "<masked>"
CLASSIFIED: Final = "CLASSIFIED"
"""In the place of a flag's value (`/flagz`)."""
_CLASSIFIED_FLAGS: Final = frozenset({"manifest-url-header", "storage-driver-password"})
_PASSWORD: Final = re.compile(r"(?<=//)([^/@:\s]*):[^/@\s]*(?=@)")
_HEADERS: Final = "staticPodURLHeader"


def masked_flags(flags: Mapping[str, str]) -> dict[str, str]:
    """Flags by name, without what is secret."""
    return {
        name: CLASSIFIED if name in _CLASSIFIED_FLAGS and value else masked_url(value) for name, value in flags.items()
    }


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """The same of a command line, where a value follows `=` or is the next argument."""
    shown, classified = [], False
    for argument in arguments:
        name, equals, _ = argument.removeprefix("-").removeprefix("-").partition("=")
        if classified:
            shown.append(CLASSIFIED)
            classified = False
        elif argument.startswith("-") and name.replace("_", "-") in _CLASSIFIED_FLAGS:
            classified = not equals
            shown.append(argument.partition("=")[0] + (f"={CLASSIFIED}" if equals else ""))
        else:
            shown.append(masked_url(argument))
    return shown


def masked_configuration(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """A KubeletConfiguration as it is written, without what is secret."""
    shown = {name: masked_url(value) if isinstance(value, str) else value for name, value in configuration.items()}
    if headers := shown.get(_HEADERS):
        shown[_HEADERS] = {name: [MASK] for name in headers}
    return shown


def masked_url(text: str) -> str:
    """Without the password of `scheme://user:password@host`."""
    return _PASSWORD.sub(rf"\1:{MASK}", text)
