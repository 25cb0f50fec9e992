"""Small models made on the spot: they learn, are the same for a seed, and refuse what cannot work."""

import json
from functools import partial

import pytest

from draftlab.data.prompts import Prompt
from draftlab.engine.answers import Answer
from draftlab.engine.settings import Recipe
from draftlab.errors import UserError
from draftlab.files.json_files import write_jsonl
from draftlab.models import load_model, load_tokenizer
from draftlab.train import pretrain

RECIPE = Recipe(hidden=16, layers=1, heads=2, ffn=32, context=64, vocabulary=320, steps=30, batch=8, documents=100)

TEMPLATE = "vicuna_short"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    prompts = [Prompt(str(i), "toy", "train", f"count to {i}", f"one two {i}") for i in range(60)]
    write_jsonl(folder / "prompts.jsonl", prompts)
    pretrain.make_tokenizer([folder / "prompts.jsonl"], RECIPE, folder / "tokenizer")
    pretrain.make_target([folder / "prompts.jsonl"], folder / "tokenizer", RECIPE, TEMPLATE, folder / "target")
    return folder


def answer_loss(folder):
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    prompt, answer = tokenizer.encode_prompt("count to 7", TEMPLATE), tokenizer.encode(" one two 7")
    losses = -model.answer_logits([prompt], [answer]).detach().log_softmax(-1)
    return float(losses[range(len(answer)), answer].mean())


def test_the_target_learns_the_answers(made, tmp_path):
    pretrain.make_target(
        [made / "prompts.jsonl"], made / "tokenizer", RECIPE.model_copy(update={"steps": 1}), TEMPLATE, tmp_path / "raw"
    )
    assert answer_loss(made / "target") < answer_loss(tmp_path / "raw") - 1


def test_the_target_learns_the_template_that_it_will_be_asked_in(made, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(pretrain, "_train", lambda model, examples, *others: seen.extend(examples))
    pretrain.make_target([made / "prompts.jsonl"], made / "tokenizer", RECIPE, "plain", tmp_path / "target")
    assert seen[7].prompt == load_tokenizer(made / "tokenizer").encode_prompt("count to 7", "plain")


def test_the_same_seed_makes_the_same_target(made, tmp_path):
    pretrain.make_target([made / "prompts.jsonl"], made / "tokenizer", RECIPE, TEMPLATE, tmp_path / "again")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (made / "target/model.safetensors").read_bytes()


def test_the_draft_shares_the_tokenizer_and_never_sees_a_prompt(made, tmp_path, monkeypatch):
    texts = []
    original = pretrain.generators.public_documents
    monkeypatch.setattr(
        pretrain.generators, "public_documents", lambda n, seed: texts.extend(original(n, seed)) or texts
    )
    pretrain.make_draft(made / "tokenizer", RECIPE, TEMPLATE, tmp_path / "draft")
    assert len(texts) == 100
    assert not any("USER:" in text for text in texts)
    assert (tmp_path / "draft/tokenizer.json").read_bytes() == (made / "tokenizer/tokenizer.json").read_bytes()


def test_a_draft_learns_reference_answers_where_prompts_have_some(made, tmp_path):
    """As a target of the same recipe would; prompts without any leave it to public text."""
    pretrain.make_draft(made / "tokenizer", RECIPE, TEMPLATE, tmp_path / "answers", [made / "prompts.jsonl"])
    assert answer_loss(tmp_path / "answers") == answer_loss(made / "target")
    write_jsonl(tmp_path / "p.jsonl", [Prompt("0", "toy", "train", "hello")])
    for name, prompts in {"none": [], "bare": [tmp_path / "p.jsonl"]}.items():
        pretrain.make_draft(made / "tokenizer", RECIPE, TEMPLATE, tmp_path / name, prompts)
    assert answer_loss(tmp_path / "bare") == answer_loss(tmp_path / "none") > answer_loss(tmp_path / "answers")


def test_a_model_that_exists_is_taken_as_it_is(made, tmp_path):
    recipe = RECIPE.model_copy(update={"model": str(made / "target")})
    pretrain.make_draft(made / "tokenizer", recipe, TEMPLATE, tmp_path / "draft")
    assert answer_loss(tmp_path / "draft") == answer_loss(made / "target")


def test_a_draft_of_another_tokenizer_is_refused(made, tmp_path):
    other = tmp_path / "other"
    pretrain.make_tokenizer([], RECIPE, other)
    recipe = RECIPE.model_copy(update={"model": str(made / "target")})
    with pytest.raises(UserError, match="different vocabularies"):
        pretrain.make_draft(other, recipe, TEMPLATE, tmp_path / "draft")


def test_a_pickle_that_is_no_checkpoint_is_refused(made, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    folder = tmp_path / "pickled"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((made / "target" / name).read_bytes())
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(UserError, match="not a file of weights alone"):
        pretrain.make_draft(
            made / "tokenizer", RECIPE.model_copy(update={"model": str(folder)}), TEMPLATE, tmp_path / "draft"
        )


def test_prompts_without_references_cannot_train_a_target(made, tmp_path):
    write_jsonl(tmp_path / "p.jsonl", [Prompt("0", "toy", "train", "hello")])
    with pytest.raises(UserError, match=r"no prompt has a reference answer.*--config target"):
        pretrain.make_target([tmp_path / "p.jsonl"], made / "tokenizer", RECIPE, TEMPLATE, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_the_config_is_one_that_transformers_reads(made):
    config = json.loads((made / "target/config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["vocab_size"] == 320


def test_a_draft_is_made_of_its_target_with_a_head_for_the_traffic(made, tmp_path, capsys):
    tokenizer, traffic = load_tokenizer(made / "tokenizer"), tmp_path / "answers.jsonl"
    words = tokenizer.encode(" one two 7")
    write_jsonl(traffic, [Answer("0", [1, 5], words, False)])
    target = RECIPE.model_copy(update={"layers": 2})
    pretrain.make_target([made / "prompts.jsonl"], made / "tokenizer", target, TEMPLATE, tmp_path / "target")
    for design in ("pruned", "pca"):
        recipe = RECIPE.model_copy(update={"design": design, "head": 40, "steps": 2})
        make = partial(pretrain.make_draft, made / "tokenizer", recipe, TEMPLATE, tmp_path / design, answers=[traffic])
        make(target=tmp_path / "target")
        assert set(load_model(tmp_path / design).kept.tolist()) == {*words, 1, 2, 5}
        assert "100.0% of recorded answers" in capsys.readouterr().out
        with pytest.raises(UserError, match=f"the design {design} is made of a target"):
            make()
