"""`trikubelet run` as a process: what it serves by its configuration, on real ports, and what keeps it from starting.

The container runtime behind it is the simulated one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio
from cryptography import x509

from tests.agent.real_node import UNTOUCHED, WITHOUT_CGROUPS
from tests.agent.serving import PATIENCE, Answer, Caller, client_context
from tests.agent.test_refusing_to_start import configuration, run
from tests.apiserver.controllers import Controllers
from tests.apiserver.server import ApiServer, open_api_server
from tests.forked import ForkedProcess, fork
from tests.free_ports import free_ports
from trikubelet.clock import SystemClock
from trikubelet.linux.shared_folder import unshare_folder
from trikubelet.node.addresses import LOOPBACK, primary_address
from trikubelet.rpc.grpc import Server
from trikubelet.sim import SimulatedRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


NODE: Final = "given"
POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web"},
    "spec": {"containers": [{"name": "main", "image": "test:1"}]},
}
ALONE: Final[dict[str, Any]] = {
    **WITHOUT_CGROUPS,
    "authentication": {"webhook": {"enabled": False}, "anonymous": {"enabled": True}},
    "authorization": {"mode": "AlwaysAllow"},
}
"""A node without a cluster that lets everybody in."""


@attrs.define
class Running:
    """An agent's process."""

    process: ForkedProcess
    folder: Path
    ports: dict[str, int]

    def caller(self, port: str, context: ssl.SSLContext | None = None) -> Caller:
        return Caller(partial(self._dial, self.ports[port], context if port == "port" else None))

    async def ask(self, port: str, path: str, context: ssl.SSLContext | None = None) -> Answer:
        """`port` is the configuration's field."""
        caller = self.caller(port, context or client_context())
        answer = await caller.ask("GET", path)
        await caller.hang_up()
        return answer

    async def _dial(self, port: int, context: ssl.SSLContext | None) -> trio.abc.Stream:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        if context is None:
            return stream
        return trio.SSLStream(stream, context, server_hostname=NODE, https_compatible=True)

    def log(self) -> list[dict[str, Any]]:
        lines = (self.folder / "agent.log").read_text().splitlines()
        return [json.loads(line) if line.startswith("{") else {"event": line} for line in lines]

    async def until_said(self, event: str) -> dict[str, Any]:
        """Wait until the log has the event; its first line."""
        with trio.fail_after(PATIENCE):
            while not (found := [line for line in self.log() if line["event"].startswith(event)]):
                assert self.process.poll() is None, self.log()[-5:]
                await trio.sleep(0.02)
        return found[0]

    async def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):
            return await self.process.wait_async()


def ports_for(*names: str) -> dict[str, int]:
    return dict(zip(names, free_ports(len(names)), strict=True))


@asynccontextmanager
async def running(folder: Path, *flags: str, **fields: Any) -> AsyncIterator[Running]:
    """An agent that has begun to serve, with one static pod; killed at the end if it still runs."""
    ports = ports_for("port", "readOnlyPort", "healthzPort")
    (folder / "manifests").mkdir(exist_ok=True)
    (folder / "manifests" / "web.json").write_text(json.dumps(POD))
    folders = {"podLogsDir": str(folder / "logs"), "staticPodPath": str(folder / "manifests")}
    given = {**WITHOUT_CGROUPS, "failSwapOn": False, **folders, **ports, **fields}
    always = [f"--root-dir={folder / 'root'}", f"--node-name={NODE}", "--log-format=json"]
    config = configuration(folder, **given)
    (folder / "cri.sock").unlink(missing_ok=True)
    async with trio.open_nursery() as nursery:
        await nursery.start(Server(SimulatedRuntime(seed=1, write_logs=True).handlers).serve_unix, folder / "cri.sock")
        runtime = f"--runtime-endpoint=unix://{folder / 'cri.sock'}"
        with (folder / "agent.log").open("wb") as log:
            process = fork(UNTOUCHED, ["run", *always, runtime, config, *flags], stdout=log, stderr=log)
        try:
            agent = Running(process, folder, {name: given[name] for name in ports})
            await agent.until_said("listening")
            yield agent
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait_async()
            if os.geteuid() == 0:
                unshare_folder(folder / "root")
        nursery.cancel_scope.cancel()


# What is served.


async def test_a_process_serves_what_its_configuration_says(tmp_path: Path) -> None:
    async with running(tmp_path, **ALONE) as agent:
        await agent.until_said("container started")
        assert (await agent.ask("healthzPort", "/healthz")).text == "ok"
        assert (await agent.ask("port", "/healthz")).text == "ok"
        metrics = (await agent.ask("port", "/metrics")).text
        assert f'kubelet_node_name{{node="{NODE}"}} 1\n' in metrics
        assert 'kubelet_started_containers_total{container_type="container"} 1\n' in metrics
        summary = json.loads((await agent.ask("port", "/stats/summary")).body)
        assert summary["node"]["nodeName"] == NODE
        assert summary["node"]["memory"]["workingSetBytes"] > 0
        pods = json.loads((await agent.ask("readOnlyPort", "/pods")).body)
        assert [pod["metadata"]["name"] for pod in pods["items"]] == [f"web-{NODE}"]
        configz = json.loads((await agent.ask("port", "/configz")).body)["kubeletconfig"]
        assert {name: configz[name] for name in agent.ports} == agent.ports
        assert re.search(
            rf"root-dir\W+{tmp_path.name}", (await agent.ask("port", "/flagz")).text.replace(f"{tmp_path.parent}/", "")
        )
        assert (await agent.ask("port", "/statusz")).status == 200
        assert (await agent.ask("port", f"/containerLogs/default/web-{NODE}/main")).status == 200
        assert (await agent.ask("readOnlyPort", "/configz")).status == 404
        assert await agent.end() == 0
        with pytest.raises(OSError, match="connect"):
            await agent.ask("port", "/healthz")


async def test_flags_win_over_the_configuration_and_the_socket_is_always_there(tmp_path: Path) -> None:
    other = ports_for("healthzPort")
    async with running(
        tmp_path, f"--healthz-port={other['healthzPort']}", "--read-only-port=0", enableServer=False, **ALONE
    ) as agent:
        await agent.until_said("container started")
        (listening,) = (line for line in agent.log() if line["event"] == "listening")
        assert listening["address"] == f"127.0.0.1:{other['healthzPort']}"
        stream = await trio.open_unix_socket(tmp_path / "root" / "trikubelet.sock")

        async def dial() -> trio.abc.Stream:
            return stream

        assert await Caller(dial).status("GET", "/stats/summary") == 200
        await trio.aclose_forcefully(stream)


async def test_an_agent_whose_runtime_is_away_is_alive_and_says_what_it_knows(tmp_path: Path) -> None:
    async with running(tmp_path, "--runtime-endpoint=unix:///none", **ALONE) as agent:
        await agent.until_said("the runtime does not answer")
        for path in ("/healthz", "/healthz/syncloop", "/pods", "/metrics", "/configz", "/statusz"):
            assert (path, (await agent.ask("port", path)).status) == (path, 200)
        summary = json.loads((await agent.ask("port", "/stats/summary")).body)
        assert summary["node"]["memory"]["workingSetBytes"] > 0
        assert "node_cpu_usage_seconds_total" in (await agent.ask("port", "/metrics/resource")).text
        unknown = await agent.ask("port", "/runningpods/")
        assert unknown.status == 500
        # When it is tried again may follow.
        assert unknown.text.startswith(
            'rpc error: code = Unavailable desc = connection error: desc = "transport: Error while dialing: '
            'dial unix /none: connect: no such file or directory"'
        )
        assert (await agent.ask("healthzPort", "/healthz")).text == "ok"
        assert await agent.end() == 0


async def test_a_certificate_of_its_own_is_made_once(tmp_path: Path) -> None:
    shown = []
    for _ in range(2):
        async with running(tmp_path, **ALONE) as agent:
            caller = agent.caller("port", client_context())
            shown.append(x509.load_der_x509_certificate(await caller.shown()))
            await caller.hang_up()
            assert await agent.end() == 0
    assert shown[0] == shown[1]
    names = shown[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NODE]


async def test_without_a_cluster_to_ask_the_defaults_serve_no_port_and_say_so_once(tmp_path: Path) -> None:
    async with running(tmp_path) as agent:
        await agent.until_said("container started")
        told = [line for line in agent.log() if line["event"] == "the node's port is not served"]
        assert [line["why"].partition(":")[0] for line in told] == ["authentication.webhook.enabled"]
        assert {line["port"] for line in agent.log() if line["event"] == "listening"} == {"read-only", "health"}
        assert await agent.end() == 0


# What keeps it from starting.


@pytest.mark.parametrize(
    ("field", "option"),
    [("port", "set another port (--port)"), ("readOnlyPort", "set another readOnlyPort (--read-only-port)")],
)
def test_a_port_that_is_taken_ends_the_agent_and_tells_what_to_change(field: str, option: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        fields = {"address": "127.0.0.1", **ports_for("port", "healthzPort"), **ALONE, field: number}
        *_, line = run(tmp_path, f"--runtime-endpoint=unix://{tmp_path}/none", configuration(tmp_path, **fields))
    name = {"port": "node", "readOnlyPort": "read-only"}[field]
    assert line.startswith(f"error: cannot listen on 127.0.0.1:{number} ({name}): address already in use, ")
    assert line.endswith(option)


async def test_a_port_for_health_that_is_taken_keeps_no_agent_from_starting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        async with running(tmp_path, **ALONE, healthzPort=number) as agent:
            line = await agent.until_said("cannot listen on")
            assert f"127.0.0.1:{number} (health)" in line["event"]
            await agent.until_said("container started")
            assert (await agent.ask("port", "/healthz")).status == 200


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tlsCipherSuites": ["TLS_NONE"]}, "tlsCipherSuites"),
        ({"tlsCertFile": "/none.crt", "tlsPrivateKeyFile": "/none.key"}, "the serving certificate cannot be used"),
        ({"authentication": {"x509": {"clientCAFile": "/none.crt"}}}, "authentication.x509.clientCAFile"),
    ],
)
def test_an_agent_that_cannot_serve_as_it_is_told_does_not_start(
    fields: dict[str, Any], told: str, tmp_path: Path
) -> None:
    given = {**ports_for("port", "healthzPort"), **ALONE, **fields}
    *_, line = run(tmp_path, f"--runtime-endpoint=unix://{tmp_path}/none", configuration(tmp_path, **given))
    assert line.startswith("error: ")
    assert told in line


# In a cluster.


@asynccontextmanager
async def api_server() -> AsyncIterator[tuple[ApiServer, str]]:
    """An API server, and where it is."""
    async with open_api_server(SystemClock()) as api, trio.open_nursery() as nursery:
        port = await nursery.start(api.serve_tcp)
        yield api, f"https://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(primary_address() == LOOPBACK, reason="needs a network: a node without an address asks for none")
async def test_a_serving_certificate_is_asked_for_and_shown_as_soon_as_it_is_there(tmp_path: Path) -> None:
    async with api_server() as (api, url):
        kubeconfig = tmp_path / "kubelet.conf"
        kubeconfig.write_text(api.kubeconfig(api.node_certificate(NODE), url))
        (tmp_path / "ca.pem").write_bytes(api.ca_pem)
        x509_proof = {"authentication": {"x509": {"clientCAFile": str(tmp_path / "ca.pem")}}}
        flags = (f"--kubeconfig={kubeconfig}", f"--cert-dir={tmp_path / 'pki'}")
        async with running(tmp_path, *flags, serverTLSBootstrap=True, **x509_proof) as agent:
            with trio.fail_after(PATIENCE):
                while not (requests := api.admin.list("certificatesigningrequests")):
                    await trio.sleep(0.05)
            assert [request["spec"]["signerName"] for request in requests] == ["kubernetes.io/kubelet-serving"]
            with pytest.raises(trio.BrokenResourceError):
                await agent.ask("port", "/healthz")
            Controllers(api).approve_all()
            await agent.until_said("new certificate")
            trusting = ssl.create_default_context(cadata=api.ca_pem.decode())
            assert (await agent.ask("port", "/healthz", trusting)).status == 401
            master = api.admin_certificate()
            (tmp_path / "admin.pem").write_bytes(master.cert_pem + master.key_pem)
            trusting.load_cert_chain(tmp_path / "admin.pem")
            assert (await agent.ask("port", "/pods", trusting)).status == 200
            with trio.fail_after(PATIENCE):
                while not (nodes := api.admin.list("nodes")):  # it registers beside all this
                    await trio.sleep(0.05)
            (node,) = nodes
            assert node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == agent.ports["port"]
            assert "ExtendWebSocketsToKubelet" in node["status"]["declaredFeatures"]
            assert await agent.end() == 0
