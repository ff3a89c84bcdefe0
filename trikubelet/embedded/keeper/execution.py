"""A command run inside a running container (CRI ExecSync). Its output goes straight to whoever asked, through pipes."""

from __future__ import annotations

import os

from trikubelet.embedded.keeper import child
from trikubelet.embedded.keeper.process import Process, exit_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from trikubelet.embedded.keeper.container import Container
    from trikubelet.embedded.keeper.environment import Environment


class Execution:
    """One command. `on_started(error)` once; then, if it started, `on_ended(exit_code)` once."""

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
        self.process = Process(
            environment.loop,
            on_report=self._reported,
            on_ready=self._ready,
            on_end=self._ended,
            on_gone=self._gone,
        )

    @property
    def container(self) -> str:
        return self._container.id

    def start(self, argv: list[str], stdout: int, stderr: int) -> None:
        """Fork it, with the container's own user, environment and folder. Raises OSError."""
        spec = {**self._container.spec, "argv": argv, "tty": False}
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

        def run(report: int, status_channel: int | None) -> NoReturn:
            situation = child.Situation(
                report=report,
                stdin=null,
                stdout=stdout,
                stderr=stderr,
                cgroup=self._container.cgroup,
                born_in_cgroup=self._environment.forker.born_in_cgroup,
                namespaces=[],
                status_channel=status_channel,
                # In a PID namespace of its own, the container's init inherits and takes along what stays behind.
                reaper_keeps_orphans=self._container.with_reaper,
                target=self._container.process.pidfd,
                isolated=self._environment.isolated,
                in_user_namespace=self._environment.in_user_namespace,
                one_user_only=self._environment.abilities.one_user_only,
                limits=self._environment.limits,
            )
            child.run_command(spec, situation)

        try:
            self.process.spawn(
                self._environment.forker,
                self._container.process.pidfd if self._environment.isolated else None,
                run,
                fresh=False,
                cgroup=self._container.cgroup,
                with_reaper=True,
            )
        finally:
            os.close(null)

    def kill(self) -> None:
        """End the command and everything that it started."""
        self.process.kill()

    def _reported(self, message: dict[str, Any], descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
        self._error = message.get("error", self._error)

    def _ready(self) -> None:
        self._started = self._error is None
        self._on_started(self._error)
        if self._started and self._status is not None:
            self._on_ended(exit_code(self._status))

    def _ended(self, status: int) -> None:
        self._status = status
        if self._started:
            self._on_ended(exit_code(status))

    def _gone(self) -> None:
        self._on_gone()
