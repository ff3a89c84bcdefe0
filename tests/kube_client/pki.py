"""Certificates for tests of TLS: made by an authority of the test's own."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import trustme

from trikubelet.kube_client.tls import KeyPair

if TYPE_CHECKING:
    from datetime import datetime


@functools.cache
def authority(name: str = "cluster") -> trustme.CA:
    return trustme.CA(organization_name=name)


def pem_of(ca: trustme.CA) -> bytes:
    return ca.cert_pem.bytes()


def pair(ca: trustme.CA, name: str, end: datetime | None = None) -> KeyPair:
    leaf = ca.issue_cert("client.example", common_name=name, not_after=end)
    chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
    return KeyPair(chain, leaf.private_key_pem.bytes())
