"""All of it once more with less: in a user namespace, and where containers are plain processes."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest
import trio

from tests.embedded.test_unprivileged import IN_USER_NAMESPACE, WITHOUT_NAMESPACES

pytestmark = pytest.mark.root

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[2]


@pytest.mark.night
@pytest.mark.parametrize("prefix", ["exec", WITHOUT_NAMESPACES], ids=["user-namespace", "plain"])
async def test_nothing_gets_out_with_less_privileges_either(tmp_path: Path, prefix: str) -> None:
    modules = sorted(str(path) for path in FOLDER.glob("test_*.py") if path.name != Path(__file__).name)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:leftovers", f"--basetemp={tmp_path / 'inside'}"]
    suite = [sys.executable, "-m", "pytest", *options, *modules]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    result = await trio.run_process(
        [*IN_USER_NAMESPACE, f"{prefix} {shlex.join(suite)}"],
        capture_stdout=True,
        check=False,
        cwd=REPOSITORY,
        env=environment,
    )
    assert result.returncode == 0, result.stdout.decode()[-5000:]
