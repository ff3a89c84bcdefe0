"""All credentials for an image: secrets, the node's files, plugins, in this order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.runtime.conftest import make_pod
from trikubelet.api import ObjectMeta, Secret
from trikubelet.runtime.images.credentials.accounts import NoServiceAccounts
from trikubelet.runtime.images.credentials.docker_config import DockerConfigFiles
from trikubelet.runtime.images.credentials.lookup import Credentials
from trikubelet.runtime.images.credentials.plugin_config import CredentialProvider
from trikubelet.runtime.images.credentials.plugin_protocol import PluginError
from trikubelet.runtime.images.credentials.plugins import Plugins
from trikubelet.runtime.images.pull_credentials import Credentials as WhatPullsAsk
from trikubelet.runtime.images.pull_credentials import CredentialsError

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

V1 = "credentialprovider.kubelet.k8s.io/v1"


def auths(user: str, location: str = "quay.io") -> str:
    return json.dumps({location: {"username": user, "password": "hush"}})


def secret(content: str) -> Secret:
    metadata = ObjectMeta(name="s", namespace="default", uid="u")
    return Secret(metadata=metadata, type="kubernetes.io/dockercfg", data={".dockercfg": content.encode()})


def credentials(folder: Path, answer: str = "") -> Credentials:
    async def run(provider: CredentialProvider, image: str, request: bytes) -> bytes:
        if not answer:
            raise PluginError("no network")
        head = f'{{"kind": "CredentialProviderResponse", "apiVersion": "{V1}", "cacheKeyType": "Image"'
        return f'{head}, "auth": {answer}}}'.encode()

    provider = CredentialProvider("plugin", folder / "plugin", ("quay.io",), 60.0, V1)
    files = DockerConfigFiles(folder, home=None, working=folder / "none", root=folder / "none")
    return Credentials(files, Plugins([provider], NoServiceAccounts(), run))


async def test_secrets_come_first_then_the_node_then_plugins(autojump_clock: MockClock, tmp_path: Path) -> None:
    (tmp_path / ".dockercfg").write_text(auths("node", "quay.io/team"))
    known: WhatPullsAsk = credentials(tmp_path, auths("plugin", "quay.io/team/app"))
    found = await known.lookup("quay.io/team/app", make_pod(), [secret(auths("pod"))])
    assert [(each.auth.username, each.source is None) for each in found] == [
        ("pod", False),
        ("node", True),
        ("plugin", True),
    ]


async def test_a_node_without_any_pulls_without(autojump_clock: MockClock, tmp_path: Path) -> None:
    files = DockerConfigFiles(tmp_path, home=None, working=tmp_path, root=tmp_path)
    assert await Credentials(files).lookup("quay.io/team/app", make_pod(), []) == []


async def test_a_broken_file_and_a_failing_plugin_do_not_stop_a_pull(
    autojump_clock: MockClock, tmp_path: Path, logged: list[Any]
) -> None:
    (tmp_path / "config.json").write_text('{"auths": {"hush": 5}}')
    found = await credentials(tmp_path).lookup("quay.io/app", make_pod(), [secret(auths("pod"))])
    assert [each.auth.username for each in found] == ["pod"]
    printed = str(logged)
    assert "an entry is no JSON object" in printed
    assert "hush" not in printed


async def test_a_broken_secret_does(autojump_clock: MockClock, tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"cannot read \.dockercfg of the pull secret default/s: "):
        await credentials(tmp_path).lookup("quay.io/app", make_pod(), [secret("hush")])


async def test_a_location_that_is_none_is_logged_without_its_password(
    autojump_clock: MockClock, tmp_path: Path, logged: list[Any]
) -> None:
    given = secret(auths("pod", "https://user:hush@quay io"))
    assert await credentials(tmp_path).lookup("other.io/app", make_pod(), [given]) == []
    printed = str(logged)
    assert "quay io" in printed
    assert "hush" not in printed
