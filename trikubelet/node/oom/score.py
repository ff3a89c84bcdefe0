"""The agent's own place among those that the kernel may kill (kubelet: `KubeletOOMScoreAdj`, `oom_linux.go`).

What the agent starts inherits it: the embedded keeper, with which every container would die, and programs of the node
such as `mount`. Containers are given scores of their own.
"""

from __future__ import annotations

from pathlib import Path


def set_own_score(score: int, root: Path = Path("/")) -> str | None:
    """Set this process's score, -1000 to 1000; None, or why it could not be set, for the log.

    Lowering it takes CAP_SYS_RESOURCE, which few agents in containers and none of ordinary users have.
    """
    file = root / "proc/self/oom_score_adj"
    try:
        if int(file.read_text()) != score:
            file.write_text(str(score))
    except (OSError, ValueError) as error:
        return (
            f"the agent's OOM score cannot be set to {score}: {error}; when memory runs out it may be killed before "
            "its pods. Give it CAP_SYS_RESOURCE, or set oomScoreAdj to the score that it has"
        )
    return None
