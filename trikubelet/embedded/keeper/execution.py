"""A command run inside a running container (CRI Exec and ExecSync).

Its streams are pipes of the caller, or a terminal that is handed over: no byte of them passes through the keeper.
It has a cgroup of its own within the container's, so that it can be killed with all that it started.
"""

from __future__ import annotations

import os

from trikubelet.embedded.keeper.container import EXITED
from trikubelet.embedded.keeper.context import ChildContext
from trikubelet.embedded.keeper.log import log
from trikubelet.embedded.keeper.process import Process, exit_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trikubelet.embedded.keeper.cgroups import ContainerCgroup
    from trikubelet.embedded.keeper.container import Container
    from trikubelet.embedded.keeper.environment import Environment

_RETRY = 0.01
_LONGEST_RETRY = 60.0


class Execution:
    """One command. `on_started(error)` once; then, if it started, `on_ended(exit_code)` once; `on_gone()` at last."""

    def __init__(
        self,
        environment: Environment,
        container: Container,
        *,
        on_started: Callable[[str | None], None],
        on_ended: Callable[[int], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._environment = environment
        self._container = container
        self._on_started = on_started
        self._on_ended = on_ended
        self._on_gone = on_gone
        self._error: str | None = None
        self._started = False
        self._status: int | None = None
        self._terminal = -1
        self._group: ContainerCgroup | None = None
        self._killed = False
        self.process = Process(
            environment.loop,
            environment.forker,
            on_report=self._reported,
            on_ready=self._ready,
            on_end=self._ended,
            on_gone=self._gone,
        )

    @property
    def container(self) -> str:
        return self._container.id

    @property
    def ended(self) -> bool:
        """The command has ended; what it left in the background may live."""
        return self._status is not None

    def start(self, name: str, argv: list[str], streams: dict[str, int], *, tty: bool) -> None:
        """Have it forked, with the container's own user, environment and folder. Raises OSError."""
        spec = {**self._container.spec, "argv": argv, "tty": tty}
        if tty:
            spec["env"] = [*spec["env"], "TERM=xterm"]
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._fork(name, spec, {**dict.fromkeys(("stdin", "stdout", "stderr"), null), **streams})
        except OSError:
            self._remove_group(_RETRY)
            raise
        finally:
            os.close(null)

    def _fork(self, name: str, spec: dict[str, Any], streams: dict[str, int]) -> None:
        if self._container.cgroup is not None:
            self._group = self._container.cgroup.nested(f"exec-{name}")
        target = self._container.process.pidfd
        context = ChildContext(
            (streams["stdin"], streams["stdout"], streams["stderr"]),
            cgroup=self._group or self._container.cgroup,
            target=target,
            pid_namespace=target if self._environment.isolated else None,
            namespace_flags=self._container.namespace_flags,
            # In a PID namespace of its own, the container's init inherits and takes along what stays behind.
            reaper_keeps_orphans=self._container.with_reaper,
        )
        self.process.spawn(spec, context, fresh=False, with_reaper=True)

    def copy_of_terminal(self) -> int | None:
        """The terminal's descriptor, to be closed by the caller; None without one.

        One copy stays here. Otherwise the death of the agent would hang the terminal up: the command might end of that
        before it is killed, and what it started would count as left behind on purpose.
        """
        return None if self._terminal < 0 else os.dup(self._terminal)

    def kill(self) -> None:
        """End the command and everything that it started."""
        self._killed = True
        self._kill_group()
        self.process.kill()

    def _kill_group(self) -> None:
        if self._group is not None:
            try:
                self._group.kill()
            except OSError as error:
                log(f"command in {self.container}: cgroup kill: {error}")

    def _reported(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "terminal" in message:
            self._terminal = descriptors.pop()
        self._error = message.get("error", self._error)

    def _ready(self) -> None:
        self._started = self._error is None
        if not self._started:  # it may have been given up on its way, and be frozen there
            self._kill_group()
        self._on_started(self._error)
        if self._started and self._status is not None:
            self._on_ended(exit_code(self._status))

    def _ended(self, status: int) -> None:
        self._status = status
        if self._started:
            self._on_ended(exit_code(status))

    def _gone(self) -> None:
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1
        if self._killed:
            self._kill_group()
        self._remove_group(_RETRY)
        self._on_gone()

    def _remove_group(self, retry: float) -> None:
        """It stays while something that the command left in the background lives; the container takes it along."""
        if self._group is not None and self._container.state is not EXITED and not self._group.remove():
            following = min(2 * retry, _LONGEST_RETRY)
            self._environment.loop.after(retry, lambda: self._remove_group(following))
