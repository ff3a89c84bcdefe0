"""Which other programs manage pods on this machine (`trikubelet.node.pod_managers`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.cli.machine_checks import fail, ok, warn

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.cli.machine_checks import CheckResult

SUBJECT: Final = "other pod managers"


def check_neighbours(
    root_dir: Path, *, shares_runtime: bool, cgroup_root: str | None, proc: Path | None = None
) -> CheckResult:
    """Name the programs with their process ids. `shares_runtime`: whether others may use the agent's runtime.
    `cgroup_root`: that of a node of a cluster, None without a cluster."""
    from trikubelet.node import pod_managers as managers

    try:
        others = managers.other_pod_managers(root_dir, proc or managers.PROC)
    except OSError as error:
        return warn(SUBJECT, f"cannot be looked for: {error}", "mount /proc")
    told = managers.describe(others)
    if managers.conflicting_kubelet(others, root_dir, cgroup_root) is not None:
        return fail(SUBJECT, told, managers.STOP_KUBELET)
    if shares_runtime and any(one.is_kubelet for one in others):
        return warn(SUBJECT, f"{told}: {managers.KUBELET_SHARES_RUNTIME}", managers.OTHER_RUNTIME)
    return ok(SUBJECT, f"{told}; the agent leaves their pods alone" if others else "none")
