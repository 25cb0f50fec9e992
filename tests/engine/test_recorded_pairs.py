"""Recorded pairs: the large model lies in memory once, and answers nothing for a draft that does not fit."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest

from draftlab.data.prompts import Prompt
from draftlab.engine import answering, recorded_pairs
from draftlab.engine.settings import Answering
from draftlab.errors import UserError
from draftlab.files.json_files import read_object, write_json, write_jsonl
from tests.pair import make_results


def test_the_target_that_wrote_is_gone_before_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPT-13B twice does not fit a GPU of 80 GB."""
    make_results(tmp_path)
    write_jsonl(tmp_path / "prompts.jsonl", [Prompt(str(n), "toy", "eval", f"text {n}") for n in range(4)])
    written: list[weakref.ref[Any]] = []
    load_model, load_pair = answering.load_model, recorded_pairs.load_pair

    def watched(*given: Any) -> Any:
        model = load_model(*given)
        written.append(weakref.ref(model))
        return model

    def checked(*given: Any) -> Any:
        assert [model() for model in written] == [None]
        return load_pair(*given)

    monkeypatch.setattr(answering, "load_model", watched)
    monkeypatch.setattr(recorded_pairs, "load_pair", checked)
    target, draft, out = tmp_path / "models/target", tmp_path / "models/draft", tmp_path / "run/pairs/toy.safetensors"
    answers = Answering(max_new_tokens=4, template="plain")
    files = {"target": target, "draft": draft, "prompts": tmp_path / "prompts.jsonl"}
    recorded_pairs.record_file(answers, **files, positions=8, out=out)
    assert len(recorded_pairs.load_pairs(out).token) == 8


def test_a_pair_with_different_padding_is_refused_before_the_target_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_results(tmp_path)
    target, draft = tmp_path / "models/target", tmp_path / "models/draft"
    write_json(target / "config.json", read_object(target / "config.json") | {"vocab_size": 384})
    monkeypatch.setattr(answering, "answer", lambda *_, **__: pytest.fail("the target answered"))
    files = {
        "target": target,
        "draft": draft,
        "prompts": tmp_path / "prompts.jsonl",
        "out": tmp_path / "toy.safetensors",
    }
    with pytest.raises(UserError, match="share 320 tokens, but padded to 384 and 320"):
        recorded_pairs.record_file(Answering(max_new_tokens=4), **files, positions=8)


def test_a_prompt_must_fit_the_draft_too(tmp_path: Path) -> None:
    make_results(tmp_path)
    target, draft = tmp_path / "models/target", tmp_path / "models/draft"
    write_json(draft / "config.json", read_object(draft / "config.json") | {"max_position_embeddings": 12})
    write_jsonl(tmp_path / "prompts.jsonl", [Prompt(f"{n}", "toy", "eval", "text " * (1 + 9 * n)) for n in range(2)])
    files = {"target": target, "draft": draft, "prompts": tmp_path / "prompts.jsonl"}
    out = tmp_path / "run/pairs/toy.safetensors"
    recorded_pairs.record_file(Answering(max_new_tokens=4, template="plain"), **files, positions=2, out=out)
    assert recorded_pairs.load_pairs(out).request.tolist() == [0, 0]


def test_pairs_may_be_written_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_results(tmp_path)
    write_jsonl(tmp_path / "prompts.jsonl", [Prompt("p", "toy", "eval", "some text")])
    monkeypatch.chdir(tmp_path)
    files = {"target": Path("models/target"), "draft": Path("models/draft"), "prompts": Path("prompts.jsonl")}
    answers, out = Answering(max_new_tokens=4, template="plain"), Path("my pairs.safetensors")
    with pytest.raises(UserError, match="positions is 0"):
        recorded_pairs.record_file(answers, **files, positions=0, out=out)
    recorded_pairs.record_file(answers, **files, positions=2, out=out)
    assert len(recorded_pairs.load_pairs(out).token) == 2
    assert len(read_object(tmp_path / "my pairs.json")["models"]) == 2
