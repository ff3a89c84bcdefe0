"""Selectors as people type them (apimachinery: `labels.Parse`)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.formats.selectors import SelectorError, field_selector, label_selector

LABELS = {"app": "web", "tier": "front", "n": "5", "example.com/x": ""}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        ("app = web", True),
        ("app=db", False),
        ("app!=db", True),
        ("absent!=x", True),
        ("app=web,tier=front", True),
        ("app=web,tier=back", False),
        ("app in (web, db)", True),
        ("app in (db)", False),
        ("app notin (db),tier", True),
        ("absent notin (x)", True),
        ("app", True),
        ("!app", False),
        ("!absent", True),
        ("example.com/x=", True),
        ("n>4", True),
        ("n<5", False),
        ("app>1", False),
    ],
)
def test_labels_are_selected(text: str, selected: bool) -> None:
    assert label_selector(text)(LABELS) is selected


@pytest.mark.parametrize("text", ["app=web,", "in (a)", "a in a", "=x", "a b", "n>x", "a=b=c"])
def test_what_is_no_selector_is_an_error(text: str) -> None:
    with pytest.raises(SelectorError):
        label_selector(text)


ITEM = {"metadata": {"name": "a"}, "spec": {"hostNetwork": True}, "status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", True),
        ("status.phase=Running", True),
        ("status.phase==Running,metadata.name!=b", True),
        ("status.phase!=Running", False),
        ("spec.hostNetwork=true", True),
        ("status.podIP=", True),
        ("metadata.name.more=x", False),
    ],
)
def test_objects_are_selected_by_their_fields(text: str, selected: bool) -> None:
    assert field_selector(text)(ITEM) is selected


def test_a_field_without_a_value_is_an_error() -> None:
    with pytest.raises(SelectorError, match="expected FIELD=VALUE"):
        field_selector("status.phase")


@given(st.text(max_size=30))
def test_any_text_is_a_selector_or_an_error(text: str) -> None:
    for read in (label_selector, field_selector):
        with contextlib.suppress(SelectorError):
            read(text)({})
