"""A running server. Tests take `autojump_clock` besides: only what a test itself takes becomes its clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.apiserver.plugin import MARKERS, kubeconfig_of
from tests.apiserver.raw_client import RawClient
from tests.apiserver.real_server import open_kubeconfig
from tests.apiserver.server import ApiServer, open_api_server
from trikubelet.clock import SystemClock, TrioClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def pytest_configure(config: pytest.Config) -> None:
    for name, description in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {description}")


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with open_api_server(TrioClock()) as running:
        yield running


@pytest.fixture
async def api(request: pytest.FixtureRequest) -> AsyncIterator[RawClient]:
    """An administrator of any API server: the real one that was named, or else the test server."""
    kubeconfig = kubeconfig_of(request.config)
    if kubeconfig is not None:
        yield open_kubeconfig(kubeconfig)
        return
    async with open_api_server(SystemClock()) as running:
        yield RawClient.admin(running)
