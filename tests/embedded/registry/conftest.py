from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.embedded.registry.scripted_registry import scripted_registry
from trikubelet.backoff import Backoff
from trikubelet.clock import TrioClock
from trikubelet.embedded.images.model import LayerFormat
from trikubelet.embedded.images.reference import Reference
from trikubelet.embedded.images.store import ImageStore
from trikubelet.embedded.registry.credentials import NO_CREDENTIALS
from trikubelet.embedded.registry.puller import Puller
from trikubelet.embedded.registry.retry import Timeouts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.embedded.registry.scripted_registry import ScriptedRegistry
    from trikubelet.embedded.images.model import StoredImage
    from trikubelet.embedded.registry.credentials import Credentials

QUICK = Timeouts(connect=5, answer=5, document=5, progress=5, backoff=Backoff(first=0.01, longest=0.02))


@attrs.define
class PullFixture:
    """A store, and pulls into it."""

    path: Path
    store: ImageStore
    puller: Puller

    @classmethod
    def make(
        cls, path: Path, timeouts: Timeouts = QUICK, *, layer_format: LayerFormat = LayerFormat.FLAT
    ) -> PullFixture:
        clock = TrioClock(datetime(2026, 1, 1, tzinfo=UTC))
        store = ImageStore(path / "store", clock=clock, layer_format=layer_format)
        return cls(path, store, Puller(store, clock=clock, hosts_dirs=[path / "certs.d"], timeouts=timeouts))

    async def pull(self, name: str, credentials: Credentials = NO_CREDENTIALS) -> StoredImage:
        image_id = await self.puller.pull(Reference.parse(name), credentials)
        image = self.store.resolve(image_id)
        assert image is not None
        return image

    def configure(self, registry: str, hosts: str) -> None:
        """Write the hosts.toml of a registry."""
        folder = self.path / "certs.d" / registry
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts.toml").write_text(hosts)

    def leftovers(self) -> list[str]:
        """What is in the store's folder for images at work."""
        return [path.name for path in (self.path / "store" / "staging").iterdir()]


@pytest.fixture
def pulls(tmp_path: Path) -> PullFixture:
    return PullFixture.make(tmp_path)


@pytest.fixture
async def registry() -> AsyncIterator[ScriptedRegistry]:
    async with scripted_registry() as serving:
        yield serving
