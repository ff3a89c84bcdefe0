"""Rules about `logging:`; the first table is `TestValidation` of component-base."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from trikubelet.config.kubelet_configuration import (
    KubeletConfiguration,
    LogFormatOptions,
    Logging,
    LogOptions,
    VModuleItem,
)
from trikubelet.config.loader import load_configuration
from trikubelet.config.logging_rules import check_logging

SPLIT = LogFormatOptions(json=LogOptions(split_stream=True, info_buffer_size="1024"))
FORBIDDEN = [
    ("logging.options.json.splitStream", "needs the feature gate LoggingAlphaOptions"),
    ("logging.options.json.infoBufferSize", "needs the feature gate LoggingAlphaOptions"),
]


def item(pattern: str, verbosity: int = 1) -> VModuleItem:
    return VModuleItem(file_pattern=pattern, verbosity=verbosity)


def problems(gates: dict[str, bool] | None = None, **fields: Any) -> list[tuple[str, str]]:
    config = KubeletConfiguration(logging=Logging(**fields), feature_gates=gates or {})
    return [(problem.path, problem.message) for problem in check_logging(config)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"verbosity": 10, "vmodule": (item("gopher*", 100),)}, []),
        ({"format": "no-such-format"}, [("logging.format", 'must be "text" or "json", got "no-such-format"')]),
        ({"verbosity": 2**31}, [("logging.verbosity", "must be between 0 and 2147483647, got 2147483648")]),
        (
            {"vmodule": (item("gopher*", 2**31),)},
            [("logging.vmodule[0].verbosity", "must be between 0 and 2147483647, got 2147483648")],
        ),
        ({"vmodule": (item(""),)}, [("logging.vmodule[0].filePattern", "must not be empty")]),
        (
            {"vmodule": (item("foo,bar"), item("foo=bar"))},
            [
                ("logging.vmodule[0].filePattern", 'must not contain "=" or ",", got "foo,bar"'),
                ("logging.vmodule[1].filePattern", 'must not contain "=" or ",", got "foo=bar"'),
            ],
        ),
        ({"format": "json", "vmodule": (item("foo"),)}, [("logging.vmodule", "needs the format text")]),
        ({"options": SPLIT}, FORBIDDEN),
        ({"options": SPLIT, "gates": {"LoggingAlphaOptions": False}}, FORBIDDEN),
        ({"options": SPLIT, "gates": {"LoggingAlphaOptions": True}}, []),
        ({"flush_frequency": timedelta(seconds=-1)}, [("logging.flushFrequency", "must be longer than 0s")]),
        ({"format": "json"}, []),
        (
            {"format": "json", "gates": {"LoggingBetaOptions": False}},
            [("logging.format", '"json" needs the feature gate LoggingBetaOptions')],
        ),
    ],
)
def test_rules(fields: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert problems(**fields) == expected


def test_the_size_of_the_buffer_is_a_quantity() -> None:
    options = LogFormatOptions(text=LogOptions(info_buffer_size="many"))
    (problem,) = problems({"LoggingAlphaOptions": True}, options=options)
    assert problem[0] == "logging.options.text.infoBufferSize"
    assert 'got "many"' in problem[1]


@pytest.mark.parametrize(("text", "seconds"), [("1500ms", 1.5), ("2000000000", 2), ("5s", 5)])
def test_a_number_is_of_nanoseconds_and_of_bytes(text: str, seconds: float, tmp_path: Any) -> None:
    file = tmp_path / "kubelet.yaml"
    file.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "featureGates: {LoggingAlphaOptions: true}\n"
        f"logging: {{flushFrequency: {text}, options: {{json: {{infoBufferSize: 1024, splitStream: true}}}}}}\n"
    )
    logging = load_configuration(file).config.logging
    assert logging.flush_frequency == timedelta(seconds=seconds)
    assert logging.options.json == LogOptions(split_stream=True, info_buffer_size="1024")
