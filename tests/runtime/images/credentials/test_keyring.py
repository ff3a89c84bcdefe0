"""Keyrings: which credentials fit a repository, and in which order."""

from __future__ import annotations

import pytest

from trikubelet.runtime.images.credentials.keyring import (
    Auth,
    Keyring,
    Source,
    TrackedCredential,
    credential_hash,
    is_in_default_registry,
)

LOGIN = Auth("foo", "bar", "foo@bar.baz")


def users(keyring: Keyring, repository: str) -> list[str]:
    return [found.auth.username for found in keyring.lookup(repository)]


def keyring_with(*locations: str) -> Keyring:
    keyring = Keyring()
    keyring.add(dict.fromkeys(locations, LOGIN))
    return keyring


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("https://hello.kubernetes.io", "hello.kubernetes.io"),
        ("https://*.docker.io", "prefix.docker.io"),
        ("https://prefix.*.io", "prefix.docker.io"),
        ("https://prefix.docker.*", "prefix.docker.io"),
        ("https://*.docker.io/path", "prefix.docker.io/path"),
        ("https://prefix.*.io/path", "prefix.docker.io/path/subpath"),
        ("https://prefix.docker.*/path", "prefix.docker.io/path"),
        ("https://*.docker.io:8888", "prefix.docker.io:8888"),
        ("https://prefix.*.io:8888", "prefix.docker.io:8888"),
        ("https://prefix.docker.*:8888", "prefix.docker.io:8888"),
        ("https://*.docker.io/path:1111", "prefix.docker.io/path:1111"),
        ("https://*.docker.io/v1/", "prefix.docker.io/path:1111"),
        ("https://*.docker.io/v2/", "prefix.docker.io/path:1111"),
        ("https://prefix.docker.*/path:1111", "prefix.docker.io/path:1111"),
        ("prefix.docker.io:1111", "prefix.docker.io:1111/path"),
        ("*.docker.io:1111", "prefix.docker.io:1111/path"),
        ("http://plain.io/", "plain.io"),
    ],
)
def test_a_location_holds_for_what_is_below_it(location: str, target: str) -> None:
    assert [found.auth for found in keyring_with(location).lookup(f"{target}/foo/bar")] == [LOGIN]


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("https://hello.kubernetes.io", "world.mesos.org"),
        ("https://*.docker.com", "prefix.docker.io"),
        ("https://suffix.*.io", "prefix.docker.io"),
        ("https://prefix.docker.c*", "prefix.docker.io"),
        ("https://prefix.*.io/path:1111", "prefix.docker.io/path/subpath:1111"),
        ("suffix.*.io", "prefix.docker.io"),
        ("https://index.docker.io/v1/", "world.mesos.org"),
    ],
)
def test_a_location_holds_for_nothing_else(location: str, target: str) -> None:
    assert keyring_with(location).lookup(f"{target}/foo/bar") == []


@pytest.mark.parametrize(
    "repository",
    ["google/docker-registry", "jenkins", "index.docker.io/v1/google/registry", "docker.io/library/busybox"],
)
def test_names_without_a_registry_get_the_credentials_of_docker_hub(repository: str) -> None:
    assert users(keyring_with("https://index.docker.io/v1/"), repository) == ["foo"]


@pytest.mark.parametrize(
    ("repository", "expected"),
    [
        ("foo/bar", True),
        ("docker.io/foo/bar", True),
        ("index.docker.io/foo/bar", True),
        ("foo", True),
        ("", False),
        ("/foo", False),
        ("registry.tld/foo/bar", False),
        ("registry:5000/foo/bar", False),
        ("myhostdocker.io/foo/bar", False),
    ],
)
def test_the_default_registry_is_known_by_the_name(repository: str, expected: bool) -> None:
    assert is_in_default_registry(repository) is expected


@pytest.mark.parametrize(
    ("repository", "expected"),
    [
        ("bar.example.com", ["ada"]),
        ("bar.example.com/pong", ["grace", "ada"]),
        ("bar.example.com/ping", ["ada"]),
        ("bar.example.com/pongz", ["grace", "ada"]),
        ("bar.example.com/pong/pang", ["grace", "ada"]),
        ("example.com", []),
        ("foo.example.com", []),
    ],
)
def test_the_longer_location_comes_first(repository: str, expected: list[str]) -> None:
    keyring = Keyring()
    keyring.add({"bar.example.com": Auth("ada"), "bar.example.com/pong": Auth("grace")})
    assert users(keyring, repository) == expected


def test_credentials_for_one_location_keep_their_order() -> None:
    keyring = Keyring()
    keyring.add({"quay.io": Auth("first")}, Source("secret", "u", "ns", "s"))
    keyring.add({"https://quay.io/v1/": Auth("second")})
    found = keyring.lookup("quay.io/app")
    assert [(each.auth.username, each.source) for each in found] == [
        ("first", Source("secret", "u", "ns", "s")),
        ("second", None),
    ]


def test_what_is_no_location_is_left_out_without_its_password() -> None:
    keyring = keyring_with("https://user:hush@qu ay.io", "quay.io")
    assert users(keyring, "quay.io/app") == ["foo"]
    assert keyring.invalid_locations == ["qu ay.io"]


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        (
            Auth("ada", "smash", "ada@example.com"),
            "353258b53f5e9a57b059eab3f05312fc35bbeb874f08ce101e7bf0bf46977423",
        ),
        (
            Auth("grace", "squash", "grace@example.com"),
            "f949b3837a1eb733a951b6aeda0b3327c09ec50c917de9ca35818e8fbf567e29",
        ),
        (
            Auth("rex", "tiny arms", "rex@example.com"),
            "899748fec74c8dd761845fca727f4249b05be275ff24026676fcd4351f656363",
        ),
        (Auth("user", "password"), "a55436fc140d516560d072c5fe8700385ce9f41629abf65c1edcbcb39fac691d"),
    ],
)
def test_the_hash_is_the_kubelets(auth: Auth, expected: str) -> None:
    assert credential_hash(auth) == TrackedCredential(auth).hash == expected


def test_no_secret_is_printed() -> None:
    keyring = Keyring()
    auth = Auth("hush", "hush", "hush", "hush", "hush", "hush", "hush")
    keyring.add({"quay.io": auth})
    assert "hush" not in f"{auth!r} {keyring!r} {keyring.lookup('quay.io')!r}"
    assert TrackedCredential(auth).hash not in repr(TrackedCredential(auth))
