"""Fixtures that several test modules share."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real raw records and the real trained model that lies beside some checkouts."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared beside this checkout: the real records and the real model are absent")
    return SHARED
