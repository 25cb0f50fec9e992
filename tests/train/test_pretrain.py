"""Small models made on the spot: they learn, are the same for a seed, and refuse what cannot work."""

import dataclasses
import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from tokenizers import processors

from draftlab.data.prompts import Prompt
from draftlab.engine import answering
from draftlab.engine.answers import Answer
from draftlab.engine.settings import Answers, Recipe
from draftlab.errors import UserError
from draftlab.files.json_files import write_jsonl
from draftlab.models import load_model, load_tokenizer, shared_tokenizer
from draftlab.models.llama import Llama
from draftlab.train import pretrain

RECIPE = Recipe(hidden=16, layers=1, heads=2, ffn=32, context=64, vocabulary=320, steps=30, batch=8, documents=100)

TEMPLATE = "vicuna_short"


def make_target(made: Path, recipe: Recipe, template: str, out: Path, prompts: Path | None = None) -> None:
    own = prompts or made / "prompts.jsonl"
    pretrain.make_target(recipe, prompts=(own,), tokenizer=made / "tokenizer", template=template, out=out)


def make_draft(made: Path, recipe: Recipe, out: Path, **more) -> None:
    pretrain.make_draft(recipe, tokenizer=made / "tokenizer", template=TEMPLATE, out=out, **more)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    prompts = [Prompt(str(i), "toy", "train", f"count to {i}", f"one two {i}") for i in range(60)]
    write_jsonl(folder / "prompts.jsonl", prompts)
    pretrain.make_tokenizer(RECIPE, prompts=(folder / "prompts.jsonl",), out=folder / "tokenizer")
    make_target(folder, RECIPE, TEMPLATE, folder / "target")
    return folder


def answer_loss(folder):
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    prompt, answer = tokenizer.encode_prompt("count to 7", TEMPLATE), tokenizer.encode(" one two 7")
    losses = -model.answer_logits([prompt], [answer]).detach().log_softmax(-1)
    return float(losses[range(len(answer)), answer].mean())


def test_the_target_learns_the_answers(made, tmp_path):
    make_target(made, RECIPE.model_copy(update={"steps": 1}), TEMPLATE, tmp_path / "raw")
    assert answer_loss(made / "target") < answer_loss(tmp_path / "raw") - 1


def test_the_target_learns_the_template_that_it_will_be_asked_in(made, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(pretrain, "_train", lambda model, examples, *others: seen.extend(examples))
    make_target(made, RECIPE, "plain", tmp_path / "target")
    assert seen[7].prompt == load_tokenizer(made / "tokenizer").encode_prompt("count to 7", "plain")


def test_the_target_learns_conversations_whole(made, tmp_path, monkeypatch):
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "count to 7"}]
    asked = Prompt("0", "toy", "train", "count to 7", "one two 7", conversation=talk)
    write_jsonl(tmp_path / "prompts.jsonl", [asked])
    seen = []
    monkeypatch.setattr(pretrain, "_train", lambda model, examples, *others: seen.extend(examples))
    make_target(made, RECIPE, "plain", tmp_path / "target", tmp_path / "prompts.jsonl")
    (example,) = seen
    assert load_tokenizer(made / "tokenizer").decode(example.prompt) == "Be brief.\ncount to 7"


def test_prompts_that_a_target_cannot_read_are_not_learnt(made, tmp_path):
    """As in ``engine.fitting``: the chat template drops the whole text, or refuses it."""
    hides = "{% for m in messages if m.content != 'Hidden' %}{{ m.content }}{% endfor %}"
    refuses = "{% if messages[0].content == 'Refused' %}{{ raise_exception('no') }}{% endif %}"
    tokenizer = dataclasses.replace(load_tokenizer(made / "tokenizer"), chat_template=refuses + hides)
    tokenizer.backend.post_processor = processors.Sequence([])
    texts = ["Hidden", "Refused", "count to 7"]
    write_jsonl(tmp_path / "p.jsonl", [Prompt(text, "toy", "train", text, "one two 7") for text in texts])
    (example,) = pretrain._answered([tmp_path / "p.jsonl"], tokenizer, "own")
    assert tokenizer.decode(example.prompt) == "count to 7"


def test_the_same_seed_makes_the_same_target(made, tmp_path):
    make_target(made, RECIPE, TEMPLATE, tmp_path / "again")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (made / "target/model.safetensors").read_bytes()


def test_the_draft_shares_the_tokenizer_and_never_sees_a_prompt(made, tmp_path, monkeypatch):
    texts = []
    original = pretrain.generators.public_documents
    monkeypatch.setattr(
        pretrain.generators, "public_documents", lambda n, seed: texts.extend(original(n, seed)) or texts
    )
    make_draft(made, RECIPE, tmp_path / "draft")
    assert len(texts) == 100
    assert not any("USER:" in text for text in texts)
    assert (tmp_path / "draft/tokenizer.json").read_bytes() == (made / "tokenizer/tokenizer.json").read_bytes()


def test_a_draft_learns_reference_answers_where_prompts_have_some(made, tmp_path):
    """It then equals a target of the same recipe; without reference answers it learns public text."""
    make_draft(made, RECIPE, tmp_path / "answers", prompts=(made / "prompts.jsonl",))
    assert answer_loss(tmp_path / "answers") == answer_loss(made / "target")
    write_jsonl(tmp_path / "p.jsonl", [Prompt("0", "toy", "train", "hello")])
    for name, prompts in {"none": (), "bare": (tmp_path / "p.jsonl",)}.items():
        make_draft(made, RECIPE, tmp_path / name, prompts=prompts)
    assert answer_loss(tmp_path / "bare") == answer_loss(tmp_path / "none") > answer_loss(tmp_path / "answers")


def test_a_model_that_exists_is_taken_as_it_is(made, tmp_path):
    recipe = RECIPE.model_copy(update={"model": str(made / "target")})
    make_draft(made, recipe, tmp_path / "draft")
    assert answer_loss(tmp_path / "draft") == answer_loss(made / "target")


def test_a_draft_of_another_tokenizer_is_refused(made, tmp_path):
    other = tmp_path / "other"
    pretrain.make_tokenizer(RECIPE, out=other)
    recipe = RECIPE.model_copy(update={"model": str(made / "target")})
    with pytest.raises(UserError, match="different vocabularies"):
        pretrain.make_draft(recipe, tokenizer=other, template=TEMPLATE, out=tmp_path / "draft")


@pytest.mark.parametrize("design", ["scratch", "pca", "pruned"])
def test_a_draft_has_the_padding_of_its_target(made, tmp_path, design):
    config = dataclasses.replace(load_model(made / "target").config, vocab_size=384, num_hidden_layers=2)
    Llama(config).initialise(torch.Generator().manual_seed(0)).save(tmp_path / "wide")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(made / "target" / name, tmp_path / "wide")
    recipe = RECIPE.model_copy(update={"steps": 2, "design": design})
    more = {} if design == "scratch" else {"target": tmp_path / "wide"}
    pretrain.make_draft(recipe, tokenizer=tmp_path / "wide", template=TEMPLATE, out=tmp_path / "draft", **more)
    assert load_model(tmp_path / "draft").vocab_size == 384
    shared_tokenizer(tmp_path / "wide", tmp_path / "draft")


def test_a_checkpoint_of_another_head_or_target_is_not_resumed(made, tmp_path, monkeypatch):
    identities, fit = [], pretrain.training.fit

    def watched(*given, identity, **more):
        identities.append(identity)
        return fit(*given, identity=identity, **more)

    for number, name in enumerate(("one", "other")):
        two_layers = RECIPE.model_copy(update={"steps": 1, "layers": 2, "seed": number})
        make_target(made, two_layers, TEMPLATE, tmp_path / name)
    monkeypatch.setattr(pretrain.training, "fit", watched)
    encode = load_tokenizer(made / "tokenizer").encode
    sources = (*[tmp_path / "one"] * 3, tmp_path / "other")
    for number, (target, words) in enumerate(zip(sources, (" one", " one", " two", " one"), strict=True)):
        write_jsonl(tmp_path / "answers.jsonl", [Answer("0", [1], encode(words), False)])
        recipe = RECIPE.model_copy(update={"design": "pruned", "head": 8, "steps": 1})
        answers = (tmp_path / "answers.jsonl",)
        make_draft(made, recipe, tmp_path / f"draft{number}", answers=answers, target=target)
    assert identities[0] == identities[1]
    assert len(set(identities)) == 3


def test_a_pickle_that_is_no_checkpoint_is_refused(made, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    folder = tmp_path / "pickled"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((made / "target" / name).read_bytes())
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(UserError, match="not a file of weights alone"):
        make_draft(made, RECIPE.model_copy(update={"model": str(folder)}), tmp_path / "draft")


def test_prompts_that_fit_no_target_are_refused_before_anything_is_trained(made, tmp_path):
    """For a target to be trained, an existing target, and a draft with a shorter context; not for a model without a stated context."""
    long, out, asked = tmp_path / "long.jsonl", tmp_path / "out", {"max_new_tokens": 8, "template": "plain"}
    write_jsonl(long, [Prompt("0", "toy", "eval", "one two " * 20)])
    existing = RECIPE.model_copy(update={"model": str(made / "target"), "context": 512})
    for recipe, context in ((RECIPE, 0), (existing, 0), (RECIPE.model_copy(update={"context": 512}), 64)):
        with pytest.raises(
            UserError, match=r"long.jsonl: no prompt fits .* context of 64 tokens, 8 .* the shortest has \d+ "
        ):
            pretrain.make_tokenizer(
                recipe, out=out, asked=(made / "prompts.jsonl", long), draft_context=context, **asked
            )
        assert not (tmp_path / "out").exists()
    pretrain.make_tokenizer(RECIPE.model_copy(update={"family": "t5"}), out=out, asked=(long,), **asked)
    pretrain.make_tokenizer(RECIPE, out=out, asked=(made / "prompts.jsonl",), **asked)


def test_no_answered_request_is_too_long_for_a_draft(made, tmp_path):
    """A trained draft has the context of its target; an existing draft may have less, which limits the answers."""
    short = RECIPE.model_copy(update={"context": 32, "steps": 1})
    make_draft(made, short, tmp_path / "draft", prompts=(made / "prompts.jsonl",))
    assert load_model(tmp_path / "draft").context_length == load_model(made / "target").context_length == 64
    write_jsonl(tmp_path / "p.jsonl", [Prompt(str(n), "toy", "eval", "one two " * n) for n in (1, 9)])
    settings = Answers(max_new_tokens=8, template="plain")
    for context, kept in ((0, 2), (20, 1)):
        found, rejected = answering.answer(made / "target", tmp_path / "p.jsonl", 9, settings, context=context)
        assert (len(found.answers), len(rejected)) == (kept, 2 - kept)


def test_prompts_without_references_cannot_train_a_target(made, tmp_path):
    write_jsonl(tmp_path / "p.jsonl", [Prompt("0", "toy", "train", "hello")])
    with pytest.raises(UserError, match=r"no prompt has a reference answer.*--config target"):
        make_target(made, RECIPE, TEMPLATE, tmp_path / "target", tmp_path / "p.jsonl")
    with pytest.raises(UserError, match="no prompts to train the target on"):
        pretrain.make_target(RECIPE, tokenizer=made / "tokenizer", template=TEMPLATE, out=tmp_path / "target")
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
    make_target(made, target, TEMPLATE, tmp_path / "target")
    for design in ("pruned", "pca"):
        recipe = RECIPE.model_copy(update={"design": design, "head": 40, "steps": 2})
        make = partial(make_draft, made, recipe, tmp_path / design, answers=(traffic,))
        make(target=tmp_path / "target")
        assert set(load_model(tmp_path / design).kept.tolist()) == {*words, 1, 2, 5}
        assert "100.0% of recorded answers" in capsys.readouterr().out
        with pytest.raises(UserError, match=f"the design {design} needs a target"):
            make()
    filled = RECIPE.model_copy(update={"design": "pruned", "head": 40, "fill": True, "steps": 0})
    make_draft(made, filled, tmp_path / "filled", answers=(traffic,), target=tmp_path / "target")
    kept = load_model(tmp_path / "filled").kept.tolist()
    assert {*words, 1, 2, 5, 0, 3} < set(kept)
    assert len(kept) == 40
