"""Rules for where a block ends: their scores, what the fitted one learns, and when a threshold on the joint probability is best."""

import itertools

import numpy as np
import pytest
import torch

from draftlab.engine.length_rules import RULES, acceptance_model, schedule, scores_of
from draftlab.engine.replay_lengths import Drafted, cut, guess, while_at_least
from draftlab.errors import UserError
from draftlab.models.lookup import Lookup
from tests.pair import small_llama


def drafted(
    lengths: list[int], accepted: list[int], confidence: list[list[float]], **shown: list[list[float]]
) -> Drafted:
    """What a draft proposed at each position; the same at all of them if one row is given."""
    rows = {"confidence": confidence, "entropy": confidence, "margin": confidence} | shown
    each = {name: np.broadcast_to(np.array(values), (len(accepted), len(values[0]))) for name, values in rows.items()}
    return Drafted(lengths, np.array(accepted), **each, found=each["confidence"] == 1)


def test_the_scores_of_a_block_by_hand():
    one = drafted([1], [0], [[0.8, 0.5, 0.9]], entropy=[[0.0, np.log(2), np.log(4)]], margin=[[0.6, 0.1, 0.85]])
    scores = {name: RULES[name](one, one)[0].tolist() for name in ("confident", "joint", "entropy", "margin")}
    assert scores["confident"] == [0.8, 0.5, 0.9]
    assert scores["joint"] == pytest.approx([0.8, 0.4, 0.36])
    assert scores["entropy"] == pytest.approx([1, 0.5, 0.25])
    assert scores["margin"] == [0.6, 0.1, 0.85]
    assert while_at_least(np.array([scores["confident"], scores["joint"], [0.9, 0.4, 0.9]]), 0.5).tolist() == [3, 1, 1]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda stream, drafted: drafted.confidence[:, 0], r"mine returned shape \(2,\) \(return .*: shape \(2, 3\)\)"),
        (lambda stream, drafted: drafted.confidence[:, :1], r"mine returned shape \(2, 1\)"),
        (lambda stream, drafted: drafted.confidence * np.nan, "mine returned nan"),
        (lambda stream, drafted: None, r"mine returned shape \(\)"),
        (lambda stream, drafted: np.log(drafted.confidence), r"mine returned scores from -0.693\d* to -0.105"),
        (lambda stream, drafted: drafted.confidence * 2, "mine returned scores from 1 to 1.8 .*from 0 to 1"),
    ],
)
def test_a_rule_without_a_score_for_each_drafted_token_is_refused(monkeypatch, rule, message):
    two = drafted([2], [1, 0], [[0.8, 0.5, 0.9]])
    monkeypatch.setitem(RULES, "mine", rule)
    with pytest.raises(UserError, match=f"length rule {message}"):
        scores_of("mine", two, two)


@torch.inference_mode()
def test_what_a_draft_shows_is_of_its_own_distribution():
    model = small_llama(32, 16)
    with torch.no_grad():
        model.head.mul_(8)
    prompts = [[3, 4, 5, 3, 4], [9, 8, 7, 6, 5]]
    for draft in (model, Lookup(model, joined=True), Lookup(model)):
        cache, last = draft.decoder().prefill(prompts, 4)
        shown = guess(cache, last)
        logits = draft.answer_logits(prompts, [[1], [1]])
        probs = logits.double().softmax(-1)
        assert shown.entropy.tolist() == pytest.approx(torch.special.entr(probs).sum(-1).tolist(), abs=1e-5)
        first, second = probs.topk(2).values.unbind(-1)
        assert shown.confidence.tolist() == pytest.approx(first.tolist(), abs=1e-5)
        assert shown.margin.tolist() == pytest.approx((first - second).tolist(), abs=1e-5)
        # Lookup finds that 5 follows "3 4"; nothing follows the other prompt's last tokens.
        assert draft is model or shown.margin[0] == 1 > shown.margin[1]


def test_transformers_schedule_follows_what_was_accepted():
    """A block of 2 that is accepted whole makes the next one longer by 2, at most 4; any other makes it shorter by 1, also in the next answer."""
    always = np.full((9, 4), 0.5)
    lengths = []
    choose = schedule(2, 4)

    def noted(position, before):
        lengths.append(choose(position, before))
        return lengths[-1]

    some = Drafted([5, 4], np.array([2, 0, 0, 1, 0, 0, 0, 1, 0]), always, always, always, always == 1)
    blocks = cut(some, noted)
    assert lengths == [2, 4, 3, 2, 1]
    assert blocks.drafted.tolist() == [2 + 4, 3 + 2 + 1]
    assert schedule(1, 4)(0, (1, 0)) == 1, "a block drafts at least one token"


def test_the_fitted_rule_learns_that_found_tokens_are_often_wrong():
    """Lookup is always sure, but right 3 times in 10; the draft is right as often as it says."""
    rng = np.random.default_rng(0)
    positions = 4000
    confidence = np.where(rng.random((positions, 2)) < 0.5, 1.0, rng.uniform(0.2, 0.9, (positions, 2)))
    right = rng.random((positions, 2)) < np.where(confidence == 1, 0.3, confidence)
    same = np.zeros((positions, 2))  # neither the entropy nor the margin tells anything
    stream = Drafted([positions], right.cumprod(1).sum(1), confidence, same, same, confidence == 1)
    proposed = np.array([[1.0, 0.3], [0.3, 1.0], [0.8, 0.8]])
    seen = Drafted([3], np.zeros(3), proposed, same[:3], same[:3], proposed == 1)
    expected = [[0.3, 0.3], [0.3, 0.3], [0.8, 0.8]]
    assert acceptance_model(stream)(seen) == pytest.approx(np.array(expected), abs=0.06)
    assert RULES["fitted"](stream, seen) == pytest.approx(np.cumprod(expected, 1), abs=0.08)


def test_the_fit_ignores_what_nobody_knows():
    """Nothing is known of tokens beyond the end of an answer, nor of those after a rejected one: their probabilities do not count."""
    rng = np.random.default_rng(1)
    confidence = rng.uniform(0.2, 0.9, (200, 3))
    accepted = (rng.random((200, 3)) < confidence).cumprod(1).sum(1)
    lengths = [4] * 50
    left = np.tile([4, 3, 2, 1], 50)
    nowhere = np.zeros((200, 3), dtype=bool)
    stream = Drafted(lengths, np.minimum(accepted, left), confidence, 1 - confidence, confidence, nowhere)
    unknown = np.arange(3) >= np.minimum(stream.accepted + 1, left)[:, None]
    assert unknown.any(1).mean() > 0.5
    other = np.where(unknown, 0.99, confidence)
    changed = Drafted(lengths, stream.accepted, other, 1 - other, other, nowhere)
    probe = drafted([1], [0], [[0.7, 0.6, 0.5]])
    assert acceptance_model(changed)(probe) == pytest.approx(acceptance_model(stream)(probe), abs=1e-6)


def test_a_threshold_on_the_joint_probability_is_best_where_probabilities_are_right():
    """Section 13 of docs/theory.md, by enumeration: no other choice of lengths for five kinds of block has a larger ratio of tokens and time."""
    cost = 0.3
    confidence = np.random.default_rng(2).uniform(0.3, 1, (5, 4))
    joint = confidence.cumprod(1)
    emitted = 1 + np.pad(joint.cumsum(1), ((0, 0), (1, 0)))  # of a block of each length

    def ratio(lengths) -> float:
        tokens = sum(emitted[kind, length] for kind, length in enumerate(lengths))
        return tokens / (len(lengths) + cost * sum(lengths))

    best = max(itertools.product(range(5), repeat=5), key=ratio)
    assert while_at_least(joint, ratio(best) * cost).tolist() == list(best)
    assert len(set(best)) > 1
    by_token = max((while_at_least(confidence, step / 100) for step in range(101)), key=ratio)
    assert ratio(by_token) < ratio(best)
