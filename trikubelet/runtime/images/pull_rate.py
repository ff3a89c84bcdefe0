"""How often images may be pulled: a bucket of tokens that fills steadily (registryPullQPS, registryBurst). Pure."""

from __future__ import annotations

import attrs

from trikubelet.formats.values import define


@define
class PullRate:
    """`burst` pulls at once, and `per_second` on the long run; 0 per second: as many as there are.

    Seconds of whatever clock the caller uses.
    """

    per_second: float
    burst: int
    _tokens: float = attrs.field(init=False)
    _filled: float | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self._tokens = self.burst

    def take(self, now: float) -> bool:
        """Whether one more pull may begin now. It counts when it may."""
        if self.per_second == 0:
            return True
        since = 0.0 if self._filled is None else now - self._filled
        self._tokens = min(self.burst, self._tokens + since * self.per_second)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
