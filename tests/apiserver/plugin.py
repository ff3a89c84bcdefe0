"""Pytest options of the API server tests.

`--apiserver-kubeconfig FILE` names the kubeconfig of an administrator of a real cluster that may be written to. Tests
marked `api_conventions` and `cluster` then use that cluster instead of the test server, and the others are skipped.
"""

from __future__ import annotations

from typing import Final

import pytest

OPTION: Final = "--apiserver-kubeconfig"
MARKERS: Final = {
    "api_conventions": "what any API server does; can be run against a real one",
    "cluster": "a script for a whole cluster; can be run against a real one",
    "kubectl": "needs kubectl",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, metavar="FILE", default=None, help="run tests of conventions on this cluster")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a real cluster only what is written for one."""
    if kubeconfig_of(config) is None:
        return
    for item in items:
        if item.get_closest_marker("api_conventions") is None and item.get_closest_marker("cluster") is None:
            item.add_marker(pytest.mark.skip(reason=f"not a test for a real cluster ({OPTION})"))


def kubeconfig_of(config: pytest.Config) -> str | None:
    """The option's value; None also when this plugin is not loaded."""
    value = config.getoption(OPTION, default=None)
    return value if isinstance(value, str) else None
