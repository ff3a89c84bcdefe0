"""SHA-256 by Python's own code."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from trikubelet.formats.digests import sha256


@given(st.binary(max_size=300))
def test_it_is_that_of_hashlib(data: bytes) -> None:
    assert sha256(data).digest() == hashlib.sha256(data).digest()
