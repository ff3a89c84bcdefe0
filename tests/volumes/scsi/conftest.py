from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.volumes.scsi.san import San

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def san(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> San:
    return San.at(tmp_path / "san", monkeypatch)
