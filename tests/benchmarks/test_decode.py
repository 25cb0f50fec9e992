"""The benchmark of the loop: every contender says the same, the table holds what it claims, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from draftlab.bench import DecodeBench
from draftlab.bench.decode import bench, table
from draftlab.errors import UserError
from draftlab.models import load_tokenizer
from draftlab.models.llama import Llama, LlamaConfig, load
from draftlab.models.tokenizer import train_tokenizer


@pytest.mark.slow
def test_every_contender_says_what_the_target_says(shared: Path) -> None:
    folder = shared / "models/stories260K/hf"
    frame = bench(
        folder, settings=DecodeBench(template="plain", requests=3, draft_len=3, max_new_tokens=12, batch=2, repeats=2)
    )
    assert len(frame) == 9
    assert (frame["same_text"] == 3).all()
    assert (frame["tokens"] == frame["tokens"].iloc[0]).all()
    assert (frame["cpu_seconds"] > 0).all()
    assert (frame["low"] <= frame["speedup"]).all()
    assert (frame["speedup"] <= frame["high"]).all()
    rows = frame.set_index("contender")
    assert rows.loc["transformers assisted", "speedup"] == pytest.approx(1)
    assert rows["noise"].notna().sum() == 1
    lines = table(frame).splitlines()
    assert len(lines) == 10
    assert "noise" in lines[6]


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
