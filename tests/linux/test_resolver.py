"""Which resolv.conf a pod with a network of its own is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trikubelet.linux.resolver import leads_nowhere, resolv_conf_for_pods

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "nowhere"),
    [
        ("nameserver 127.0.0.53\noptions edns0\n", True),
        ("nameserver 127.0.0.1\nnameserver ::1\n", True),
        ("nameserver 127.0.0.1\nnameserver 192.0.2.53\n", False),
        ("nameserver fe80::1%eth0\n", False),
        ("search example\n", False),
        ("nameserver\n", False),
    ],
)
def test_name_servers_of_the_loopback_lead_nowhere(tmp_path: Path, text: str, nowhere: bool) -> None:
    (tmp_path / "resolv.conf").write_text(text)
    assert leads_nowhere(tmp_path / "resolv.conf") is nowhere


def test_the_servers_behind_a_local_one_are_taken_where_they_are_known(tmp_path: Path) -> None:
    stub, upstream = tmp_path / "stub", tmp_path / "upstream"
    stub.write_text("nameserver 127.0.0.53\n")
    assert resolv_conf_for_pods(stub, upstream) == stub
    upstream.write_text("nameserver 192.0.2.53\n")
    assert resolv_conf_for_pods(stub, upstream) == upstream
    stub.write_text("nameserver 192.0.2.1\n")
    assert resolv_conf_for_pods(stub, upstream) == stub
