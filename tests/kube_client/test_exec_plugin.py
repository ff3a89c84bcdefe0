from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.captured_logs import capture_logs
from trikubelet.kube_client import exec_plugin
from trikubelet.kube_client.exec_plugin import ExecPluginError, decode_credential, exec_info, run_exec_plugin
from trikubelet.kube_client.kubeconfig import ClusterAccess, ExecSettings, TlsSettings
from trikubelet.kube_client.tls import KeyPair

if TYPE_CHECKING:
    from pathlib import Path

V1 = "client.authentication.k8s.io/v1"
BETA = "client.authentication.k8s.io/v1beta1"
PLUGIN = ExecSettings("plugin", V1)


def answer(version: str = BETA, **status: Any) -> bytes:
    return json.dumps({"kind": "ExecCredential", "apiVersion": version, "status": status}).encode()


@pytest.mark.parametrize("version", [V1, BETA])
def test_the_request_is_an_exec_credential(version: str) -> None:
    info = exec_info(attrs.evolve(PLUGIN, api_version=version), ClusterAccess("https://x"), None, "")
    assert info == f'{{"kind":"ExecCredential","apiVersion":"{version}","spec":{{"interactive":false}}}}'


def test_the_cluster_is_told_when_the_plugin_wants_it() -> None:
    plugin = attrs.evolve(PLUGIN, provide_cluster_info=True, cluster_config={"spec": {"audience": "snorlax"}})
    access = ClusterAccess("https://some-server", TlsSettings(b"CA", "some-name"), disable_compression=True)
    assert json.loads(exec_info(plugin, access, b"CA", "http://proxy:1"))["spec"]["cluster"] == {
        "server": "https://some-server",
        "tls-server-name": "some-name",
        "certificate-authority-data": "Q0E=",
        "proxy-url": "http://proxy:1",
        "disable-compression": True,
        "config": {"spec": {"audience": "snorlax"}},
    }


def test_an_answer_has_a_token_a_pair_and_an_end() -> None:
    raw = answer(token="foo", clientCertificateData="C", clientKeyData="K", expirationTimestamp="2006-01-02T15:04:05Z")
    credential = decode_credential(raw, BETA)
    assert (credential.token, credential.pair) == ("foo", KeyPair(b"C", b"K"))
    assert credential.expires == datetime(2006, 1, 2, 15, 4, 5, tzinfo=UTC)
    assert "foo" not in repr(credential)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "decoding stdout: "),
        (b"not json", "decoding stdout: "),
        (b'{"kind":"ExecCredential","status":{"token":"foo"}}', "decoding stdout: "),
        (b'{"kind":"Pod","apiVersion":"v1"}', "decoding stdout: "),
        (answer(token=5), "decoding stdout: these fields are not of the type expected: status.token"),
        (
            answer(V1, token="foo"),
            f"exec plugin is configured to use API version {BETA}, plugin returned version {V1}",
        ),
        (b'{"kind":"ExecCredential","apiVersion":"%s"}' % BETA.encode(), "exec plugin didn't return a status field"),
        (answer(), "exec plugin didn't return a token or cert/key pair"),
        (answer(clientCertificateData="C"), "exec plugin returned only certificate or key, not both"),
        (answer(clientKeyData="K"), "exec plugin returned only certificate or key, not both"),
        (answer(token="a\nX-Header: b"), "exec plugin returned a token with characters that no header can carry"),
        (answer(token="schlüssel"), "exec plugin returned a token with characters that no header can carry"),
    ],
)
def test_what_is_no_answer_is_refused_in_known_words(raw: bytes, text: str) -> None:
    with pytest.raises(ExecPluginError) as failed:
        decode_credential(raw, BETA)
    assert str(failed.value).startswith(text)


def script(folder: Path, body: str) -> ExecSettings:
    file = folder / "plugin"
    file.write_text(f"#!{sys.executable}\nimport os, sys, time, json\n{body}\n")
    file.chmod(0o700)
    return ExecSettings(str(file), V1, env=(("MORE", "set"),), args=("one", "two words"))


async def ask(plugin: ExecSettings) -> str:
    return (await run_exec_plugin(plugin, exec_info(plugin, ClusterAccess("https://x"), None, ""), os.environ)).token


ECHO = """
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
info["status"] = {"token": "-".join([os.environ["MORE"], *sys.argv[1:]]).replace(" ", "_") + sys.stdin.read()}
print(json.dumps(info))
"""


async def test_the_program_gets_arguments_variables_and_the_request_and_no_input(tmp_path: Path) -> None:
    assert await ask(script(tmp_path, ECHO)) == "set-one-two_words"


async def test_a_program_that_fails_is_named_with_its_exit_code(tmp_path: Path) -> None:
    plugin = script(tmp_path, "print('secret'); sys.exit(73)")
    with pytest.raises(ExecPluginError) as failed:
        await ask(plugin)
    assert str(failed.value) == f"exec: executable {plugin.command} failed with exit code 73"


async def test_a_program_that_is_not_there_is_named_with_its_hint() -> None:
    plugin = attrs.evolve(PLUGIN, command="does-not-exist-hopefully", install_hint="some install\x1b[1m hint")
    with pytest.raises(ExecPluginError) as failed:
        await ask(plugin)
    assert str(failed.value) == "exec: executable does-not-exist-hopefully not found (some installU+001B[1m hint)"


async def test_a_file_that_cannot_be_executed_is_told(tmp_path: Path) -> None:
    plugin = script(tmp_path, ECHO)
    (tmp_path / "plugin").chmod(0o600)
    with pytest.raises(ExecPluginError, match="permission denied"):
        await ask(plugin)


async def test_a_program_that_needs_a_terminal_is_not_run(tmp_path: Path) -> None:
    plugin = attrs.evolve(script(tmp_path, ECHO), interactive_mode="Always")
    with pytest.raises(ExecPluginError) as failed:
        await ask(plugin)
    assert str(failed.value) == "exec plugin cannot support interactive mode: standard input is not a terminal"


async def test_a_program_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_plugin, "TIMEOUT", 0.5)
    plugin = script(tmp_path, f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    with trio.fail_after(20), pytest.raises(ExecPluginError, match="gave no answer within"):
        await ask(plugin)
    if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_program_that_prints_without_end_is_killed(tmp_path: Path) -> None:
    body = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nwhile True: print('x' * 9999)"
    with trio.fail_after(20), pytest.raises(ExecPluginError, match=r"was killed.* one ExecCredential of at most 1 MiB"):
        await ask(script(tmp_path, body))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_an_answer_as_long_as_allowed_is_read_whole(tmp_path: Path) -> None:
    def printing(length: int) -> ExecSettings:
        document = {"kind": "ExecCredential", "apiVersion": V1, "status": {"token": "TOKEN"}}
        return script(tmp_path, f"print('{json.dumps(document)}'.replace('TOKEN', 't' * {length}), end='')")

    around = len(json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {"token": ""}}))
    longest = exec_plugin.MAX_ANSWER - around
    assert len(await ask(printing(longest))) == longest
    with pytest.raises(ExecPluginError, match="at most 1 MiB"):
        await ask(printing(longest + 1))


async def test_much_on_stderr_neither_stops_a_program_nor_is_kept(tmp_path: Path) -> None:
    plugin = script(tmp_path, "sys.stderr.write('e' * 3_000_000)\nsys.exit(3)")
    with capture_logs() as logs, trio.fail_after(20), pytest.raises(ExecPluginError, match="code 3"):
        await ask(plugin)
    assert logs[0]["stderr"] == "e" * 2000
