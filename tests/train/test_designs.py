"""Drafts made of their target, and heads trimmed to the tokens of the traffic: what they compute, learn, keep and refuse."""

import dataclasses

import pytest
import torch
from pydantic import ValidationError

from draftlab import plan
from draftlab.core.losses import LOSSES
from draftlab.engine.recording import on_head
from draftlab.engine.settings import Recipe
from draftlab.engine.speculate import speculate
from draftlab.errors import UserError
from draftlab.models import load_model
from draftlab.models.head import columns_of
from draftlab.models.llama import Llama, LlamaConfig
from draftlab.plan import needs
from draftlab.train import pretrain
from draftlab.train.designs import designed, frequent_tokens, project, prune, trim_head
from draftlab.train.learning import losses_at
from tests.pair import small_llama

KEPT = [2, 5, 7, 11, 40, 41, 300]
PROMPTS = [[5, 9, 11, 7], [8, 8, 3]]


def deep_llama():
    config = LlamaConfig(320, 32, 64, 3, 4, 2, 64, tie_word_embeddings=True)
    return Llama(config).initialise(torch.Generator().manual_seed(0))


def test_a_pruned_draft_is_the_target_with_its_last_layers_left_out():
    target = deep_llama()
    draft = prune(target, 2)
    del target.layers[2]
    torch.testing.assert_close(draft(torch.tensor(PROMPTS[:1])), target(torch.tensor(PROMPTS[:1])))
    assert draft.embed.data_ptr() != target.embed.data_ptr()  # training it leaves the target as it is
    with pytest.raises(UserError, match="3 layers from a target of 2"):
        prune(target, 3)


def test_a_projected_embedding_keeps_the_distances_between_tokens():
    target, generator = deep_llama(), torch.Generator().manual_seed(0)
    with torch.no_grad():  # tokens that lie in 8 dimensions
        target.embed.copy_(torch.randn(320, 8, generator=generator) @ torch.randn(8, 32, generator=generator))
    config = LlamaConfig(320, 8, 16, 1, 2, 2, 64)
    draft = project(target, config, generator)
    ours, its = (torch.cdist(weight, weight) for weight in (draft.embed.detach(), target.embed.detach()))
    torch.testing.assert_close(ours / ours.mean(), its / its.mean(), atol=1e-3, rtol=1e-3)
    with pytest.raises(UserError, match="64 components"):
        project(target, dataclasses.replace(config, hidden_size=64), generator)


OWN = """
from dataclasses import replace
from draftlab.models.llama import Llama


def last_layers(target, recipe, generator):
    draft = Llama(replace(target.config, num_hidden_layers=recipe.layers))
    state = {name: value.clone() for name, value in target.state_dict().items() if not name.startswith("layers.")}
    for place in range(recipe.layers):
        layer = target.layers[place - recipe.layers].state_dict()
        state |= {f"layers.{place}.{name}": value.clone() for name, value in layer.items()}
    draft.load_state_dict(state)
    return draft


def other_tokens(target, recipe, generator):
    return Llama(replace(target.config, vocab_size=99)).initialise(generator)


def fails(target, recipe, generator):
    return recipe.no_such


def nothing(target, recipe, generator):
    return None


def loss(draft_logits, target_logits):
    return 0
"""


def test_a_design_of_ones_own_is_made_planned_and_blamed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "designs_of_mine.py").write_text(OWN)
    target, generator = deep_llama(), torch.Generator()
    target.save(tmp_path / "target")

    def recipe(name):
        return Recipe(design=f"designs_of_mine.py:{name}", layers=2, hidden=32, heads=4, ffn=64)

    draft = pretrain._untrained(recipe("last_layers"), 320, tmp_path / "target")
    del target.layers[0]
    torch.testing.assert_close(draft(torch.tensor(PROMPTS[:1])), target(torch.tensor(PROMPTS[:1])))
    for name, message in {
        "other_tokens": r"design .*:other_tokens returned a model of 99 tokens \(give it the target's 320; `head`",
        "nothing": r"design designs_of_mine.py:nothing returned NoneType \(return a Llama\)",
        "fails": r"designs_of_mine.py:21: design designs_of_mine.py:fails raised AttributeError",
    }.items():
        with pytest.raises(UserError, match=message):
            designed(deep_llama(), recipe(name), generator)
    with pytest.raises(UserError, match=r"the design designs_of_mine.py:last_layers needs a target"):
        pretrain._untrained(recipe("last_layers"), 320)
    for wrong, message in {
        "mine": "Input should be 'scratch', 'pruned', 'pca' or FILE.py",
        "designs_of_mine.py:loss": "loss cannot be",
    }.items():
        with pytest.raises(ValidationError, match=message):
            Recipe(design=wrong)
    pair = plan.load_run({"scale": "smoke"}, plan.WORKFLOW).settings.pairs["main"]
    drafts = {"draft": recipe("last_layers"), "draft_pca": pair.drafts["draft_pca"]}
    sizes = [needs.model_of(pair.model_copy(update={"drafts": drafts}), role).sizes for role in drafts]
    assert (sizes[0].hidden, sizes[0].layers, sizes[0].vocab) == (32, 2, sizes[1].vocab)


def test_a_trimmed_head_renormalises_and_gives_all_others_nothing():
    whole = small_llama(16, 0)
    draft = trim_head(whole, KEPT)
    logits, expected = draft.answer_logits(PROMPTS, PROMPTS), whole.answer_logits(PROMPTS, PROMPTS)
    torch.testing.assert_close(logits[:, KEPT], expected[:, KEPT])
    others = sorted(set(range(320)) - set(KEPT))
    assert bool((logits[:, others] == -torch.inf).all())
    with torch.no_grad():
        cache, tokens = draft.decoder().prefill(PROMPTS, 8)
        decoded, last = cache.extend(tokens[:, None])[0, 0], whole(torch.tensor(PROMPTS[:1]))[0, -1]
    torch.testing.assert_close(decoded[KEPT], last[KEPT], atol=1e-5, rtol=1e-5)
    assert bool((decoded[others] == -torch.inf).all())


def test_a_trimmed_head_is_saved_with_its_tokens(tmp_path):
    draft = trim_head(small_llama(16, 0), KEPT)
    draft.save(tmp_path / "draft")
    again = load_model(tmp_path / "draft")
    assert again.kept.tolist() == KEPT
    torch.testing.assert_close(again.answer_logits(PROMPTS, PROMPTS), draft.answer_logits(PROMPTS, PROMPTS))


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "hard_label"])
def test_losses_of_a_trimmed_head_have_the_gradient_of_the_whole_vocabulary(name):
    """Reference: logits over the whole vocabulary, where tokens outside the head have probability exp(-40), nearly zero but finite."""
    generator = torch.Generator().manual_seed(0)
    target = 2 * torch.randn(3, 12, generator=generator)
    kept, labels = torch.tensor([1, 4, 8, 9]), torch.tensor([1, 8, 9])
    start = torch.randn(3, 4, generator=generator)
    gradients = []
    for trimmed in (True, False):
        logits = start.clone().requires_grad_()
        if trimmed:
            losses = losses_at(name, logits, on_head(target, kept), labels, kept)
        else:
            outside = (logits.logsumexp(-1, keepdim=True) - 40).expand(3, 12)
            losses = losses_at(name, outside.index_copy(1, kept, logits), target, labels)
        losses.sum().backward()
        gradients.append(logits.grad)
    assert bool(gradients[0].isfinite().all())
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_fine_tuning_passes_over_tokens_outside_the_head():
    kept, labels = torch.tensor([1, 4, 8]), torch.tensor([4, 5])
    logits = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    losses = losses_at("hard_label", logits, torch.zeros(2, 4), labels, kept)
    assert losses_at("forward_kl", torch.zeros(0, 4), torch.zeros(0, 4), labels[:0]).shape == (0,)
    assert losses[1] == 0
    torch.testing.assert_close(losses[0], -logits[0].log_softmax(-1)[1])
    losses.sum().backward()
    assert logits.grad[1].abs().sum() == 0 < logits.grad[0].abs().sum()
    assert columns_of(labels, kept).tolist() == [1, 3]


def test_the_most_frequent_tokens_and_their_share():
    texts = [[7, 7, 7, 5, 5], [9, 5, 7, 3]]
    assert frequent_tokens(texts, 3, {2}) == ([2, 5, 7], 7 / 9)
    assert frequent_tokens(texts, 100, {2}) == ([2, 3, 5, 7, 9], 1.0)
    assert frequent_tokens(texts, 6, {2}, [[8, 8, 4, 6, 6, 6]])[0] == [2, 3, 5, 6, 7, 9], "then those of the prompts"
    with pytest.raises(UserError, match="no text"):
        frequent_tokens([[]], 3, {2})


def test_a_head_is_filled_with_other_tokens_where_the_traffic_has_too_few():
    texts = [[5, 5, 7], [5, 9, 2, 3]]
    assert frequent_tokens(texts, 8, {2}, [[8]], range(100)) == ([0, 1, 2, 3, 5, 7, 8, 9], 1.0)
    assert frequent_tokens(texts, 3, {2}, [[8]], range(100))[0] == [2, 3, 5], "what the traffic has comes first"


def test_a_trimmed_draft_leaves_greedy_text_as_it_is():
    target = small_llama(32, 0, scale=6.0)
    plain = speculate(target, target, PROMPTS, draft_len=2, max_new_tokens=10, eos_ids={2})
    answers = {token for trace in plain.traces for token in trace.answer_ids}
    draft = trim_head(target, sorted(answers)[::2])
    trimmed = speculate(target, draft, PROMPTS, draft_len=2, max_new_tokens=10, eos_ids={2})
    assert [trace.answer_ids for trace in trimmed.traces] == [trace.answer_ids for trace in plain.traces]
    accepted = [sum(sum(trace.accepted) for trace in found.traces) for found in (trimmed, plain)]
    assert 0 < accepted[0] < accepted[1]


def test_a_recipe_refuses_what_has_no_meaning():
    with pytest.raises(ValueError, match="from scratch"):
        Recipe(family="t5", design="pruned")
