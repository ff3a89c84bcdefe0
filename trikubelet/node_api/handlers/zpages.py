"""`/configz`, `/flagz` and `/statusz`: the agent's configuration, flags and version (KEP-4827, KEP-4828)."""

from __future__ import annotations

import json
import platform
import random
from typing import TYPE_CHECKING, Any, Final

from trikubelet.api.timestamps import format_time
from trikubelet.config.encode import encode_configuration
from trikubelet.http.messages import JSON, Request, Response, json_response
from trikubelet.http.negotiation import DEPRECATED, FORMS, GROUP, TEXT_FORM, Accepted, negotiate
from trikubelet.node_api.handlers.secrets import masked_configuration, masked_flags

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trikubelet.clock import WallClock
    from trikubelet.node_api.view import NodeApiView

COMPONENT: Final = "kubelet"
"""The component's name on these pages."""
_YAML: Final = "application/yaml"
_SEPARATORS: Final = (":", ": ", "=", " ")
"""One of them at random, so that clients do not parse the text."""
_WARNING: Final = (
    "This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for "
    "debugging purposes only."
)


class ZPageHandlers:
    """`paths`: the patterns of all routes, once they are known."""

    def __init__(self, view: NodeApiView, paths: Callable[[], Sequence[str]], clock: WallClock) -> None:
        self._view = view
        self._paths = paths
        self._clock = clock

    async def configz(self, _: Request) -> Response:
        """The configuration in force, without what is secret."""
        configuration = masked_configuration(encode_configuration(self._view.configuration))
        return json_response({"kubeletconfig": configuration})

    async def flagz(self, request: Request) -> Response:
        """The command line."""
        flags = masked_flags(self._view.flags())

        def text() -> str:
            separator = random.choice(_SEPARATORS)
            return "".join(f"{name}{separator}{value}\n" for name, value in sorted(flags.items()))

        return _page(request, "Flagz", text, {"flags": flags} if flags else {})

    async def statusz(self, request: Request) -> Response:
        """What runs here, since when, and where to look."""
        started = self._view.started_at
        up = max(0, int((self._clock.now() - started).total_seconds()))
        version = ".".join(self._view.kubernetes_version.removeprefix("v").split(".")[:2])
        language = f"{platform.python_implementation()} {platform.python_version()}"
        paths = sorted({"/" + pattern.split("/")[1] for pattern in self._paths() if pattern != "/"})

        def text() -> str:
            lines = {
                "Started": f"{started:%a %b %e %H:%M:%S} UTC {started:%Y}",
                "Up": f"{up // 3600} hr {up // 60 % 60:02} min {up % 60:02} sec",
                "Go version": language,
                "Binary version": version,
                "Emulation version": version,
                "Paths": " ".join(paths),
            }
            separator = random.choice(_SEPARATORS)
            return "\n" + "".join(f"{name}{separator} {value}\n" for name, value in lines.items())

        data = {
            "startTime": format_time(started),
            "uptimeSeconds": up,
            "goVersion": language,
            "binaryVersion": version,
            "emulationVersion": version,
            "paths": paths,
        }
        return _page(request, "Statusz", text, data)


def _page(request: Request, kind: str, text: Callable[[], str], data: dict[str, Any]) -> Response:
    """The form that the client accepts, or 406 as a `v1.Status`."""
    accepted = negotiate(request.headers.get("accept"), kind)
    name = kind.lower()
    if accepted is None:
        return _not_acceptable()
    if accepted.form == TEXT_FORM:
        return Response(f"\n{COMPONENT} {name}\nWarning: {_WARNING}\n{text()}".encode())
    whole = {
        "kind": kind,
        "apiVersion": f"{GROUP}/{accepted.version}",
        "metadata": {"name": COMPONENT},
        **data,
    }
    return Response(_encoded(whole, accepted), content_type=accepted.form, headers=_deprecation(accepted, name))


def _encoded(data: dict[str, Any], accepted: Accepted) -> bytes:
    if accepted.form != _YAML:
        return json.dumps(data, separators=(",", ":")).encode() + b"\n"
    import yaml

    return yaml.safe_dump(data).encode()


def _deprecation(accepted: Accepted, name: str) -> tuple[tuple[str, str], ...]:
    if accepted.version not in DEPRECATED:
        return ()
    text = f"This version of the {name} endpoint is deprecated. Please use a newer version."
    return (("Warning", f'299 - "{text}"'),)


def _not_acceptable() -> Response:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"only the following media types are accepted: {', '.join(FORMS)}",
        "reason": "NotAcceptable",
        "code": 406,
    }
    return Response(json.dumps(status, separators=(",", ":")).encode() + b"\n", 406, JSON)
