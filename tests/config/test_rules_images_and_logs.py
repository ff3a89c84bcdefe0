"""Settings of images and logs that are more than their types say."""

from __future__ import annotations

import attrs
import pytest

from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.config.rules import check_configuration

ALLOWLISTED = "NeverVerifyAllowlistedImages"


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"container_log_max_size": "ten"}, "containerLogMaxSize"),
        ({"preloaded_images_verification_allowlist": ("a.io/b",)}, "preloadedImagesVerificationAllowlist"),
        (
            {
                "image_pull_credentials_verification_policy": ALLOWLISTED,
                "preloaded_images_verification_allowlist": ("a.io/b", " c"),
            },
            "preloadedImagesVerificationAllowlist[1]",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, object], path: str) -> None:
    configuration = attrs.evolve(KubeletConfiguration(), **settings)  # type: ignore[arg-type]
    assert path in [problem.path for problem in check_configuration(configuration)]


def test_what_is_meant_passes() -> None:
    configuration = attrs.evolve(
        KubeletConfiguration(),
        container_log_max_size="-1",
        image_pull_credentials_verification_policy=ALLOWLISTED,
        preloaded_images_verification_allowlist=("a.io/b", "c.io/*"),
    )
    assert check_configuration(configuration) == []
