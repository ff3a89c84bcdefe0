"""The keeper's requests, and the containers, commands and pod namespaces that they are about.

    hello         version, newest (protocol)     → version, pid, abilities, features
    list                                         → containers, sandboxes
    sandbox_start sandbox, hostname, sysctls, host_ipc, host_uts, shared_pid, network ("pod" or "node"), first (what the
                  pod's first container will be called: container, directory, cgroup_parent; or null)
    sandbox_stop  sandbox                        its namespaces go; containers that were started must have ended
    create        a container's specification    no answer; it is made ready for its start, as far as that can be done
    start         a container's specification    → what `Container.to_json` says, once the exec has worked
    signal        container, signal              kill  container          update  container, resources
    exec          container, exec, argv, tty, streams; a descriptor for each stream (names in order; others are
                  /dev/null)  → with tty, which takes no streams: the terminal's descriptor
    exec_kill     exec                           it and all that it started
    attach        container, stdin, streams; a pipe's writing end for each    → input: "stdin", "terminal" or null,
                  and its descriptor
    socket        sandbox, family (4 or 6)       → the descriptor of a TCP socket in the pod's network
                  sandbox, family, kind, protocol (numbers)                → of any kind
    namespace     sandbox                        → the descriptor of its network namespace
    helper        sandbox, argv; a descriptor for its output     → a pidfd of a program that serves the pod's network
    close_stdin   container
    reopen_log    container                      forget  container        (its files are the agent's to delete)
    shutdown                                     → ended: whether the keeper ends, which it does without containers

Events, to every connection: `exited` (container and its exit record), `exec_ended` (to the one that asked).
An error's `kind` is one of: unknown (no such container), exists, not_running, start (could not be started), busy,
invalid, internal.
"""

from __future__ import annotations

import os
import socket

from trikubelet.embedded.keeper import landlock, linux, protocol
from trikubelet.embedded.keeper.connection import Connection
from trikubelet.embedded.keeper.container import EXITED, STARTING, Container, StartError, expected_spec
from trikubelet.embedded.keeper.execution import Execution
from trikubelet.embedded.keeper.log import log, log_exception, words_of
from trikubelet.embedded.keeper.sandbox import SHARED_MEMORY, Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.embedded.keeper.environment import Environment
    from trikubelet.embedded.keeper.event_loop import Timer
    from trikubelet.embedded.keeper.protocol import Message

_LOOK_AT_ROOT_EVERY = 2.0
_IDLE_LIMIT = 60.0
_ACCEPT_AGAIN = 0.2
"""Seconds until a connection is looked for again that could not be accepted."""
_CREATED_FOR = 10.0
"""Seconds for which a container that is not started keeps a process ready; its start takes longer then."""
MOST_EXPECTED = 16
"""Containers of which nothing is known, at a time: each is a process of some 1 MiB, which may wait for its image."""


class RequestError(Exception):
    """A request that cannot be carried out; `kind` tells the agent which way."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Created:
    """A container that waits for its start, or is being discarded."""

    __slots__ = ("container", "limit", "owner", "then")

    def __init__(self, container: Container, owner: Connection, limit: Timer) -> None:
        self.container = container
        self.owner = owner
        """The agent that will start it; when that is gone, another one creates it anew."""
        self.limit = limit
        """Until when it waits."""
        self.then: list[Callable[[], None]] = []
        """To be called when nothing is left of it."""


class Server:
    """Everything that this keeper keeps."""

    def __init__(self, environment: Environment, listener: socket.socket) -> None:
        self._environment = environment
        self._loop = environment.loop
        self._listener = listener
        self._root_descriptor = os.open(environment.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._containers: dict[str, Container] = {}
        """Those that were started."""
        self._created: dict[str, _Created] = {}
        self._sandboxes: dict[str, Sandbox] = {}
        self._executions: dict[str, tuple[Execution, Connection]] = {}
        self._connections: set[Connection] = set()
        self._idle_for = 0.0
        self._ending = False
        self._handlers: dict[str, Callable[[Connection, Message, list[int]], Message | None]] = {
            "hello": self._hello,
            "list": self._list,
            "sandbox_start": self._sandbox_start,
            "sandbox_stop": self._sandbox_stop,
            "create": self._create,
            "start": self._start,
            "signal": self._signal,
            "kill": self._kill,
            "update": self._update,
            "exec": self._exec,
            "exec_kill": self._exec_kill,
            "attach": self._attach,
            "close_stdin": self._close_stdin,
            "socket": self._socket,
            "namespace": self._namespace,
            "helper": self._helper,
            "reopen_log": self._reopen_log,
            "forget": self._forget,
            "shutdown": self._shutdown,
        }
        self._loop.watch(listener.fileno(), self._accept)
        self._loop.after(_LOOK_AT_ROOT_EVERY, self._inspect_containers)

    # -- connections -------------------------------------------------------------------------------------------------

    def _accept(self, _events: int) -> None:
        try:
            channel, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            log(f"an agent waits for its connection: {error.strerror or error}")
            self._loop.forget(self._listener.fileno())
            self._loop.after(_ACCEPT_AGAIN, lambda: self._loop.watch(self._listener.fileno(), self._accept))
            return
        self._connections.add(
            Connection(self._loop, channel, on_message=self._handle, on_closed=self._connection_closed)
        )

    def _connection_closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        for execution, owner in list(self._executions.values()):
            if owner is connection and not execution.ended:
                execution.kill()
        for created in list(self._created.values()):
            if created.owner is connection:
                created.container.discard()

    def _handle(self, connection: Connection, message: Message, descriptors: list[int]) -> None:
        request, operation = message.get("id"), message.get("op")
        handler = self._handlers.get(str(operation))
        try:
            if handler is None:
                raise RequestError("invalid", f"unknown operation {operation!r}")
            answer = handler(connection, message, descriptors)
        except RequestError as error:
            connection.fail(request, error.kind, str(error))
        except Exception as error:  # noqa: BLE001 - the agent gets the error, and the containers live on
            log_exception()
            connection.fail(request, "internal", f"{operation}: {type(error).__name__}: {error}")
        else:
            if answer is not None:
                connection.reply(request, answer)

    def _broadcast(self, event: Message) -> None:
        for connection in list(self._connections):
            connection.send(event)

    # -- the requests; each returns its answer, or None if it answers later ------------------------------------------

    def _hello(self, _connection: Connection, message: Message, _descriptors: list[int]) -> Message:
        oldest: int = message["version"]
        version = protocol.agreed(oldest, message.get("newest", oldest))
        if version is None:
            raise RequestError(
                "invalid",
                f"the agent speaks protocol version {oldest}, the keeper {protocol.OLDEST} to {protocol.VERSION}",
            )
        environment = self._environment
        cgroups = environment.cgroups
        return {
            "version": version,
            "features": [
                protocol.CREATE,
                protocol.APART,
                *([protocol.POD_NETWORK] if environment.abilities.network else []),
            ],
            "pid": os.getpid(),
            "mode": environment.abilities.mode,
            "overlay": environment.abilities.overlay,
            "limits": cgroups.limits,
            "cgroup_v2": cgroups.unified is not None,
            "cgroup_v1": sorted(cgroups.controllers),
            "devices_confined": cgroups.devices_confined,
            "seccomp": linux.has_seccomp(),
            "landlock": landlock.version(),
            "apparmor": True,  # older ones know nothing of profiles
            "selinux": True,  # … or labels
            "problems": [*environment.abilities.problems, *cgroups.problems],
        }

    def _list(self, _connection: Connection, _message: Message, _descriptors: list[int]) -> Message:
        return {
            "containers": [container.to_json() for container in self._containers.values()],
            "sandboxes": sorted(self._sandboxes),
            "lost_networks": sorted(name for name, sandbox in self._sandboxes.items() if sandbox.has_lost_network),
        }

    def _sandbox_start(self, connection: Connection, message: Message, _descriptors: list[int]) -> Message | None:
        if message["sandbox"] in self._sandboxes:
            return {}
        try:
            sandbox = self._sandboxes[message["sandbox"]] = Sandbox(self._environment, message)
        except OSError as error:
            raise RequestError("start", f"namespaces of the pod: {words_of(error)}") from None
        connection.reply(message["id"], {})
        # Absent in what an older agent asks for. Elsewhere a process may not set its OOM score itself.
        if message.get("first") and self._environment.abilities.mode == "root" and self._may_expect():
            self._expect(connection, expected_spec(sandbox=sandbox.id, **message["first"]), sandbox)
        return None

    def _may_expect(self) -> bool:
        return sum(created.container.is_expected for created in self._created.values()) < MOST_EXPECTED

    def _expect(self, connection: Connection, spec: Message, sandbox: Sandbox) -> None:
        """What fails here is done by `create`."""
        container = self._new_container(spec)
        try:
            container.expect(sandbox.namespaces, sandbox.shared_memory)
        except StartError as error:
            log(f"container {container.id}: cannot be expected: {error}")
            return
        self._keep(container, connection)

    def _keep(self, container: Container, connection: Connection) -> None:
        limit = self._loop.after(_CREATED_FOR, container.discard)
        self._created[container.id] = _Created(container, connection, limit)

    def _sandbox_stop(self, connection: Connection, message: Message, _descriptors: list[int]) -> Message | None:
        sandbox = self._sandboxes.pop(message["sandbox"], None)
        if sandbox is not None:
            sandbox.close()
        waiting = [one for one in self._created.values() if one.container.spec["sandbox"] == message["sandbox"]]
        if not waiting:
            return {}

        def gone() -> None:
            waiting.pop()
            if not waiting:
                connection.reply(message["id"], {})

        for created in list(waiting):
            created.then.append(gone)
            created.container.discard()
        return None

    def _create(self, connection: Connection, message: Message, _descriptors: list[int]) -> None:
        """What fails here fails again, and is told, at the start."""
        spec = message["spec"]
        sandbox = self._sandboxes.get(spec["sandbox"])
        if sandbox is None or spec["container"] in self._containers:
            return
        created = self._created.get(spec["container"])
        if created is not None:
            if created.container.is_expected:
                self._specify(created, connection, message, sandbox)
            return
        container = self._new_container(self._completed(spec, sandbox))
        if not container.can_wait:
            return
        try:
            container.create(sandbox.namespaces, None, sandbox.shared_memory, None)
        except StartError as error:
            log(f"container {container.id}: cannot be created before its start: {error}")
            return
        self._keep(container, connection)

    def _specify(self, created: _Created, connection: Connection, message: Message, sandbox: Sandbox) -> None:
        """Tell the process that was expected, or take another one if it does not fit."""
        container, spec = created.container, self._completed(message["spec"], sandbox)
        created.limit.cancel()
        created.limit = self._loop.after(_CREATED_FOR, container.discard)
        if container.can_become(spec):
            try:
                container.specify(spec)
            except StartError as error:
                log(f"container {container.id}: cannot be created before its start: {error}")
            else:
                return
        container.discard()
        created.then.append(lambda: self._handle_if_wanted(connection, message))

    def _completed(self, spec: Message, sandbox: Sandbox) -> Message:
        if sandbox.host_ipc and self._environment.isolated:
            _share_memory_of_machine(spec)
        return spec

    def _new_container(self, spec: Message) -> Container:
        container = Container(
            self._environment,
            spec,
            on_exited=lambda: self._container_exited(container),
            on_discarded=lambda: self._container_discarded(container),
        )
        return container

    def _start(self, connection: Connection, message: Message, _descriptors: list[int]) -> None:
        if message["spec"]["container"] in self._containers:
            raise RequestError("exists", f"container {message['spec']['container']} has been started before")
        sandbox = self._sandbox(message["spec"]["sandbox"])
        spec = self._completed(message["spec"], sandbox)
        created = self._created.get(spec["container"])
        if created is not None and not created.container.waits_for(spec):
            created.container.discard()
            created.then.append(lambda: self._handle_if_wanted(connection, message))
            return
        container = self._new_container(spec) if created is None else created.container
        pid_namespace = self._pid_namespace(spec, sandbox)
        request = message["id"]  # all that is kept of the message

        def started(error: str | None) -> None:
            if error is None:
                connection.reply(request, container.to_json())
            else:
                connection.fail(request, "start", error)

        try:
            container.open_log()
            if created is None:
                proc = sandbox.proc if spec["pid_namespace"] == "pod" else None
                container.create(sandbox.namespaces, pid_namespace, sandbox.shared_memory, proc)
        except StartError as error:
            container.record_failure(str(error))
            raise RequestError("start", str(error)) from None
        self._created.pop(container.id, None)
        self._containers[container.id] = container
        container.start(started)

    def _handle_if_wanted(self, connection: Connection, message: Message) -> None:
        """Of an agent that has gone meanwhile the next one has not been told that it asked."""
        if not connection.closed:
            self._handle(connection, message, [])

    def _container_discarded(self, container: Container) -> None:
        for following in self._created.pop(container.id).then:
            following()
        self._end_if_possible()

    def _pid_namespace(self, spec: Message, sandbox: Sandbox) -> int | None:
        """The pidfd whose PID namespace the container enters; None for a fresh one or the host's."""
        if not self._environment.isolated or spec["pid_namespace"] in ("container", "node"):
            return None
        if spec["pid_namespace"] == "pod":
            if sandbox.pid_namespace is None:
                raise RequestError("start", "the pod's shared PID namespace is gone")
            return sandbox.pid_namespace
        return self._running(spec["pid_target"]).process.pidfd

    def _container_exited(self, container: Container) -> None:
        for execution, _ in list(self._executions.values()):
            if execution.container == container.id:
                execution.kill()
        self._broadcast({"event": "exited", **container.to_json()})
        self._end_if_possible()

    def _signal(self, _connection: Connection, message: Message, _descriptors: list[int]) -> Message:
        try:
            self._running(message["container"]).send_signal(message["signal"])
        except ProcessLookupError:
            raise RequestError("not_running", "the container's process has ended") from None
        return {}

    def _kill(self, _connection: Connection, message: Message, _descriptors: list[int]) -> Message:
        self._running(message["container"]).kill()
        return {}

    def _update(self, _connection: Connection, message: Message, _descriptors: list[int]) -> Message:
        container = self._running(message["container"])
        if container.cgroup is None:
            raise RequestError("invalid", "resource limits need a writable cgroup hierarchy, and there is none")
        try:
            container.cgroup.update(message["resources"])
        except OSError as error:
            raise RequestError("invalid", f"set resources: {error}") from None
        return {}

    def _exec(self, connection: Connection, message: Message, descriptors: list[int]) -> None:
        container = self._running(message["container"])
        name, request = message["exec"], message["id"]
        streams = _by_stream(message.get("streams", ["stdout", "stderr"]), descriptors)
        tty = message.get("tty", False)
        if tty and streams:
            raise RequestError("invalid", "a terminal takes no other streams")

        def started(error: str | None) -> None:
            if error is not None:
                connection.fail(request, "start", error)
                return
            try:
                terminal = execution.copy_of_terminal()
            except OSError as failure:
                connection.fail(request, "start", str(failure))
                execution.kill()
                return
            connection.reply(request, {}, () if terminal is None else (terminal,))

        def ended(code: int) -> None:
            connection.send({"event": "exec_ended", "exec": name, "exit_code": code})

        def gone() -> None:
            self._executions.pop(name, None)

        execution = Execution(
            self._environment,
            container,
            on_started=started,
            on_ended=ended,
            on_gone=gone,
        )
        try:
            execution.start(name, message["argv"], streams, tty=tty)
        except OSError as error:
            raise RequestError("start", words_of(error)) from None
        self._executions[name] = (execution, connection)

    def _exec_kill(self, _connection: Connection, message: Message, _descriptors: list[int]) -> Message:
        known = self._executions.get(message["exec"])
        if known is not None:
            known[0].kill()
        return {}

    def _attach(self, connection: Connection, message: Message, descriptors: list[int]) -> None:
        container = self._running(message["container"])
        outputs = _by_stream(message["streams"], descriptors)
        kind, descriptor = container.attach(outputs, with_input=message["stdin"])
        descriptors.clear()
        connection.reply(message["id"], {"input": kind}, () if kind is None else (descriptor,))

    def _close_stdin(self, _connection: Connection, message: Message, _descriptors: list[int]) -> Message:
        self._running(message["container"]).close_stdin()
        return {}

    def _socket(self, connection: Connection, message: Message, _descriptors: list[int]) -> None:
        """Also for pods on the machine's network, which is that of this process; the agent may be in another."""
        if "kind" in message:
            wanted = (message["family"], message["kind"], message["protocol"])
        else:
            wanted = (socket.AF_INET6 if message["family"] == 6 else socket.AF_INET, socket.SOCK_STREAM, 0)
        try:
            descriptor = self._sandbox(message["sandbox"]).socket(*wanted)
        except OSError as error:
            raise RequestError("internal", f"socket: {error.strerror or error}") from None
        connection.reply(message["id"], {}, (descriptor,))

    def _namespace(self, connection: Connection, message: Message, _descriptors: list[int]) -> None:
        sandbox = self._sandbox(message["sandbox"])
        if sandbox.network is None:
            raise RequestError("invalid", f"pod sandbox {sandbox.id} is on the machine's network")
        connection.reply(message["id"], {}, (os.dup(sandbox.network),))

    def _helper(self, connection: Connection, message: Message, descriptors: list[int]) -> None:
        # Agents of earlier releases take every event for one about a container.
        lost = {"event": "network_lost", "sandbox": message["sandbox"], "container": ""}
        sandbox = self._sandbox(message["sandbox"])
        try:
            process = sandbox.start_helper(message["argv"], descriptors[0], lambda: self._broadcast(lost))
        except OSError as error:
            raise RequestError("start", f"network helper: {error.strerror or error}") from None
        connection.reply(message["id"], {}, (process,))

    def _reopen_log(self, _connection: Connection, message: Message, _descriptors: list[int]) -> Message:
        try:
            self._running(message["container"]).log.reopen()
        except OSError as error:
            raise RequestError("internal", f"reopen log: {error.strerror or error}") from None
        return {}

    def _forget(self, connection: Connection, message: Message, _descriptors: list[int]) -> Message | None:
        container = self._containers.get(message["container"])
        if container is not None and container.state is not EXITED:
            raise RequestError("busy", f"container {container.id} is {container.state}")
        self._containers.pop(message["container"], None)
        created = self._created.get(message["container"])
        if created is None:
            return {}
        created.container.discard()
        created.then.append(lambda: connection.reply(message["id"], {}))
        return None

    def _shutdown(self, connection: Connection, message: Message, _descriptors: list[int]) -> None:
        self._ending = all(container.state is EXITED for container in self._containers.values())
        if self._ending:
            for created in list(self._created.values()):
                created.container.discard()
        connection.reply(message["id"], {"ended": self._ending})
        self._end_if_possible()

    # -- the end -----------------------------------------------------------------------------------------------------

    def _sandbox(self, sandbox_id: str) -> Sandbox:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            raise RequestError("unknown", f"no pod sandbox {sandbox_id}")
        return sandbox

    def _running(self, container_id: str) -> Container:
        container = self._containers.get(container_id)
        if container is None:
            raise RequestError("unknown", f"no container {container_id}")
        if container.state in (EXITED, STARTING):
            raise RequestError("not_running", f"container {container_id} is {container.state}")
        return container

    def _alive(self) -> list[Container]:
        created = [created.container for created in self._created.values()]
        return created + [container for container in self._containers.values() if container.state is not EXITED]

    def _end_if_possible(self) -> None:
        if self._ending and not self._alive():
            self._loop.stop()

    def _inspect_containers(self) -> None:
        """End when the runtime's folder is gone, or when this process has not been used for a while."""
        self._loop.after(_LOOK_AT_ROOT_EVERY, self._inspect_containers)
        if os.fstat(self._root_descriptor).st_nlink == 0:
            log("the runtime's folder was deleted: ending all containers")
            self._ending = True
            for container in self._alive():
                container.kill()
            self._end_if_possible()
        if not self._environment.forker.works and not self._alive():
            self._loop.stop()  # another keeper can start something
        needed = self._connections or self._sandboxes or self._alive()
        self._idle_for = 0.0 if needed else self._idle_for + _LOOK_AT_ROOT_EVERY
        if self._idle_for >= _IDLE_LIMIT:
            self._loop.stop()

    def close(self) -> None:
        """After the loop: give back what outlives a process."""
        for sandbox in self._sandboxes.values():
            sandbox.close()
        self._environment.namespace_maker.close()
        self._environment.forker.close()
        self._environment.cgroups.remove()


def _by_stream(names: list[str], descriptors: list[int]) -> dict[str, int]:
    if len(names) != len(descriptors):
        raise RequestError("invalid", f"expected a descriptor for each of {names}, got {len(descriptors)}")
    return dict(zip(names, descriptors, strict=True))


def _share_memory_of_machine(spec: Message) -> None:
    if all(mount["target"].rstrip("/") != SHARED_MEMORY for mount in spec["mounts"]):
        spec["mounts"].append(
            {
                "source": SHARED_MEMORY,
                "target": SHARED_MEMORY,
                "readonly": False,
                "recursive_readonly": False,
                "propagation": "private",
            }
        )
