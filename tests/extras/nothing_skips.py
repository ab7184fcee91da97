"""A pytest plugin (`-p tests.extras.nothing_skips`): a test that is skipped has failed, with the reason it gave.

`make test-extras` runs an extra's tests with it, where what they need has been installed for them. A GPU is not: tests
marked `cuda` are skipped without one, as everywhere.
"""

from collections.abc import Generator

import pytest


def _failed_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):  # where, and why; an expected failure has another
        path, line, reason = report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{path}:{line}: {reason}, and nothing may be skipped here"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _failed_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.get_closest_marker("cuda") is None:
        _failed_if_skipped(report)
    return report
