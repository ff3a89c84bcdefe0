"""A real API server behind the raw client, from an administrator's kubeconfig."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import trio
import yaml

from tests.apiserver.identities import Certificate
from tests.apiserver.raw_client import Endpoint, RawClient, tls_context

if TYPE_CHECKING:
    from collections.abc import Sequence


def open_kubeconfig(file: str) -> RawClient:
    """A client for the current context. It may identify itself by certificate or token, in the file or beside it."""
    path = Path(file)
    config = yaml.safe_load(path.read_text())
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"])["user"]
    address = urlsplit(cluster["server"])
    host, port = address.hostname or "", address.port or 443
    certificate = None
    if "client-certificate-data" in user or "client-certificate" in user:
        certificate = Certificate(_pem(user, "client-certificate", path), _pem(user, "client-key", path))
    tls = tls_context(_pem(cluster, "certificate-authority", path), certificate, ["http/1.1"])

    async def dial() -> trio.abc.Stream:
        return await trio.open_tcp_stream(host, port)

    return RawClient(Endpoint(dial, cluster.get("tls-server-name", host), tls, user.get("token", "")))


def _named(entries: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _pem(holder: dict[str, Any], field: str, file: Path) -> bytes:
    if f"{field}-data" in holder:
        return base64.b64decode(str(holder[f"{field}-data"]))
    return (file.parent / str(holder[field])).read_bytes()
