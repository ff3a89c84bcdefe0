"""Locations of registries: what matches what, and what is none."""

from __future__ import annotations

import time

import pytest

from trikubelet.runtime.images.credentials.locations import LocationError, location_matches, parse_location


@pytest.mark.parametrize(
    ("pattern", "target"),
    [
        ("*.kubernetes.io", "prefix.kubernetes.io"),
        ("prefix.*.io", "prefix.kubernetes.io"),
        ("prefix.kubernetes.*", "prefix.kubernetes.io"),
        ("*-good.kubernetes.io", "prefix-good.kubernetes.io"),
        ("*.kubernetes.io/blah", "prefix.kubernetes.io/blah"),
        ("prefix.*.io/foo", "prefix.kubernetes.io/foo/bar"),
        ("*.kubernetes.io:1111/blah", "prefix.kubernetes.io:1111/blah"),
        ("prefix.*.io:1111/foo", "prefix.kubernetes.io:1111/foo/bar"),
        ("*kubernetes.io", "kubernetes.io"),
        ("*.*.*.kubernetes.io", "a.b.c.kubernetes.io"),
        ("a*b*c.io", "a-b-b-c.io"),
        ("a**b.io", "ab.io"),
        ("[::1]:5000/team", "[::1]:5000/team/app"),
        ("[::1]", "[::1]/app"),
        ("user:password@quay.io", "quay.io/app"),
        ("quay.io/team?a=b#c", "quay.io/team/app"),
        ("quay.io/t%65am", "quay.io/team"),
    ],
)
def test_a_target_matches_its_pattern(pattern: str, target: str) -> None:
    assert location_matches(pattern, target)


@pytest.mark.parametrize(
    ("pattern", "target"),
    [
        ("*.kubernetes.io", "kubernetes.io"),
        ("*.*.kubernetes.io", "prefix.kubernetes.io"),
        ("*.*.kubernetes.io", "kubernetes.io"),
        ("*kubernetes.io", "a.kubernetes.io"),
        ("kubernetes.io", "kubernetes.com"),
        ("k*.io", "quay.io"),
        ("*.kubernetes.io:1234/blah", "prefix.kubernetes.io:1111/blah"),
        ("prefix.*.io/foo", "prefix.kubernetes.io:1111/foo/bar"),
        ("*", "a.b"),
        ("ab*ba.io", "aba.io"),
        ("a*b*b.io", "ab.io"),
        ("[::1]", "[::2]/app"),
        ("quay.io/*", "quay.io/team"),
        ("", "quay.io"),
        ("%in", "%in"),
    ],
)
def test_a_target_does_not_match_another_pattern(pattern: str, target: str) -> None:
    assert not location_matches(pattern, target)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("%invalid%", 'invalid URL escape "%in"'),
        ("quay.io/a%", 'invalid URL escape "%"'),
        ("quay%41.io", 'invalid URL escape "%41"'),
        ("quay.io:port", 'invalid port ":port" after host'),
        ("a:b:80", 'invalid port ":b:80" after host'),
        ("qu ay.io", 'invalid character " " in host name'),
        ("quay.io\n", "net/url: invalid control character in URL"),
        ("registry[12].io", "invalid host: brackets are for IPv6 addresses"),
        ("[::g]", "invalid host: expected an IPv6 address between the brackets"),
        ("[::1]80", 'invalid port "80" after host'),
    ],
)
def test_what_is_no_location_says_why(text: str, problem: str) -> None:
    with pytest.raises(LocationError) as caught:
        parse_location(text)
    assert str(caught.value) == problem


def test_a_hostile_pattern_takes_no_time() -> None:
    began = time.process_time()
    assert not location_matches("*a" * 60 + "b", "a" * 250)
    assert time.process_time() - began < 1
