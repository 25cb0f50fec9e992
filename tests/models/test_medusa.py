"""Heads on the target: their trees in the loop, along records, as learners; and what each way to verify keeps of the target's distribution."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from draftlab.conformance import Budget, check_distribution, check_samples
from draftlab.core.sampling import Sampling, to_probs
from draftlab.core.tree import Tree
from draftlab.core.verify import VERIFIERS
from draftlab.core.verify.specinfer import specinfer
from draftlab.core.verify.typical import typical
from draftlab.engine.generate import generate
from draftlab.engine.recording import record
from draftlab.engine.replay import replay
from draftlab.engine.speculate import speculate
from draftlab.errors import UserError
from draftlab.models import LanguageModel
from draftlab.models.llama import Llama
from draftlab.models.medusa import Medusa
from draftlab.stages.offline import Settings as Offline
from draftlab.train import training
from draftlab.train.learning import train
from draftlab.train.online import Lesson, learn
from draftlab.train.settings import Serving
from draftlab.train.sources import Scene
from tests.engine.test_speculate import EOS, TARGET, make

PROMPTS = [[1, 2, 3, *range(5, 6 + i % 5), 7 + i] for i in range(9)]
TREES = [(1, 1, 1), (3, 2, 1), (2, 2, 2), (4,)]


def heads(widths: tuple[int, ...], target=TARGET) -> Medusa:
    model = Medusa(target, Tree.of_widths(widths))
    with torch.no_grad():
        model.mix.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    return model


def test_a_tree_is_its_leaves_paths():
    tree = Tree.of_widths((2, 3))
    assert (tree.leaves, tree.depth) == (6, 2)
    assert tree.paths.tolist() == [[0, 1, 3], [0, 1, 4], [0, 1, 5], [0, 2, 6], [0, 2, 7], [0, 2, 8]]
    assert tree.depths.tolist() == [0, 1, 1, 2, 2, 2, 2, 2, 2]
    assert [int(node) for node in tree.attention_mask[7].nonzero()] == [0, 2, 7]
    tokens = torch.tensor([[10, 20], [10, 21], [10, 22], [11, 20], [11, 21], [11, 22]])
    assert tokens.flatten()[tree.token_index].tolist() == [10, 11, 20, 21, 22, 20, 21, 22]


def test_reading_a_tree_is_reading_each_of_its_sequences():
    tree = Tree.of_widths((2, 3))
    prompts = [[1, 5, 9, 7], [1, 8]]
    tokens = torch.randint(5, 30, (2, 6, 2), generator=torch.Generator().manual_seed(0))
    tokens = torch.where(
        tree.paths[:, 1:] > 0, tokens.flatten(1)[:, tree.token_index][:, tree.paths[:, 1:] - 1], tokens
    )
    with torch.inference_mode():
        cache, following = TARGET.decoder().prefill(prompts, 32)
        nodes = torch.cat([following[:, None], tokens.flatten(1)[:, tree.token_index]], -1)
        found = TARGET.decoder().project(cache.states(nodes, tree)).view(2, 9, -1)[:, tree.paths]
        for row, leaf in itertools.product(range(2), range(6)):
            whole = TARGET(torch.tensor([[*prompts[row], *tokens[row, leaf].tolist()]]))[0, -3:]
            torch.testing.assert_close(found[row, leaf], whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("widths", TREES)
@pytest.mark.parametrize("batch", [1, None])
def test_greedy_text_is_the_targets(widths: tuple[int, ...], batch: int | None):
    model, options = heads(widths), {"max_new_tokens": 20, "eos_ids": [EOS], "batch": batch}
    tree = model.tree
    found = speculate(TARGET, model, PROMPTS, draft_len=tree.depth, num_drafts=tree.leaves, **options)
    assert [trace.answer_ids for trace in found.traces] == generate(TARGET, PROMPTS, **options)
    assert sum(sum(trace.accepted) for trace in found.traces) > 0


@pytest.mark.parametrize("widths", TREES)
def test_replay_counts_what_live_decoding_counts(widths: tuple[int, ...]):
    model = heads(widths)
    tree = model.tree
    recorded = record(TARGET, [(str(i), p) for i, p in enumerate(PROMPTS)], max_new_tokens=20, eos_ids=[EOS])
    walked = replay(model, recorded, tree.depth)
    traces = speculate(
        TARGET, model, PROMPTS, draft_len=tree.depth, num_drafts=tree.leaves, max_new_tokens=20, eos_ids=[EOS]
    ).traces
    assert walked.blocks.tolist() == [len(trace.emitted) for trace in traces]
    assert walked.accepted.tolist() == [sum(trace.accepted) for trace in traces]
    assert walked.overlap.tolist() == [sum(trace.overlap) for trace in traces]


def second_tokens(
    target: Llama, draft: LanguageModel, prompt: list[int], **options: Any
) -> Iterator[tuple[torch.Tensor, int]]:
    """Sampled answers of two tokens: the target's distribution of the second, given the first, and the second."""
    distributions = dict[int, torch.Tensor]()
    while True:
        traces = speculate(target, draft, [prompt] * 256, max_new_tokens=2, eos_ids=[], **options).traces
        for first, second in (trace.answer_ids for trace in traces):
            if first not in distributions:
                with torch.no_grad():
                    logits = target(torch.tensor([[*prompt, first]]))[0, -1]
                distributions[first] = to_probs(logits, options["sampling"])
            yield distributions[first], second


@pytest.mark.parametrize("verifier", ["rrs", "greedy", "ranked"])
def test_sampled_text_follows_the_targets_distribution(verifier: str):
    """The conformance kit on live decoding: the second token of an answer, given its first."""
    target = make(5, vocab=6)
    options = {"sampling": Sampling(1.0), "generator": torch.Generator().manual_seed(0)}
    options |= {"draft_len": 2, "num_drafts": 4, "verifier": VERIFIERS[verifier]}
    drawn = itertools.islice(second_tokens(target, heads((2, 2), target), [1, 2, 3, 5], **options), 5000)
    assert check_samples(drawn, Budget(5000, 1e-3, 0)).lossless


def test_typical_acceptance_is_told_from_a_lossless_one():
    assert not typical.is_lossless
    assert not check_distribution(typical.distribution, typical.drafting, 2).lossless
    target = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64)
    drafted = torch.tensor([[3, 1]])
    distribution = typical.distribution(target, torch.full((1, 2, 4), 0.25, dtype=torch.float64), drafted)
    assert distribution.tolist() == [
        [0.0, 1.0, 0.0, 0.0]
    ]  # 0.3 passes the threshold of min(0.09, 0.3 exp(-1.14)), 0.05 does not
    flat = torch.tensor([[0.3, 0.3, 0.2, 0.08, 0.07, 0.05]], dtype=torch.float64)
    uniform = torch.full((1, 2, 6), 1 / 6, dtype=torch.float64)
    for drafted, accepted in (([5, 3], 3), ([3, 2], 2)):  # here the threshold is 0.3 exp(-1.58) = 0.062
        distribution = typical.distribution(flat, uniform, torch.tensor([drafted]))
        assert distribution[0, accepted] == 1


def test_heads_learn_what_the_target_says_and_leave_it_alone():
    model = Medusa(TARGET, Tree.of_widths((2, 1)))
    before = [weight.clone() for weight in TARGET.parameters()]
    recorded = record(TARGET, [(str(i), p) for i, p in enumerate(PROMPTS)], max_new_tokens=20, eos_ids=[EOS])
    untrained = replay(model, recorded, 2)
    settings = Offline(dataset="toy", epochs=1, batch=3, learning_rate=1e-2)
    train(Scene(model, recorded), range(len(PROMPTS)), 120, settings)
    trained = replay(model, recorded, 2)
    assert trained.accepted.sum() >= 2 * untrained.accepted.sum()
    assert all(torch.equal(a, b) for a, b in zip(before, TARGET.parameters(), strict=True))


def test_a_copy_has_heads_of_its_own_and_the_same_target():
    model = heads((2, 1))
    other = copy.deepcopy(model)
    assert other.target is model.target
    assert not {id(weight) for weight in other.parameters()} & {id(weight) for weight in model.parameters()}
    with torch.no_grad():
        other.mix.add_(1.0)
    assert not torch.equal(other.mix, model.mix)
    torch.testing.assert_close(other.project, model.project)


@pytest.mark.parametrize("how", ["train", "serve"])
def test_heads_learn_the_mean_over_heads_when_they_warm_up_and_when_they_serve(how: str):
    model, settings = heads((1, 1, 1)), Serving(dataset="toy", update_interval=1, batch=1, learning_rate=1e-3, clip=1e9)
    recorded = record(TARGET, [("a", PROMPTS[0])], max_new_tokens=5, eos_ids=[EOS])
    (answer,) = recorded.answers
    target = torch.log_softmax(recorded.target_logits([0]), -1)
    guessed = torch.log_softmax(model.answer_logits([answer.prompt_ids], [answer.answer_ids]).detach(), -1)
    expected = (target.exp() * (target - guessed)).sum(-1).mean()  # over heads and positions
    found, update = [], training.update

    def watched(optimizer: torch.optim.Optimizer, losses: Iterable[torch.Tensor], *rest: Any) -> float:
        losses = list(losses)
        found.append(sum(float(loss.detach()) for loss in losses))
        return update(optimizer, losses, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "update", watched)
        if how == "train":
            train(Scene(model, recorded), [0], 1, settings)
        else:
            learn(model, training.adamw(model), [Lesson(recorded, 0, np.arange(len(answer.answer_ids)))], settings)
    assert found == [pytest.approx(float(expected), rel=1e-5)]


def test_each_head_looks_one_token_further_back():
    model = heads((1, 1, 1))
    logits = model.answer_logits([[1, 2, 3, 5]], [[6, 7]])
    with torch.no_grad():
        states = TARGET.states(torch.tensor([[1, 2, 3, 5, 6]]))[0]
        for head, position in itertools.product(range(3), range(2)):
            guess = model.guess(states[None, 3 + position - head - 1])[0, head]
            torch.testing.assert_close(logits[head, position], guess)


def test_what_does_not_fit_is_refused():
    model, options = heads((2, 1)), {"max_new_tokens": 4, "eos_ids": [EOS]}
    with pytest.raises(UserError, match="2 leaves of depth 2"):
        speculate(TARGET, model, PROMPTS, draft_len=3, num_drafts=2, **options)
    with pytest.raises(UserError, match="siblings in a tree are distinct"):
        speculate(
            TARGET, model, PROMPTS, draft_len=2, num_drafts=2, verifier=specinfer, sampling=Sampling(1.0),
            generator=torch.Generator().manual_seed(0), **options,
        )  # fmt: skip
    with pytest.raises(UserError, match="widths"):
        Tree.of_widths((2, 0))
    with pytest.raises(UserError, match="look further back"):
        model.answer_logits([[1, 2]], [[3]])
