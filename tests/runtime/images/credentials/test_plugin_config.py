"""The configuration of plugins: what is read, and what the agent does not start with."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from trikubelet.runtime.images.credentials.plugin_config import (
    CredentialProvider,
    PluginConfigError,
    TokenAttributes,
    read_plugin_config,
)

if TYPE_CHECKING:
    from pathlib import Path

V1 = "credentialprovider.kubelet.k8s.io/v1"


def provider(name: str = "test", image: str = "registry.io/foobar", version: str = "v1", more: str = "") -> str:
    lines = f"""\
- name: {name}
  matchImages: ["{image}"]
  defaultCacheDuration: 10m
  apiVersion: credentialprovider.kubelet.k8s.io/{version}
"""
    return lines + "".join(f"  {line}\n" for line in more.splitlines())


def document(*providers: str, version: str = "kubelet.config.k8s.io/v1", kind: str = "CredentialProviderConfig") -> str:
    return f"---\nkind: {kind}\napiVersion: {version}\nproviders:\n" + "".join(providers)


JSON = f"""{{"kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1", "providers": [{{
  "name": "json", "matchImages": ["v2.registry.io/*"], "defaultCacheDuration": "20m", "apiVersion": "{V1}"}}]}}"""


class Place:
    """A configuration and a folder of plugins."""

    def __init__(self, tmp_path: Path) -> None:
        self.config = tmp_path / "config"
        self.bin_dir = tmp_path / "bin"
        self.bin_dir.mkdir()
        for name in ("test", "test1", "test2", "json"):
            self.install(name)

    def install(self, name: str, mode: int = 0o755) -> None:
        (self.bin_dir / name).write_text("#!/bin/sh\n")
        (self.bin_dir / name).chmod(mode)

    def read(
        self, text: str | None = None, /, *, with_tokens: bool = True, **files: str
    ) -> tuple[CredentialProvider, ...]:
        if text is not None:
            self.config.write_text(text)
        else:
            self.config.mkdir(exist_ok=True)
            for name, content in files.items():
                (self.config / name.replace("_", ".")).write_text(content)
        return read_plugin_config(self.config, self.bin_dir, with_tokens=with_tokens).providers

    def problem(self, text: str | None = None, /, **files: str) -> str:
        with pytest.raises(PluginConfigError) as caught:
            self.read(text, with_tokens=True, **files)
        message = str(caught.value)
        assert "\n" not in message
        return message


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1", "v1"])
def test_a_plugin_is_read_whole(place: Place, version: str) -> None:
    more = "args: [--v=5]\nenv:\n- {name: FOO, value: BAR}"
    text = document(provider(version=version, more=more), version=f"kubelet.config.k8s.io/{version}")
    assert place.read(text) == (
        CredentialProvider(
            name="test",
            executable=place.bin_dir / "test",
            match_images=("registry.io/foobar",),
            default_cache_duration=600.0,
            api_version=f"credentialprovider.kubelet.k8s.io/{version}",
            args=("--v=5",),
            env=(("FOO", "BAR"),),
        ),
    )


def test_plugins_keep_their_order(place: Place) -> None:
    text = document(provider("test2", "registry.io/two"), provider("test1", "*.registry.io"))
    assert [found.name for found in place.read(text)] == ["test2", "test1"]


def test_a_folder_is_read_file_by_file(place: Place) -> None:
    found = place.read(
        c_yml=document(provider("test1")),
        b_json=JSON,
        a_yaml=document(provider("test2", version="v1beta1"), version="kubelet.config.k8s.io/v1beta1"),
        d_txt="no configuration",
    )
    assert [each.name for each in found] == ["test2", "json", "test1"]


def test_attributes_of_tokens_are_read(place: Place) -> None:
    more = """\
tokenAttributes:
  serviceAccountTokenAudience: audience
  cacheType: Token
  requireServiceAccount: true
  requiredServiceAccountAnnotationKeys: [prefix.io/a, Prefix.io/B]
  optionalServiceAccountAnnotationKeys: [prefix.io/c]
"""
    (found,) = place.read(document(provider(more=more)))
    assert found.tokens == TokenAttributes(
        "audience",
        "Token",
        require_account=True,
        required_annotations=("prefix.io/a", "Prefix.io/B"),
        optional_annotations=("prefix.io/c",),
    )


def test_without_their_gate_plugins_cannot_ask_for_tokens(place: Place) -> None:
    text = document(
        provider(
            more="tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: false, cacheType: Token}"
        )
    )
    assert len(place.read(text)) == 1
    with pytest.raises(
        PluginConfigError, match=r"^[^\n]*providers\.tokenAttributes: Forbidden: tokenAttributes is not supported when "
    ):
        place.read(text, with_tokens=False)
    assert len(place.read(document(provider()), with_tokens=False)) == 1


def test_values_of_variables_are_not_printed(place: Place) -> None:
    (found,) = place.read(document(provider(more="env:\n- {name: KEY, value: hush}")))
    assert found.env == (("KEY", "hush"),)
    assert "hush" not in repr(found)
    assert "12345" not in place.problem(document(provider(more="env:\n- {name: KEY, value: 12345}")))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            document(provider(), kind="WrongKind"),
            'no kind "WrongKind" is registered for version "kubelet.config.k8s.io/v1"',
        ),
        (
            document(provider(), version="foobar/v1alpha1"),
            'no kind "CredentialProviderConfig" is registered for version "foobar/v1alpha1"',
        ),
        (
            document(provider(more="unknownField: should not be here")),
            'strict decoding error: unknown field "providers[0].unknownField"',
        ),
        (
            document(provider(more="env:\n- {name: A, valeu: B}")) + "more: 1\n",
            'strict decoding error: unknown field "more", unknown field "providers[0].env[0].valeu"',
        ),
        (
            document(
                provider(more="tokenAttributes: {serviceAccountTokenAudience: a}"),
                version="kubelet.config.k8s.io/v1beta1",
            ),
            'strict decoding error: unknown field "providers[0].tokenAttributes"',
        ),
        (
            document(provider(more="args: {}\nenv: 5")),
            "[providers[0].args: expected a list, got an object, providers[0].env: expected a list, got 5]",
        ),
        (document(provider(more="name: again")), 'line 9: key "providers[0].name" already set'),
        (document(provider()) + document(provider()), "expected one document, got 2"),
        ("", "expected one document, got 0"),
    ],
)
def test_what_cannot_be_decoded_is_named(place: Place, text: str, problem: str) -> None:
    assert place.problem(text) == f'error decoding config "{place.config}": {problem}'


def test_broken_yaml_is_named_with_its_line(place: Place) -> None:
    assert place.problem("kind: [").startswith(f'error decoding config "{place.config}": line ')


def with_tokens(**changes: str) -> str:
    fields = {
        "serviceAccountTokenAudience": "audience",
        "cacheType": "ServiceAccount",
        "requireServiceAccount": "true",
        **changes,
    }
    lines = "\n".join(f"  {name}: {value}" for name, value in fields.items() if value)
    return document(provider(more=f"tokenAttributes:\n{lines}"))


NAME_PART = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (document().replace("providers:", "providers: []"), ": Required value: at least 1 item in plugins is required"),
        (
            document(provider().replace('"registry.io/foobar"', "")),
            ".matchImages: Required value: at least 1 item in matchImages is required",
        ),
        (document(provider().replace("  defaultCacheDuration: 10m\n", "")), ".defaultCacheDuration: Required value"),
        (
            document(provider().replace("10m", "-1m")),
            '.defaultCacheDuration: Invalid value: "-1m0s": must be greater than or equal to 0',
        ),
        (document(provider("''")), ".name: Required value"),
        (
            document(provider("foo/../bar")),
            ".name: Invalid value: \"foo/../bar\": provider name cannot contain '/'",
        ),
        (document(provider(".")), ".name: Invalid value: \".\": provider name cannot be '.'"),
        (document(provider("..")), ".name: Invalid value: \"..\": provider name cannot be '..'"),
        (document(provider("foo bar")), '.name: Invalid value: "foo bar": provider name cannot contain spaces'),
        (document(provider().replace(V1, "''")), ".apiVersion: Required value"),
        (
            document(provider(version="v1alpha0")),
            f'.apiVersion: Unsupported value: "{V1}alpha0": supported values: "{V1}", "{V1}alpha1", "{V1}beta1"',
        ),
        (
            document(provider(image="%invalid%")),
            '.matchImages: Invalid value: "%invalid%": match image is invalid: '
            'parse "https://%invalid%": invalid URL escape "%in"',
        ),
        (
            with_tokens(serviceAccountTokenAudience=""),
            ".tokenAttributes.serviceAccountTokenAudience: Required value",
        ),
        (
            with_tokens(cacheType=""),
            ".tokenAttributes.cacheType: Required value: cacheType is required to be set when tokenAttributes is "
            "specified. Supported values are: ServiceAccount, Token",
        ),
        (
            with_tokens(cacheType="invalid-cache-type"),
            '.tokenAttributes.cacheType: Unsupported value: "invalid-cache-type": '
            'supported values: "ServiceAccount", "Token"',
        ),
        (with_tokens(requireServiceAccount=""), ".tokenAttributes.requireServiceAccount: Required value"),
        (
            with_tokens(requiredServiceAccountAnnotationKeys="[cantendwithadash-, now-with-dashes/simple]"),
            f'.tokenAttributes.requiredServiceAccountAnnotationKeys: Invalid value: "cantendwithadash-": {NAME_PART}',
        ),
        (
            with_tokens(optionalServiceAccountAnnotationKeys="[cantendwithadash-, now-with-dashes/simple]"),
            f'.tokenAttributes.optionalServiceAccountAnnotationKeys: Invalid value: "cantendwithadash-": {NAME_PART}',
        ),
        (
            with_tokens(requiredServiceAccountAnnotationKeys="[a/simple, a/simple]"),
            '.tokenAttributes.requiredServiceAccountAnnotationKeys: Duplicate value: "a/simple"',
        ),
        (
            with_tokens(optionalServiceAccountAnnotationKeys="[a/simple, a/simple]"),
            '.tokenAttributes.optionalServiceAccountAnnotationKeys: Duplicate value: "a/simple"',
        ),
        (
            with_tokens(
                requiredServiceAccountAnnotationKeys="[a/simple-1, a/simple-2]",
                optionalServiceAccountAnnotationKeys="[a/simple-2, a/simple-3]",
            ),
            '.tokenAttributes: Invalid value: ["a/simple-2"]: annotation keys cannot be both required and optional',
        ),
        (
            with_tokens(requireServiceAccount="false", requiredServiceAccountAnnotationKeys="[a/simple-1]"),
            ".tokenAttributes.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false "
            "when requiredServiceAccountAnnotationKeys is set",
        ),
        (
            with_tokens().replace(V1, f"{V1}beta1"),
            f".tokenAttributes: Forbidden: tokenAttributes is only supported for {V1} API version",
        ),
    ],
)
def test_what_the_rules_forbid_is_named(place: Place, text: str, problem: str) -> None:
    assert place.problem(text) == f"failed to validate credential provider config: providers{problem}"


def test_all_mistakes_are_named_at_once(place: Place) -> None:
    text = document(provider("."), provider("..").replace("10m", "-10s"))
    assert place.problem(text) == (
        "failed to validate credential provider config: ["
        "providers.name: Invalid value: \".\": provider name cannot be '.', "
        "providers.name: Invalid value: \"..\": provider name cannot be '..', "
        'providers.defaultCacheDuration: Invalid value: "-10s": must be greater than or equal to 0]'
    )


def test_a_name_may_be_there_once_in_all_files(place: Place) -> None:
    found = place.problem(a_yaml=document(provider("test")), b_yaml=document(provider("test")))
    assert found == f'duplicate provider name "test" found in configuration file(s): {place.config / "b.yaml"}'


def test_a_folder_without_configurations_is_a_mistake(place: Place) -> None:
    problem = f'no configuration files found in directory "{place.config}"'
    assert place.problem(config_txt="text", config_md="text") == problem


def test_one_bad_file_of_a_folder_is_a_mistake(place: Place) -> None:
    problem = place.problem(a_yaml=document(provider("test1")), b_yaml=document(provider("test2"), kind="WrongKind"))
    assert problem == (
        f'error decoding config "{place.config / "b.yaml"}": '
        'no kind "WrongKind" is registered for version "kubelet.config.k8s.io/v1"'
    )


def test_every_plugin_must_be_there_and_executable(place: Place) -> None:
    (place.bin_dir / "folder").mkdir()
    place.install("data", 0o644)
    path = place.bin_dir
    assert place.problem(document(provider("absent"))) == f"plugin binary executable {path}/absent did not exist"
    assert place.problem(document(provider("folder"))) == (
        f"error inspecting binary executable {path}/folder: is a directory"
    )
    assert place.problem(document(provider("data"))) == (
        f"error inspecting binary executable {path}/data: permission denied"
    )


def test_the_files_have_a_hash_that_tells_which_they_are(place: Place) -> None:
    one, other = document(provider("test")), JSON
    place.read(b_json=other, a_yaml=one)
    content = b"".join(len(text).to_bytes(8, "big") + text.encode() for text in (one, other))
    assert read_plugin_config(place.config, place.bin_dir).hash == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_both_places_must_be_given_and_there(place: Place, tmp_path: Path) -> None:
    place.config.write_text(document(provider()))
    absent = tmp_path / "absent"
    for path, bin_dir, problem in (
        (place.config, absent, f"plugin binary directory {absent} did not exist"),
        (
            place.config,
            None,
            "plugin binary directory is not set: give --image-credential-provider-bin-dir too",
        ),
        (
            None,
            place.bin_dir,
            "credential provider config path is empty: give --image-credential-provider-config too",
        ),
        (absent, place.bin_dir, f'unable to access path "{absent}": No such file or directory'),
    ):
        with pytest.raises(PluginConfigError) as caught:
            read_plugin_config(path, bin_dir)
        assert str(caught.value) == problem
