"""The benchmark of verifiers of trees: all of them judge the same drafts, and each keeps what the kit computes; refusals."""

from __future__ import annotations

import pytest
import torch

from benchmarks.trees import TreeBench, bench, draft_after, on_their_support, table
from draftlab.core.sampling import Sampling, to_probs
from draftlab.core.verify import TREE_VERIFIERS
from draftlab.errors import UserError
from draftlab.models import load_model


def test_every_verifier_on_the_same_drafts(results):
    models, answers = results / "models", results / "answers" / "toy.eval" / "answers.jsonl"
    settings = TreeBench(num_drafts=[1, 3], draft_len=2, requests=6, starts=2, draft_temperature=1.5)
    frame = bench(models / "target", models / "draft", answers, settings)
    rows = frame.set_index(["num_drafts", "verifier"])
    assert set(frame["verifier"]) == set(TREE_VERIFIERS)
    one = rows.loc[1]
    assert one["tokens"].tolist() == pytest.approx([one.loc["traversal", "tokens"]] * len(one)), "block verification"
    assert (rows["tokens"] > 1).all()
    assert (rows["tokens"] < 3).all()
    assert rows.loc[(3, "optimal_block"), "gap"] == 0
    gap = rows.loc[(3, "transport"), "tokens"] - rows.loc[(3, "optimal_block"), "tokens"]
    assert rows.loc[(3, "transport"), "gap"] == pytest.approx(gap)
    again = bench(models / "target", models / "draft", answers, settings)
    assert again.equals(frame)
    assert len(table(frame).splitlines()) == 2 + len(frame)


def test_a_target_that_drafts_for_itself_keeps_everything(results):
    target, answers = results / "models" / "target", results / "answers" / "toy.eval" / "answers.jsonl"
    frame = bench(target, target, answers, TreeBench(num_drafts=[1], draft_len=2, requests=4, starts=2))
    assert frame["tokens"].tolist() == pytest.approx([3.0] * len(TREE_VERIFIERS))


def test_distributions_along_the_drafts(results):
    target, draft = (load_model(results / "models" / name) for name in ("target", "draft"))
    settings = TreeBench(num_drafts=[2], draft_len=3, top_k=4, draft_temperature=1.5)
    text = [5, 6, 7, 8]
    at_target, at_draft, tokens = draft_after(text, target, draft, settings, torch.Generator().manual_seed(1))
    for row, path in enumerate(tokens.tolist()):
        logits = target.answer_logits([text], [[*path, 0]])
        assert torch.allclose(at_target[row], to_probs(logits, Sampling(1.0, top_k=4)), atol=1e-5)
        logits = draft.answer_logits([text], [path])
        assert torch.allclose(at_draft[row], to_probs(logits, Sampling(1.5, top_k=4)), atol=1e-5)
    small = on_their_support((at_target, at_draft, tokens))
    assert small[0].shape[-1] < at_target.shape[-1]
    for part, whole in zip(small[:2], (at_target, at_draft), strict=True):
        assert torch.allclose(part.sum(-1), whole.sum(-1))
    drafted = at_draft.gather(-1, tokens[..., None])
    assert torch.equal(small[1].gather(-1, small[2][..., None]), drafted)


def test_answers_that_are_too_short_are_refused(results):
    answers = results / "answers" / "toy.eval" / "answers.jsonl"
    settings = TreeBench(starts=1000)
    with pytest.raises(UserError, match="fewer than two answers"):
        bench(results / "models" / "target", results / "models" / "draft", answers, settings)
