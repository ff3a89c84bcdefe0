"""kubectl's JSONPath (`client-go/util/jsonpath`): its tables as facts, and whatever a person may type."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.formats.jsonpath import JSONPath, JSONPathError

STORE: dict[str, Any] = {
    "Name": "jsonpath",
    "Book": [
        {"Category": "reference", "Author": "Nigel Rees", "Title": "Sayings of the Centurey", "Price": 8.95},
        {"Category": "fiction", "Author": "Evelyn Waugh", "Title": "Sword of Honour", "Price": 12.99},
    ],
    "Bicycle": [{"Color": "red", "Price": 19.95, "IsNew": True}, {"Color": "green", "Price": 20.01, "IsNew": False}],
    "Labels": {"engieer": 10, "web/html": 15, "k8s-app": 20},
    "Employees": {"jason": "manager", "dan": "clerk"},
    "with.dots": 1,
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("hello jsonpath", None),
        ("{.Name}", "jsonpath"),
        (".Name", "jsonpath"),
        ("Name", "jsonpath"),
        ("{Name}", "jsonpath"),
        ("{$.Name}", "jsonpath"),
        ("hello {.Name}!", "hello jsonpath!"),
        ('{"a\\n"}{.Name}', "a\njsonpath"),
        ("{'it'}", "it"),
        ("{.Labels.engieer}", "10"),
        ("{.Labels['web/html']}", "15"),
        ("{.Labels.k8s-app}", "20"),
        (r"{.with\.dots}", "1"),
        ("{.Employees['jason','dan']}", "manager clerk"),
        ("{.Book[*].Author}", "Nigel Rees Evelyn Waugh"),
        ("{.Book[0].Author}", "Nigel Rees"),
        ("{.Book[-1].Author}", "Evelyn Waugh"),
        ("{.Book[7].Author}", ""),
        ("{.Book[0:1].Title}", "Sayings of the Centurey"),
        ("{.Book[1:].Title}", "Sword of Honour"),
        ("{.Book[0,1].Price}", "8.95 12.99"),
        ('{range .Bicycle[*]}{ "{" }{ @.* }{ "} " }{end}', "{red 19.95 true} {green 20.01 false} "),
        ('{range .Book[*]}{.Author}{"\\n"}{end}', "Nigel Rees\nEvelyn Waugh\n"),
        ("{range .Nothing[*]}x{end}", ""),
        ("{..Price}", "8.95 12.99 19.95 20.01"),
        ("{.Book[?(@.Price < 10)].Title}", "Sayings of the Centurey"),
        ('{.Book[?(@.Category=="fiction")].Title}', "Sword of Honour"),
        ("{.Bicycle[?(@.IsNew==true)].Color}", "red"),
        ("{.Bicycle[?(@.IsNew)].Color}", "red green"),
        ("{.Bicycle[?(@.Absent)].Color}", ""),
        ("{.Book[?(@.Title < 10)].Title}", ""),
        ("{.Bicycle[0]}", '{"Color":"red","Price":19.95,"IsNew":true}'),
        ("{.Absent.more[0]}", ""),
        ("{.Name.more}", ""),
    ],
)
def test_a_template_says(template: str, text: str | None) -> None:
    if text is None:
        with pytest.raises(JSONPathError):
            JSONPath(template)
    else:
        assert JSONPath(template).render(STORE) == text


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{.Name", "unclosed action"),
        ("{end}", "without its {range}"),
        ("{range .Book[*]}", "without its {end}"),
        ("{.Book[}", "unterminated array"),
        ("{.Book[x]}", "invalid array index"),
        ("{.Book[0:1:0]}", "must not be 0"),
        ("{.Book[?(@.Price==ten)]}", "put texts into quotes"),
        ("{.a b}", "unexpected"),
    ],
)
def test_what_cannot_be_read_says_why(template: str, problem: str) -> None:
    with pytest.raises(JSONPathError, match=problem.replace("{", r"\{")):
        JSONPath(template)


def test_values_are_what_the_paths_lead_to() -> None:
    assert JSONPath("{.Book[*].Price}").values(STORE) == [8.95, 12.99]


@given(st.text(alphabet="{}[]().*?@$'\"\\ ,:=<>!aN0-1range end", max_size=40))
def test_any_text_is_a_template_or_an_error(text: str) -> None:
    with contextlib.suppress(JSONPathError):
        JSONPath(text).render(STORE)
