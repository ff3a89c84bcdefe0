"""Why containers wait: the reason and message of the last attempt to start each, for pods' statuses.

Best effort as in the kubelet (`ReasonCache`): not kept over restarts, and the oldest go when there are too many.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import attrs

MAX_ENTRIES: Final = 1000


@attrs.define
class WaitingReasons:
    """The reasons by pod and container."""

    _reasons: OrderedDict[tuple[str, str], tuple[str, str]] = attrs.field(factory=OrderedDict, init=False)

    def note(self, uid: str, container: str, reason: str, message: str) -> None:
        """The container could not be started."""
        self._reasons[uid, container] = (reason, message)
        self._reasons.move_to_end((uid, container))
        if len(self._reasons) > MAX_ENTRIES:
            self._reasons.popitem(last=False)

    def clear(self, uid: str, container: str) -> None:
        """The container was started."""
        self._reasons.pop((uid, container), None)

    def of_pod(self, uid: str) -> dict[str, tuple[str, str]]:
        """Reason and message for each of the pod's containers that could not be started, by name."""
        return {name: reason for (pod, name), reason in self._reasons.items() if pod == uid}
