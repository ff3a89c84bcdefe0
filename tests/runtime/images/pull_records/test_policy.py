"""Which images are checked, and what lets a pod pass."""

from __future__ import annotations

import pytest

from trikubelet.config.image_rules import allowlist_problem
from trikubelet.formats.image_names import InvalidImageNameError, without_tag_and_digest
from trikubelet.runtime.images.pull_records.model import (
    ImageCredentials,
    PodCredentials,
    PullSecret,
    PullServiceAccount,
    VerificationPolicy,
    key_that_fits,
)

DIGEST = "sha256:38a8906435c4dd5f4258899d46621bfd8eea3ad6ff494ee3c2f17ef0321625bd"


@pytest.mark.parametrize(
    ("policy", "preloaded", "pulled"),
    [
        ("NeverVerify", False, False),
        ("NeverVerifyPreloadedImages", False, True),
        ("NeverVerifyAllowlistedImages", True, True),
        ("AlwaysVerify", True, True),
    ],
)
def test_policies(policy: str, preloaded: bool, pulled: bool) -> None:
    checks = VerificationPolicy(policy).checks
    assert (checks("image:tag", pulled_here=False), checks("image:tag", pulled_here=True)) == (preloaded, pulled)


@pytest.mark.parametrize(
    ("image", "entries", "checked"),
    [
        ("test.io/test/image:tag", ["test.io/test/other"], True),
        ("test.io/test/image:tag", ["test.io/test/other", "test.io/test/image"], False),
        ("test.io/test/image:tag", ["different.repo/test/*"], True),
        ("test.io/test/image:tag", ["test.io/test/*"], False),
        ("test.io/test/image:tag", ["test.io/*"], False),
        ("test.io/tester/image", ["test.io/test/*"], True),
        ("ubuntu", ["docker.io/library/ubuntu"], True),
        ("ubuntu", ["docker.io/library/*"], True),
        ("ubuntu", ["ubuntu"], False),
        ("ubuntu:tagged", ["ubuntu"], False),
        (f"ubuntu@{DIGEST}", ["ubuntu"], False),
    ],
)
def test_what_is_on_the_list_is_not_checked(image: str, entries: list[str], checked: bool) -> None:
    policy = VerificationPolicy("NeverVerifyAllowlistedImages", tuple(entries))
    assert policy.checks(image, pulled_here=False) is checked
    assert policy.checks(image, pulled_here=True) is checked


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("test.io/test/image", None),
        ("test.io/*", None),
        ("ubuntu", None),
        ("image.repo/pokus*/name", "not a valid wildcard pattern, only patterns ending with '/*' are allowed: "),
        ("image.repo/pokus*", "not a valid wildcard pattern"),
        ("image.repo/*/name", "not a valid wildcard pattern"),
        ("*", "not a valid wildcard pattern"),
        ("/*", "at least registry hostname is required"),
        ("image.repo/", "failed to parse as an image name: invalid reference format"),
        ("", "the supplied pattern is too short: "),
        ("test.io/image:tagged", "neither tag nor digest is accepted in an image reference: test.io/image:tagged"),
        (f"test.io/image@{DIGEST}", "neither tag nor digest"),
        ("test.io/image ", "leading/trailing spaces are not allowed: test.io/image "),
    ],
)
def test_entries_of_the_list(entry: str, problem: str | None) -> None:
    got = allowlist_problem(entry)
    assert got is None if problem is None else (got or "").startswith(problem)


@pytest.mark.parametrize("tail", ["", ":v1", f"@{DIGEST}", f":v1@{DIGEST}"])
@pytest.mark.parametrize(
    "name",
    [
        "myimage",
        "registry.io/myimage",
        "registry.io/a/b/c/myimage",
        "localhost:5000/myimage",
        "myregistry:5000/myorg/myimage",
        "docker.io/v1/image",
        f"registry.io/{DIGEST.removeprefix('sha256:')}/image",
    ],
)
def test_names_lose_their_tag_and_digest(name: str, tail: str) -> None:
    assert without_tag_and_digest(name + tail) == name


@pytest.mark.parametrize("image", ["registry.io/myorg/", "registry.io/myorg/:tag", f"registry.io/myorg/@{DIGEST}"])
def test_what_is_no_name_has_no_bare_form(image: str) -> None:
    with pytest.raises(InvalidImageNameError):
        without_tag_and_digest(image)


SECRET = PullSecret("uid", "default", "pull-secret", "hash")
ACCOUNT = PullServiceAccount("uid", "default", "account")


@pytest.mark.parametrize(
    ("secret", "fits"),
    [
        (SECRET, True),
        (PullSecret("uid", "default", "pull-secret", "changed"), True),
        (PullSecret("other", "elsewhere", "pull-secret", "hash"), True),
        (PullSecret("other", "default", "pull-secret", "changed"), False),
        (PullSecret("uid", "elsewhere", "pull-secret", "changed"), False),
    ],
)
def test_a_secret_fits_by_content_or_by_place(secret: PullSecret, fits: bool) -> None:
    recorded = ImageCredentials(kubernetes_secrets=(PullSecret("1", "2", "3", "4"), SECRET))
    assert (key_that_fits(recorded, PodCredentials((secret,))) is not None) is fits


@pytest.mark.parametrize(("namespace", "fits"), [("default", True), ("elsewhere", False)])
def test_unknown_content_fits_nothing(namespace: str, fits: bool) -> None:
    recorded = ImageCredentials(kubernetes_secrets=(PullSecret("uid", "default", "pull-secret", ""),))
    pod = PodCredentials((PullSecret("uid", namespace, "pull-secret", ""),))
    assert (key_that_fits(recorded, pod) is not None) is fits


@pytest.mark.parametrize(
    ("account", "fits"),
    [
        (ACCOUNT, True),
        (PullServiceAccount("other", "default", "account"), False),
        (PullServiceAccount("uid", "elsewhere", "account"), False),
        (None, False),
    ],
)
def test_a_service_account_fits_by_place(account: PullServiceAccount | None, fits: bool) -> None:
    recorded = ImageCredentials(kubernetes_service_accounts=(ACCOUNT,))
    assert (key_that_fits(recorded, PodCredentials(service_account=account)) is not None) is fits
