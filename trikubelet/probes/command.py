"""Asking by a command in the container (kubelet: pkg/probe/exec, `RunInContainer`).

The runtime keeps the timeout: it ends the command and says so. What it answers otherwise, that there is no such
container or that it cannot be reached, says nothing about the container's health, so it is an error of asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.container.expansion import ExpansionError, expand_words
from trikubelet.container.messages import describe_duration
from trikubelet.formats.go_quote import go_quote
from trikubelet.probes.types import Outcome, ProbeAnswer
from trikubelet.rpc.cri.errors import CRIError

if TYPE_CHECKING:
    from trikubelet.api import Container, ExecAction
    from trikubelet.probes.types import ProbeTarget
    from trikubelet.rpc.cri.client import RuntimeClient

MOST_OUTPUT: Final = 10 * 1024
"""Bytes of what a command says, its output first and then its error output, that an answer holds."""


async def ask_exec(runtime: RuntimeClient, target: ProbeTarget, action: ExecAction, timeout: float) -> ProbeAnswer:
    """Run the action's command in the target's container, `timeout` seconds long at most, and judge by its exit code.

    A runtime that does not keep the timeout has the client's ordinary time on top, as it has from the kubelet; that
    counts as the command's. Never raises. Cancelling makes the runtime end the command.
    """
    try:
        command = _expanded(action, target.container)
    except ExpansionError as error:
        return ProbeAnswer(Outcome.UNKNOWN, error=f"command: {error}")
    try:
        reply = await runtime.exec_sync(target.container_id.id, command, timeout)
    except CRIError as error:
        if not error.timed_out:
            return ProbeAnswer(Outcome.UNKNOWN, error=str(error))
        quoted = go_quote(" ".join(command))
        late = f"command timed out: {quoted} timed out after {describe_duration(timeout)}"
        return ProbeAnswer(Outcome.FAILURE, late)
    output = (reply.stdout[:MOST_OUTPUT] + reply.stderr[:MOST_OUTPUT])[:MOST_OUTPUT]
    outcome = Outcome.SUCCESS if reply.exit_code == 0 else Outcome.FAILURE
    return ProbeAnswer(outcome, output.decode(errors="replace"))


def _expanded(action: ExecAction, container: Container) -> list[str]:
    """The command with `$(NAME)` of the variables that the spec gives values (kubelet:
    `ExpandContainerCommandOnlyStatic`). Variables with a value from elsewhere are empty here, as in the kubelet."""
    values = {variable.name: variable.value for variable in container.env}
    return expand_words(action.command, values)
