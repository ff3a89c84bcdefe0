from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.embedded.registry.challenge import Challenge, parse_challenges, strongest
from trikubelet.embedded.registry.credentials import CredentialsFormatError, read_credentials


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("", []),
        ("Basic", [("basic", {})]),
        ('Basic realm="a b"', [("basic", {"realm": "a b"})]),
        ("Bearer realm=https://auth.example/token", [("bearer", {"realm": "https://auth.example/token"})]),
        (
            'Bearer realm="https://a/t",service="r",scope="repository:x:pull,push"',
            [("bearer", {"realm": "https://a/t", "service": "r", "scope": "repository:x:pull,push"})],
        ),
        (
            'Basic realm="x", Bearer realm="y" , service="z"',
            [("basic", {"realm": "x"}), ("bearer", {"realm": "y", "service": "z"})],
        ),
        (r'Basic realm="a \"b\" \\ c"', [("basic", {"realm": r'a "b" \ c'})]),
        ('BEARER REALM="x", realm="y"', [("bearer", {"realm": "x"})]),
        ('Bearer realm="unfinished', [("bearer", {"realm": ""})]),
        ("Basic ;;; Bearer", [("basic", {})]),
    ],
)
def test_challenges_are_read(header: str, found: list[tuple[str, dict[str, str]]]) -> None:
    read = [(challenge.scheme, dict(challenge.parameters)) for challenge in parse_challenges([header])]
    assert read == found


@pytest.mark.fuzz
@given(st.lists(st.text(alphabet='Basic Brer="\\,;= \t/:\x00é', max_size=60), max_size=3))
def test_no_header_breaks_the_reading(headers: list[str]) -> None:
    for challenge in parse_challenges(headers):
        assert challenge.scheme


def test_a_token_is_taken_before_a_password_unless_nobody_says_where_to_get_one() -> None:
    basic, bearer = Challenge("basic", {"realm": "x"}), Challenge("bearer", {"realm": "https://t"})
    assert strongest([basic, bearer]) is bearer
    assert strongest([basic, Challenge("bearer", {})]) is basic
    assert strongest([Challenge("digest", {})]) is None


def test_credentials_are_for_their_server_alone() -> None:
    for address in ("docker.io", "https://index.docker.io/v1/", "registry-1.docker.io"):
        assert read_credentials("docker.io", username="a", password="b", server_address=address).basic
    assert not read_credentials("docker.io", username="a", password="b", server_address="docker.io.example").basic


def test_encoded_credentials_are_read_and_broken_ones_told_without_repeating_them() -> None:
    assert read_credentials("r", auth="YTpiOmM=").password == "b:c"
    for broken in ("secret!", "c2VjcmV0"):
        with pytest.raises(CredentialsFormatError) as caught:
            read_credentials("r", auth=broken)
        assert broken not in str(caught.value)
