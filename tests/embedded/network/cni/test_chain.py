"""Plugins are run as the specification says, and whatever they do instead of it has an end."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing

from tests.embedded.network.cni.scripted import ADDRESS, ScriptedPlugins, network_list
from tests.patience import PATIENCE
from trikubelet.embedded.network.cni.cache import CachedAttachment
from trikubelet.embedded.network.cni.chain import PluginChain
from trikubelet.embedded.network.cni.configuration import parse_list
from trikubelet.embedded.network.cni.plugin import end_left_plugins, run_plugin
from trikubelet.embedded.network.model import NetworkError

if TYPE_CHECKING:
    from trikubelet.embedded.network.cni.results import Result

DEBIAN = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0")
ATTACHMENT = CachedAttachment(
    network="net",
    container_id="chained",
    interface="eth0",
    namespace_path="/run/netns/x",
    config=b"",
    arguments=(("IgnoreUnknown", "1"), ("K8S_POD_NAME", "web")),
    capability_arguments={"portMappings": [{"hostPort": 1}], "bandwidth": {}},
)
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}


@pytest.fixture
def plugins(tmp_path: Path) -> ScriptedPlugins:
    return ScriptedPlugins(tmp_path / "bin")


@pytest.fixture
def chain(plugins: ScriptedPlugins) -> PluginChain:
    return PluginChain((plugins.folder,))


def later(seconds: float = PATIENCE) -> float:
    return trio.current_time() + seconds


async def add(chain: PluginChain, *names: str | dict[str, Any], seconds: float = PATIENCE, **more: Any) -> Result:
    network = parse_list(network_list(*names, **more), "conf")
    return await chain.add(network, await chain.version_for(network), ATTACHMENT, later(seconds))


async def delete(chain: PluginChain, *names: str, path: str = "/run/netns/x", result: Any = None, **more: Any) -> None:
    network = parse_list(network_list(*names, **more), "conf")
    await chain.delete(network, attrs.evolve(ATTACHMENT, result=result), path, later())


async def test_add_runs_plugins_in_order_each_with_the_result_before(
    plugins: ScriptedPlugins, chain: PluginChain
) -> None:
    plugins.install("bridge", result={"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.9.0.2/24"}]})
    plugins.install("portmap", result={"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.3/24"}]})
    result = await add(chain, "bridge", PORTMAP)
    assert [address.ip for address in result.addresses] == ["10.9.0.3"]
    assert plugins.asked == ["bridge ADD", "portmap ADD"]
    assert plugins.stdin("bridge", "ADD") == {"type": "bridge", "name": "net", "cniVersion": "1.1.0"}
    assert plugins.stdin("portmap", "ADD") == {
        **PORTMAP,
        "name": "net",
        "cniVersion": "1.1.0",
        "runtimeConfig": {"portMappings": [{"hostPort": 1}]},
        "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.2/24"}]},
    }
    assert plugins.environment("portmap", "ADD") == {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "chained",
        "CNI_NETNS": "/run/netns/x",
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=web",
        "CNI_PATH": str(plugins.folder),
    }


async def test_delete_runs_them_in_reverse_with_the_result_of_add(plugins: ScriptedPlugins, chain: PluginChain) -> None:
    plugins.install("bridge", versions=DEBIAN)
    plugins.install("portmap")
    await delete(chain, "bridge", "portmap", path="", result={"cniVersion": "1.1.0", **ADDRESS})
    assert plugins.asked == ["portmap DEL", "bridge DEL"]
    for name in ("bridge", "portmap"):
        assert plugins.stdin(name, "DEL")["prevResult"] == {"cniVersion": "1.0.0", **ADDRESS}
        assert plugins.environment(name, "DEL")["CNI_NETNS"] == ""


async def test_before_0_4_0_delete_has_no_result(plugins: ScriptedPlugins, chain: PluginChain) -> None:
    plugins.install("bridge")
    await delete(chain, "bridge", result=ADDRESS, version="0.3.1")
    assert "prevResult" not in plugins.stdin("bridge", "DEL")


async def test_a_cached_result_that_cannot_be_read_is_left_out(plugins: ScriptedPlugins, chain: PluginChain) -> None:
    plugins.install("bridge")
    await delete(chain, "bridge", result={"ips": "none"})
    assert "prevResult" not in plugins.stdin("bridge", "DEL")


async def test_the_first_plugin_that_fails_is_the_last_that_is_run(
    plugins: ScriptedPlugins, chain: PluginChain
) -> None:
    for name in ("one", "two", "three"):
        plugins.install(name)
    plugins.fail("two", "ADD", "no address left", code=11)
    plugins.fail("two", "DEL", "no")
    with pytest.raises(NetworkError, match=r"^CNI network net, plugin two, ADD: no address left \(code 11\)$"):
        await add(chain, "one", "two", "three")
    with pytest.raises(NetworkError, match=r"^CNI network net, plugin two, DEL: no \(code 7\)$"):
        await delete(chain, "one", "two", "three")
    assert plugins.asked == ["one ADD", "two ADD", "three DEL", "two DEL"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("echo broken >&2; exit 3", "exit status 3: broken"),
        ("exit 3", "exit status 3, and it said nothing"),
        ("echo panic; echo trace >&2; exit 2", "exit status 2: panic\n trace"),
        ("echo '{}'; echo why >&2; exit 2", "exit status 2: why"),
        ("kill -9 $$", "signal 9, and it said nothing"),
        ('echo \'{"msg": "m", "details": "d"}\'; exit 1', "m; d"),
        ("echo nothing", "expected JSON"),
        ("true", "expected JSON"),
        ("echo '{\"ips\": 1}'", "expected a list of objects as ips"),
        ("head -c 2000000 /dev/zero", "killed, since it printed more than 1048576 bytes"),
        ("head -c 2000000 /dev/zero >&2; echo the end >&2; exit 1", "the end"),
    ],
)
async def test_what_a_plugin_does_wrong_is_said(
    plugins: ScriptedPlugins, chain: PluginChain, code: str, said: str
) -> None:
    plugins.install("odd")
    plugins.script("odd", "ADD", code)
    with pytest.raises(NetworkError) as raised:
        await add(chain, "odd")
    assert str(raised.value).startswith("CNI network net, plugin odd, ADD: ")
    assert said in str(raised.value)


async def test_a_plugin_that_hangs_is_killed_with_what_it_started(plugins: ScriptedPlugins, chain: PluginChain) -> None:
    plugins.install("hangs")
    plugins.script("hangs", "ADD", "echo $$ > pids; sleep 1000 & echo $! >> pids; touch ready; wait")
    ready = plugins.folder / "ready"
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(add, chain, "hangs")
            while not ready.exists():
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        for pid in (plugins.folder / "pids").read_text().split():
            while "\nState:\tZ" not in _status(pid) and _status(pid):
                await trio.sleep(0.01)


async def test_a_program_that_cannot_be_run_is_named(plugins: ScriptedPlugins, chain: PluginChain) -> None:
    plugins.install("broken")
    (plugins.folder / "broken").write_text("no program")
    with pytest.raises(NetworkError, match=r"cannot run .*/broken: Exec format error"):
        await add(chain, "broken")


async def test_a_program_that_is_being_installed_is_waited_for(
    plugins: ScriptedPlugins, autojump_clock: trio.testing.MockClock
) -> None:
    plugins.install("new")
    program = plugins.folder / "new"
    call = partial(run_plugin, program, {"CNI_COMMAND": "GC"}, b"{}", what="plugin", deadline=math.inf)
    with program.open("r+b"), pytest.raises(NetworkError, match="is open for writing"):
        await call()
    assert autojump_clock.current_time() >= 4
    assert await call() == b""


async def test_a_deadline_names_the_plugin(plugins: ScriptedPlugins, chain: PluginChain) -> None:
    plugins.install("hangs")
    plugins.script("hangs", "ADD", "sleep 1000")
    with pytest.raises(NetworkError, match=r"plugin hangs, ADD: killed, since it did not end within \d+ s$"):
        await add(chain, "hangs", seconds=0.3)


async def test_versions_are_asked_once_until_the_program_changes(plugins: ScriptedPlugins, chain: PluginChain) -> None:
    plugins.install("bridge", versions=DEBIAN)
    network = parse_list(network_list("bridge"), "conf")
    assert [await chain.version_for(network) for _ in range(2)] == ["1.0.0", "1.0.0"]
    assert plugins.asked_all == ["bridge VERSION"]
    assert plugins.environment("bridge", "VERSION")["CNI_NETNS"] == "dummy"
    plugins.uninstall("bridge")
    with pytest.raises(NetworkError, match="bridge is not installed"):
        await chain.version_for(network)
    plugins.install("other")
    plugins.install("bridge")
    assert await chain.version_for(network) == "1.1.0"


async def test_a_plugin_that_is_older_than_the_question_speaks_the_oldest(
    plugins: ScriptedPlugins, chain: PluginChain
) -> None:
    plugins.install("ancient", result={"ip4": {"ip": "10.9.0.2/24"}})
    plugins.fail("ancient", "VERSION", "unknown CNI_COMMAND: VERSION")
    result = await add(chain, "ancient", version="0.2.0")
    assert [address.ip for address in result.addresses] == ["10.9.0.2"]
    assert plugins.stdin("ancient", "ADD")["cniVersion"] == "0.1.0"


@pytest.mark.parametrize("answer", ["true", "echo '{}'", "echo no; exit 1"])
async def test_a_plugin_that_does_not_say_its_versions_is_run_with_what_is_configured(
    plugins: ScriptedPlugins, chain: PluginChain, answer: str
) -> None:
    plugins.install("quiet")
    plugins.script("quiet", "VERSION", answer)
    await add(chain, "quiet", version="0.4.0")
    assert plugins.stdin("quiet", "ADD")["cniVersion"] == "0.4.0"


async def test_status_is_asked_where_all_know_it(plugins: ScriptedPlugins, chain: PluginChain) -> None:
    plugins.install("new")
    plugins.install("old", versions=DEBIAN)
    plugins.fail("new", "STATUS", "daemon is down", code=50)
    await chain.status(parse_list(network_list("new", "old"), "conf"), later())
    assert plugins.asked == []
    with pytest.raises(NetworkError, match=r"plugin new, STATUS: daemon is down \(code 50\)"):
        await chain.status(parse_list(network_list("new"), "conf"), later())
    assert plugins.environment("new", "STATUS")["CNI_PATH"] == str(plugins.folder)


@pytest.mark.parametrize(
    ("configured", "known"),
    [
        (network_list("new"), True),
        (network_list("new", "old"), False),
        (network_list("new", version="1.0.0"), False),
        (network_list("new", disableGC=True), False),
    ],
)
async def test_garbage_is_collected_where_all_know_how(
    plugins: ScriptedPlugins, chain: PluginChain, configured: bytes, known: bool
) -> None:
    plugins.install("new")
    plugins.install("old", versions=DEBIAN)
    assert await chain.knows_garbage(parse_list(configured, "conf")) is known


async def test_every_plugin_collects_garbage(plugins: ScriptedPlugins, chain: PluginChain) -> None:
    plugins.install("new")
    plugins.install("newer")
    plugins.fail("new", "GC", "first")
    with pytest.raises(NetworkError, match="plugin new, GC: first"):
        await chain.collect_garbage(parse_list(network_list("new", "newer"), "conf"), [ATTACHMENT], later())
    assert plugins.asked == ["new GC", "newer GC"]
    assert plugins.stdin("newer", "GC")["cni.dev/valid-attachments"] == [{"containerID": "chained", "ifname": "eth0"}]


async def test_without_a_namespace_nothing_to_take_down_is_no_error(
    plugins: ScriptedPlugins, chain: PluginChain
) -> None:
    for name in ("one", "two"):
        plugins.install(name)
    plugins.fail("two", "DEL", "failed to open netns: no such file or directory")
    await delete(chain, "one", "two", path="")
    assert plugins.asked == ["two DEL", "one DEL"]
    with pytest.raises(NetworkError, match="no such file"):
        await delete(chain, "one", "two", path="/run/netns/x")


async def test_only_a_sandboxs_own_plugins_are_ended(tmp_path: Path) -> None:
    """Of all processes, those whose environment says that they work on it."""
    command = ["sleep", "1000"]
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:

            async def started(sandbox: str, asked: str) -> trio.Process:
                env = {**os.environ, "CNI_CONTAINERID": sandbox, "CNI_COMMAND": asked}
                run = trio.run_process
                process = await nursery.start(
                    lambda task_status: run(
                        command, env=env, check=False, start_new_session=True, task_status=task_status
                    )
                )
                assert isinstance(process, trio.Process)
                return process

            own = f"own{os.getpid()}"
            adding, daemon = await started(own, "DEL"), await started(own, "ADD")
            other = await started(f"{own}x", "DEL")
            await end_left_plugins(own, ("DEL",))
            assert await adding.wait() == -9
            assert daemon.poll() is None
            await end_left_plugins(own, ("ADD", "DEL"))
            assert await daemon.wait() == -9
            assert other.poll() is None
            nursery.cancel_scope.cancel()


def _status(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""
