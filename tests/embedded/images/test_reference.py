"""Names of images, read as containerd and Docker read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.embedded.images.errors import InvalidReferenceError
from trikubelet.embedded.images.reference import Reference, id_prefix

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1.36", "docker.io/library/busybox:1.36"),
        ("team/app", "docker.io/team/app:latest"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("index.docker.io/library/busybox", "docker.io/library/busybox:latest"),
        ("localhost/host", "localhost/host:latest"),
        ("localhost:5000/a/b:v1", "localhost:5000/a/b:v1"),
        ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
        ("[::1]:5000/app", "[::1]:5000/app:latest"),
        ("Upper/app", "Upper/app:latest"),
        ("a__b--c/d.e_f", "docker.io/a__b--c/d.e_f:latest"),
        (f"busybox@sha256:{HEX}", f"docker.io/library/busybox@sha256:{HEX}"),
        (f"busybox:1.36@sha256:{HEX}", f"docker.io/library/busybox@sha256:{HEX}"),
    ],
)
def test_a_name_gets_its_full_form(text: str, full: str) -> None:
    assert str(Reference.parse(text)) == full


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":latest",
        "Busybox",
        "busybox:",
        "busybox:-bad",
        "busybox:" + "x" * 129,
        "busybox@sha256:short",
        "busybox@md5:" + "0" * 32,
        "a//b",
        "/busybox",
        "busybox/",
        "../busybox",
        "a/../b",
        "busy box",
        "busybox\n",
        HEX,
        "x" * 250,
    ],
)
def test_what_is_no_name_is_refused_with_the_text_in_the_message(text: str) -> None:
    with pytest.raises(InvalidReferenceError) as caught:
        Reference.parse(text)
    assert repr(text) in str(caught.value)


@given(st.text(max_size=80))
def test_reading_any_text_gives_a_stable_full_name_or_a_refusal(text: str) -> None:
    try:
        reference = Reference.parse(text)
    except InvalidReferenceError:
        return
    assert Reference.parse(str(reference)) == reference


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        (HEX, HEX),
        (f"sha256:{HEX}", HEX),
        (HEX[:12], HEX[:12]),
        (f"sha256:{HEX[:13]}", HEX[:13]),
        (HEX[:11], None),
        ("cafe", None),
        (HEX[:12].upper().replace("0", "A"), None),
    ],
)
def test_ids_are_told_from_names(text: str, prefix: str | None) -> None:
    assert id_prefix(text) == prefix
