"""Questions the agent puts to a container, and the hooks it runs in it."""

from __future__ import annotations

from attrs import field

from trikubelet.api.schema import REQUIRED, APIObject, Int32
from trikubelet.formats.values import frozen


@frozen(repr=False)
class ExecAction(APIObject):
    """Runs a command in the container; exit code 0 is success."""

    command: tuple[str, ...] = ()


@frozen(repr=False)
class HTTPHeader(APIObject):
    """One header of a request; names may repeat."""

    name: str = field(default="", metadata=REQUIRED)
    value: str = field(default="", metadata=REQUIRED)


@frozen(repr=False)
class HTTPGetAction(APIObject):
    """Asks an HTTP server; a status from 200 to 399 is success."""

    path: str = ""
    port: int | str = field(default=0, metadata=REQUIRED)
    host: str = ""
    scheme: str = ""
    http_headers: tuple[HTTPHeader, ...] = ()


@frozen(repr=False)
class TCPSocketAction(APIObject):
    """Opens a TCP connection; opening it is success."""

    port: int | str = field(default=0, metadata=REQUIRED)
    host: str = ""


@frozen(repr=False)
class GRPCAction(APIObject):
    """Asks the gRPC health service. A `service` of None means the default, the empty name."""

    port: Int32 = field(default=0, metadata=REQUIRED)
    service: str | None = field(default=None, metadata=REQUIRED)


@frozen(repr=False)
class SleepAction(APIObject):
    """Waits for a number of seconds."""

    seconds: int = field(default=0, metadata=REQUIRED)


@frozen(repr=False)
class Probe(APIObject):
    """How and how often a container's health is asked for. Durations are in seconds; exactly one handler is set."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: Int32 = 0
    timeout_seconds: Int32 = 0
    period_seconds: Int32 = 0
    success_threshold: Int32 = 0
    failure_threshold: Int32 = 0
    termination_grace_period_seconds: int | None = None


@frozen(repr=False)
class LifecycleHandler(APIObject):
    """What a hook does; exactly one field is set."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    sleep: SleepAction | None = None


@frozen(repr=False)
class Lifecycle(APIObject):
    """What runs right after a container started and right before it is stopped; `stop_signal` replaces the image's."""

    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None
    stop_signal: str | None = None
