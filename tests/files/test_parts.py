"""The finished parts of a long job."""

from pathlib import Path

import pytest

from draftlab.files import parts


def test_other_parts_are_removed_even_while_another_process_removes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = parts.open_parts(tmp_path, "old")
    (old / "0.json").touch()
    (tmp_path / ".DS_Store").touch()  # macOS writes one into a folder that is looked at
    listed = [*tmp_path.glob("*"), tmp_path / "removed meanwhile"]
    monkeypatch.setattr(Path, "glob", lambda *_: listed)
    new = parts.open_parts(tmp_path, "new")
    assert new.is_dir()
    assert not old.exists()
