"""Loads the agent's configuration: `--config` file, then drop-ins of `--config-dir`, then deprecated flags.

The data flows as plain mappings: each file is read and checked alone, so that a mistake is reported with its file and
line; the mappings are merged (RFC 7386, as the kubelet merges drop-ins: mappings key by key, lists as a whole, null
takes a field back to its default); flags go on top; then the sum is decoded, completed with defaults and held against
the rules. Everything wrong is reported at once, and what is merely without effect becomes a warning.

Reads files synchronously: it runs before the agent does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trikubelet.config.decode import Decoded, FieldProblem, decode_configuration
from trikubelet.config.eviction_thresholds import DEFAULT_HARD
from trikubelet.config.feature_gates import gate_warnings
from trikubelet.config.flags import FLAG_BY_NAME, apply_flags
from trikubelet.config.kubelet_configuration import (
    API_VERSION,
    KIND,
    RELATIVE_PATHS,
    SUPPORTED,
    KubeletConfiguration,
)
from trikubelet.config.rules import check_configuration
from trikubelet.formats.values import frozen
from trikubelet.formats.yaml_documents import Document, YamlError, read_documents

DROP_IN_SUFFIX: Final = ".conf"
MAX_FILE_SIZE: Final = 10 * 2**20


@frozen
class ConfigurationProblem:
    """One reason why the configuration cannot be used."""

    path: str
    """The field, empty when the whole file is meant."""
    message: str
    origin: str = ""
    """The file or flag that holds it, empty when it follows from their sum."""
    line: int | None = None

    def __str__(self) -> str:
        place = f"{self.origin}:{self.line}" if self.line else self.origin
        return ": ".join(part for part in (place, self.path, self.message) if part)


class ConfigurationError(Exception):
    """The configuration cannot be used; `problems` names every reason."""

    def __init__(self, problems: Sequence[ConfigurationProblem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


@frozen
class LoadedConfiguration:
    """A configuration that may be used."""

    config: KubeletConfiguration
    warnings: tuple[str, ...] = ()
    """What was set without effect, one sentence each."""
    explicit: frozenset[str] = frozenset()
    """Top-level fields that a file or flag set: elsewhere the agent may choose a default that fits the machine."""


@frozen
class _File:
    path: Path
    document: Document
    data: dict[str, Any]


def load_configuration(
    config_file: Path | None = None,
    config_dir: Path | None = None,
    flags: Mapping[str, Sequence[str]] | None = None,
    settings: Mapping[str, tuple[str, str]] | None = None,
) -> LoadedConfiguration:
    """Load and check a configuration.

    `flags` maps the kubelet's flags (names without dashes, see `CONFIG_FLAGS`) to the texts they were given; `settings`
    maps the agent's own flags (with dashes) to the top-level field that each sets and its value, and wins over all.
    Raises ConfigurationError with every problem of every file.
    """
    problems: list[ConfigurationProblem] = []
    warnings: list[str] = []
    data: dict[str, Any] = {}
    if config_file is not None:
        data = _resolve_paths(_load(config_file, problems, warnings), config_file.absolute().parent)
    for path in _drop_ins(config_dir, problems, warnings):
        data = merge_patch(data, _load(path, problems, warnings))
    if data.get("mergeDefaultEvictionSettings") and isinstance(data.get("evictionHard"), dict):
        data["evictionHard"] = DEFAULT_HARD | data["evictionHard"]  # not what a flag sets: that replaces all
    used = dict(flags or {})
    data = apply_flags(data, used)
    own = dict(settings or {})
    data.update(own.values())
    decoded = decode_configuration(data)
    by_flag = {FLAG_BY_NAME[name].path: f"--{name}" for name in used} | {path: flag for flag, (path, _) in own.items()}
    if not problems:
        found = decoded.problems or tuple(check_configuration(decoded.config))
        problems.extend(_with_origin(problem, by_flag) for problem in found)
    if problems:
        raise ConfigurationError(problems)
    warnings.extend(_flag_warnings(used))
    warnings.extend(_support_warnings(decoded))
    return LoadedConfiguration(
        decoded.config, tuple(warnings), decoded.explicit - {unknown.path for unknown in decoded.unknown}
    )


def merge_patch(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`patch` laid over `target` as RFC 7386 says."""
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            inner = result.get(key)
            result[key] = merge_patch(inner if isinstance(inner, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def _load(path: Path, problems: list[ConfigurationProblem], warnings: list[str]) -> dict[str, Any]:
    """One file's mapping; what is wrong with it goes to `problems`, and then the mapping is empty."""
    file = _read(path, problems)
    if file is None:
        return {}
    for duplicate in file.document.duplicates:
        where = f"{path}:{duplicate.line}"
        warnings.append(f"{where}: {duplicate.path}: the field is given twice, the last value is used")
    decoded = decode_configuration(file.data)
    for unknown in decoded.unknown:
        warnings.append(f"{path}:{file.document.line_of(unknown.path)}: {unknown.path}: {unknown.message}")
    for problem in decoded.problems:
        line = file.document.line_of(problem.path)
        problems.append(ConfigurationProblem(problem.path, problem.message, str(path), line))
    return {} if decoded.problems else file.data


def _read(path: Path, problems: list[ConfigurationProblem]) -> _File | None:
    def problem(message: str, line: int | None = None, field: str = "") -> None:
        problems.append(ConfigurationProblem(field, message, str(path), line))

    try:
        if not path.is_file():
            problem("no such file" if not path.exists() else "expected a regular file")
            return None
        if path.stat().st_size > MAX_FILE_SIZE:
            problem(f"the file is larger than {MAX_FILE_SIZE >> 20} MiB")
            return None
        documents = [document for document in read_documents(path.read_bytes()) if not document.empty]
        data = documents[0].data() if documents else None
    except OSError as error:
        problem(f"cannot be read: {error.strerror}")
        return None
    except YamlError as error:
        problem(error.message, error.line)
        return None
    if data is None:
        problem(f"the file is empty, expected a {KIND}")
    elif len(documents) > 1:
        problem("expected one document, got several", documents[1].line)
    elif not isinstance(data, dict):
        problem(f"expected a {KIND}", documents[0].line)
    elif (data.get("apiVersion"), data.get("kind")) != (API_VERSION, KIND):
        got = f"{data.get('apiVersion') or 'nothing'} {data.get('kind') or ''}".strip()
        problem(f"expected apiVersion {API_VERSION} and kind {KIND}, got {got}", documents[0].line)
    else:
        return _File(path, documents[0], data)
    return None


def _drop_ins(folder: Path | None, problems: list[ConfigurationProblem], warnings: list[str]) -> Iterator[Path]:
    """Drop-ins in lexical order of the whole walk, sub-folders included (kubelet: `filepath.WalkDir`)."""
    if folder is None:
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        problems.append(ConfigurationProblem("", f"--config-dir cannot be read: {error.strerror}", str(folder)))
        return
    for entry in entries:
        path = Path(entry.path)
        if _is_folder(entry):
            yield from _drop_ins(path, problems, warnings)
        elif path.suffix == DROP_IN_SUFFIX:
            yield path
        else:
            warnings.append(f"{path}: ignored, drop-ins are called *{DROP_IN_SUFFIX}")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False  # then reading it tells why


def _resolve_paths(data: dict[str, Any], root: Path) -> dict[str, Any]:
    result = dict(data)
    for path in RELATIVE_PATHS:
        *parents, last = path.split(".")
        holder: Any = result
        for step in parents:
            inner = holder.get(step)
            if not isinstance(inner, dict):
                break
            holder[step] = holder = dict(inner)
        else:
            value = holder.get(last)
            if isinstance(value, str) and value and not value.startswith("/"):
                holder[last] = os.path.normpath(root / value)
    return result


def _with_origin(problem: FieldProblem, by_flag: Mapping[str, str]) -> ConfigurationProblem:
    origin = next(
        (flag for path, flag in by_flag.items() if re.split(r"[.\[]", problem.path)[0] == path.split(".")[0]), ""
    )
    return ConfigurationProblem(problem.path, problem.message, origin)


def _flag_warnings(used: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for flag in (FLAG_BY_NAME[name] for name in used):
        if flag.deprecated:
            yield f"--{flag.name} is deprecated: set {flag.path} in the --config file"


def _support_warnings(decoded: Decoded) -> Iterator[str]:
    for name in sorted(decoded.explicit - SUPPORTED - {problem.path for problem in decoded.unknown}):
        yield f"{name} is set but not supported yet: it has no effect"
    yield from gate_warnings(decoded.config.feature_gates)
