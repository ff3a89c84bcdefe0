"""What a request to the node is in the cluster's terms: a verb on a subresource of the node. Pure.

The mapping of the kubelet (`GetRequestAttributes` in pkg/kubelet/server/auth.go; fine-grained authorization, KEP-2862,
cannot be switched off any more in 1.36). All paths are told apart by their first segment, and so are they here, by that
which the router compares: decoded after the path was split, so that `/p%6fds` is `/pods`, and `/pods%2Fx` is neither
that nor below it. Whatever this table does not know is `proxy`, the right to everything; a way to write a path that the
table reads wrongly therefore asks for too much, never for too little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

API_VERSION: Final = "v1"
RESOURCE: Final = "nodes"

_VERBS: Final[Mapping[str, str]] = {
    "POST": "create",
    "GET": "get",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_PROXY: Final = ("proxy",)
_SUBRESOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "stats": ("stats",),
    "metrics": ("metrics",),
    "logs": ("log",),
    "checkpoint": ("checkpoint",),
    "statusz": ("statusz",),
    "flagz": ("configz",),
    # A user with the right to everything, from before these had a right of their own, keeps it.
    "pods": ("pods", "proxy"),
    "runningpods": ("pods", "proxy"),
    "healthz": ("healthz", "proxy"),
    "configz": ("configz", "proxy"),
}


@frozen
class Attributes:
    """What somebody wants to do. Any one of several alternatives suffices."""

    verb: str
    """Empty for a method that is none of the API's, such as HEAD: it needs the right to every verb."""
    subresource: str
    node_name: str
    path: str = ""
    """As sent; no part of the question."""

    @property
    def size(self) -> int:
        """Characters of all that the client, or the node's name, decides."""
        fields = (self.verb, API_VERSION, RESOURCE, self.subresource, self.node_name, self.path)
        return sum(len(field) for field in fields)


def request_attributes(method: str, path: str, node_name: str) -> tuple[Attributes, ...]:
    """The alternatives for a request, in the order in which they are to be tried; never empty.

    `path` is as sent, percent-encoded and without the query.
    """
    verb = _VERBS.get(method, "")
    return tuple(Attributes(verb, subresource, node_name, path) for subresource in subresources(path))


def subresources(path: str) -> tuple[str, ...]:
    """The subresources of the node any one of which grants `path` (percent-encoded)."""
    first = path.removeprefix("/").partition("/")[0]
    return _SUBRESOURCES.get(unquote(first), _PROXY)
