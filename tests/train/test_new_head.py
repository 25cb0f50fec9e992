"""Heads that are made for a target that has none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from draftlab.engine.generate import generate
from draftlab.engine.recording import record
from draftlab.engine.replay import replay
from draftlab.engine.speculate import speculate
from draftlab.errors import UserError
from draftlab.files.json_files import read_object, write_json, write_jsonl
from draftlab.models import LanguageModel, load_model, load_tokenizer
from draftlab.models.eagle import of_blocks
from draftlab.models.tokenizer import train_tokenizer
from draftlab.serving.emit import emit
from draftlab.stages.offline import Settings as Offline
from draftlab.train.learning import train
from draftlab.train.new_head import new_head, spread_layers
from draftlab.train.sources import Scene
from tests.models.test_eagle3 import MIXTURES, deep

TRAFFIC = [{"prompt": "count to three", "response": "one two three"}, {"prompt": "and to two", "response": "one two"}]
LEARNS = Offline(dataset="toy", epochs=1, batch=3, learning_rate=1e-2)
PROMPTS = [[5 + i % 7, 20 + i % 11, 9] for i in range(6)]
KINDS: dict[str, dict[str, Any]] = {
    "eagle3": {"tokens": 0},
    "eagle3 of two layers": {"layers": 2, "tokens": 300},
    "dflash": {"kind": "dflash", "layers": 2, "block": 4},
    "dflash of one layer": {"kind": "dflash", "block": 5},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, whose vocabulary is padded to 320 rows, and a log with answers."""
    folder = tmp_path_factory.mktemp("made")
    deep(320).save(folder / "target")
    train_tokenizer(["one two three count to"] * 4, 280).save(folder / "target")
    write_jsonl(folder / "log.jsonl", TRAFFIC)
    return folder


def head(made: Path, out: Path, target: str = "target", **options: Any) -> Path:
    new_head(target=str(made / target), traffic=made / "log.jsonl", out=out, **options)
    return out


def learnt(draft: LanguageModel, target: LanguageModel) -> tuple[float, float]:
    """The tokens that are accepted of a block, before and after it learns the answers of the target."""
    recorded = record(target, [(str(i), p) for i, p in enumerate(PROMPTS)], max_new_tokens=20, eos_ids=[])

    def accepted() -> float:
        counts = replay(draft, recorded, 3)
        return float(counts.accepted.sum() / counts.blocks.sum())

    before = accepted()
    train(Scene(draft, recorded), range(len(PROMPTS)), 200, LEARNS)
    return before, accepted()


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_and_preserves_the_targets_text(kind: str, made: Path, tmp_path: Path) -> None:
    target = load_model(made / "target")
    draft = of_blocks(load_model(head(made, tmp_path / "head", **KINDS[kind])), target, 3, parallel=False)
    before, after = learnt(draft, target)
    assert after > before + 0.15
    options = {"max_new_tokens": 12, "eos_ids": []}
    found = speculate(target, draft, PROMPTS, draft_len=3, **options).traces
    assert [trace.answer_ids for trace in found] == generate(target, PROMPTS, **options)
    draft.save(tmp_path / "learnt")
    again, fresh = (load_file(folder / "model.safetensors") for folder in (tmp_path / "learnt", tmp_path / "head"))
    assert again.keys() == fresh.keys()
    assert read_object(tmp_path / "learnt/config.json") == read_object(tmp_path / "head/config.json")


@pytest.mark.parametrize("kind", MIXTURES)
def test_the_target_may_be_of_another_family(kind: str, made: Path, tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    known = {"num_hidden_layers": 7, "vocab_size": 320, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **sizes, **known, **MIXTURES[kind], initializer_range=0.5)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "target")
    load_tokenizer(made / "target").save(tmp_path / "target")
    target = load_model(tmp_path / "target")
    new_head(target=str(tmp_path / "target"), traffic=made / "log.jsonl", out=tmp_path / "head", tokens=0)
    before, after = learnt(of_blocks(load_model(tmp_path / "head"), target, 3, parallel=False), target)
    assert after > 2 * before + 0.2


def test_it_proposes_the_most_frequent_tokens_of_the_answers(made: Path, tmp_path: Path) -> None:
    tokenizer, target = load_tokenizer(made / "target"), load_file(made / "target/model.safetensors")
    found = load_file(head(made, tmp_path / "head", tokens=6) / "model.safetensors")
    config = read_object(tmp_path / "head/config.json")
    assert (config["draft_vocab_size"], config["eagle_aux_hidden_state_layer_ids"]) == (6, [2, 3, 4])
    kept = found["d2t"] + torch.arange(6)
    answers = {token for row in TRAFFIC for token in tokenizer.encode(row["response"])}
    assert {*kept.tolist()} >= {*answers, *tokenizer.eos_ids}, "an answer must be able to end"
    assert found["t2d"].nonzero()[:, 0].tolist() == kept.tolist()
    weight = target.get("lm_head.weight", target["model.embed_tokens.weight"])
    torch.testing.assert_close(found["lm_head.weight"], weight[kept].bfloat16())
    prompts = [{"prompt": row["prompt"]} for row in TRAFFIC]
    write_jsonl(tmp_path / "prompts.jsonl", prompts)
    options = {"target": str(made / "target"), "traffic": tmp_path / "prompts.jsonl", "tokens": 300}
    new_head(**options, out=tmp_path / "asked")
    asked = load_file(tmp_path / "asked/model.safetensors")
    assert asked["d2t"].shape == (300,), "rare tokens fill it up"
    assert asked["t2d"][[token for row in prompts for token in tokenizer.encode(row["prompt"])]].all()


def test_its_weights_follow_from_the_seed(made: Path, tmp_path: Path) -> None:
    first, again, other = (
        load_file(head(made, tmp_path / str(number), kind="dflash", seed=seed) / "model.safetensors")
        for number, seed in enumerate((0, 0, 1))
    )
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


def test_a_mask_is_in_no_text(made: Path, tmp_path: Path) -> None:
    def mask(**options: Any) -> int:
        return read_object(head(made, tmp_path / "mask", kind="dflash", **options) / "config.json")["dflash_config"][
            "mask_token_id"
        ]

    tokenizer = load_tokenizer(made / "target")
    assert mask() == tokenizer.vocab_size, "a row of the embedding without a token"
    assert mask(mask="<unk>") == tokenizer.backend.token_to_id("<unk>")
    deep(tokenizer.vocab_size).save(tmp_path / "whole")
    tokenizer.save(tmp_path / "whole")
    options = {"target": str(tmp_path / "whole"), "traffic": made / "log.jsonl", "kind": "dflash"}
    new_head(**options, out=tmp_path / "special")
    chosen = read_object(tmp_path / "special/config.json")["dflash_config"]["mask_token_id"]
    assert tokenizer.backend.get_added_tokens_decoder()[chosen].special
    assert chosen not in tokenizer.eos_ids
    with pytest.raises(UserError, match="the target has no token '<x>'"):
        mask(mask="<x>")


def test_layers_are_spread_as_dflash_spreads_them() -> None:
    assert spread_layers(28, 5) == [1, 7, 13, 19, 25]
    with pytest.raises(UserError, match="a target of 7 layers is too small for 5 states"):
        spread_layers(7, 5)


def test_engines_can_serve_it(made: Path, tmp_path: Path) -> None:
    for kind, method in (("eagle3", "eagle3"), ("dflash", "dflash")):
        out = head(made, tmp_path / kind, kind=kind)
        emit(("vllm",), draft_len=3, target=str(made / "target"), draft=str(out), out=tmp_path / f"{kind}.out")
        (written,) = (tmp_path / f"{kind}.out").glob("vllm*")
        assert f'"method": "{method}"' in written.read_text() or f"method: {method}" in written.read_text()


def test_wrong_settings_are_refused(made: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"layers": 0}, "--layers is 0 .give 1 or more"),
        ({"tokens": -1}, "--tokens is -1"),
        ({"block": 1}, "--block is 1 .give 2 or more"),
    ):
        with pytest.raises(UserError, match=message):
            head(made, tmp_path / "head", **options)
    (tmp_path / "empty.jsonl").write_text('{"other": 1}\n')
    with pytest.raises(UserError, match=r"empty.jsonl: no prompt in the file"):
        new_head(target=str(made / "target"), traffic=tmp_path / "empty.jsonl", out=tmp_path / "head")
    with pytest.raises(UserError, match="which would be lost"):
        new_head(target=str(made / "target"), traffic=made / "log.jsonl", out=made)
    config = AutoConfig.for_model("gpt2", n_embd=16, n_layer=7, n_head=2, vocab_size=320)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "odd")
    load_tokenizer(made / "target").save(tmp_path / "odd")
    with pytest.raises(UserError, match=r"/odd: config.json has no hidden_size"):
        new_head(target=str(tmp_path / "odd"), traffic=made / "log.jsonl", out=tmp_path / "head")
    shutil.copytree(made / "target", tmp_path / "stretched")
    config = read_object(made / "target/config.json") | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    write_json(tmp_path / "stretched/config.json", config)
    with pytest.raises(UserError, match=r"/stretched: no head can be made with this rope type"):
        new_head(target=str(tmp_path / "stretched"), traffic=made / "log.jsonl", out=tmp_path / "head")
    assert not (tmp_path / "head").exists()
