"""The plan's seconds stand beside those of the same job, with prompts as long as the run's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hours import compared
from draftlab import plan
from draftlab.engine.answers import Answer
from draftlab.files.json_files import write_jsonl
from draftlab.latency.sizes import architecture_of
from draftlab.plan.hours import GPUS, OnCard
from draftlab.plan.times import FILE


def test_each_finished_job_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = plan.load_run({"scale": "paper", "experiments": "osd_offline"}, plan.WORKFLOW)
    monkeypatch.chdir(tmp_path)
    answers = [Answer(str(length), [1] * length, [2], True) for length in (80, 100, 700)]
    (run.folder / "main/answers/spider.eval").mkdir(parents=True)
    write_jsonl(run.folder / "main/answers/spider.eval/answers.jsonl", answers)
    (run.folder / "logs").mkdir()
    (run.folder / "logs" / FILE).write_text(
        "main/answers/spider.eval\t41.2\nosd_offline/gsm8k\t7200\nclean/spider\t1\n"
    )
    offline, answer = sorted(compared(run, GPUS["h100"]), key=lambda row: row[0] != "offline")
    expected = OnCard(GPUS["h100"], architecture_of("vicuna-7b"), "float16").answering(
        run.settings.data.eval, 32, 100, 128
    )
    assert answer == ["answer", "spider.eval", f"{expected:.0f}", "41", f"{41.2 / expected:.2f}"]
    assert offline[1:2] == ["osd_offline/gsm8k"]
    assert offline[3] == "7,200"
