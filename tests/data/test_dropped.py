"""What is left out is said, with its count and its reason."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from draftlab.data import dropped, sources, splits
from draftlab.data.prompts import Rejection
from draftlab.files.checkout import WORKFLOW
from draftlab.files.json_files import write_jsonl
from draftlab.report import summary


def clean(run: Path, lines: list[str]) -> None:
    run.mkdir(exist_ok=True)
    file = run / "mine.jsonl"
    file.write_text("\n".join(lines) + "\n")
    splits.make_from("prompts", "raw", raw=file, out=run / "data/prompts", options=splits.Options(eval=2))


def prompts(count: int) -> list[str]:
    return [json.dumps({"prompt": f"question {number}"}) for number in range(count)]


def test_every_row_that_is_left_out_is_counted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    clean(run, [*prompts(8), *prompts(3), '{"prompt": ""}', "{broken", '{"prompt": ""}'])
    for split in ("train", "train.t1"):  # the same prompts at two temperatures
        late = [Rejection("prompts.jsonl", 1, "9 tokens", "prompts/train/00001")]
        write_jsonl(run / f"main/answers/prompts.{split}/rejected.jsonl", late)
    (line,) = dropped.lines(run)
    assert line.startswith("Dropped  prompts: of 14 rows of train 3 rejected: 2 ")
    assert "1 broken JSON" in line
    assert "3 duplicates" in line
    assert "; 1 prompts too long for the target of main, refused by its chat template, or without a token" in line
    assert line.endswith("data/prompts/rejected.jsonl)")
    (run / "report.html").touch()
    assert line in list(summary.lines(summary.newest_run(run)))  # the folder of a run will do


def test_rows_that_a_run_does_not_read_are_said(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("\n".join(prompts(9)) + "\n")
    for rows, said in (
        (8, "prompts: only the first 8 rows of train were read (raw_rows of the scale; raise it with sizes=FILE)"),
        (9, "nothing: every row gave a prompt, and the target can read every prompt"),
    ):
        for split in sources.SPLITS:
            out = tmp_path / f"raw/{split}.jsonl"
            sources.fetch("prompts", split, "raw", raw=tmp_path / "mine.jsonl", rows=rows, out=out)
        options = splits.Options(eval=2)
        splits.make_from("prompts", "fetched", raw=tmp_path / "raw", out=tmp_path / "data/prompts", options=options)
        (line,) = dropped.lines(tmp_path)
        assert line == f"Dropped  {said}"


def test_files_that_a_run_does_not_read_are_said(tmp_path: Path) -> None:
    """Of a folder with rotated logs, only the files of the first kind are read."""
    log = tmp_path / "log"
    log.mkdir()
    (log / "today.jsonl").write_text("\n".join(prompts(9)) + "\n")
    (log / "older.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "one more"}\n'))
    for split in sources.SPLITS:
        sources.fetch("prompts", split, "raw", raw=log, out=tmp_path / f"raw/{split}.jsonl")
    options = splits.Options(eval=2)
    splits.make_from("prompts", "fetched", raw=tmp_path / "raw", out=tmp_path / "data/prompts", options=options)
    assert list(dropped.lines(tmp_path)) == ["Dropped  prompts: files of another kind (1, such as older.jsonl.gz)"]


def test_nothing_left_out_is_said_too(tmp_path: Path) -> None:
    assert list(dropped.lines(tmp_path)) == []
    clean(tmp_path, prompts(8))
    (line,) = dropped.lines(tmp_path)
    assert line == "Dropped  nothing: every row gave a prompt, and the target can read every prompt"
    tutorial = (WORKFLOW.parent / "docs/tutorial.md").read_text(encoding="utf-8")
    assert tutorial.count(f"\n{line}\n") == tutorial.count("\nDropped ") == 2
