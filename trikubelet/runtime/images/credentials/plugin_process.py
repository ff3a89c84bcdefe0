"""Running a plugin: one process an answer, the request on its stdin, the response on its stdout."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.runtime.images.credentials.plugin_errors import PluginError

if TYPE_CHECKING:
    from trikubelet.runtime.images.credentials.plugin_config import CredentialProvider

_TIMEOUT: Final = 60.0
_MAX_STDERR: Final = 2000


async def run_plugin(provider: CredentialProvider, image: str, request: bytes) -> bytes:
    """What the plugin prints. Raises PluginError with what it said on stderr; cancelling ends it."""
    problem = f"error execing credential provider plugin {provider.name} for image {image}"
    with trio.move_on_after(_TIMEOUT) as timeout:
        try:
            done = await trio.run_process(
                [str(provider.executable), *provider.args],
                stdin=request,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env={**os.environ, **dict(provider.env)},
                deliver_cancel=_kill,
            )
        except OSError as error:
            raise PluginError(f"{problem}: {provider.executable}: {error.strerror}") from error
    if timeout.cancelled_caught:
        raise PluginError(f"{problem}: no answer within {_TIMEOUT:g} seconds: context deadline exceeded")
    if done.returncode:
        stderr = done.stderr.decode(errors="replace").strip()[:_MAX_STDERR]
        ending = f"exit status {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        raise PluginError(f"{problem}: {ending}: {stderr}")
    return done.stdout


async def _kill(process: trio.Process) -> None:
    """At once: it has nothing that it would have to bring to an end."""
    process.kill()
