"""The benchmark of the loop: every contender says the same, the table holds what it claims, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pydantic import ValidationError

import benchmarks
from benchmarks.decode import DecodeBench, _contenders, _untrimmed, bench, main, table
from benchmarks.llama_cpp import _assisted
from draftlab.errors import UserError
from draftlab.models import load_tokenizer
from draftlab.models.llama import Llama, LlamaConfig, load
from draftlab.models.tokenizer import train_tokenizer
from draftlab.train.designs import trim_head


@pytest.mark.slow
def test_every_contender_says_what_the_target_says(shared: Path) -> None:
    folder = shared / "models/stories260K/hf"
    frame = bench(
        folder,
        settings=DecodeBench(
            template="plain", requests=3, draft_len=3, max_new_tokens=12, batch=(2, 3), nodes=(6,), repeats=2
        ),
    )
    assert len(frame) == 12
    assert (frame["same_text"] == 3).all()
    assert (frame["tokens"] == frame["tokens"].iloc[0]).all()
    assert (frame["cpu_seconds"] > 0).all()
    assert (frame["low"] <= frame["speedup"]).all()
    assert (frame["speedup"] <= frame["high"]).all()
    rows = frame.set_index("contender")
    assert rows.loc["transformers assisted", "speedup"] == pytest.approx(1)
    assert rows["noise"].notna().sum() == 1
    lines = table(frame).splitlines()
    assert len(lines) == 13
    assert "noise" in lines[6]


def test_a_draft_with_a_trimmed_head_is_widened_for_transformers(shared: Path, tmp_path: Path) -> None:
    folder, draft = shared / "models/stories260K/hf", tmp_path / "draft"
    trim_head(load(folder), range(0, 512, 2)).save(draft)
    load_tokenizer(folder).save(draft)
    few = DecodeBench(template="plain", requests=1, draft_len=2, max_new_tokens=8, batch=(1,), repeats=2)
    frame = bench(folder, draft, settings=few)
    assert (frame["same_text"] == 1).all()
    assert _untrimmed(folder, tmp_path) == folder


def test_settings_of_the_models_generation_change_no_text_and_no_work(shared: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(shared / "models/stories260K/hf", tmp_path / "model")
    prompts, limits = [[1, 403, 407]], DecodeBench(max_new_tokens=8)
    expected = _contenders([folder] * 2, folder, prompts, [2], limits)["plain"]()
    never = {"suppress_tokens": expected[0][:2], "repetition_penalty": 5.0, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(never))
    contenders = _contenders([folder] * 2, folder, prompts, [2], limits)
    for name in ("transformers", "transformers assisted"):
        assert contenders[name]() == expected, name
    assert _assisted(folder, folder, expected[0][:1])(prompts[0], 3, 8).tokens == 1


def small(folder: Path, layers: int, tokens: int) -> Path:
    tokenizer = train_tokenizer(["some text"] * 3, tokens)
    config = LlamaConfig(tokenizer.vocab_size, 8, 16, layers, 1, 1, 64)
    Llama(config).save(folder)
    tokenizer.save(folder)
    return folder


def test_bad_input_is_refused(tmp_path: Path) -> None:
    target = small(tmp_path / "target", 1, 262)
    assert load(target).vocab_size == load_tokenizer(target).vocab_size
    with pytest.raises(UserError, match="no first layers to draft with"):
        bench(target)
    with pytest.raises(ValidationError, match="repeats"):
        DecodeBench(repeats=1)
    with pytest.raises(UserError, match="different vocabularies"):
        bench(target, small(tmp_path / "draft", 1, 261))


def test_flags_become_settings_and_an_error_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = small(tmp_path / "target", 1, 262)
    monkeypatch.setattr("sys.argv", ["decode", "--target", str(target)])
    with pytest.raises(SystemExit, match=r"error: .*: not a Llama of two layers or more.*give --draft"):
        benchmarks.run(main)
    monkeypatch.setattr("sys.argv", ["decode", "--target", str(target), "--requests", "0"])
    with pytest.raises(SystemExit, match=r"error: requests: Input should be greater than 0, not 0"):
        benchmarks.run(main)
