"""The checks of the container runtime: does it answer, which one is it, and what does it say about itself?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.cli.machine_checks import CheckResult, fail, ok, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWER_SECONDS: Final = 5.0


def check_runtime(endpoint: str) -> Iterator[CheckResult]:
    """Ask the runtime behind `endpoint`; the embedded one is part of the agent, so there is nothing to ask."""
    if endpoint == "embedded":
        yield ok("runtime", "embedded, in the agent's own process")
        return
    path = Path(endpoint.removeprefix("unix://"))
    if not path.is_absolute():
        yield fail("runtime", f"{endpoint} is no endpoint", "give unix:///PATH, or embedded")
    elif not path.exists():
        yield fail(
            "runtime", f"nothing at {path}", "start the runtime (systemctl start containerd), or give its socket"
        )
    else:
        import trio

        yield from trio.run(_ask, path)


async def _ask(path: Path) -> list[CheckResult]:
    import trio

    from trikubelet.rpc.cri.client import RuntimeClient
    from trikubelet.rpc.cri.errors import CRIError
    from trikubelet.rpc.grpc import open_unix_channel

    results: list[CheckResult] = []
    try:
        with trio.fail_after(ANSWER_SECONDS):
            async with open_unix_channel(path) as channel:
                client = RuntimeClient(channel, timeout=ANSWER_SECONDS)
                version = await client.version()
                name = f"{version.runtime_name} {version.runtime_version} (CRI {version.runtime_api_version})"
                results.append(ok("runtime", name))
                status = await client.status()
        for condition in status.status.conditions:
            if condition.status:
                results.append(ok(condition.type, "yes"))
            else:
                why = ": ".join(part for part in (condition.reason, condition.message) if part)
                results.append(warn(condition.type, why or "no", "see the runtime's own log"))
    except (trio.TooSlowError, CRIError, OSError) as error:
        reason = f"no answer within {ANSWER_SECONDS:.0f} s" if isinstance(error, trio.TooSlowError) else str(error)
        fix = "look at the runtime's log; containerd needs its CRI plugin enabled (disabled_plugins = [])"
        results.append(fail("runtime", f"{path}: {reason}", fix))
    return results
