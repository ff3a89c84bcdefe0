"""Answers a scrape: gathers the families, and writes them down as the client likes them.

A collector that fails costs its own families, not the others' (Go: `ContinueOnError`). What a client's headers say is
only looked for among the few things that there are, so no header can do harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import trio

from trikubelet.formats.values import frozen
from trikubelet.http.content_coding import SMALL, gzipped, header_entries, takes_gzip, weight
from trikubelet.telemetry.families import base_name, counter
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.text_format import TextFormat, write_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from trikubelet.telemetry.families import AnyFamily, Collect

    CollectSlowly = Callable[[], Awaitable[Iterable[AnyFamily]]]
    """Gives families for which somebody else has to be asked."""

log = get_logger("metrics")

Page = Literal["metrics", "probes", "slis"]

COLLECT_TIMEOUT: Final = 10.0
"""Seconds that a collector may wait for others. A scrape that is late is none."""


@frozen
class Exposition:
    """The answer to a scrape."""

    body: bytes
    content_type: str
    content_encoding: str = ""
    """`gzip`, or empty when the body is as it is."""


class AgentMetrics:
    """The metrics of one agent, by page: `/metrics`, `/metrics/probes` and `/metrics/slis`."""

    def __init__(
        self,
        *,
        metrics: Sequence[Collect],
        probes: Sequence[Collect],
        slis: Sequence[Collect],
        slow_metrics: Sequence[CollectSlowly] = (),
    ) -> None:
        """`slow_metrics` belong to the page `metrics`."""
        self._pages: Mapping[Page, Sequence[Collect]] = {"metrics": metrics, "probes": probes, "slis": slis}
        self._slow = slow_metrics
        self._failures = 0

    async def expose(self, page: Page, *, accept: str = "", accept_encoding: str = "") -> Exposition:
        """Everything as it is now. The headers are the request's (`Accept`, `Accept-Encoding`), empty for none.

        Never fails for what is collected. May be cancelled freely.
        """
        form = TextFormat.OPENMETRICS if prefers_openmetrics(accept) else TextFormat.TEXT
        pieces, size = [], 0
        for piece in write_text(await self._gather(page), form):
            pieces.append(piece)
            size += len(piece)
            if size > SMALL:
                await trio.lowlevel.checkpoint()
        body = b"".join(pieces)
        if not takes_gzip(accept_encoding):
            return Exposition(body, form.value)
        return Exposition(await gzipped(body), form.value, "gzip")

    async def _gather(self, page: Page) -> list[AnyFamily]:
        """The families that have samples, by name. Other tasks have their turn between two collectors."""
        families: list[AnyFamily] = []
        for collect in self._pages[page]:
            await trio.lowlevel.checkpoint()
            try:
                families += collect()
            except Exception as error:  # noqa: BLE001 - see the module's text
                self._failed(error)
        if page == "metrics":
            for collect_slowly in self._slow:
                try:
                    with trio.fail_after(COLLECT_TIMEOUT):
                        families += await collect_slowly()
                except Exception as error:  # noqa: BLE001 - see the module's text
                    self._failed(error)
            text = "Collectors of metrics that failed since the start: their families were missing in that answer."
            families.append(counter("trikubelet_metrics_failures_total", text, self._failures))
        return sorted((family for family in families if family.samples), key=base_name)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        log.error("metrics could not be collected", error=str(error), exc_info=error)


def prefers_openmetrics(accept: str) -> bool:
    """Whether a client would rather have OpenMetrics than text, by its `Accept` header."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for kind, parameters in header_entries(accept):
        if kind in weights and not (kind != "text/plain" and parameters.get("version", "1.0.0") not in _VERSIONS):
            weights[kind] = max(weights[kind], weight(parameters))
    return weights["application/openmetrics-text"] > weights["text/plain"]


_VERSIONS: Final = ("0.0.1", "1.0.0")
