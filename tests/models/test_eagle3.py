"""Heads of EAGLE-3 as they are released: against the definition, in the loop, along records, as learners, and in their files."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from draftlab.conformance import Budget, check_samples
from draftlab.core.sampling import Sampling
from draftlab.data.prompts import Prompt
from draftlab.engine.answering import answer_file
from draftlab.engine.answers import recorded_name
from draftlab.engine.generate import generate
from draftlab.engine.recording import load_pass, record
from draftlab.engine.replay import replay
from draftlab.engine.settings import Answers, Recipe
from draftlab.engine.speculate import speculate
from draftlab.errors import UserError
from draftlab.files.json_files import read_json, read_object, write_json, write_jsonl
from draftlab.files.weights import active_parameter_count, parameter_count
from draftlab.models import LanguageModel, hf, load_model, load_tokenizer
from draftlab.models.config import drafts_in_parallel, head_in, is_head, mask_token_of, read_config
from draftlab.models.eagle import of_blocks
from draftlab.models.eagle3 import Eagle3, Eagle3Head
from draftlab.models.eagle3_files import Form, states_read
from draftlab.models.gguf import export
from draftlab.models.hf import HubModel, new_t5
from draftlab.models.llama import Llama
from draftlab.models.tokenizer import train_tokenizer
from draftlab.plan import WORKFLOW, load_run
from draftlab.stages import offline, online, replay_log
from draftlab.stages._inputs import Distillation
from draftlab.stages._stage import Bench
from draftlab.stages.offline import Settings as Offline
from draftlab.train.learning import train
from draftlab.train.pretrain import make_draft
from draftlab.train.sources import Scene
from draftlab.train.tokens import write_view
from draftlab.train.trimmed_head import coverage, kept_by
from tests.engine.test_speculate import EOS
from tests.engine.test_speculate import TARGET as SMALL
from tests.models.test_medusa import second_tokens

LEARNS = Offline(dataset="toy", epochs=1, batch=3, learning_rate=1e-2)
PROMPTS = [[1, 2], *([1, 2, 3, *range(5, 6 + i % 5), 7 + i] for i in range(7))]
KEPT = [0, 2, 3, 5, 6, *range(9, 34)]
CONFIG = {  # as SpecForge writes it
    "architectures": ["LlamaForCausalLMEagle3"], "attention_bias": False, "bos_token_id": 1, "draft_vocab_size": 30,
    "eos_token_id": 2, "head_dim": 6, "hidden_act": "silu", "hidden_size": 16, "intermediate_size": 24,
    "max_position_embeddings": 2048, "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 1,
    "num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 40,
}  # fmt: skip
SHAPES = {
    "midlayer.self_attn.q_proj.weight": (24, 32),
    "midlayer.self_attn.k_proj.weight": (12, 32),
    "midlayer.self_attn.v_proj.weight": (12, 32),
    "midlayer.self_attn.o_proj.weight": (16, 24),
    "midlayer.mlp.gate_proj.weight": (24, 16),
    "midlayer.mlp.up_proj.weight": (24, 16),
    "midlayer.mlp.down_proj.weight": (16, 24),
    "midlayer.hidden_norm.weight": (16,),
    "midlayer.input_layernorm.weight": (16,),
    "midlayer.post_attention_layernorm.weight": (16,),
    "fc.weight": (16, 48),
    "norm.weight": (16,),
    "lm_head.weight": (30, 16),
}


PLAIN = Form()
MADE_FLAT = ("architectures", "draft_vocab_size")
"""What the speculators library leaves at the top level of config.json."""


def deep(vocab: int = 40, seed: int = 5) -> Llama:
    """A target of seven layers, in which every one matters."""
    model = Llama(replace(SMALL.config, num_hidden_layers=7, vocab_size=vocab))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.5 if weight.ndim == 2 else 0.2, generator=generator)
            weight.add_(1 if weight.ndim == 1 else 0)
    return model


TARGET = deep()


def tensors(generator: torch.Generator) -> dict[str, Tensor]:
    """Weights to which everything that a head reads matters."""
    made = {
        name: torch.randn(shape, generator=generator) * 0.4 + (1 if len(shape) == 1 else 0)
        for name, shape in SHAPES.items()
    }
    kept = torch.tensor(KEPT)
    among = torch.zeros(40, dtype=torch.bool)
    among[kept] = True
    return made | {"d2t": kept - torch.arange(30), "t2d": among}


def released(folder: Path, changed: dict[str, Any] | None = None, **config: Any) -> Path:
    """A folder as it is released: without a tokenizer and without an embedding."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", CONFIG | config)
    every = tensors(torch.Generator().manual_seed(3)) | (changed or {})
    save_file({name: value for name, value in every.items() if value is not None}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released(tmp_path_factory.mktemp("eagle3") / "head")


def speculators(folder: Path, added: dict[str, Any] | None = None, layers: int = 1, **config: Any) -> Path:
    """A folder as the speculators library writes it, such as Red Hat's."""
    released(folder, added)
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name.replace("midlayer", "layers.0"): value for name, value in weights.items()}, folder / "model.safetensors"
    )
    layer = {name: value for name, value in CONFIG.items() if name not in MADE_FLAT} | {"num_hidden_layers": layers}
    stated = {"architectures": ["Eagle3DraftModel"], "draft_vocab_size": 30, "speculators_model_type": "eagle3"}
    write_json(folder / "config.json", stated | {"transformer_layer_config": layer} | config)
    return folder


def second_layer() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    shapes = {
        name.replace("midlayer", "layers.1"): (shape[0], 16) if "self_attn" in name and "o_proj" not in name else shape
        for name, shape in SHAPES.items()
        if name.startswith("midlayer") and "hidden_norm" not in name
    }
    return {name: torch.randn(shape, generator=generator) * 0.4 + (len(shape) == 1) for name, shape in shapes.items()}


def some(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Norms that matter, and other weights."""
    generator = torch.Generator().manual_seed(9)
    return [torch.randn(shape, generator=generator) * 0.4 + (len(shape) == 1) for shape in shapes]


ALL_NORMS = {"input_norm.weight": some((48,))[0]} | {f"fc_norm.{i}.weight": w for i, w in enumerate(some(*[(16,)] * 3))}
NORMS_OF_HEADS = dict(zip([f"midlayer.self_attn.{n}_norm.weight" for n in "qk"], some((6,), (6,)), strict=True))
FORMS: dict[str, tuple[Form, Any]] = {
    "plain": (PLAIN, released),
    "speculators": (
        Form((0, 3, 7), norm_before_residual=True),
        functools.partial(speculators, eagle_aux_hidden_state_layer_ids=[0, 3, 7]),
    ),
    "speculators_eagle_3_1": (
        Form(None, True, True, True, True),
        functools.partial(speculators, added=ALL_NORMS, norm_before_fc=True, fc_norm=True, norm_output=True),
    ),
    "specforge": (
        Form((2, 4, 6), norm_output=True),
        functools.partial(
            released,
            norm_output=True,
            eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "use_aux_hidden_state": True},
        ),
    ),
    "four_states_before_layers": (
        Form((2, 3, 4, 5), fc_norm=True),
        functools.partial(
            released,
            changed={f"fc_norm.{i}.weight": weight for i, weight in enumerate(some(*[(16,)] * 4))}
            | {"fc.weight": some((16, 64))[0]},
            eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 3, 4, 5], "fc_norm": True},
        ),
    ),
    "p_eagle": (
        Form((2, 4, 6), mask=11),
        functools.partial(
            released,
            changed={"mask_hidden": some((1, 48))[0], "embed_tokens.weight": some((40, 16))[0]},
            eagle_aux_hidden_state_layer_ids=[2, 4, 6],
            ptd_token_id=11,
        ),
    ),
    "speculators_p_eagle": (
        Form(None, norm_before_residual=True, norm_before_fc=True, mask=12),
        functools.partial(
            speculators,
            added=second_layer() | {"mask_hidden": some((1, 1, 48))[0], "input_norm.weight": some((48,))[0]},
            layers=2,
            speculators_model_type="peagle",
            mask_token_id=12,
            norm_before_fc=True,
        ),
    ),
    "norms_of_heads": (PLAIN, functools.partial(released, changed=NORMS_OF_HEADS)),
    "two_layers": (PLAIN, functools.partial(speculators, added=second_layer(), layers=2, norm_before_residual=False)),
}


@pytest.fixture(params=FORMS)
def formed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Form, Path]:
    """Each form, and a folder of it."""
    form, make = FORMS[request.param]
    return form, make(tmp_path / "head")


def on_target(folder: Path, depth: int = 3, target: LanguageModel = TARGET) -> Eagle3:
    head = load_model(folder)
    assert isinstance(head, Eagle3Head)
    found = of_blocks(head, target, depth, parallel=False)
    assert isinstance(found, Eagle3)
    return found


def records(sampling: Sampling | None = None, prompts: list[list[int]] = PROMPTS):
    options = {"sampling": sampling, "generator": torch.Generator().manual_seed(3)} if sampling else {}
    requests = [(str(i), p) for i, p in enumerate(prompts)]
    return record(TARGET, requests, max_new_tokens=20, eos_ids=[EOS], **options)


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def turned(heads: Tensor, places: Tensor) -> Tensor:
    """Rotary positions as Hugging Face's checkpoints have them: the two halves of a head."""
    angles = torch.outer(places.float(), 10000.0 ** (-torch.arange(0, 6, 2) / 6)).repeat(1, 2)
    first, second = heads.chunk(2, -1)
    return heads * angles.cos()[:, None] + torch.cat([-second, first], -1) * angles.sin()[:, None]


@functools.cache
def their_target() -> Any:
    """The target in transformers, whose hidden states are the streams before each layer."""
    with tempfile.TemporaryDirectory() as folder:
        TARGET.save(Path(folder) / "target")
        return AutoModelForCausalLM.from_pretrained(Path(folder) / "target", dtype=torch.float32)


def streams_of(tokens: list[int]) -> list[Tensor]:
    """The residual stream before each layer of the target, and after the last one, as transformers computes them."""
    found: list[Tensor] = []
    model = their_target()
    hooks = [each.register_forward_hook(lambda *seen: found.append(seen[2])) for each in model.model.layers]
    embedded = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states[0]
    for hook in hooks:
        hook.remove()
    return [embedded[0], *(each[0] for each in found)]


@torch.no_grad()
def by_definition(weights: dict[str, Tensor], text: list[int], depth: int, form: Form = PLAIN) -> Tensor:
    """Logits of what follows ``text``, whose last ``depth`` tokens the target has not read, over the whole vocabulary."""
    weights = {name.replace("midlayer.", "layers.0."): value for name, value in weights.items()}
    streams = streams_of(text[: len(text) - depth])
    taken = [streams[layer] for layer in form.layers or (2, 3, 4)]
    if form.mask is not None:  # all later tokens of the block are this one, with one learnt vector for a state
        text = [*text[: len(text) - depth + 1], *[form.mask] * (depth - 1)]
        learnt = weights["mask_hidden"].view(1, -1).expand(depth - 1, -1).chunk(len(taken), -1)
        taken = [torch.cat(both) for both in zip(taken, learnt, strict=True)]
    if form.norm_before_fc:
        whole = norm(torch.cat(taken, -1), weights["input_norm.weight"])
        taken = [*whole.chunk(len(taken), -1)]
    if form.fc_norm:
        taken = [norm(each, weights[f"fc_norm.{i}.weight"]) for i, each in enumerate(taken)]
    states = list(torch.cat(taken, -1) @ weights["fc.weight"].T)
    tokens = text[1:]
    number_of_layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers."))
    for number in range(len(tokens)):  # the head's own states follow those of the target, one after the other
        hidden = torch.stack(states[: number + 1])
        for layer in range(number_of_layers):
            prefix = f"layers.{layer}."
            part = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
            if layer:
                read = norm(hidden, part["input_layernorm.weight"])
            else:
                embeds, state = (
                    weights.get("embed_tokens.weight", TARGET.embed)[torch.tensor(tokens[: number + 1])],
                    norm(hidden, part["hidden_norm.weight"]),
                )
                read = torch.cat([norm(embeds, part["input_layernorm.weight"]), state], -1)
                hidden = state if form.norm_before_residual else hidden
            query, key, value = (
                (read @ part[f"self_attn.{name}_proj.weight"].T).view(number + 1, -1, 6) for name in "qkv"
            )
            if "self_attn.q_norm.weight" in part:
                query, key = (norm(x, part[f"self_attn.{n}_norm.weight"]) for n, x in (("q", query), ("k", key)))
            places = torch.arange(number + 1)
            query, key = turned(query, places), turned(key, places).repeat_interleave(2, 1)
            scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(6)
            scores = scores.masked_fill(torch.ones(number + 1, number + 1).triu(1).bool(), -torch.inf)
            mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value.repeat_interleave(2, 1)).flatten(1)
            hidden = hidden + mixed @ part["self_attn.o_proj.weight"].T
            inner = norm(hidden, part["post_attention_layernorm.weight"])
            gate = torch.nn.functional.silu(inner @ part["mlp.gate_proj.weight"].T)
            hidden = hidden + (gate * (inner @ part["mlp.up_proj.weight"].T)) @ part["mlp.down_proj.weight"].T
        normed = norm(hidden[-1], weights["norm.weight"])
        if number + 1 == len(states):
            states.append(normed if form.norm_output else hidden[-1])
    logits = torch.full((40,), -torch.inf)
    logits[torch.arange(30) + weights["d2t"]] = normed @ weights["lm_head.weight"].T
    return logits


def test_each_prediction_is_that_of_the_definition(formed: tuple[Form, Path]) -> None:
    """The d-th prediction of a token has d - 1 places after the last state of the target."""
    form, head = formed
    model, text = on_target(head), [1, 4, 7, 5, 9, 6, 8, 3]
    assert model.layers == (form.layers or (2, 3, 4))
    weights = load_file(head / "model.safetensors")
    with torch.no_grad():
        found = model.answer_logits([text[:4], text[:5]], [text[4:], text[5:]])
    assert found.shape == (3, 7, 40)
    for depth, (row, place) in itertools.product(range(1, 4), enumerate([4, 5, 6, 7, 5, 6, 7])):
        wanted = by_definition(weights, text[:place], depth, form)
        assert wanted.isfinite().sum() == 30
        torch.testing.assert_close(found[depth - 1, row], wanted, atol=1e-4, rtol=1e-4)


def test_every_form_is_decoded_and_learnt_as_it_is_replayed(formed: tuple[Form, Path], tmp_path: Path) -> None:
    form, head = formed
    model, prompts = on_target(head), [*PROMPTS, *([1, 5 + i % 7, 9 + i % 11, 3 + i % 5] for i in range(10))]
    train(Scene(model, records()), range(len(PROMPTS)), 120, LEARNS)
    options = {"max_new_tokens": 20, "eos_ids": [EOS]}
    found = speculate(TARGET, model, prompts, draft_len=3, batch=3, **options).traces
    assert [trace.answer_ids for trace in found] == generate(TARGET, prompts, **options)
    walked = replay(model, records(prompts=prompts), 3)
    assert walked.accepted.tolist() == [sum(trace.accepted) for trace in found]
    assert walked.accepted.sum() > 0
    if form.mask is not None:  # it is learnt too
        assert not torch.equal(model.mask_state, load_file(head / "model.safetensors")["mask_hidden"])
    model.save(tmp_path / "again")
    again = on_target(tmp_path / "again")
    assert (again.form, again.layers) == (form, model.layers)
    if form.layers:  # where vLLM looks for them
        assert read_object(tmp_path / "again/config.json")["eagle_aux_hidden_state_layer_ids"] == [*form.layers]
    assert load_file(tmp_path / "again/model.safetensors").keys() == load_file(head / "model.safetensors").keys()
    with torch.no_grad():
        torch.testing.assert_close(
            again.answer_logits([[1, 2, 3]], [[4, 5, 6]]), model.answer_logits([[1, 2, 3]], [[4, 5, 6]])
        )


def learnt(folder: Path) -> Eagle3:
    model = on_target(folder)
    train(Scene(model, records()), range(len(PROMPTS)), 120, LEARNS)
    return model


@pytest.mark.parametrize("batch", [1, 3, None])
def test_greedy_text_is_the_targets_and_replay_counts_what_live_decoding_counts(
    folder: Path, batch: int | None
) -> None:
    model, prompts = learnt(folder), [*PROMPTS, *([1, 5 + i % 7, 9 + i % 11, 3 + i % 5] for i in range(30))]
    options = {"max_new_tokens": 20, "eos_ids": [EOS], "batch": batch}
    found = speculate(TARGET, model, prompts, draft_len=3, **options).traces
    assert [trace.answer_ids for trace in found] == generate(TARGET, prompts, **options)
    walked = replay(model, records(prompts=prompts), 3)
    assert walked.blocks.tolist() == [len(trace.emitted) for trace in found]
    assert walked.accepted.tolist() == [sum(trace.accepted) for trace in found]
    assert 0 < walked.accepted.sum() < walked.visited.sum()


def test_sampled_text_follows_the_targets_distribution(tmp_path: Path) -> None:
    target = deep(6)
    kept = torch.tensor([0, 1, 3, 5])
    among = torch.tensor([True, True, False, True, False, True])
    changed = {"lm_head.weight": torch.randn(4, 16), "d2t": kept - torch.arange(4), "t2d": among}
    model = on_target(released(tmp_path / "head", changed, draft_vocab_size=4, vocab_size=6), 2, target)
    options = {"sampling": Sampling(1.0), "generator": torch.Generator().manual_seed(0), "draft_len": 2}
    drawn = itertools.islice(second_tokens(target, model, [1, 2, 3, 5], **options), 5000)
    assert check_samples(drawn, Budget(5000, 1e-3, 0)).lossless


def test_it_learns_on_traffic_and_leaves_target_and_embedding_alone(folder: Path) -> None:
    before = [weight.clone() for weight in TARGET.parameters()]
    untrained, model = on_target(folder), learnt(folder)
    assert replay(model, records(), 3).accepted.sum() >= 2 * replay(untrained, records(), 3).accepted.sum()
    fresh = dict(untrained.named_parameters())
    for name, weight in model.named_parameters():
        assert torch.equal(weight, fresh[name]) == (name == "draft.embed"), name
    assert all(torch.equal(a, b) for a, b in zip(before, TARGET.parameters(), strict=True))
    assert kept_by(model) is model.draft.kept
    assert coverage(model, [[2, 3, 4, 5]]) == 0.75
    other = copy.deepcopy(model)
    assert other.target is model.target


def test_it_is_saved_as_it_was_released(folder: Path, tmp_path: Path) -> None:
    on_target(folder).save(tmp_path / "same")
    assert read_object(tmp_path / "same/config.json") == read_object(folder / "config.json")
    ours, theirs = (load_file(each / "model.safetensors") for each in (tmp_path / "same", folder))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value)
    model = learnt(folder)
    model.save(tmp_path / "learnt")
    again, text = on_target(tmp_path / "learnt"), ([[1, 2, 3]], [[4, 5, 6]])
    with torch.no_grad():
        torch.testing.assert_close(again.answer_logits(*text), model.answer_logits(*text))


def test_other_forms_that_are_released(folder: Path, tmp_path: Path) -> None:
    """The name of the layer in vLLM's files, an embedding of its own, and a head for the whole vocabulary."""
    text = ([[1, 2, 3]], [[4, 5, 6]])
    named = tmp_path / "named"
    released(named)
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name.replace("midlayer", "layers.0"): value for name, value in weights.items()}, named / "model.safetensors"
    )
    embed = torch.randn(40, 16)
    own = released(tmp_path / "own", {"embed_tokens.weight": embed})
    changed = {"lm_head.weight": torch.randn(40, 16), "d2t": None, "t2d": None}
    whole = released(tmp_path / "whole", changed, draft_vocab_size=40)
    with torch.no_grad():
        expected = on_target(folder).answer_logits(*text)
        torch.testing.assert_close(on_target(named).answer_logits(*text), expected)
        assert on_target(whole).answer_logits(*text).isfinite().all()
        model = on_target(own)
        assert torch.equal(model.draft.embed, embed)
    model.save(tmp_path / "again")
    assert torch.equal(load_file(tmp_path / "again/model.safetensors")["embed_tokens.weight"], embed)
    on_target(whole).save(tmp_path / "again")
    assert not {"d2t", "t2d", "embed_tokens.weight"} & load_file(tmp_path / "again/model.safetensors").keys()


def test_what_it_cannot_do_is_refused(folder: Path, tmp_path: Path) -> None:
    alone, options = load_model(folder), {"draft_len": 3, "max_new_tokens": 4, "eos_ids": []}
    for call in (alone.decoder, functools.partial(alone.answer_logits, [[1, 2]], [[3]])):
        with pytest.raises(
            UserError, match=r"head: it is a head of EAGLE-3, DFlash or DSpark, .*run only experiments that distil it"
        ):
            call()
    with pytest.raises(UserError, match=r"it is a head of EAGLE-3, DFlash or DSpark, .*convert_hf_to_gguf.py HEAD"):
        export(folder, tmp_path / "head.gguf")
    with pytest.raises(UserError, match="leave parallel out"):
        of_blocks(alone, TARGET, 3, parallel=True)
    with pytest.raises(UserError, match=r"16 channels and 40 tokens, not 16 and 50"):
        on_target(folder, target=deep(50))
    with pytest.raises(UserError, match="a target of 2 layers is too small"):
        on_target(folder, target=SMALL)
    with pytest.raises(UserError, match="a prompt of one token"):
        on_target(folder).answer_logits([[1]], [[2]])
    with pytest.raises(UserError, match="a prompt of one token"):
        speculate(TARGET, on_target(folder), [[1, 2], [1]], **options)
    odd = {
        "attention_bias": {"attention_bias": True},
        "layer_types": {"layer_types": ["sliding_attention"]},
        "use_aux_hidden_state": {"eagle_config": {"use_aux_hidden_state": False}},
        "speculators_model_type 'hydra'": {"speculators_model_type": "hydra"},
    }
    for number, (name, config) in enumerate(odd.items()):
        with pytest.raises(UserError, match=f"with this {name} cannot be read"):
            load_model(released(tmp_path / str(number), **config))
    for number, ids in enumerate(([3, 2, 4], ["2"], [-1], 2)):
        with pytest.raises(
            UserError, match=r"config.json: eagle_aux_hidden_state_layer_ids: .* not layers in ascending"
        ):
            load_model(released(tmp_path / f"ids{number}", eagle_aux_hidden_state_layer_ids=ids))
    with pytest.raises(UserError, match="it reads the states before layer 8 of a target of 7 layers"):
        on_target(released(tmp_path / "late", eagle_aux_hidden_state_layer_ids=[2, 4, 8]))
    unnamed = "a head of P-EAGLE, and config.json names no mask_token_id or pard_token"
    with pytest.raises(UserError, match=unnamed):
        load_model(released(tmp_path / "peagle", speculators_model_type="peagle"))
    with pytest.raises(UserError, match=unnamed):
        load_model(released(tmp_path / "unnamed", {"mask_hidden": torch.ones(1, 48)}))
    with pytest.raises(UserError, match=r"config.json: the mask, token 40, is none of the 40 tokens"):
        load_model(released(tmp_path / "beyond", pard_token=40))
    with pytest.raises(UserError, match="no weight 'mask_hidden'"):
        load_model(released(tmp_path / "unlearnt", pard_token=11))
    with pytest.raises(UserError, match="mask_hidden has 16 numbers, and the states 48"):
        load_model(released(tmp_path / "short", {"mask_hidden": torch.ones(1, 16)}, pard_token=11))
    with pytest.raises(UserError, match=r"no weight 'fc_norm.0.weight'"):
        load_model(released(tmp_path / "norms", fc_norm=True))
    with pytest.raises(UserError, match=r"no weight 'fc.weight'"):
        load_model(released(tmp_path / "part", {"fc.weight": None}))
    with pytest.raises(UserError, match=r"do not fit config.json: .*norm"):
        load_model(released(tmp_path / "size", {"norm.weight": torch.ones(8)}))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with recorded answers, and a head that was copied as a run copies it."""
    made = tmp_path_factory.mktemp("pair")
    tokenizer = train_tokenizer(["some text"], 320)
    target = deep(320)
    target.save(made / "models/target")
    tokenizer.save(made / "models/target")
    kept = torch.arange(30)
    among = torch.arange(320) < 30
    changed = {"d2t": kept - torch.arange(30), "t2d": among}
    source = released(made / "released", changed, vocab_size=320, eos_token_id=None)
    recipe = Recipe(model=str(source))
    make_draft(recipe, tokenizer=made / "models/target", template="plain", out=made / "models/draft")
    prompts = [Prompt(str(i), "gsm8k", "train", f"count to {i}") for i in range(12)]
    for split, temperature in itertools.product(("train", "eval"), (0.0, 1.0)):
        name = recorded_name("gsm8k", split, temperature)
        write_jsonl(made / f"{name}.jsonl", prompts)
        settings = Answers.model_validate({"max_new_tokens": 8, "template": "plain", "keep": 64})
        answer_file(
            settings,
            target=made / "models/target",
            prompts=made / f"{name}.jsonl",
            requests=12,
            temperature=temperature,
            out=made / "answers" / name,
        )
    return made


def test_a_run_opens_it_with_its_target_and_keeps_it_as_a_head(pair: Path, tmp_path: Path) -> None:
    ours, targets = (load_tokenizer(pair / "models" / name).backend.get_vocab() for name in ("draft", "target"))
    assert ours == targets, "it was released without a tokenizer"
    inputs = Distillation(models=pair / "models", answers=pair / "answers", max_new_tokens=8)
    learns = {"dataset": "gsm8k", "epochs": 2, "batch": 4, "learning_rate": 1e-2, "probes": 1, "live": True}
    rows, facts = offline.run(offline.Settings(**learns), inputs, Bench(tmp_path))
    assert sorted(rows["epoch"].unique()) == [0, 1, 2]
    for _, measured in rows.groupby("epoch"):
        counts = measured.groupby("measured")[["accepted", "blocks", "emitted"]].sum()
        assert counts.loc["live"].tolist() == counts.loc["replay"].tolist()
    assert facts["head_coverage"] < 1
    saved = load_model(tmp_path / "draft")
    assert isinstance(saved, Eagle3Head)
    assert set(rows["parameters"]) == {parameter_count(pair / "models/draft")}
    with pytest.raises(UserError, match=r"writes no answers alone .set sample_source to teacher"):
        offline.run(offline.Settings(**learns | {"sample_source": "student"}), inputs, Bench(tmp_path))
    both = {"before": pair / "models/draft", "after": tmp_path / "draft"}
    write_view(**both, answers=pair / "answers/gsm8k.eval", dataset="gsm8k", draft_len=3, out=tmp_path / "view.json")
    assert read_json(tmp_path / "view.json") is None


def test_it_learns_as_it_serves(pair: Path, tmp_path: Path) -> None:
    inputs = online.Inputs(models=pair / "models", answers=pair / "answers", max_new_tokens=8)
    learns = {"dataset": "gsm8k", "batch": 2, "learning_rate": 3e-2, "update_interval": 2, "loss_positions": "all"}
    rows, _ = online.run(online.Settings(**learns, save="it"), inputs, Bench(tmp_path, {"method": "it"}))
    assert len(rows) == 12
    after, before = (load_file(each / "model.safetensors") for each in (tmp_path / "draft", pair / "models/draft"))
    assert {name for name, value in after.items() if torch.equal(value, before[name])} == {"d2t", "t2d"}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_log_is_replayed_with_it(pair: Path, temperature: float, tmp_path: Path) -> None:
    """At every length as one replay at that length has it; not after prompt lookup, and in whole blocks."""
    inputs = Distillation(models=pair / "models", answers=pair / "answers", max_new_tokens=8)
    learns = {"dataset": "gsm8k", "batch": 4, "learning_rate": 1e-2, "update_interval": 4, "draft_lens": [1, 3]}
    settings = replay_log.Settings(**learns, temperature=temperature)
    rows, facts = replay_log.run(settings, inputs, Bench(tmp_path))
    models = {"as_it_comes", "distilled", "distilled_on_quarter", "distilled_on_eighth", "kept_learning"}
    assert set(rows["option"]) == {*models, "lookup", "suffix", "suffix_confident"}
    held_out = rows[(rows["split"] == "eval") & (rows["proposal"] == ("probabilistic" if temperature else "greedy"))]
    recorded = load_pass(pair / "answers" / recorded_name("gsm8k", "eval", temperature))
    target = load_model(pair / "models/target")
    for option, folder in (("as_it_comes", pair / "models/draft"), ("distilled", tmp_path / "draft")):
        for draft_len in (1, 3):
            walked = replay(of_blocks(load_model(folder), target, draft_len, parallel=False), recorded, draft_len)
            own = held_out[(held_out["option"] == option) & (held_out["draft_len"] == draft_len)]
            for name in ("accepted", "blocks", "emitted", "visited"):
                np.testing.assert_allclose(own[name], getattr(walked, name), rtol=1e-5, atol=1e-5)
            assert (own["steps"] == own["drafted"]).all()
    assert facts["parameters"]["draft"] == parameter_count(pair / "models/draft")
    assert facts["active_parameters"]["target"] == active_parameter_count(pair / "models/target")
    assert head_in(tmp_path / "kept_learning") == "eagle3"


def beside(pair: Path, folder: Path, draft: Path) -> Distillation:
    """The pair with another draft, which gets the tokenizer of the target."""
    (folder / "models").mkdir(parents=True)
    (folder / "models/target").symlink_to(pair / "models/target")
    recipe = Recipe(model=str(draft))
    make_draft(recipe, tokenizer=pair / "models/target", template="plain", out=folder / "models/draft")
    return Distillation(models=folder / "models", answers=pair / "answers", max_new_tokens=8)


@pytest.mark.parametrize("kind", ["p_eagle", "pard"])
def test_a_log_is_replayed_with_drafts_that_propose_a_block_in_one_pass(pair: Path, kind: str, tmp_path: Path) -> None:
    """What is judged is a block in one pass; it is not joined to prompt lookup, and does not end early."""
    if kind == "p_eagle":
        weights = load_file(pair / "released/model.safetensors") | {"mask_hidden": some((1, 48))[0]}
        source = released(tmp_path / "source", weights, vocab_size=320, eos_token_id=None, ptd_token_id=11)
    else:
        source = tmp_path / "source"
        draft = deep(320, seed=6)
        draft.config = replace(draft.config, pard_token=11)
        draft.save(source)
        load_tokenizer(pair / "models/target").save(source)
    inputs = beside(pair, tmp_path / "run", source)
    learns = {"dataset": "gsm8k", "batch": 4, "learning_rate": 1e-2, "update_interval": 4, "draft_lens": [1, 3]}
    rows, _ = replay_log.run(replay_log.Settings(**learns), inputs, Bench(tmp_path / "out"))
    models = {"as_it_comes", "distilled", "distilled_on_quarter", "distilled_on_eighth", "kept_learning"}
    assert set(rows["option"]) == {*models, "lookup", "suffix", "suffix_confident"}
    recorded, target = load_pass(pair / "answers/gsm8k.eval"), load_model(pair / "models/target")
    for option, folder in (("as_it_comes", inputs.models / "draft"), ("distilled", tmp_path / "out/draft")):
        assert drafts_in_parallel(folder), option
        draft = load_model(folder)
        own = of_blocks(draft, target if kind == "p_eagle" else None, 3, parallel=True)
        found = rows[(rows["split"] == "eval") & (rows["option"] == option) & (rows["draft_len"] == 3)]
        np.testing.assert_allclose(found["accepted"], replay(own, recorded, 3).accepted, rtol=1e-5, atol=1e-5)


def test_a_run_on_ones_own_prompts_distils_it_and_times_nothing(pair: Path, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    given = {"dataset": str(tmp_path / "p.jsonl"), "target": str(pair / "models/target"), "template": "plain"}
    for draft in ({"draft": str(pair / "released")}, {"models": {"draft": str(pair / "released")}}):
        assert set(load_run(given | draft, WORKFLOW).experiments) == {"osd_offline", "osd_online"}
        every = load_run(given | draft | {"experiments": "all"}, WORKFLOW).experiments
        assert {"osd_epochs", "osd_online", "osd_speedup_theory"} <= set(every)
        refused = {
            "osd_latency_dataset",
            "osd_token_recall",
            "osd_offline",
            "beyond_parallel_drafts",
            "beyond_token_rate",
        }
        assert not refused & set(every)
        of_log = given | draft | {"scale": "traffic", "experiments": "traffic_verdict"}
        assert set(load_run(of_log, WORKFLOW).experiments) == {"traffic_verdict"}
        for name in (*refused, "traffic_cost"):
            scale = {"scale": "traffic"} if name.startswith("traffic") else {}
            with pytest.raises(UserError, match=rf"{name} cannot run a draft that is a released head .*osd_epochs"):
                load_run(given | draft | scale | {"experiments": name}, WORKFLOW)


def test_states_are_those_that_engines_take() -> None:
    """Three layers in this order; vLLM and SGLang take (2, n // 2, n - 3)."""
    assert [states_read(layers) for layers in (7, 28, 32, 36)] == [(2, 3, 4), (2, 14, 25), (2, 16, 29), (2, 18, 33)]


def test_a_head_is_known_by_its_config(folder: Path, tmp_path: Path) -> None:
    assert is_head(read_config(folder))
    assert is_head({"architectures": ["LlamaForCausalLMEagle3"]})
    assert is_head({"architectures": ["DFlashDraftModel"], "speculators_model_type": "dflash"})
    TARGET.save(tmp_path / "target")
    assert not is_head(read_config(tmp_path / "target"))


def test_the_mask_is_known_by_its_names() -> None:
    """``mask_token_id`` alone is no mask of such a draft: models of other kinds have one."""
    for name in ("pard_token", "ptd_token_id"):
        assert mask_token_of({name: 3}) == 3
    assert mask_token_of({"mask_token_id": 3}) is None
    for more in ({"speculators_model_type": "peagle"}, {"parallel_drafting": True}):
        assert mask_token_of({"mask_token_id": 3} | more) == 3
    assert mask_token_of({"pard_token": 0, "mask_token_id": 3, "parallel_drafting": True}) == 0


def through_transformers(target: Llama, folder: Path) -> HubModel:
    target.save(folder)
    return hf.load(folder)


def test_a_target_that_only_transformers_opens_gives_the_same_states(formed: tuple[Form, Path], tmp_path: Path) -> None:
    """Also after its last layer, before the norm."""
    _, head = formed
    theirs = through_transformers(TARGET, tmp_path / "target")
    text = ([[1, 4, 7], [1, 4, 7, 5, 9]], [[5, 9, 6], [8, 3]])
    with torch.no_grad():
        expected = on_target(head).answer_logits(*text)
        found = on_target(head, target=theirs).answer_logits(*text)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


MIXTURES = {
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "head_dim": 8},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma3_text": {"head_dim": 8, "sliding_window": 4},
}


@pytest.mark.parametrize("kind", MIXTURES)
def test_it_learns_on_a_target_of_another_family(kind: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    known = {"num_hidden_layers": 7, "vocab_size": 40, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **sizes, **known, **MIXTURES[kind], initializer_range=0.5)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "target")
    target = load_model(tmp_path / "target")
    assert isinstance(target, HubModel)
    model = on_target(released(tmp_path / "head"), target=target)
    recorded = record(target, [(str(i), p) for i, p in enumerate(PROMPTS)], max_new_tokens=20, eos_ids=[EOS])
    before = replay(model, recorded, 3).accepted.sum()
    train(Scene(model, recorded), range(len(PROMPTS)), 120, LEARNS)
    assert replay(model, recorded, 3).accepted.sum() > 2 * before
    options = {"draft_len": 3, "max_new_tokens": 4, "eos_ids": []}
    with pytest.raises(UserError, match="drafts live only for models of the Llama family"):
        speculate(target, model, PROMPTS, **options)


def test_a_target_with_an_encoder_has_no_such_states(folder: Path) -> None:
    t5 = new_t5(40, 16, 24, 2, 2, torch.Generator().manual_seed(0))
    with pytest.raises(UserError, match=r"and this target shows none .use a decoder-only target"):
        on_target(folder, target=t5)
