"""The configuration of the node's plugins: the file or folder of `--image-credential-provider-config`.

It is read once, at the start, and the agent does not start with a mistake in it: a plugin that silently is not asked
shows as pulls that fail hours later. So an unknown field is a mistake too. All texts fit a line, and are the kubelet's.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api import DecodeError, from_dict
from trikubelet.api.field_errors import Place
from trikubelet.api.name_formats import qualified_name
from trikubelet.api.problems import Problem
from trikubelet.api.schema import APIObject
from trikubelet.formats.values import frozen
from trikubelet.runtime.images.credentials.locations import LocationError, parse_location

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_KIND: Final = "CredentialProviderConfig"
_TOKEN_VERSION: Final = "kubelet.config.k8s.io/v1"
_VERSIONS: Final = (_TOKEN_VERSION, "kubelet.config.k8s.io/v1alpha1", "kubelet.config.k8s.io/v1beta1")
_PLUGIN_TOKEN_VERSION: Final = "credentialprovider.kubelet.k8s.io/v1"
_PLUGIN_VERSIONS: Final = (
    _PLUGIN_TOKEN_VERSION,
    "credentialprovider.kubelet.k8s.io/v1alpha1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
)
_SUFFIXES: Final = (".json", ".yaml", ".yml")

CACHE_BY_TOKEN: Final = "Token"
CACHE_BY_ACCOUNT: Final = "ServiceAccount"


@frozen
class PluginConfigError(Exception):
    """The plugins cannot be used as they are configured."""

    message: str

    def __str__(self) -> str:
        return self.message


_NO_TOKENS: Final = (
    "tokenAttributes is not supported when KubeletServiceAccountTokenForCredentialProviders feature gate is disabled"
)


@frozen
class TokenAttributes:
    """The token and annotations that a plugin gets which works with service accounts (`tokenAttributes`)."""

    audience: str
    cache_type: str
    """`CACHE_BY_TOKEN` or `CACHE_BY_ACCOUNT`."""
    require_account: bool
    required_annotations: tuple[str, ...] = ()
    optional_annotations: tuple[str, ...] = ()


@frozen
class CredentialProvider:
    """One plugin."""

    name: str
    executable: Path
    match_images: tuple[str, ...]
    default_cache_duration: float
    """Seconds that an answer holds that does not say how long."""
    api_version: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    """Variables, added to the agent's own."""
    tokens: TokenAttributes | None = None


@frozen
class PluginConfig:
    """All plugins of the node."""

    providers: tuple[CredentialProvider, ...]
    """In order."""
    hash: str
    """`sha256:…` of the files, by which a reader of metrics sees that they changed."""


@frozen(repr=False)
class _Variable(APIObject):
    name: str = ""
    value: str = ""


@frozen(repr=False)
class _TokenAttributes(APIObject):
    service_account_token_audience: str = ""
    cache_type: str = ""
    require_service_account: bool | None = None
    required_service_account_annotation_keys: tuple[str, ...] = ()
    optional_service_account_annotation_keys: tuple[str, ...] = ()


@frozen(repr=False)
class _Provider(APIObject):
    name: str = ""
    match_images: tuple[str, ...] = ()
    default_cache_duration: str | None = None
    api_version: str = ""
    args: tuple[str, ...] = ()
    env: tuple[_Variable, ...] = ()
    token_attributes: _TokenAttributes | None = None


@frozen(repr=False)
class _Configuration(APIObject):
    api_version: str = ""
    kind: str = ""
    providers: tuple[_Provider, ...] = ()


def read_plugin_config(path: Path | None, bin_dir: Path | None, *, with_tokens: bool = True) -> PluginConfig:
    """Read the plugins of the node.

    `path` is a file, or a folder whose *.json, *.yaml and *.yml files are read by name; `bin_dir` has an executable
    for each plugin. `with_tokens`: they may get tokens of service accounts. Reads files in place, before the agent
    runs. Raises PluginConfigError.
    """
    if bin_dir is None:
        raise PluginConfigError("plugin binary directory is not set: give --image-credential-provider-bin-dir too")
    if not bin_dir.is_dir():
        raise PluginConfigError(f"plugin binary directory {bin_dir} did not exist")
    if path is None:
        raise PluginConfigError("credential provider config path is empty: give --image-credential-provider-config too")
    providers: dict[str, _Provider] = {}
    digest = hashlib.sha256()
    for file in _files(path):
        content = _content(file)
        digest.update(len(content).to_bytes(8, "big") + content)
        for provider in _decoded(file, content):
            if provider.name in providers:
                raise PluginConfigError(
                    f'duplicate provider name "{provider.name}" found in configuration file(s): {file}'
                )
            providers[provider.name] = provider
    problems = _problems(tuple(providers.values()), with_tokens=with_tokens)
    if problems:
        raise PluginConfigError(f"failed to validate credential provider config: {_one_line(problems)}")
    for name in providers:
        _check_executable(bin_dir / name)
    accepted = tuple(_accept(provider, bin_dir) for provider in providers.values())
    return PluginConfig(accepted, f"sha256:{digest.hexdigest()}")


def _files(path: Path) -> list[Path]:
    try:
        if not path.is_dir():
            path.stat()
            return [path]
        files = sorted(entry for entry in path.iterdir() if entry.suffix in _SUFFIXES and not entry.is_dir())
    except OSError as error:
        raise PluginConfigError(f'unable to access path "{path}": {error.strerror}') from error
    if not files:
        raise PluginConfigError(f'no configuration files found in directory "{path}"')
    return files


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise PluginConfigError(f'unable to read file "{file}": {error.strerror}') from error


def _decoded(file: Path, content: bytes) -> tuple[_Provider, ...]:
    from trikubelet.formats.yaml_documents import YamlError, read_documents

    try:
        documents = read_documents(content)
        if len(documents) != 1:
            raise PluginConfigError(f'error decoding config "{file}": expected one document, got {len(documents)}')
        if documents[0].duplicates:
            twice = documents[0].duplicates[0]
            raise YamlError(twice.line, f'key "{twice.path}" already set')
        return _decode(documents[0].data())
    except (YamlError, _UndecodableError) as error:
        raise PluginConfigError(f'error decoding config "{file}": {" ".join(str(error).split())}') from None


class _UndecodableError(Exception):
    pass


def _decode(data: object) -> tuple[_Provider, ...]:
    try:
        configuration = from_dict(_Configuration, data)
    except DecodeError as error:
        raise _UndecodableError(_one_line([_without_value(problem) for problem in error.problems])) from None
    version, kind = configuration.api_version, configuration.kind
    if kind != _KIND or version not in _VERSIONS:
        raise _UndecodableError(f'no kind "{kind}" is registered for version "{version}"')
    unknown = [f'unknown field "{path}"' for path in _unknown_fields(configuration, "")]
    if version != _TOKEN_VERSION:
        unknown += [
            f'unknown field "providers[{index}].tokenAttributes"'
            for index, provider in enumerate(configuration.providers)
            if provider.token_attributes is not None
        ]
    if unknown:
        raise _UndecodableError(f"strict decoding error: {', '.join(unknown)}")
    return configuration.providers


def _without_value(problem: Problem) -> Problem:
    """A problem that quotes no value of a variable: it may be a password."""
    if ".env[" in problem.path and problem.path.endswith(".value"):
        return Problem(problem.path, "expected a string; put quotes around it")
    return problem


def _unknown_fields(value: object, path: str) -> Iterator[str]:
    from trikubelet.api.decode import wire_name

    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _unknown_fields(item, f"{path}[{index}]")
    elif isinstance(value, APIObject):
        prefix = f"{path}." if path else ""
        yield from (prefix + name for name in value.unknown_fields)
        for attribute in attrs.fields(type(value)):
            if attribute.name != "unknown_fields":
                yield from _unknown_fields(getattr(value, attribute.name), prefix + wire_name(attribute))


def _problems(providers: Sequence[_Provider], *, with_tokens: bool) -> list[Problem]:
    """What the rules forbid, at fields without an index as the kubelet names them."""
    problems: list[Problem] = []
    place = Place(problems, "providers")
    if not providers:
        place.required("at least 1 item in plugins is required")
    for provider in providers:
        _check_name(provider.name, place.at("name"))
        place.at("apiVersion").one_of(provider.api_version, _PLUGIN_VERSIONS)
        images = place.at("matchImages")
        if not provider.match_images:
            images.required("at least 1 item in matchImages is required")
        for image in provider.match_images:
            try:
                parse_location(image)
            except LocationError as error:
                images.invalid(image, f'match image is invalid: parse "https://{image}": {error}')
        _check_duration(provider.default_cache_duration, place.at("defaultCacheDuration"))
        if provider.token_attributes is not None:
            if not with_tokens:
                place.at("tokenAttributes").forbidden(_NO_TOKENS)
            _check_tokens(provider.token_attributes, provider.api_version, place.at("tokenAttributes"))
    return problems


def _check_name(name: str, place: Place) -> None:
    """It is the name of a file in the folder of plugins."""
    if not name:
        place.required()
    if "/" in name:
        place.invalid(name, "provider name cannot contain '/'")
    if " " in name:
        place.invalid(name, "provider name cannot contain spaces")
    if name in (".", ".."):
        place.invalid(name, f"provider name cannot be '{name}'")


def _check_duration(text: str | None, place: Place) -> None:
    from trikubelet.formats.durations import format_duration, parse_duration

    if text is None:
        place.required()
        return
    try:
        duration = parse_duration(text)
    except ValueError as error:
        place.invalid(text, str(error))
        return
    if duration.total_seconds() < 0:
        place.invalid(format_duration(duration), "must be greater than or equal to 0")


def _check_tokens(tokens: _TokenAttributes, plugin_version: str, place: Place) -> None:
    required, optional = (
        tokens.required_service_account_annotation_keys,
        tokens.optional_service_account_annotation_keys,
    )
    if not tokens.service_account_token_audience:
        place.at("serviceAccountTokenAudience").required()
    if tokens.require_service_account is None:
        place.at("requireServiceAccount").required()
    if plugin_version != _PLUGIN_TOKEN_VERSION:
        place.forbidden(f"tokenAttributes is only supported for {_PLUGIN_TOKEN_VERSION} API version")
    if tokens.require_service_account is False and required:
        detail = "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set"
        place.at("requiredServiceAccountAnnotationKeys").forbidden(detail)
    _check_annotation_keys(required, place.at("requiredServiceAccountAnnotationKeys"))
    _check_annotation_keys(optional, place.at("optionalServiceAccountAnnotationKeys"))
    both = sorted({*required} & {*optional})
    if both:
        detail = "annotation keys cannot be both required and optional"
        place.problems.append(Problem(place.path, f"Invalid value: {json.dumps(both)}: {detail}"))
    cache_types = (CACHE_BY_ACCOUNT, CACHE_BY_TOKEN)
    if not tokens.cache_type:
        place.at("cacheType").required(
            "cacheType is required to be set when tokenAttributes is specified. "
            f"Supported values are: {', '.join(cache_types)}"
        )
    elif tokens.cache_type not in cache_types:
        place.at("cacheType").unsupported(tokens.cache_type, cache_types)


def _check_annotation_keys(keys: Sequence[str], place: Place) -> None:
    seen: set[str] = set()
    for key in keys:
        place.invalid(key, *qualified_name(key.lower()))
        if key in seen:
            place.duplicate(key)
        seen.add(key)


def _check_executable(executable: Path) -> None:
    problem = ""
    if not executable.exists():
        raise PluginConfigError(f"plugin binary executable {executable} did not exist")
    if executable.is_dir():
        problem = "is a directory"
    elif not os.access(executable, os.X_OK):
        problem = "permission denied"
    if problem:
        raise PluginConfigError(f"error inspecting binary executable {executable}: {problem}")


def _accept(provider: _Provider, bin_dir: Path) -> CredentialProvider:
    from trikubelet.formats.durations import parse_duration

    tokens = provider.token_attributes
    return CredentialProvider(
        name=provider.name,
        executable=bin_dir / provider.name,
        match_images=provider.match_images,
        default_cache_duration=parse_duration(provider.default_cache_duration or "0").total_seconds(),
        api_version=provider.api_version,
        args=provider.args,
        env=tuple((variable.name, variable.value) for variable in provider.env),
        tokens=None
        if tokens is None
        else TokenAttributes(
            audience=tokens.service_account_token_audience,
            cache_type=tokens.cache_type,
            require_account=bool(tokens.require_service_account),
            required_annotations=tokens.required_service_account_annotation_keys,
            optional_annotations=tokens.optional_service_account_annotation_keys,
        ),
    )


def _one_line(problems: Sequence[Problem]) -> str:
    """All of them, each once, as Kubernetes writes lists of errors."""
    texts = list(dict.fromkeys(str(problem) for problem in problems))
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
