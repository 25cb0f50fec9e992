"""Fixtures of the tests of reports."""

from __future__ import annotations

import pytest

from draftlab.report import published


@pytest.fixture(scope="session")
def known() -> published.Published:
    """What the papers print."""
    return published.load()
