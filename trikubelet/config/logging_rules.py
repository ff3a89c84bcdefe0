"""Rules of `logging:` (kubelet: `component-base/logs/api/v1`). Pure.

Verbosities are those of the kubelet's log; `vmodule` names parts of the agent where the kubelet's names files.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from trikubelet.api.quantity import Quantity, QuantityError
from trikubelet.config.decode import FieldProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.config.kubelet_configuration import KubeletConfiguration, LogOptions

_MOST: Final = 2**31 - 1


def check_logging(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    """Every rule that is broken."""
    logging = config.logging
    if logging.flush_frequency <= timedelta(0):
        yield FieldProblem("logging.flushFrequency", "must be longer than 0s")
    if logging.format not in ("text", "json"):
        yield FieldProblem("logging.format", f'must be "text" or "json", got "{logging.format}"')
    elif logging.format == "json" and not config.enabled("LoggingBetaOptions"):
        yield FieldProblem("logging.format", '"json" needs the feature gate LoggingBetaOptions')
    if not 0 <= logging.verbosity <= _MOST:
        yield FieldProblem("logging.verbosity", f"must be between 0 and {_MOST}, got {logging.verbosity}")
    if logging.vmodule and logging.format != "text":
        yield FieldProblem("logging.vmodule", "needs the format text")
    for index, item in enumerate(logging.vmodule):
        path = f"logging.vmodule[{index}]"
        if not item.file_pattern:
            yield FieldProblem(f"{path}.filePattern", "must not be empty")
        if set(item.file_pattern) & set("=,"):
            yield FieldProblem(f"{path}.filePattern", f'must not contain "=" or ",", got "{item.file_pattern}"')
        if not 0 <= item.verbosity <= _MOST:
            yield FieldProblem(f"{path}.verbosity", f"must be between 0 and {_MOST}, got {item.verbosity}")
    for name, options in (("text", logging.options.text), ("json", logging.options.json)):
        yield from _check_options(f"logging.options.{name}", options, allowed=config.enabled("LoggingAlphaOptions"))


def _check_options(path: str, options: LogOptions, *, allowed: bool) -> Iterator[FieldProblem]:
    try:
        buffered = Quantity(options.info_buffer_size) != Quantity()
    except QuantityError as error:
        yield FieldProblem(f"{path}.infoBufferSize", str(error))
        return
    for name, given in (("splitStream", options.split_stream), ("infoBufferSize", buffered)):
        if given and not allowed:
            yield FieldProblem(f"{path}.{name}", "needs the feature gate LoggingAlphaOptions")
