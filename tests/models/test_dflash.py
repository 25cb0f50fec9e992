"""Heads of DFlash as they are released: against the definition, in the loop, along records, as learners, and in their files."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftlab.conformance import Budget, check_samples
from draftlab.core.sampling import GREEDY, Sampling
from draftlab.core.verify.single import single
from draftlab.engine.dflash import DFlashPair
from draftlab.engine.generate import generate
from draftlab.engine.policy import make_policy
from draftlab.engine.recording import load_pass
from draftlab.engine.replay import replay
from draftlab.engine.speculate import speculate
from draftlab.errors import UserError
from draftlab.files.json_files import read_object, write_json
from draftlab.files.weights import active_parameter_count
from draftlab.models import LanguageModel, load_model
from draftlab.models.config import drafts_in_parallel, head_in
from draftlab.models.dflash import DFlash, DFlashHead
from draftlab.models.dflash_files import Form
from draftlab.models.eagle import of_blocks
from draftlab.models.llama import Llama
from draftlab.stages import offline, replay_log
from draftlab.stages._stage import Bench
from draftlab.train import training
from draftlab.train.learning import train
from draftlab.train.sources import Scene
from tests.engine.test_speculate import EOS
from tests.models.test_eagle3 import (
    KEPT,
    LEARNS,
    PROMPTS,
    TARGET,
    beside,
    deep,
    norm,
    pair,  # noqa: F401 (a fixture)
    records,
    streams_of,
    through_transformers,
    turned,
)
from tests.models.test_medusa import second_tokens

CONFIG = {  # as DFlash's authors write it
    "architectures": ["DFlashDraftModel"], "attention_bias": False, "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "block_size": 5, "dflash_config": {"mask_token_id": 11, "target_layer_ids": [1, 3, 5]}, "dtype": "bfloat16",
    "eos_token_id": 2, "head_dim": 6, "hidden_act": "silu", "hidden_size": 16, "intermediate_size": 24,
    "max_position_embeddings": 2048, "model_type": "qwen3", "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "num_target_layers": 7, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000,
    "tie_word_embeddings": True, "vocab_size": 40,
}  # fmt: skip
OF_LAYER = {
    "self_attn.q_proj.weight": (24, 16),
    "self_attn.k_proj.weight": (12, 16),
    "self_attn.v_proj.weight": (12, 16),
    "self_attn.o_proj.weight": (16, 24),
    "self_attn.q_norm.weight": (6,),
    "self_attn.k_norm.weight": (6,),
    "mlp.gate_proj.weight": (24, 16),
    "mlp.up_proj.weight": (24, 16),
    "mlp.down_proj.weight": (16, 24),
    "input_layernorm.weight": (16,),
    "post_attention_layernorm.weight": (16,),
}
FULL = (None, False)


def released(folder: Path, changed: dict[str, Any] | None = None, *, states: int = 3, **config: Any) -> Path:
    """A folder as DFlash's authors release it: without a tokenizer, an embedding and a head."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", CONFIG | config)
    shapes = {f"layers.{layer}.{name}": shape for layer in range(2) for name, shape in OF_LAYER.items()}
    shapes |= {"fc.weight": (16, 16 * states), "hidden_norm.weight": (16,), "norm.weight": (16,)}
    generator = torch.Generator().manual_seed(3)
    made = {
        name: torch.randn(shape, generator=generator) * 0.4 + (len(shape) == 1) for name, shape in shapes.items()
    } | (changed or {})
    save_file({name: value for name, value in made.items() if value is not None}, folder / "model.safetensors")
    return folder


def speculators(folder: Path, changed: dict[str, Any] | None = None, **config: Any) -> Path:
    """A folder as the speculators library writes it: with a head for the most frequent tokens."""
    kept, among = torch.tensor(KEPT), torch.zeros(40, dtype=torch.bool)
    among[kept] = True
    head = torch.randn(30, 16, generator=torch.Generator().manual_seed(4))
    trimmed = {"lm_head.weight": head, "d2t": kept - torch.arange(30), "t2d": among}
    released(folder, trimmed | (changed or {}))
    left_out = ("architectures", "auto_map", "block_size", "dflash_config", "num_target_layers")
    layer = {name: value for name, value in CONFIG.items() if name not in left_out}
    layer |= {name: config.pop(name) for name in ("layer_types", "sliding_window") if name in config}
    stated = {
        "architectures": ["DFlashSpeculator"],
        "aux_hidden_state_layer_ids": [2, 4, 6],
        "block_size": 5,
        "draft_vocab_size": 30,
        "mask_token_id": 12,
        "speculators_model_type": "dflash",
        "transformer_layer_config": layer,
    }
    write_json(folder / "config.json", stated | config)
    return folder


SLIDES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3, "use_sliding_window": True}
DSPARK = {"markov_rank": 3, "markov_head_type": "vanilla", "enable_confidence_head": True}
OF_DSPARK = {
    "markov_head.markov_w1.weight": torch.arange(120.0).sin().view(40, 3),
    "markov_head.markov_w2.weight": 3 * torch.arange(120.0).cos().view(40, 3),
    "confidence_head.proj.weight": torch.ones(1, 19),
    "confidence_head.proj.bias": torch.ones(1),
}
FORMS: dict[str, tuple[Form, Any]] = {
    "authors": (Form((2, 4, 6), 11, 5, (FULL, FULL)), released),
    "sliding_window": (Form((2, 4, 6), 11, 5, ((3, True), FULL)), functools.partial(released, **SLIDES)),
    "window_both_ways": (
        Form((2, 4, 6), 11, 5, ((3, False), FULL)),
        functools.partial(released, is_causal=False, **SLIDES),
    ),
    "after_the_last_layer": (
        Form((1, 7), 11, 4, (FULL, FULL)),
        functools.partial(
            released,
            states=2,
            dflash_config={"mask_token_id": 11, "target_layer_ids": [0, 6], "block_size": 4},
        ),
    ),
    "one_layer": (
        Form((2, 4, 6), 11, 5, (FULL,)),
        functools.partial(
            released, changed=dict.fromkeys(f"layers.1.{name}" for name in OF_LAYER), num_hidden_layers=1
        ),
    ),
    "own_embedding": (
        Form((2, 4, 6), 11, 5, (FULL, FULL)),
        functools.partial(released, changed={"embed_tokens.weight": torch.arange(640.0).sin().view(40, 16)}),
    ),
    "speculators": (Form((2, 4, 6), 12, 5, (FULL, FULL)), speculators),
    "speculators_whole_vocabulary": (
        Form((2, 4, 6), 12, 5, (FULL, FULL)),
        functools.partial(
            speculators, changed=dict.fromkeys(("lm_head.weight", "d2t", "t2d")), draft_vocab_size=40
        ),
    ),
    "speculators_window": (Form((2, 4, 6), 12, 5, ((3, True), FULL)), functools.partial(speculators, **SLIDES)),
    "speculators_window_both_ways": (
        Form((2, 4, 6), 12, 5, ((3, False), FULL)),
        functools.partial(speculators, sliding_window_non_causal=True, **SLIDES),
    ),
    "dspark": (
        Form((2, 4, 6), 11, 5, (FULL, FULL), from_anchor=True),
        functools.partial(
            released,
            changed=OF_DSPARK | {"lm_head.weight": torch.arange(640.0).cos().view(40, 16)},
            architectures=["Qwen3DSparkModel"],
            dflash_config=None,
            mask_token_id=11,
            target_layer_ids=[1, 3, 5],
            **DSPARK,
        ),
    ),
    "speculators_dspark": (
        Form((2, 4, 6), 12, 5, ((3, True), FULL)),
        functools.partial(
            speculators,
            changed=OF_DSPARK | {"markov_head.markov_w2.weight": OF_DSPARK["markov_head.markov_w2.weight"][:30].clone()},
            architectures=["DSparkSpeculator"],
            speculators_model_type="dspark",
            sample_from_anchor=False,
            **DSPARK,
            **SLIDES,
        ),
    ),
    "no_norms_of_heads": (
        Form((2, 4, 6), 11, 5, (FULL, FULL)),
        functools.partial(
            released,
            changed={f"layers.{i}.self_attn.{n}_norm.weight": None for i in range(2) for n in "qk"},
            model_type="llama",
        ),
    ),
}  # fmt: skip


@pytest.fixture(params=FORMS)
def formed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Form, Path]:
    """Each form, and a folder of it."""
    form, make = FORMS[request.param]
    return form, make(tmp_path / "head")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released(tmp_path_factory.mktemp("dflash") / "head")


def on_target(folder: Path, depth: int = 3, target: LanguageModel = TARGET) -> DFlash:
    head = load_model(folder)
    assert isinstance(head, DFlashHead)
    found = of_blocks(head, target, depth, parallel=True)
    assert isinstance(found, DFlash)
    return found


def learnt(folder: Path) -> DFlash:
    model = on_target(folder)
    train(Scene(model, records()), range(len(PROMPTS)), 120, LEARNS)
    return model


@torch.no_grad()
def by_definition(weights: dict[str, Tensor], text: list[int], form: Form, before: int) -> Tensor:
    """Logits of the tokens after ``text``, of which the target has not read the last one, if the token ``before`` comes before each: [new, vocab]."""
    known = len(text) - 1
    taken = torch.cat([streams_of(text[:-1])[layer] for layer in form.layers], -1)
    context = norm(taken @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    hidden = weights.get("embed_tokens.weight", TARGET.embed)[torch.tensor([text[-1], *[form.mask] * (form.block - 1)])]
    places = torch.arange(known + form.block)
    for number, (window, causal) in enumerate(form.windows):
        prefix = f"layers.{number}."
        part = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        read = norm(hidden, part["input_layernorm.weight"])
        both = torch.cat([context, read])
        query = (read @ part["self_attn.q_proj.weight"].T).view(form.block, 4, 6)
        key, value = ((both @ part[f"self_attn.{name}_proj.weight"].T).view(-1, 2, 6) for name in "kv")
        if "self_attn.q_norm.weight" in part:
            query, key = norm(query, part["self_attn.q_norm.weight"]), norm(key, part["self_attn.k_norm.weight"])
        query, key = turned(query, places[known:]), turned(key, places).repeat_interleave(2, 1)
        scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(6)
        back = places[known:, None] - places
        hidden_keys = (back < 0) & torch.tensor(causal)
        if window is not None:
            hidden_keys |= back.abs() >= window
        scores = scores.masked_fill(hidden_keys, -torch.inf)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value.repeat_interleave(2, 1)).flatten(1)
        hidden = hidden + mixed @ part["self_attn.o_proj.weight"].T
        inner = norm(hidden, part["post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(inner @ part["mlp.gate_proj.weight"].T)
        hidden = hidden + (gate * (inner @ part["mlp.up_proj.weight"].T)) @ part["mlp.down_proj.weight"].T
    normed = norm(hidden, weights["norm.weight"])[0 if form.from_anchor else 1 :]
    found = normed @ weights.get("lm_head.weight", TARGET.vocab_weight).T
    if "markov_head.markov_w1.weight" in weights:
        found = found + weights["markov_head.markov_w1.weight"][before] @ weights["markov_head.markov_w2.weight"].T
    if "d2t" not in weights:
        return found
    logits = torch.full((len(found), 40), -torch.inf)
    logits[:, torch.arange(30) + weights["d2t"]] = found
    return logits


def test_each_prediction_is_that_of_the_definition(formed: tuple[Form, Path]) -> None:
    """The d-th prediction of a token is the d-th of the block that begins d tokens before it."""
    form, head = formed
    model, text = on_target(head), [1, 4, 7, 5, 9, 6, 8, 3]
    assert model.form == form
    weights = load_file(head / "model.safetensors")
    with torch.no_grad():
        found = model.answer_logits([text[:4], text[:5]], [text[4:], text[5:]])
        some = model.answer_logits([text[:4], text[:5]], [text[4:], text[5:]], torch.tensor([1, 5]))
    assert found.shape == (3, 7, 40)
    torch.testing.assert_close(some, found[:, [1, 5]])
    for depth, (row, place) in itertools.product(range(1, 4), enumerate([4, 5, 6, 7, 5, 6, 7])):
        wanted = by_definition(weights, text[: place - depth + 1], form, text[place - 1])[depth - 1]
        torch.testing.assert_close(found[depth - 1, row], wanted, atol=1e-4, rtol=1e-4)


def test_a_prompt_of_one_token_has_no_text_before_it(folder: Path) -> None:
    model, text = on_target(folder), [1, 4, 7, 5, 9, 6, 8, 3]
    with torch.no_grad():
        found = model.answer_logits([text[:1]], [text[1:]])
    weights = load_file(folder / "model.safetensors")
    for depth, place in itertools.product(range(1, 4), range(1, 8)):
        if depth < place:  # some text lies before the block
            wanted = by_definition(weights, text[: place - depth + 1], model.form, text[place - 1])[depth - 1]
            torch.testing.assert_close(found[depth - 1, place - 1], wanted, atol=1e-4, rtol=1e-4)
    assert found.isfinite().all()


def test_blocks_are_computed_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = on_target(folder), ([[1, 4, 7], [1, 4]], [[5, 9, 6, 8, 3], [8, 3, 5]])
    with torch.no_grad():
        expected = model.answer_logits(*text)
        monkeypatch.setattr("draftlab.models.dflash.TOGETHER", 2)
        torch.testing.assert_close(model.answer_logits(*text), expected)


def test_every_form_is_decoded_and_learnt_as_it_is_replayed(formed: tuple[Form, Path], tmp_path: Path) -> None:
    form, head = formed
    model, prompts = learnt(head), [*PROMPTS, *([1, 5 + i % 7, 9 + i % 11, 3 + i % 5] for i in range(10))]
    options = {"max_new_tokens": 20, "eos_ids": [EOS]}
    found = speculate(TARGET, model, prompts, draft_len=3, batch=3, **options).traces
    assert [trace.answer_ids for trace in found] == generate(TARGET, prompts, **options)
    walked = replay(model, records(prompts=prompts), 3)
    assert walked.accepted.tolist() == [sum(trace.accepted) for trace in found]
    assert walked.accepted.sum() > 0
    model.save(tmp_path / "again")
    again = on_target(tmp_path / "again")
    assert (again.form, again.layers) == (form, model.layers)
    ours, theirs = (load_file(each / "model.safetensors") for each in (tmp_path / "again", head))
    assert ours.keys() == theirs.keys()
    fixed = {name for name in ours if torch.equal(ours[name], theirs[name])}
    stay = {"embed_tokens.weight", "d2t", "t2d", "confidence_head.proj.weight", "confidence_head.proj.bias"}
    assert fixed == stay & ours.keys(), "all else learns"
    assert read_object(tmp_path / "again/config.json") == read_object(head / "config.json")
    with torch.no_grad():
        torch.testing.assert_close(
            again.answer_logits([[1, 2, 3]], [[4, 5, 6]]), model.answer_logits([[1, 2, 3]], [[4, 5, 6]])
        )


@pytest.mark.parametrize("batch", [1, 3, None])
def test_greedy_text_is_the_targets_and_replay_counts_what_live_decoding_counts(
    folder: Path, batch: int | None
) -> None:
    """Prompts of one token, too, before which the target has no state."""
    model = learnt(folder)
    prompts = [[5], *PROMPTS, [7], *([1, 5 + i % 7, 9 + i % 11, 3 + i % 5] for i in range(30))]
    options = {"max_new_tokens": 20, "eos_ids": [EOS], "batch": batch}
    found = speculate(TARGET, model, prompts, draft_len=3, **options).traces
    assert [trace.answer_ids for trace in found] == generate(TARGET, prompts, **options)
    walked = replay(model, records(prompts=prompts), 3)
    assert walked.blocks.tolist() == [len(trace.emitted) for trace in found]
    assert walked.accepted.tolist() == [sum(trace.accepted) for trace in found]
    assert 0 < walked.accepted.sum() < walked.visited.sum()


@torch.inference_mode()
def test_the_first_block_is_that_of_replay(folder: Path) -> None:
    """Also after a prompt of one token, before which there is no text."""
    model, prompts = on_target(folder), [[5], [1, 4, 7], [7]]
    policy = make_policy(single, 1, 3, GREEDY, GREEDY, None, None, [model])
    drafted = DFlashPair(model, TARGET.decoder(), prompts, 3, 8, policy).propose([8, 8, 8]).tokens[:, 0]
    logits = model.answer_logits(prompts, [[5, 9, 6]] * 3).view(3, 3, 3, 40)  # place, request, token
    assert drafted.tolist() == [[int(logits[place, row, place].argmax()) for place in range(3)] for row in range(3)]


def test_it_learns_on_traffic_and_leaves_the_target_alone(folder: Path) -> None:
    before = [weight.clone() for weight in TARGET.parameters()]
    untrained, model = on_target(folder), learnt(folder)
    assert replay(model, records(), 3).accepted.sum() >= 2 * replay(untrained, records(), 3).accepted.sum()
    assert all(torch.equal(a, b) for a, b in zip(before, TARGET.parameters(), strict=True))


def test_its_checkpoint_has_only_what_learns(folder: Path, tmp_path: Path) -> None:
    """Embedding and head of a tied target are one tensor, which safetensors does not write twice."""
    tied = Llama(replace(TARGET.config, tie_word_embeddings=True)).initialise(torch.Generator().manual_seed(0))
    model, other, path = (on_target(folder, target=tied), on_target(folder, target=tied), tmp_path / "it.safetensors")
    with torch.no_grad():
        for weight in model.parameters():
            weight += weight.requires_grad
    training.save_checkpoint(path, "me", model, None, 3, {})
    assert training.load_checkpoint(path, "me", other, None, {}) == 3
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert not {"model.draft.embed", "model.draft.head"} & load_file(path).keys()


@pytest.mark.parametrize("kind", ["DFlashDraftModel", "Qwen3DSparkModel"])
def test_sampled_text_follows_the_targets_distribution(kind: str, tmp_path: Path) -> None:
    target = deep(6)
    of_head = {"vocab_size": 6, "dflash_config": {"mask_token_id": 4, "target_layer_ids": [1, 3, 5]}}
    further = {name: value[:6].clone() for name, value in OF_DSPARK.items()} if "DSpark" in kind else {}
    of_head |= {"architectures": [kind], **(DSPARK if further else {})}
    model = on_target(released(tmp_path / "head", further, **of_head), 2, target)
    options = {"sampling": Sampling(1.0), "generator": torch.Generator().manual_seed(0), "draft_len": 2}
    drawn = itertools.islice(second_tokens(target, model, [1, 2, 3, 5], **options), 5000)
    assert check_samples(drawn, Budget(5000, 1e-3, 0)).lossless


def test_a_target_that_only_transformers_opens_gives_the_same_logits(formed: tuple[Form, Path], tmp_path: Path) -> None:
    _, head = formed
    theirs, text = through_transformers(TARGET, tmp_path / "target"), ([[1, 4, 7], [1, 4]], [[5, 9, 6], [8, 3]])
    with torch.no_grad():
        expected = on_target(head).answer_logits(*text)
        found = on_target(head, target=theirs).answer_logits(*text)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_log_is_distilled_and_replayed_with_it(pair: Path, tmp_path: Path) -> None:  # noqa: F811
    """At every length as one replay at that length has it: a shorter block is the start of the longest."""
    source = released(tmp_path / "source", vocab_size=320, eos_token_id=None)
    inputs = beside(pair, tmp_path / "run", source)
    learns = {"dataset": "gsm8k", "batch": 4, "learning_rate": 1e-2}
    logged = replay_log.Settings(**learns, update_interval=4, draft_len=8, draft_lens=[1, 3, 5])
    rows, facts = replay_log.run(logged, inputs, Bench(tmp_path / "out"))
    models = {"as_it_comes", "distilled", "distilled_on_quarter", "distilled_on_eighth", "kept_learning"}
    assert set(rows["option"]) == {*models, "lookup", "suffix", "suffix_confident"}
    recorded, target = load_pass(pair / "answers/gsm8k.eval"), load_model(pair / "models/target")
    for option, folder in (("as_it_comes", inputs.models / "draft"), ("distilled", tmp_path / "out/draft")):
        assert drafts_in_parallel(folder)
        assert head_in(folder) == "dflash"
        assert set(rows["draft_len"]) == {1, 3}, "a block of five has four new tokens"
        for draft_len in (1, 3):
            own = of_blocks(load_model(folder), target, draft_len, parallel=True)
            is_own = (rows["split"] == "eval") & (rows["option"] == option) & (rows["draft_len"] == draft_len)
            expected = replay(own, recorded, draft_len).accepted
            np.testing.assert_allclose(rows[is_own]["accepted"], expected, rtol=1e-5, atol=1e-5)
    assert (
        facts["active_parameters"]["draft"] == 2 * sum(map(math.prod, OF_LAYER.values())) + 16 * 48 + 2 * 16 + 320 * 16
    )
    measured, _ = offline.run(
        offline.Settings(**learns, draft_len=3, epochs=1, probes=1, live=True), inputs, Bench(tmp_path / "it")
    )
    for _, same in measured.groupby("epoch"):
        counts = same.groupby("measured")[["accepted", "blocks", "emitted"]].sum()
        assert counts.loc["live"].tolist() == counts.loc["replay"].tolist()


def test_a_token_reads_the_targets_vocabulary_and_half_of_dsparks_matrices(tmp_path: Path) -> None:
    """That is how its cost is told from the target's. Rows that are looked up cost nothing."""
    layers = 2 * sum(map(math.prod, OF_LAYER.values())) + 16 * 48 + 2 * 16
    assert active_parameter_count(released(tmp_path / "dflash")) == layers + 40 * 16
    whole = dict.fromkeys(("lm_head.weight", "d2t", "t2d"))
    assert active_parameter_count(speculators(tmp_path / "whole", whole, draft_vocab_size=40)) == layers + 40 * 16
    own = {"embed_tokens.weight": torch.ones(40, 16), "lm_head.weight": torch.ones(40, 16)}
    dspark = released(tmp_path / "dspark", OF_DSPARK | own, architectures=["Qwen3DSparkModel"], **DSPARK)
    assert active_parameter_count(dspark) == layers + 40 * 16 + 40 * 3 + 1


REFUSED: dict[str, dict[str, Any]] = {
    "with this DFlash2DraftModel cannot be read": {"architectures": ["DFlash2DraftModel"]},
    "with this markov_head_type": {"architectures": ["Qwen3DSparkModel"], "markov_head_type": "rnn"},
    "with this output_multiplier": {"output_multiplier": 0.5},
    "with this use_swa": {"dflash_config": CONFIG["dflash_config"] | {"use_swa": True}},
    "with this attention_bias": {"attention_bias": True},
    "with this rope type": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "without mask_token_id": {"dflash_config": {"target_layer_ids": [1, 3, 5]}},
    "the mask, token 40, is none of the 40 tokens": {"dflash_config": CONFIG["dflash_config"] | {"mask_token_id": 40}},
    "block_size: 1 is no number above 1": {"block_size": 1},
    r"target_layer_ids: \[3, 1\] are not layers in ascending order": {
        "dflash_config": {"mask_token_id": 11, "target_layer_ids": [3, 1]}
    },
    "layer_types: .* are not those of 2 layers": {"layer_types": ["full_attention"]},
    "sliding_window: None is no number of tokens": {"layer_types": ["sliding_attention", "full_attention"]},
    "fc.weight reads 48 numbers, which are not those of 5 states": {
        "dflash_config": {"mask_token_id": 11, "target_layer_ids": [0, 1, 2, 3, 4]}
    },
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_read_is_refused_by_name(message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_model(released(tmp_path / "head", **REFUSED[message]))


def test_what_it_cannot_do_is_refused(folder: Path, tmp_path: Path) -> None:
    alone = load_model(folder)
    with pytest.raises(
        UserError, match=r"it is a head of EAGLE-3, DFlash or DSpark, .*run only experiments that distil it"
    ):
        alone.answer_logits([[1, 2]], [[3]])
    with pytest.raises(UserError, match="16 channels and 40 tokens, not 16 and 50"):
        on_target(folder, target=deep(50))
    with pytest.raises(
        UserError, match=r"it drafts at most 4 tokens at once, not 5 .set draft_len and draft_lens to no more"
    ):
        on_target(folder, depth=5)
    late = {"dflash_config": {"mask_token_id": 11, "target_layer_ids": [1, 3, 7]}}
    with pytest.raises(UserError, match="it reads the states before layer 8 of a target of 7 layers"):
        on_target(released(tmp_path / "late", **late))
    with pytest.raises(UserError, match=r"no weight 'hidden_norm.weight'"):
        load_model(released(tmp_path / "less", {"hidden_norm.weight": None}))
    with pytest.raises(UserError, match=r"no weight 'lm_head.weight'"):
        load_model(speculators(tmp_path / "headless", {"lm_head.weight": None}))
    (released(tmp_path / "pickled") / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(UserError, match=r"with this mask_embedding.pt cannot be read"):
        load_model(tmp_path / "pickled")
