"""Real plugins: scripts that get a request on stdin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.runtime.conftest import make_pod
from trikubelet.runtime.images.credentials.accounts import NoServiceAccounts
from trikubelet.runtime.images.credentials.plugin_config import CredentialProvider
from trikubelet.runtime.images.credentials.plugin_protocol import PluginError, run_plugin
from trikubelet.runtime.images.credentials.plugins import Plugins

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

V1 = "credentialprovider.kubelet.k8s.io/v1"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "plugin"


def install(script: Path, text: str, *args: str, **env: str) -> CredentialProvider:
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return CredentialProvider("plugin", script, ("*.io",), 60.0, V1, args, tuple(env.items()))


async def test_a_plugin_gets_arguments_variables_and_the_request(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN", "kept")
    monkeypatch.setenv("BOTH", "agent's")
    found = install(script, 'echo "$# $1 $OWN $BOTH $ADDED"; cat', "--v=5", BOTH="plugin's", ADDED="added")
    assert await run_plugin(found, "a.io/b", b"request") == b"1 --v=5 kept plugin's added\nrequest"


async def test_a_plugin_need_not_read_its_request(script: Path) -> None:
    assert await run_plugin(install(script, "exec 0<&-; echo answer"), "a.io/b", b"x" * 2**20) == b"answer\n"


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ("echo hush; echo no network >&2; exit 3", "exit status 3: no network"),
        ("kill -9 $$", "signal 9: "),
    ],
)
async def test_a_failure_tells_what_is_on_stderr_and_nothing_of_stdout(script: Path, text: str, ending: str) -> None:
    with pytest.raises(PluginError) as caught:
        await run_plugin(install(script, text), "a.io/b", b"")
    assert str(caught.value) == f"error execing credential provider plugin plugin for image a.io/b: {ending}"


async def test_a_plugin_that_is_gone_is_named(script: Path) -> None:
    found = install(script, "")
    script.unlink()
    with pytest.raises(PluginError) as caught:
        await run_plugin(found, "a.io/b", b"")
    assert str(caught.value) == (
        f"error execing credential provider plugin plugin for image a.io/b: {script}: No such file or directory"
    )


async def test_a_plugin_that_does_not_end_is_ended_after_a_minute(autojump_clock: MockClock, script: Path) -> None:
    found = install(script, "exec sleep 600")
    began = trio.current_time()
    with pytest.raises(PluginError, match="no answer within 60 seconds: context deadline exceeded"):
        await run_plugin(found, "a.io/b", b"")
    assert 60 <= trio.current_time() - began < 70


async def test_a_plugin_that_prints_without_end_is_ended(script: Path) -> None:
    with (
        trio.fail_after(60),
        pytest.raises(PluginError, match="it was killed, since it printed more than 1048576 bytes"),
    ):
        await run_plugin(install(script, "exec cat /dev/zero"), "a.io/b", b"")


async def test_a_plugins_answer_becomes_a_credential(script: Path) -> None:
    text = f"""\
grep -q '"image":"quay.io/team/app"' || exit 1
cat <<END
{{"kind": "CredentialProviderResponse", "apiVersion": "{V1}", "cacheKeyType": "Registry",
"auth": {{"quay.io/team": {{"username": "user", "password": "hush"}}}}}}
END"""
    known = Plugins([install(script, text)], NoServiceAccounts())
    (found,) = await known.lookup("quay.io/team/app", make_pod())
    assert (found.auth.username, found.auth.password) == ("user", "hush")
    script.unlink()
    assert await known.lookup("quay.io/team/other", make_pod()) == [found], "kept for the registry"
