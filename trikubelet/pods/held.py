"""A pod of which it is not decided yet whether it runs."""

from __future__ import annotations

import attrs

from trikubelet.api import Pod


@attrs.define(eq=False)
class HeldPod:
    """A pod whose verdict is not final, in its newest version."""

    pod: Pod
    for_runtime: bool = False
    """It waits for the runtime to answer."""
