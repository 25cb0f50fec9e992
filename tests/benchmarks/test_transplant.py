"""The rows that the package makes are one of the ways that the benchmark compares."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.transplant import WAYS, main, rows
from draftlab.engine.answers import Answer
from draftlab.errors import UserError
from draftlab.files.json_files import write_jsonl
from draftlab.models import load_model
from draftlab.models.tokenizer import train_tokenizer
from draftlab.models.transplant import transplant
from tests.models.test_transplant import TARGET_TEXTS, llama, other_tokenizer


def test_rows_are_weighted_means() -> None:
    weight = torch.tensor([[1.0], [2.0], [6.0]])
    found = {way: rows(weight, [(2,), (0, 1, 2)], way)[:, 0].tolist() for way in WAYS}
    assert found["first"] == [6, 1]
    assert found["last"] == [6, 6]
    assert found["mean"] == [6, 3]
    assert found["decaying"] == pytest.approx([6, (1 + 1 + 1.5) / 1.75])
    assert found["rising"] == pytest.approx([6, (0.25 + 1 + 6) / 1.75])


@torch.inference_mode()
def test_a_transplanted_draft_is_one_of_the_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    tokenizer = train_tokenizer(TARGET_TEXTS, 300)
    target = llama(tmp_path / "target", tokenizer, vocab_size=384, num_hidden_layers=3, **ids)
    draft = llama(tmp_path / "draft", other_tokenizer(), 1)
    records = [
        Answer(str(n), [1, *tokenizer.encode("Each")], tokenizer.encode(text), True)
        for n, text in enumerate(TARGET_TEXTS[:2])
    ]
    write_jsonl(tmp_path / "answers/answers.jsonl", records)
    main(draft, target, tmp_path / "answers")
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 15
    transplant(model=str(draft), target=str(target), out=tmp_path / "made")
    logits = load_model(tmp_path / "made").answer_logits(
        *zip(*[(r.prompt_ids, r.answer_ids) for r in records], strict=True)
    )
    expected = torch.tensor([token for record in records for token in record.answer_ids])
    right = (logits.argmax(-1) == expected).double().mean()
    probability = logits.softmax(-1).gather(1, expected[:, None]).double().mean()
    (own,) = (line for line in lines if line.split()[1:4:2] == ["last", "mean"])
    assert own.endswith(f"{right:.3f} {probability:.3f}")
    (tmp_path / "t5").mkdir()
    with pytest.raises(UserError):
        main(tmp_path / "t5", target, tmp_path / "answers")
