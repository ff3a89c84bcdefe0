"""The forms of names: DNS labels and subdomains, qualified names, label values, ports, environment variables.

Each function answers with what is wrong, in the API server's words; an empty list means that the text is fine.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_UNDERSCORE_LABEL: Final = "[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?"
_UNDERSCORE_SUBDOMAIN: Final = rf"{_UNDERSCORE_LABEL}(\.{_UNDERSCORE_LABEL})*"
_QUALIFIED: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE: Final = f"({_QUALIFIED})?"
_CONFIG_KEY: Final = "[-._a-zA-Z0-9]+"
_HEADER: Final = "[-A-Za-z0-9]+"

_QUALIFIED_MESSAGE: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)


def dns_label(text: str) -> list[str]:
    """At most 63 of a-z, 0-9 and `-`, neither first nor last a dash (RFC 1123)."""
    return _too_long(text, 63) + _mismatch(
        text,
        _LABEL,
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
        "and must start and end with an alphanumeric character",
        "my-name",
        "123-abc",
    )


def dns_subdomain(text: str) -> list[str]:
    """Labels joined by dots, at most 253 characters: the form of most object names."""
    return _too_long(text, 253) + _mismatch(
        text,
        _SUBDOMAIN,
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
        "and must start and end with an alphanumeric character",
        "example.com",
    )


def search_domain(text: str) -> list[str]:
    """A subdomain that may hold underscores."""
    return _too_long(text, 253) + _mismatch(
        text,
        _UNDERSCORE_SUBDOMAIN,
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', "
        "and must start and end with an alphanumeric character",
        "example.com",
    )


def qualified_name(text: str) -> list[str]:
    """A label key: a name of at most 63 characters, with an optional subdomain and `/` in front."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        return [
            "a qualified name "
            + _regex_message(_QUALIFIED_MESSAGE, _QUALIFIED, "MyName", "my.name", "123-abc")
            + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    messages: list[str] = []
    if slash:
        wrong = dns_subdomain(prefix) if prefix else ["must be non-empty"]
        messages += [f"prefix part {message}" for message in wrong]
    if not name:
        messages.append("name part must be non-empty")
    wrong = _too_long(name, 63) + _mismatch(name, _QUALIFIED, _QUALIFIED_MESSAGE, "MyName", "my.name", "123-abc")
    return messages + [f"name part {message}" for message in wrong]


def label_value(text: str) -> list[str]:
    return _too_long(text, 63) + _mismatch(
        text,
        _LABEL_VALUE,
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
        "and must start and end with an alphanumeric character",
        "MyValue",
        "my_value",
        "12345",
    )


def port_name(text: str) -> list[str]:
    """An IANA service name: at most 15 of a-z, 0-9 and `-`, with a letter."""
    messages = _too_long(text, 15)
    if not re.fullmatch("[-a-z0-9]+", text):
        messages.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search("[a-z]", text):
        messages.append("must contain at least one letter (a-z)")
    if "--" in text:
        messages.append("must not contain consecutive hyphens")
    if text.startswith("-") or text.endswith("-"):
        messages.append("must not begin or end with a hyphen")
    return messages


def port_number(number: int) -> list[str]:
    return inclusive_range(number, 1, 65535)


def user_or_group_id(number: int) -> list[str]:
    return inclusive_range(number, 0, 2**31 - 1)


def inclusive_range(number: int, low: int, high: int) -> list[str]:
    return [] if low <= number <= high else [f"must be between {low} and {high}, inclusive"]


def environment_name(text: str) -> list[str]:
    """Any printable ASCII text without `=` (KEP-4369)."""
    if not text:
        return ["environment variable name must be non-empty"]
    if all(" " <= character <= "~" and character != "=" for character in text):
        return []
    return ["a valid environment variable name must consist only of printable ASCII characters other than '='"]


def config_map_key(text: str) -> list[str]:
    """A key of a config map or secret: it becomes a file name."""
    messages = _too_long(text, 253) + _mismatch(
        text,
        _CONFIG_KEY,
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
        "key.name",
        "KEY_NAME",
        "key-name",
    )
    if text in (".", ".."):
        messages.append(f"must not be '{text}'")
    elif text.startswith(".."):
        messages.append("must not start with '..'")
    return messages


def header_name(text: str) -> list[str]:
    message = "a valid HTTP header must consist of alphanumeric characters or '-'"
    return _mismatch(text, _HEADER, message, "X-Header-Name")


def ip_address(text: str) -> list[str]:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return ["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"]
    return []


def _too_long(text: str, limit: int) -> list[str]:
    return [f"must be no more than {limit} bytes"] if len(text.encode()) > limit else []


def _mismatch(text: str, pattern: str, message: str, *examples: str) -> list[str]:
    return [] if re.fullmatch(pattern, text, re.ASCII) else [_regex_message(message, pattern, *examples)]


def _regex_message(message: str, pattern: str, *examples: str) -> str:
    # Two spaces before "or", as the API server has them.
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{message} (e.g. {shown}regex used for validation is '{pattern}')"
