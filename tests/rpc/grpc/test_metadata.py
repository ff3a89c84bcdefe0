from __future__ import annotations

import pytest
from grpclib.metadata import decode_timeout
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.backoff import Backoff
from trikubelet.rpc.grpc.metadata import decode_metadata, encode_metadata, encode_timeout, request_headers


@given(st.floats(min_value=0, max_value=3e11))
def test_an_encoded_timeout_is_never_shorter_and_hardly_longer(seconds: float) -> None:
    encoded = encode_timeout(seconds).decode()
    assert len(encoded) <= 9
    decoded = decode_timeout(encoded)
    assert decoded >= seconds * (1 - 1e-12)
    assert decoded - seconds <= max(1e-5, seconds * 1e-3)


def test_a_timeout_above_ten_seconds_keeps_its_fraction() -> None:
    assert encode_timeout(10.9) == b"10900000u"


@given(value=st.binary())
def test_binary_metadata_survives_the_wire(value: bytes) -> None:
    assert decode_metadata(encode_metadata({"trace-bin": value})).getall("trace-bin") == [value]


def test_metadata_has_none_of_the_protocols_own_headers() -> None:
    headers = [*request_headers("/a/B", b"localhost"), (b"grpc-timeout", b"1S"), (b"who", b"me")]
    assert dict(decode_metadata(headers)) == {"who": "me"}


@pytest.mark.parametrize("key", ["grpc-status", "te", "Upper", "a b"])
def test_metadata_with_a_reserved_or_illegal_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="Invalid metadata key"):
        encode_metadata({key: "x"})


def test_backoff_grows_to_its_maximum() -> None:
    backoff = Backoff(first=1, longest=5)
    assert [backoff.delay(failures, 0.5) for failures in (1, 2, 3, 4, 5000)] == [1, 2, 4, 5, 5]


@given(chance=st.floats(0, 1, exclude_max=True), failures=st.integers(1, 10**6))
def test_jitter_stays_within_its_share(chance: float, failures: int) -> None:
    backoff = Backoff(first=0.1, longest=3.0, factor=1.6, jitter=0.2)
    plain = Backoff(first=0.1, longest=3.0, factor=1.6).delay(failures, 0)
    assert 0.8 * plain <= backoff.delay(failures, chance) <= 1.2 * plain
