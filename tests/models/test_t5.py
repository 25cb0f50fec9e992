"""Encoder-decoders are first-class: a toy T5 pair through pre-training, losses, sources, serving, routing and llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from draftlab.conformance import Budget, check_samples
from draftlab.core.losses import LOSSES
from draftlab.core.sampling import Sampling
from draftlab.core.verify.specinfer import specinfer
from draftlab.data.prompts import Prompt
from draftlab.engine.generate import generate
from draftlab.engine.recording import load_pass
from draftlab.engine.replay import replay
from draftlab.engine.replay_lengths import cut, draft_everywhere
from draftlab.engine.settings import Recipe
from draftlab.engine.speculate import speculate
from draftlab.errors import UserError
from draftlab.files.json_files import write_jsonl
from draftlab.latency import loop
from draftlab.latency.pair import open_pair
from draftlab.latency.settings import Engine
from draftlab.models import LanguageModel, load_model, load_tokenizer
from draftlab.models.hf import HubModel, new_t5
from draftlab.stages import STAGES
from draftlab.train import pretrain
from draftlab.train.learning import train
from draftlab.train.settings import Loss
from draftlab.train.sources import LIVE, SOURCES, Scene
from draftlab.train.trimmed_head import answer_logits
from tests.pair import ROOM, VOCAB, alpha, make_results, run_cell

COUNTS = ["accepted", "visited", "overlap", "blocks", "emitted"]


def small_t5(hidden: int, seed: int) -> HubModel:
    model = new_t5(VOCAB, hidden, 2 * hidden, 1, 2, torch.Generator().manual_seed(seed))
    with torch.no_grad():  # an untrained T5 repeats its last token: let its layers say more than its embeddings
        for name, weight in model.named_parameters():
            weight.mul_(10.0 if name.endswith((".o.weight", ".wo.weight")) else 1.0)
    return model


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    make_results(folder, small_t5)
    return folder


def models(results: Path) -> tuple[LanguageModel, LanguageModel]:
    return load_model(results / "models/target"), load_model(results / "models/draft")


def prompts(results: Path, count: int) -> list[list[int]]:
    return [answer.prompt_ids for answer in load_pass(results / "answers/toy.eval").answers[:count]]


# --- lossless ----------------------------------------------------------------------------------------------------


def test_the_toy_target_answers_each_prompt_differently(results: Path) -> None:
    answers = load_pass(results / "answers/toy.eval").answers
    assert len({tuple(answer.answer_ids) for answer in answers}) > len(answers) // 2
    assert np.mean([len(set(answer.answer_ids)) for answer in answers]) > 3


def test_greedy_text_is_the_targets_own(results: Path) -> None:
    target, draft = models(results)
    asked = prompts(results, 8)
    plain = generate(target, asked, max_new_tokens=ROOM, eos_ids=[2])
    for settings in ({"draft_len": 3}, {"draft_len": 2, "num_drafts": 2, "verifier": specinfer}):
        found = speculate(
            target, draft, asked, max_new_tokens=ROOM, eos_ids=[2], generator=torch.Generator(),
            draft_sampling=Sampling(1.0) if "num_drafts" in settings else None, **settings,  # type: ignore[arg-type]
        )  # fmt: skip
        assert [trace.answer_ids for trace in found.traces] == plain


def test_drafting_everywhere_gives_the_blocks_of_replay(results: Path) -> None:
    """Its encoder reads the prompt alone, and the answer is its decoder's."""
    _, draft = models(results)
    recorded = load_pass(results / "answers/toy.eval")
    drafted = draft_everywhere(draft, recorded, 3)
    walked, blocks = replay(draft, recorded, 3), cut(drafted, drafted.fixed(3))
    assert blocks.blocks.tolist() == walked.blocks.tolist()
    assert blocks.accepted.tolist() == walked.accepted.tolist()
    assert 0 < blocks.accepted.sum() < blocks.drafted.sum()


def emitted(results: Path, distribution_of: float) -> Iterator[tuple[Tensor, int]]:
    """The distribution of the target at temperature ``distribution_of`` and the token, at each position of texts sampled at temperature 1."""
    target, draft = models(results)
    generator = torch.Generator().manual_seed(0)
    for _ in range(12):
        asked = prompts(results, 16) * 4
        found = speculate(
            target, draft, asked, draft_len=3, max_new_tokens=4, eos_ids=(), sampling=Sampling(1.0), generator=generator
        )
        texts = [trace.answer_ids for trace in found.traces]
        with torch.inference_mode():
            distributions = (target.answer_logits(asked, texts).double() / distribution_of).softmax(-1)
        yield from zip(distributions, (token for text in texts for token in text), strict=True)


def test_sampled_text_has_the_targets_distribution(results: Path) -> None:
    assert check_samples(emitted(results, 1.0), Budget(false_alarm=1e-3)).lossless
    assert not check_samples(emitted(results, 1.5), Budget(false_alarm=1e-3)).lossless


# --- distillation ------------------------------------------------------------------------------------------------


def offline(results: Path, out: Path, **changes: object) -> pd.DataFrame:
    values = {"dataset": "toy", "pair": "t5", "epochs": 1, "batch": 8, "learning_rate": 1e-2, "draft_len": 3}
    return run_cell("offline", results, out, values | changes)[0]


def test_distillation_raises_alpha(results: Path, tmp_path: Path) -> None:
    before = offline(results, tmp_path / "a", sample_source="none", loss="none")
    assert alpha(offline(results, tmp_path / "b", epochs=6)) > alpha(before) + 0.05
    again = load_model(tmp_path / "b/draft")
    assert isinstance(again, HubModel)
    assert again.is_encoder_decoder
    assert load_tokenizer(tmp_path / "b/draft").vocab_size == VOCAB


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_every_sample_source_is_distilled_from(results: Path, source: str) -> None:
    """Towards the target on the texts of that source, whoever writes them."""
    target, draft = models(results)
    scene = Scene(draft, load_pass(results / "answers/toy.train"), target, ROOM, {2})
    settings = STAGES["offline"].settings(dataset="toy", pair="t5", epochs=4, batch=8, learning_rate=1e-2)

    def distance() -> float:
        samples = SOURCES[source](scene, range(48), torch.Generator().manual_seed(0))
        assert len(samples.labels) == len(samples.target_logits) == sum(map(len, samples.answers))
        logits = answer_logits(draft, samples.prompts, samples.answers, autocast=False)
        return float(LOSSES["forward_kl"](logits, samples.target_logits).mean().detach())

    before = distance()
    effort = train(scene, range(48), 24, settings, source)
    assert distance() < 0.9 * before
    assert (effort.target_tokens > 0) == (source in LIVE)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_changes_the_draft(results: Path, tmp_path: Path, loss: Loss) -> None:
    after = offline(results, tmp_path, loss=loss, epochs=2, live=True)
    by = [group[COUNTS].reset_index(drop=True) for _, group in after.groupby("measured")]
    pd.testing.assert_frame_equal(*by, check_dtype=False)  # live decoding counts what replay says
    saved = (tmp_path / "draft/model.safetensors").read_bytes()
    assert saved != (results / "models/draft/model.safetensors").read_bytes()


def online(
    results: Path,
    out: Path,
    inner: dict[str, object] | None = None,
    inputs: dict[str, object] | None = None,
    **changes: object,
) -> pd.DataFrame:
    values = {"pair": "t5", "batch": 8, "learning_rate": 1e-2, "update_interval": 8, "draft_len": 3}
    return run_cell("online", results, out, values | changes, inner, **(inputs or {}))[0]


def test_an_online_draft_overtakes_a_static_one(results: Path, tmp_path: Path) -> None:
    methods = {"online": {}, "lagging": {"lag": 8}, "live": {"live": True}, "static": {"learns": False}}
    inner = {"method": methods, "loss_positions": ["all"]}
    table = online(results, tmp_path, dataset="toy", update_interval=2, inner=inner)
    late = {name: alpha(rows[rows["stream_index"] >= 24]) for name, rows in table.groupby("method")}
    assert late["online"] > late["static"] + 0.03
    assert late["lagging"] != late["online"]
    one, two = (table[table["method"] == name][COUNTS].reset_index(drop=True) for name in ("online", "live"))
    pd.testing.assert_frame_equal(one, two, check_dtype=False)


def test_one_t5_draft_for_each_class_that_the_router_names(results: Path, tmp_path: Path) -> None:
    for part, split in (("requests", "train"), ("held_out", "eval")):
        rows = [
            Prompt(answer.id, name, split, f"a question that is {name}")
            for name in ("toy", "other")
            for answer in load_pass(results / f"answers/{name}.{split}").answers
        ]
        write_jsonl(tmp_path / f"{part}.jsonl", rows)
    stream = {"kind": "shuffled", "group_by": "dataset", "per_group": 48}
    files = {part: [tmp_path / f"{part}.jsonl"] for part in ("requests", "held_out")}
    table = online(results, tmp_path, inputs=files, stream=stream, of=["toy", "other"], drafts="by_route")
    assert sorted(table["stream_index"]) == list(range(96))
    assert set(table["group"]) == {"toy", "other"}


# --- made on the spot, and in llama.cpp --------------------------------------------------------------------------


def test_a_t5_is_made_by_the_trainer_of_every_small_model(tmp_path: Path) -> None:
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "ffn": 32, "context": 64, "vocabulary": 320}
    recipe = Recipe(family="t5", **sizes, steps=60, batch=8, documents=100)
    file = tmp_path / "prompts.jsonl"
    write_jsonl(file, [Prompt(str(i), "toy", "train", f"count to {i}", f"one two {i}") for i in range(60)])
    pretrain.make_tokenizer(recipe, prompts=(file,), out=tmp_path / "tokenizer")
    losses = {}
    for steps in (1, 60):
        folders = {"tokenizer": tmp_path / "tokenizer", "out": tmp_path / "t"}
        pretrain.make_target(recipe.model_copy(update={"steps": steps}), prompts=(file,), template="plain", **folders)
        model, tokenizer = load_model(tmp_path / "t"), load_tokenizer(tmp_path / "t")
        prompt, answer = tokenizer.encode_prompt("count to 7", "plain"), tokenizer.encode(" one two 7")
        log_probs = model.answer_logits([prompt], [answer]).detach().log_softmax(-1)
        losses[steps] = -float(log_probs[range(len(answer)), answer].mean())
    assert losses[60] < losses[1] - 1
    pretrain.make_draft(recipe, tokenizer=tmp_path / "tokenizer", template="plain", out=tmp_path / "draft")
    assert json.loads((tmp_path / "draft/config.json").read_text())["architectures"] == ["T5ForConditionalGeneration"]


@pytest.mark.parametrize("backend", ["llama_cpp", "torch"])
def test_an_engine_decodes_t5_as_our_loop_does(results: Path, backend: str) -> None:
    target, _ = models(results)
    asked = prompts(results, 4)
    expected = generate(target, asked, max_new_tokens=ROOM, eos_ids=[2])
    folders = [results / "models" / name for name in ("target", "draft")]
    settings = Engine(backend=backend)  # type: ignore[arg-type]
    with open_pair(folders[0], folders[1], settings=settings, context_length=64) as (big, small):
        for prompt, text in zip(asked, expected, strict=True):
            assert loop.decode(big, prompt, ROOM, eos=[2]).tokens == text
            found = loop.speculate(big, small, prompt, ROOM, loop.fixed(3), eos=[2])
            assert found.tokens == text
            assert sum(block.accepted + 1 for block in found.blocks) >= len(text)
        big.fill(1, 16)
        big.probe(3)


def test_what_llama_cpp_cannot_do_with_t5_is_refused(results: Path, tmp_path: Path) -> None:
    target, draft = results / "models/target", results / "models/draft"
    with (
        pytest.raises(UserError, match="aborts on an encoder-decoder with a cache for each of 2 sequences"),
        open_pair(target, draft, settings=Engine(), context_length=64, sequences=2),
    ):
        pass
    with open_pair(target, settings=Engine(), context_length=64, sequences=2, shared=True) as (model,):
        model.fill(2, 8)
        model.probe(2)
        with pytest.raises(UserError, match="shorten the prompt of an encoder"):
            model.encode([5] * 600)
    make_results(tmp_path)  # a Llama pair of the same vocabulary
    with (
        pytest.raises(UserError, match="the target is an encoder-decoder, the draft decoder-only"),
        open_pair(target, tmp_path / "models/draft", settings=Engine(), context_length=64),
    ):
        pass
