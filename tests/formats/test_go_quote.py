"""Text in quotes, as Go's `%q` has it."""

from __future__ import annotations

import pytest

from trikubelet.formats.go_quote import go_quote, go_quote_bytes


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", '""'),
        ("plain text", '"plain text"'),
        ("<a & b>", '"<a & b>"'),
        ("it's", '"it\'s"'),
        ('say "hi"', r'"say \"hi\""'),
        ("back\\slash", r'"back\\slash"'),
        ("\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        ("\0\x01\x1b\x1f\x7f", r'"\x00\x01\x1b\x1f\x7f"'),
        ("\x80\x85\x9f", r'"\u0080\u0085\u009f"'),
        ("ä € 漢 😀", '"ä € 漢 😀"'),
        ("e\u0301", '"e\u0301"'),
        ("\xa0\xad\u2003", r'"\u00a0\u00ad\u2003"'),
        ("\u200b\u200d\u2028\u2029\ufeff", r'"\u200b\u200d\u2028\u2029\ufeff"'),
        ("\ue000\uffff\U000e0001\U0010ffff", r'"\ue000\uffff\U000e0001\U0010ffff"'),
        ("\ufffd", '"\ufffd"'),
        ("\ud800 \udc80", '"\ufffd \ufffd"'),
    ],
)
def test_text_is_quoted_as_go_quotes_it(text: str, quoted: str) -> None:
    assert go_quote(text) == quoted


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", '"plain"'),
        (b'"\\\n\t\x00\x7f', r'"\"\\\n\t\x00\x7f"'),
        ("ä €😀\u200b\U000e0001".encode(), '"ä €😀\\u200b\\U000e0001"'),
        (b"\xff\xc3", r'"\xff\xc3"'),
    ],
)
def test_bytes_are_quoted_as_go_quotes_them(data: bytes, text: str) -> None:
    assert go_quote_bytes(data) == text
