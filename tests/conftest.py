"""Fixtures that several test modules share."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from draftlab.files.amx import leave_to_llama_cpp
from draftlab.files.machine import CPUINFO

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


if CPUINFO.exists() and "amx_tile" in CPUINFO.read_text():
    leave_to_llama_cpp()  # tests of both share a process

LONGEST = ("test_workflow.py", "test_workflow_real.py")


def pytest_collection_finish() -> None:
    """Python looks for garbage less often, and never among what was imported: together it would take a twelfth of the time of the tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first, then the other workflows, so that the workers of ``make test`` end together."""
    items.sort(key=lambda item: (item.path.name not in LONGEST, item.path.parent.name != "workflow"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real raw records and a real trained model, next to some checkouts."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared beside this checkout: the real records and the real model are absent")
    return SHARED


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with its published tables, for all tests of a worker."""
    from tests.checkout import copy_checkout

    return copy_checkout(tmp_path_factory.mktemp("checkout") / "a folder with spaces", "paper_figures")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy pair with its recorded answers."""
    from tests.pair import make_results

    folder = tmp_path_factory.mktemp("results")
    make_results(folder)
    return folder
