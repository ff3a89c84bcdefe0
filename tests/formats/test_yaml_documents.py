from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.formats.yaml_documents import YamlError, read_documents


def one(text: str) -> object:
    return read_documents(text.encode())[0].data()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True),
        ("off", False),
        ("'yes'", "yes"),
        ("~", None),
        ("0644", 420),
        ("0x1F", 31),
        ("1_000", 1000),
        ("1e3", 1000.0),
        ("12:30:00", "12:30:00"),
        ("2026-01-01", "2026-01-01"),
        ("!!str 12", "12"),
        ("'12'", "12"),
        ("100m", "100m"),
        ("089", 89.0),
        ("0x_", "0x_"),
    ],
)
def test_scalars_are_what_kubernetes_makes_of_them(text: str, value: object) -> None:
    data = one(f"a: {text}")
    assert data == {"a": value}
    assert isinstance(data, dict)
    assert type(data["a"]) is type(value)


def test_every_field_knows_its_line() -> None:
    document = read_documents(b"kind: Pod\nspec:\n  containers:\n  - name: a\n    image: x\n  - name: b\n")[0]
    assert document.line_of("spec.containers[0].image") == 5
    assert document.line_of("spec.containers[1].name") == 6
    assert document.line_of("spec.containers[1].image") == 6, "a field that is absent belongs to what would hold it"
    assert document.line_of("metadata.name") == 1


def test_keys_with_dots_are_found_in_brackets() -> None:
    document = read_documents(b"metadata:\n  labels:\n    a: b\n    x.io/y: z\n")[0]
    assert document.line_of("metadata.labels[x.io/y]") == 4


@pytest.mark.parametrize("key", ["²", "٣", "1" * 10, "1" * 5000], ids=len)
def test_what_only_looks_like_an_index_is_a_key(key: str) -> None:
    document = read_documents(f"a:\n  b: 1\n  ? '{key}'\n  : 2\n".encode())[0]
    assert document.line_of(f"a[{key}]") == 3


def test_several_documents_are_read_with_lines_of_the_file() -> None:
    documents = read_documents(b"a: 1\n---\n---\nb: 2\n")
    assert [document.data() for document in documents] == [{"a": 1}, None, {"b": 2}]
    assert documents[2].line_of("b") == 4


def test_a_key_given_twice_is_named_and_the_last_value_taken() -> None:
    document = read_documents(b"spec:\n  a: 1\n  b: 2\n  a: 3\n")[0]
    assert document.data() == {"spec": {"a": 3, "b": 2}}
    assert [(duplicate.line, duplicate.path) for duplicate in document.duplicates] == [(4, "spec.a")]


def test_merge_keys_give_defaults() -> None:
    assert one("base: &base {a: 1, b: 2}\nx:\n  <<: *base\n  b: 3\n") == {
        "base": {"a": 1, "b": 2},
        "x": {"a": 1, "b": 3},
    }


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: &x\n  b: *x\n", 2, "the value that contains it"),
        ("a: &x [1, *x]\n", 1, "the value that contains it"),
        ("a: *nowhere\n", 1, "names no anchor"),
        ("a: [1, 2\nb: 3\n", 2, "flow sequence"),
        ("a: 'open\n", 2, "quoted scalar"),
        ("a:\n\t- b\n", 2, "cannot start any token"),
        ("a: !!python/object:os.system x\n", 1, "not supported"),
        ("a: !!binary aGk=\n", 1, "not supported"),
        ("a: .nan\n", 1, "finite"),
        ("? [a]\n: b\n", 1, "expected a string as key"),
        ("[" * 5000, 1, "deep"),
        ("a: 1" + "0" * 5000, 1, "digits"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(YamlError, match=message) as caught:
        read_documents(text.encode())
    assert caught.value.line == line


def test_a_billion_laughs_are_refused_before_they_are_expanded() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 12):
        text += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n"
    with pytest.raises(YamlError, match="expand"):
        one(text)


def test_aliases_that_nest_without_end_are_refused() -> None:
    text = "a0: &a0 [x]\n" + "".join(f"a{level}: &a{level} [*a{level - 1}]\n" for level in range(1, 3000))
    with pytest.raises(YamlError, match="nest"):
        one(text)


def test_too_many_values_are_refused() -> None:
    with pytest.raises(YamlError, match="more than"):
        read_documents(b"[" + b"1," * 300_000 + b"1]")


@pytest.mark.parametrize("raw", [b"\x7fELF\x02\x01", b"a: \0", bytes(range(256))])
def test_binary_is_refused(raw: bytes) -> None:
    with pytest.raises(YamlError):
        read_documents(raw)


def test_bytes_that_are_not_utf_8_are_named_with_their_line() -> None:
    with pytest.raises(YamlError, match="0xe9") as caught:
        read_documents(b"a: b\nc: caf\xe9\n")
    assert caught.value.line == 2


def test_a_byte_order_mark_is_ignored() -> None:
    assert read_documents(b"\xef\xbb\xbfa: 1")[0].data() == {"a": 1}


# YAML gives a key without quotes around its mapping at most 1024 characters on the wire.
KEY = st.text(max_size=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(KEY, children, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(KEY, JSON, max_size=4), st.booleans())
def test_json_is_read_as_json(data: dict[str, object], escaped: bool) -> None:
    if "<<" in str(data):
        return
    text = json.dumps(data, ensure_ascii=True, indent="\t" if escaped else None)
    assert read_documents(text.encode())[0].data() == data


@pytest.mark.parametrize("escape", [r"\ud800", r"\udfff", r"\U00110000"])
@pytest.mark.parametrize("parser", ["C", "Python"])
def test_characters_that_do_not_exist_are_refused_by_either_parser(
    monkeypatch: pytest.MonkeyPatch, parser: str, escape: str
) -> None:
    if parser == "Python":
        monkeypatch.delattr("yaml.CSafeLoader")
    with pytest.raises(YamlError) as caught:
        one(f'a: 1\nb: "{escape}"\n')
    assert caught.value.line == 2


@pytest.mark.parametrize("text", ["1e999", "-1.0e999"])
def test_a_number_beyond_all_bounds_is_a_string(text: str) -> None:
    assert one(text) == text
