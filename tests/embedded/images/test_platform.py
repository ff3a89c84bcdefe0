"""Which platform's image a machine takes."""

from __future__ import annotations

import pytest

from trikubelet.embedded.images.platform import Platform, host_platform


@pytest.mark.parametrize(
    ("machine", "image", "rank"),
    [
        ("x86_64", {"os": "linux", "architecture": "amd64"}, 0),
        ("x86_64", {"os": "linux", "architecture": "amd64", "variant": "v2"}, 1),
        ("x86_64", {"os": "windows", "architecture": "amd64"}, None),
        ("x86_64", {"os": "unknown", "architecture": "unknown"}, None),
        ("x86_64", {}, 0),
        ("aarch64", {"os": "linux", "architecture": "arm64"}, 0),
        ("aarch64", {"os": "linux", "architecture": "arm64", "variant": "v8"}, 0),
        ("armv7l", {"os": "linux", "architecture": "arm", "variant": "v7"}, 0),
        ("armv7l", {"os": "linux", "architecture": "arm", "variant": "v6"}, 1),
        ("armv6l", {"os": "linux", "architecture": "arm", "variant": "v7"}, None),
        ("armv7l", {"os": "linux", "architecture": "arm", "variant": "u²"}, None),
        ("armv7l", {"os": "linux", "architecture": "arm", "variant": "u" + "5" * 5000}, None),
        ("riscv64", {"os": "linux", "architecture": "riscv64"}, 0),
    ],
)
def test_an_image_ranks_by_how_well_it_suits_the_machine(machine: str, image: dict[str, str], rank: int | None) -> None:
    assert Platform.from_json(image).rank_on(host_platform(machine)) == rank
