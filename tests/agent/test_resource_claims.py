"""Pods with resource claims: a driver, an agent and an API server as they are, containers that find their devices."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio

from tests.agent.real_node import NODE_NAME, NODES_NETWORK, REPOSITORY, RealNode
from tests.patience import PATIENCE
from tests.volumes.real.served_cluster import ServedCluster, served_cluster
from trikubelet.cli.failures import CommandError
from trikubelet.rpc.grpc import open_unix_channel
from trikubelet.rpc.pod_resources import v1

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apiserver.documents import Document
    from tests.apiserver.server import ApiServer

pytestmark = pytest.mark.root

CDI: Final = Path("/var/run/cdi")
UNTIL_TERM: Final = "echo claim=$TOY_CLAIM; trap 'exit 0' TERM; while :; do sleep 0.05; done"
EXTENDED: Final = "vendor.example.com/toy"
PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"


@attrs.define
class ClaimNode:
    """What a test has in its hands."""

    node: RealNode
    cluster: ServedCluster
    driver_name: str = f"toy-{os.getpid()}.example.com"
    driver: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        return self.node.folder / "driver"

    def start_agent(self) -> None:
        kubeconfig = self.node.folder / "kubeconfig"
        self.node.start(f"--kubeconfig={kubeconfig}", "--drain-on-exit", "--host-image", NODES_NETWORK)

    def start_driver(self) -> None:
        """The agent will find it."""
        self.folder.mkdir(exist_ok=True)
        command = [
            *(sys.executable, "-m", "tests.dra_driver", f"--socket={self.folder / 'dra.sock'}"),
            *(f"--registry={self.node.root / 'plugins_registry'}", f"--name={self.driver_name}", f"--cdi={CDI}"),
            *(f"--state={self.folder / 'state'}", f"--log={self.folder / 'calls'}"),
            f"--faults={self.folder / 'faults'}",
        ]
        with (self.folder / "log").open("ab") as log:
            self.driver = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPOSITORY)

    def kill_driver(self) -> None:
        """And whoever starts the next one removes its sockets."""
        assert self.driver is not None
        self.driver.kill()
        self.driver.wait()
        for socket in (self.folder / "dra.sock", self.node.root / "plugins_registry" / f"{self.driver_name}-reg.sock"):
            socket.unlink(missing_ok=True)

    def fault(self, **by_call: dict[str, Any]) -> None:
        new = self.folder / "faults.new"
        new.write_text(json.dumps(by_call))
        new.rename(self.folder / "faults")

    def calls(self) -> list[tuple[str, list[str], str]]:
        """Those that have ended."""
        return [call for call in self._noted() if call[2] != "begun"]

    def until_called(self, call: str, claim: str) -> None:
        """The driver has such a call, ended or not."""
        self.node.until(lambda: (call, [claim], "begun") in self._noted(), f"{call} for {claim} has begun")

    def _noted(self) -> list[tuple[str, list[str], str]]:
        path = self.folder / "calls"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [(line["call"], line["claims"], line["outcome"]) for line in lines]

    def prepared(self) -> set[str]:
        """UIDs of claims."""
        return {path.name for path in (self.folder / "state").iterdir()}

    # The cluster.

    def claim(self, name: str, *pods: str, made_for: str = "") -> str:
        """A claim that the scheduler has allocated and reserved; its UID. `made_for`: the pod that it was made for."""

        def make(server: ApiServer) -> str:
            metadata: dict[str, Any] = {"name": name}
            if made_for:
                owner = {"apiVersion": "v1", "kind": "Pod", "name": made_for, "controller": True}
                metadata["ownerReferences"] = [{**owner, "uid": server.admin.get("pods", made_for)["metadata"]["uid"]}]
                told = {"resourceClaimStatuses": [{"name": "device", "resourceClaimName": name}]}
                server.admin.patch("pods", made_for, body={"status": told}, subresource="status")
            made = server.admin.create(
                {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
            )
            result = {"request": "r", "driver": self.driver_name, "pool": NODE_NAME, "device": "one"}
            reserved = [
                {"resource": "pods", "name": pod, "uid": server.admin.get("pods", pod)["metadata"]["uid"]}
                for pod in pods
            ]
            status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
            server.admin.patch("resourceclaims", name, body={"status": status}, subresource="status")
            return str(made["metadata"]["uid"])

        return self.cluster.do(make)

    def create_pod(self, name: str, claim: str = "") -> None:
        """Of a claim's template without one."""
        source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": "t"}
        claims = [{"name": "device", **source}]
        self._create(name, {"claims": [{"name": "device"}]}, resourceClaims=claims)

    def create_extended_pod(self, name: str, claim: str) -> None:
        """One that asks for an extended resource, for which the scheduler has made the claim."""
        self._create(name, {"limits": {EXTENDED: "1"}, "requests": {EXTENDED: "1"}})
        mapping = {"containerName": name, "resourceName": EXTENDED, "requestName": "r"}
        told = {"extendedResourceClaimStatus": {"resourceClaimName": claim, "requestMappings": [mapping]}}
        self.cluster.do(lambda server: server.admin.patch("pods", name, body={"status": told}, subresource="status"))

    def _create(self, name: str, resources: dict[str, Any], **spec: Any) -> None:
        container = self.node.container(UNTIL_TERM, name, resources=resources)
        container["volumeMounts"] = []
        document = {
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 5,
                "dnsPolicy": "Default",
                "containers": [container],
                **spec,
            },
        }
        self.cluster.do(lambda server: server.admin.create(document))

    def bind(self, *pods: str) -> None:
        def bind(server: ApiServer) -> None:
            for pod in pods:
                server.admin.bind(pod, NODE_NAME)

        self.cluster.do(bind)

    def pod(self, name: str) -> Document | None:
        return self.cluster.find("pods", name)

    def health(self, pod: str) -> Any:
        """Of the devices of its only container, as its status has it."""
        return ((self.pod(pod) or {})["status"].get("containerStatuses") or [{}])[0].get("allocatedResourcesStatus")

    def pod_resources(self, pod: str) -> list[v1.DynamicResource]:
        """What monitoring agents are told of the pod's only container."""

        async def ask() -> v1.ListPodResourcesResponse:
            async with open_unix_channel(self.node.root / "pod-resources" / "kubelet.sock") as channel:
                return await v1.PodResourcesListerStub(channel).list(v1.ListPodResourcesRequest())

        found = next(one for one in trio.run(ask).pod_resources if one.name == pod)
        return list(found.containers[0].dynamic_resources)

    def metric(self, name: str) -> dict[str, float]:
        """By the driver's name."""
        text = b"".join(self.node.client.blocks("/metrics")).decode()
        return {found[1]: float(found[2]) for found in re.finditer(rf'^{name}{{driver_name="(.*)"}} (.*)$', text, re.M)}

    def until_said(self, pod: str, line: str) -> None:
        def said() -> bool:
            with contextlib.suppress(CommandError):
                blocks = list(self.node.client.blocks(f"/containerLogs/default/{pod}/{pod}"))
                return line in b"".join(blocks).decode().splitlines()
            return False

        self.node.until(said, f"{pod} says {line}; {self.cluster.messages(pod)}; {self.calls()}")

    def until_event(self, pod: str, text: str) -> None:
        self.node.until(lambda: any(text in line for line in self.cluster.messages(pod)), f"{pod} is told {text}")

    def end(self, *pods: str) -> None:
        for pod in pods:
            self.cluster.delete("pods", pod)
        self.node.until(lambda: not any(map(self.pod, pods)), f"{pods} are gone; {self.calls()}")


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaimNode]:
    """One for both tests, with its agent; nothing is left of it."""
    node = RealNode(tmp_path_factory.mktemp("claims"), "localhost/host")
    with served_cluster() as cluster:
        kubeconfig = node.folder / "kubeconfig"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(cluster.kubeconfig(NODE_NAME))
        had_cdi = CDI.exists()
        CDI.mkdir(exist_ok=True)
        claims = ClaimNode(node, cluster)
        try:
            claims.start_agent()
            yield claims
            assert node.stop() == 0, node.told()
        finally:
            if claims.driver is not None:
                claims.driver.terminate()
                claims.driver.wait(PATIENCE)
            node.clean()
            for path in CDI.glob(f"{claims.driver_name}-*"):
                path.unlink()
            if not had_cdi:
                with contextlib.suppress(OSError):  # others may have put something there meanwhile
                    CDI.rmdir()
        assert not [one for one in node.leftovers() if not one.startswith("process ")]


def test_pods_get_the_devices_of_their_claims(claims: ClaimNode) -> None:
    """Alone, shared, and while the driver hangs, dies and comes back. In the end nothing is left prepared."""
    claims.create_pod("first", "one")
    uid = claims.claim("one", "first")
    claims.bind("first")
    claims.until_event("first", f"prepare dynamic resources: DRA driver {claims.driver_name} is not registered")
    claims.start_driver()
    claims.until_said("first", "claim=one")
    assert claims.prepared() == {uid}
    assert claims.calls() == [(PREPARE, ["one"], "ok")]
    device = {"resourceID": f"{claims.driver_name}/claim={uid}", "health": "Unknown"}
    health = [{"name": "claim:device", "resources": [device]}]
    claims.node.until(lambda: claims.health("first") == health, f"{health} is shown, not {claims.health('first')}")
    claims.end("first")
    assert claims.prepared() == set()

    claims.create_pod("left", "shared")
    claims.create_pod("right", "shared")
    claims.claim("shared", "left", "right")
    claims.bind("left", "right")
    claims.until_said("left", "claim=shared")
    (shown,) = claims.pod_resources("left")
    assert (shown.claim_name, shown.claim_namespace) == ("shared", "default")
    (given,) = shown.claim_resources
    assert (given.driver_name, given.device_name) == (claims.driver_name, "device-of-shared")
    assert claims.metric("dra_resource_claims_in_use") == {claims.driver_name: 1, "<any>": 1}
    claims.until_said("right", "claim=shared")
    claims.end("left")
    assert len(claims.prepared()) == 1
    claims.end("right")
    assert claims.prepared() == set()
    assert [call for call, _, _ in claims.calls()] == [PREPARE, UNPREPARE] * 2

    claims.fault(**{PREPARE: {"kind": "hang"}})
    claims.create_pod("late")
    claims.claim("hung", "late", made_for="late")
    claims.bind("late")
    claims.until_called(PREPARE, "hung")
    claims.kill_driver()
    claims.until_event("late", "NodePrepareResources: rpc error: code = Unavailable")
    claims.fault()
    claims.start_driver()
    claims.until_said("late", "claim=hung")
    claims.end("late")
    assert claims.prepared() == set()


def test_an_extended_resource_comes_from_a_driver(claims: ClaimNode) -> None:
    """The node does not offer it, and no device plugin has any."""
    if claims.driver is None:
        claims.start_driver()
    claims.create_extended_pod("asks", "extended")
    uid = claims.claim("extended", "asks")
    claims.bind("asks")
    claims.until_said("asks", "claim=extended")
    assert claims.prepared() == {uid}
    (shown,) = claims.pod_resources("asks")
    assert (shown.claim_name, len(shown.claim_resources)) == ("extended", 1)
    claims.node.until(lambda: "containerStatuses" in (claims.pod("asks") or {})["status"], "its status is written")
    told = (claims.pod("asks") or {})["status"]["extendedResourceClaimStatus"]
    assert told["resourceClaimName"] == "extended", "what the scheduler said is kept"
    claims.end("asks")
    assert claims.prepared() == set()


def test_what_a_killed_agent_has_prepared_the_next_one_undoes(claims: ClaimNode) -> None:
    if claims.driver is None:
        claims.start_driver()
    for name in ("stays", "goes"):
        claims.create_pod(name, f"{name}-claim")
        claims.claim(f"{name}-claim", name)
    claims.bind("stays", "goes")
    claims.until_said("stays", "claim=stays-claim")
    claims.until_said("goes", "claim=goes-claim")
    claims.node.stop(signal.SIGKILL)
    claims.cluster.delete("pods", "goes", grace=0)
    claims.start_agent()
    claims.node.until(lambda: len(claims.prepared()) == 1, f"the pod that is gone holds nothing: {claims.calls()}")
    assert [call for call, names, _ in claims.calls() if names == ["stays-claim"]] == [PREPARE]
    claims.end("stays")
    assert claims.prepared() == set()
