"""A pytest plugin for the tests that run on a mutant: what failed first, and where, goes into a file.

The file's path is in the environment (`REPORT`). The plugin also makes the property machine quick and repeatable: the
same examples every time, and none of them made smaller, since only the fact that one failed matters.
"""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path
from typing import Final

import hypothesis
import pytest

import trikubelet

REPORT: Final = "TRIKUBELET_MUTANT_REPORT"
PROFILE: Final = "mutants"

hypothesis.settings.register_profile(
    PROFILE,
    max_examples=1000,
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)


def pytest_configure(config: pytest.Config) -> None:
    """Before the tests are imported: refuse to test any package but the copy that holds the mutant.

    Their own settings build upon the profile that is loaded here, and not when somebody else imports this module.
    """
    hypothesis.settings.load_profile(PROFILE)
    package = Path(trikubelet.__file__).resolve()
    if not package.is_relative_to(config.rootpath.resolve()):
        raise RuntimeError(f"the tests would run on {package}, not on the copy in {config.rootpath}")


def _origin(error: BaseException) -> tuple[str, BaseException]:
    """The innermost function of a test file on the way to the failure, and the failure.

    A machine's teardown runs after a failure and may fail for the same reason: what counts is the first.
    """
    check, first = "", error
    context: BaseException | None = error
    while context is not None:
        names = [
            frame.f_code.co_name
            for frame, _line in traceback.walk_tb(context.__traceback__)
            if Path(frame.f_code.co_filename).name.startswith("test_")
        ]
        if names:
            check, first = names[-1], context
        context = context.__context__
    return check, first


def pytest_exception_interact(
    node: pytest.Item, call: pytest.CallInfo[object], report: pytest.TestReport | pytest.CollectReport
) -> None:
    """Note the failure, for `workshop.run_tests` to read. A test file that cannot be imported has found nothing out."""
    if call.excinfo is None or isinstance(report, pytest.CollectReport):
        return
    check, first = _origin(call.excinfo.value)
    said = str(first).partition("\n")[0][:200]
    error = type(first).__name__
    note = {
        "test": node.nodeid.rpartition("/")[2],
        "check": check,
        "message": said if error == "AssertionError" else f"{error}: {said}",
    }
    Path(os.environ[REPORT]).write_text(json.dumps(note), encoding="utf-8")
