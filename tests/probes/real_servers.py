"""A pod on a real runtime whose containers are probed in every way, each at a server that treats clients in its own.

The servers (`misbehaving.py`) are a sidecar with a startup probe: nobody is probed before they serve. Every other
container has what one or two questions need: one as its readiness probe, of which nobody minds the failure, and one as
its liveness probe, whose failures are too few to matter. What came of it is read from the agent: from events, and from
`ready`. A test session plays the pod once on each runtime; the tests look at it.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trustme

from tests.agent.real_node import RealNode
from tests.free_ports import free_ports
from trikubelet.api import Pod

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.containerd_node import ContainerdNode

PORTS: Final = ("web", "tls", "reset", "mute", "marked", "full", "grpc", "nohealth", "closed")
NAME: Final = "probed"
IDLE: Final = "trap 'exit 0' TERM; while :; do sleep 0.2; done"
NEVER: Final = 1000
"""A failure threshold."""
PATIENCE: Final = 90.0
LIBRARY: Final = "/library"
"""Where the servers have this machine's Python packages."""
PYTHON: Final = Path(sys.executable).resolve()
TIMED_OUT: Final = r"context deadline exceeded \(Client.Timeout exceeded while awaiting headers\)"


@attrs.frozen
class Question:
    """A probe, and what comes of it."""

    name: str
    handler: Mapping[str, Any]
    """Words that start with `:` stand for ports of the servers."""
    says: str = ""
    """A pattern for a failure's text, with IP for the pod's address and `:web` for a port; none: it is a success."""
    error: str = ""
    """Not empty: asking fails, which counts for nothing; this is the state it says."""
    warning: bool = False
    """`says` is a warning, and it is a success."""

    @property
    def well(self) -> bool:
        return not self.says or self.warning

    def event(self, kind: str) -> tuple[str, str]:
        """Reason and pattern of the message."""
        if self.warning:
            return "ProbeWarning", f"{kind} probe warning: (?:{self.says})"
        if self.error:
            return "Unhealthy", f"{kind} probe errored and resulted in {self.error} state: (?:{self.says})"
        return "Unhealthy", f"{kind} probe failed: (?:{self.says})"


def web(path: str, says: str = "", *, port: str = ":web", scheme: str = "HTTP", **fields: Any) -> Question:
    """An httpGet probe; `IT` in `says` is the URL as Go quotes it."""
    url = re.escape(f"{scheme.lower()}://") + f"IP{port}/{path}"
    handler = {"httpGet": {"path": f"/{path}", "port": port, "scheme": scheme}}
    name = f"{scheme.lower()}-{path if port == ':web' else port[1:]}"
    return Question(name, handler, says.replace("IT", f'Get "{url}"'), **fields)


def tcp(port: str, says: str = "") -> Question:
    return Question(f"tcp-{port[1:]}", {"tcpSocket": {"port": port}}, says)


def grpc(service: str, says: str = "", *, port: str = ":grpc") -> Question:
    name = f"grpc-{service or 'all'}" if port == ":grpc" else f"grpc-{port[1:]}"
    return Question(name, {"grpc": {"port": port, **({"service": service} if service else {})}}, says)


def command(name: str, script: str, says: str = "", **fields: Any) -> Question:
    return Question(f"exec-{name}", {"exec": {"command": ["sh", "-c", script]}}, says, **fields)


UNCONNECTED: Final = 'timeout: failed to connect service "IP{}" within 1s: context deadline exceeded'

QUESTIONS: Final = (
    web("ok"),
    web("here"),
    web("secured"),
    web("away", "Probe terminated redirects, Response body: gone", warning=True),
    web("endless"),
    web("ok", port=":tls", scheme="HTTPS"),
    web("unwell", "HTTP probe failed with statuscode: 503"),
    web("loop", r'Get "/loop": stopped after 10 redirects|IT: stopped after 10 redirects'),
    web("slow", f"IT: {TIMED_OUT}"),
    web("reset", r"IT: read tcp .*: connection reset by peer"),
    web("garbage", "IT: net/http: HTTP/1.x transport connection broken: malformed HTTP .*"),
    web("stalls", r"context deadline exceeded \(Client.Timeout .* while reading body\)", error="failure"),
    web("short", "unexpected EOF", error="failure"),
    web("ok", "IT: EOF|IT: read tcp .*: connection reset by peer", port=":tls"),
    web("ok", "IT: http: server gave HTTP response to HTTPS client", scheme="HTTPS"),
    web("ok", r"IT: (read tcp .*: connection reset by peer|EOF)", port=":reset"),
    web("ok", f"IT: {TIMED_OUT}", port=":mute"),
    web("ok", f"IT: {TIMED_OUT}", port=":mute", scheme="HTTPS"),
    web("ok", f"IT: {TIMED_OUT}", port=":full"),
    web("ok", "IT: dial tcp IP:closed: connect: connection refused", port=":closed"),
    tcp(":web"),
    tcp(":mute"),
    tcp(":reset"),
    tcp(":full", "dial tcp IP:full: i/o timeout"),
    tcp(":closed", "dial tcp IP:closed: connect: connection refused"),
    grpc(""),
    grpc("serving"),
    grpc("unwell", r'service unhealthy \(responded with "NOT_SERVING"\)'),
    grpc("unheard-of", "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service"),
    grpc("slow", "timeout: health rpc did not complete within 1s"),
    grpc("", "error: this server does not implement the grpc health protocol .*", port=":nohealth"),
    grpc("", UNCONNECTED.format(":closed"), port=":closed"),
    grpc("", UNCONNECTED.format(":mute"), port=":mute"),
    grpc("", UNCONNECTED.format(":reset"), port=":reset"),
    grpc("", UNCONNECTED.format(":full"), port=":full"),
    grpc("", UNCONNECTED.format(":web"), port=":web"),
    command("good", "echo fine"),
    command("bad", "echo out; echo err >&2; exit 3", "out\nerr\n?"),
    command("slow", "sleep 20", 'command timed out: "sh -c sleep 20" timed out after 1s'),
    command("long", "i=0; while [ $i -lt 3000 ]; do echo 0123456789; i=$((i+1)); done; exit 1", r"(0123456789\n)+.*"),
    Question("exec-missing", {"exec": {"command": ["/no/such"]}}, r".*no such file.*", error="unknown"),
)
"""Every handler at everything that it can meet."""

FLIPPING: Final[Mapping[str, Mapping[str, Any]]] = {
    "flip-http": {"httpGet": {"path": "/marked", "port": ":web"}},
    "flip-tcp": {"tcpSocket": {"port": ":marked"}},
    "flip-grpc": {"grpc": {"port": ":grpc", "service": "marked"}},
    "flip-exec": {"exec": {"command": ["sh", "-c", "! test -e /shared/unwell"]}},
}
"""Containers by handler that are restarted while the mark is there."""


@attrs.define
class ProbedPod:
    """The pod while it runs."""

    node: RealNode
    pod: Pod
    """As it was in the beginning."""
    ports: Mapping[str, int]
    containers: Mapping[str, tuple[Question | None, Question | None]]
    """The questions that a container has as readiness and as liveness probe."""
    _seen: set[tuple[str, str, str]] = attrs.field(factory=set)

    def come_to_pass(self, question: Question) -> None:
        """Wait until the agent tells what comes of a question. Raises AssertionError."""
        container, kind = next(
            (name, kind)
            for name, asked in self.containers.items()
            for kind, each in zip(("Readiness", "Liveness"), asked, strict=True)
            if each is question
        )
        if question.says:
            reason, pattern = question.event(kind)
            compiled = re.compile(self._filled_in(pattern), re.DOTALL)
            self.node.until(
                lambda: any(compiled.fullmatch(said) for said in self.said(container, reason)),
                f"{container} says {compiled.pattern!r}, not {self.said(container)}",
                PATIENCE,
            )
        if kind == "Readiness":
            self.node.until(
                lambda: self.node.status(NAME, container).ready is question.well,
                f"{container} is {'' if question.well else 'not '}ready; it said {self.said(container)}",
                PATIENCE,
            )
        if not question.says:
            about = [said for said in self.said(container) if said.startswith(kind)]
            assert about == [], f"nothing was to be said of {container}, but {about} was"

    def servers_came_first(self) -> None:
        """Nobody's container started before the startup probe of the sidecar was a success."""
        pod = self.node.pod(NAME)
        assert pod is not None
        (sidecar,) = pod.status.init_container_statuses
        assert sidecar.started
        began = (self.node.shared / "serving").stat().st_mtime
        for status in pod.status.container_statuses:
            running = status.state.running
            assert running is not None
            assert running.started_at is not None
            assert running.started_at.timestamp() >= int(began), status.name

    def until_killed(self, container: str) -> None:
        wanted = f"Container {container} failed liveness probe, will be restarted"
        self.node.until(
            lambda: wanted in self.said(container, "Killing"), f"{container} is killed, it said {self.said(container)}"
        )

    def said(self, container: str, reason: str = "") -> list[str]:
        """Messages of a container's events, all that ever were seen."""
        events = self.node.client.get("/events", {"uid": self.pod.metadata.uid})
        self._seen |= {(event["fieldPath"], event["reason"], event["message"]) for event in events}
        return [
            message for path, why, message in sorted(self._seen) if f"{{{container}}}" in path and reason in (why, "")
        ]

    def _filled_in(self, pattern: str) -> str:
        pattern = pattern.replace("IP", re.escape(self.pod.status.pod_ip))
        return re.sub(rf":({'|'.join(PORTS)})\b", lambda found: f":{self.ports[found[1]]}", pattern)


@contextmanager
def probed_pod(folder: Path, image: str, containerd: ContainerdNode | None = None) -> Iterator[ProbedPod]:
    """The pod runs. Nothing is left of it, or AssertionError."""
    node = RealNode(folder, image, containerd)
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    containers = _paired(QUESTIONS)
    with ExitStack() as stack:
        stack.callback(node.clean)
        _prepare(node.shared)
        probed = [
            node.container(
                IDLE,
                name,
                **({} if ready is None else {"readinessProbe": pod_probe(ready.handler, ports, **_time_for(ready))}),
                **(
                    {}
                    if live is None
                    else {"livenessProbe": pod_probe(live.handler, ports, failureThreshold=NEVER, **_time_for(live))}
                ),
            )
            for name, (ready, live) in containers.items()
        ]
        flipping = [
            node.container(
                IDLE,
                name,
                readinessProbe=pod_probe(handler, ports),
                livenessProbe=pod_probe(handler, ports, failureThreshold=2, terminationGracePeriodSeconds=3),
            )
            for name, handler in FLIPPING.items()
        ]
        servers, volumes = _servers(node, ports)
        node.run(NAME, *probed, *flipping, initContainers=[servers], volumes=volumes)
        node.start()
        node.until(lambda: node.status(NAME, "servers").started, "the servers have started", PATIENCE)
        started = node.pod(NAME)
        assert started is not None
        yield ProbedPod(node, started, ports, containers)
        assert node.stop() == 0, node.told()
        node.until(lambda: not node.leftovers(), f"nothing is left of {node.leftovers()}")


def pod_probe(handler: Mapping[str, Any], ports: Mapping[str, int], **fields: Any) -> dict[str, Any]:
    """A probe each second with the handler, whose ports are filled in."""
    ((kind, action),) = handler.items()
    numbered = {
        name: ports[value[1:]] if isinstance(value, str) and value.startswith(":") else value
        for name, value in action.items()
    }
    return {kind: numbered, "periodSeconds": 1, "timeoutSeconds": 1, **fields}


def _time_for(question: Question) -> dict[str, int]:
    """Who has nothing to say gets time enough on a busy machine."""
    return {} if question.says else {"timeoutSeconds": 9}


def flip_and_recover(pod: ProbedPod, containers: Iterable[str]) -> None:
    """What they ask for gets unwell, and well again: each of them is restarted for it, and none of the others."""
    node = pod.node
    node.until(lambda: all(node.status(NAME, name).ready for name in containers), "they are ready", PATIENCE)
    mark = node.shared / "unwell"
    mark.touch()
    try:
        for name in containers:
            pod.until_killed(name)
    finally:
        mark.unlink()
    node.until(lambda: all(node.status(NAME, name).restart_count for name in containers), "they restart", PATIENCE)
    node.until(lambda: all(node.status(NAME, name).ready for name in containers), "they are ready again", PATIENCE)
    found = node.pod(NAME)
    assert found is not None
    assert {one.name for one in found.status.container_statuses if one.restart_count} == {*containers}


def _paired(questions: Sequence[Question]) -> dict[str, tuple[Question | None, Question | None]]:
    """Those that end well as readiness probes, beside those that do not as liveness probes; the rest in pairs."""
    well = [question for question in questions if question.well]
    unwell = [question for question in questions if not question.well]
    pairs: list[tuple[Question | None, Question | None]] = list(zip(well, unwell, strict=False))
    rest: list[Question | None] = [*unwell[len(well) :], *([None] if (len(unwell) - len(well)) % 2 else [])]
    pairs += zip(rest[::2], rest[1::2], strict=True)
    return {f"c{number}": pair for number, pair in enumerate(pairs)}


def _prepare(shared: Path) -> None:
    """What the servers need: a certificate of somebody else's that has expired, and the script."""
    shutil.copy(Path(__file__).with_name("misbehaving.py"), shared)
    certificate = trustme.CA().issue_cert("somebody.else", not_after=datetime(2020, 1, 1, tzinfo=UTC))
    certificate.private_key_and_cert_chain_pem.write_to_path(shared / "server.pem")


def _servers(node: RealNode, ports: Mapping[str, int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The sidecar, and the volumes with which an image without Python has this machine's."""
    words = " ".join(f"{name}={number}" for name, number in ports.items() if name != "closed")
    script = f"PYTHONPATH={LIBRARY} exec {PYTHON} /shared/misbehaving.py /shared {words}"
    folders = {str(Path(trustme.__file__).parents[1]): LIBRARY}
    if node.containerd is not None:
        base = {sys.base_prefix} if not sys.base_prefix.startswith("/usr") else set()
        folders |= {path: path for path in ("/usr", "/lib", "/lib64", *base) if Path(path).exists()}
    sidecar = node.container(
        script,
        "servers",
        restartPolicy="Always",
        volumeMounts=[
            {"name": f"host-{number}", "mountPath": there, "readOnly": True}
            for number, there in enumerate(folders.values())
        ],
        startupProbe=pod_probe({"exec": {"command": ["test", "-e", "/shared/serving"]}}, ports, failureThreshold=60),
    )
    return sidecar, [{"name": f"host-{number}", "hostPath": {"path": here}} for number, here in enumerate(folders)]
