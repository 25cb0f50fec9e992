"""A draft of another family gets the vocabulary of its target."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, pre_tokenizers, trainers
from tokenizers import models as bpe

from draftlab.errors import UserError
from draftlab.files.json_files import read_object, write_json
from draftlab.latency.loop import decode, fixed, speculate
from draftlab.latency.pair import open_pair
from draftlab.latency.settings import Engine
from draftlab.models import Tokenizer, load_model, load_pair, load_tokenizer
from draftlab.models.gguf import export
from draftlab.models.llama import Llama, LlamaConfig
from draftlab.models.tokenizer import train_tokenizer
from draftlab.models.transplant import spellings, transplant
from draftlab.models.vocabulary_rows import rows_of

TARGET_TEXTS = [
    "SELECT name FROM singer WHERE age > 20",
    "Each box has 12 apples, so 12 * 345 = 4140 naïve apples.",
] * 5
DRAFT_TEXTS = ["Each singer has a box, and each box has a name: apples or no apples. Where is the age?"] * 9
SIZES = LlamaConfig(320, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                    max_position_embeddings=128, bos_token_id=3, eos_token_id=5, pad_token_id=4)  # fmt: skip


def other_tokenizer() -> Tokenizer:
    """One with other tokens, other names of special tokens and other ids than ``train_tokenizer`` makes."""
    backend = tokenizers.Tokenizer(bpe.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=310,
        special_tokens=["<x>", "<y>", "<unk>", "<begin>", "<pad>", "<end>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(DRAFT_TEXTS, trainer)
    backend.encode_special_tokens = True
    return Tokenizer(backend, eos_ids=(5,), bos_token="<begin>", eos_token="<end>")


def llama(folder: Path, tokenizer: Tokenizer, seed: int = 0, **sizes: int | bool) -> Path:
    model = Llama(dataclasses.replace(SIZES, **sizes)).initialise(torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8 if weight.ndim == 2 else 1)
    model.save(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A target and a draft, of 300 tokens in 384 rows and 310 tokens in 320 rows."""
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    target = llama(tmp_path / "target", train_tokenizer(TARGET_TEXTS, 300), vocab_size=384, num_hidden_layers=3, **ids)
    return target, llama(tmp_path / "draft", other_tokenizer(), 1)


def test_each_token_is_spelled_as_it_reads() -> None:
    ours, theirs = train_tokenizer(TARGET_TEXTS, 300), other_tokenizer()
    found = spellings(ours, theirs)
    assert (found[1], found[2], found[0], found[3]) == ((3,), (5,), (4,), (2,)), "begin, end, and two by their names"
    names = {token: name for name, token in theirs.backend.get_vocab().items()}
    for name, token in ours.backend.get_vocab().items():
        if token > 3:
            assert "".join(names[each] for each in found[token]) == name
    lengths = {len(ids) for ids in found.values()}
    assert {1, 2} <= lengths
    assert len(found) == ours.vocab_size


def test_names_of_special_tokens_can_be_given() -> None:
    ours, theirs = train_tokenizer(TARGET_TEXTS, 300), other_tokenizer()
    assert spellings(ours, theirs, {"</s>": "<x>", "<pad>": "<y>"})[2] == (0,)
    for same, message in (
        ({"<none>": "<x>"}, "target has no token '<none>'"),
        ({"<s>": "<z>"}, "draft has no token '<z>'"),
    ):
        with pytest.raises(UserError, match=message):
            spellings(ours, theirs, same)


def test_sentencepiece_and_bytes_are_spelled_in_one_another(shared: Path) -> None:
    pieces, letters = load_tokenizer(shared / "models/stories260K/hf"), other_tokenizer()
    for target, draft in ((pieces, letters), (letters, pieces)):
        found = spellings(target, draft)
        for text in (" box", "é", " apples"):
            ids = [each for token in target.encode(text) for each in found[token]]
            assert draft.decode(ids).strip() == text.strip()
    space = pieces.backend.token_to_id("▁")
    assert spellings(pieces, letters)[space] == (letters.backend.token_to_id("Ġ"),)


@torch.inference_mode()
def test_rows_of_a_token_are_those_of_its_spelling(folders: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = folders
    transplant(model=str(draft), target=str(target), out=tmp_path / "made")
    one, other, tokenizer = load_pair(target, tmp_path / "made")
    found = spellings(tokenizer, load_tokenizer(draft))
    given, made = load_model(draft), load_model(tmp_path / "made")
    assert isinstance(given, Llama)
    assert isinstance(made, Llama)
    assert one.vocab_size == other.vocab_size == 384
    ids = tokenizer.encode("Each box has 12 apples, naïve")
    assert {len(found[token]) for token in ids} > {1, 2}
    for token, spelled in found.items():
        torch.testing.assert_close(made.embed[token], given.embed[spelled[-1]], rtol=0, atol=0)
        torch.testing.assert_close(made.head[token], given.embed[list(spelled)].mean(0))
    alike = [token for token in ids if len(found[token]) == 1]
    ours = made.answer_logits([alike], [[2]])[0, : tokenizer.vocab_size]
    theirs = given.answer_logits([[found[token][0] for token in alike]], [[5]])[0]
    means = torch.stack([theirs[list(found[token])].mean() for token in range(tokenizer.vocab_size)])
    torch.testing.assert_close(ours, means, rtol=1e-4, atol=1e-4)


def test_the_draft_has_the_special_tokens_and_the_template_of_its_target(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    target, draft = folders
    (target / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (draft / "added_tokens.json").write_text("{}")
    transplant(model=str(draft), target=str(target), out=tmp_path / "made")
    config = read_object(tmp_path / "made/config.json")
    assert [config[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [1, 2, 0]
    assert load_tokenizer(tmp_path / "made").eos_ids == (2,)
    assert load_tokenizer(tmp_path / "made").chat_template == load_tokenizer(target).chat_template
    assert not (tmp_path / "made/added_tokens.json").exists()


def test_a_transplanted_draft_drafts_for_a_gguf_target(folders: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = folders
    for folder in folders:
        export(folder, folder.with_suffix(".gguf"))
    transplant(model=f"{draft}.gguf", target=f"{target}.gguf", out=tmp_path / "made")
    assert rows_of(tmp_path / "made") == 384
    with open_pair(tmp_path / "target.gguf", tmp_path / "made", settings=Engine(), context_length=128) as (one, other):
        plain = decode(one, [1, 5, 9], 40)
        assert speculate(one, other, [1, 5, 9], 40, fixed(3)).tokens == plain.tokens


@pytest.mark.parametrize("kind", ["gpt2", "opt", "phi"])
def test_a_draft_that_transformers_runs_is_transplanted_too(
    kind: str, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    target, draft = folders
    transformers.set_seed(0)
    sizes = {"vocab_size": 320, "max_position_embeddings": 64, "bos_token_id": 3, "eos_token_id": 5}
    widths = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    configs = {
        "gpt2": lambda: transformers.GPT2Config(vocab_size=320, n_positions=64, n_embd=16, n_layer=2, n_head=2),
        "opt": lambda: transformers.OPTConfig(**sizes, **widths, ffn_dim=32, word_embed_proj_dim=16),
        "phi": lambda: transformers.PhiConfig(**sizes, **widths, intermediate_size=32),  # its head has a bias
    }
    network = transformers.AutoModelForCausalLM.from_config(configs[kind]())
    shutil.rmtree(draft)
    network.save_pretrained(draft, max_shard_size="20KB")
    other_tokenizer().save(draft)
    generation = draft / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": 5}))
    transplant(model=str(draft), target=str(target), out=tmp_path / "made")
    assert not any(file.is_symlink() for file in (tmp_path / "made").iterdir()), (
        "it does not depend on the draft's folder"
    )
    index = read_object(tmp_path / "made/model.safetensors.index.json")["weight_map"]
    assert "lm_head.weight" in index, "converters read the index"
    found = spellings(load_tokenizer(target), load_tokenizer(draft))
    with torch.inference_mode():
        theirs = load_model(draft).answer_logits([[3, 40]], [[5]])[0]
        ours = load_model(tmp_path / "made").answer_logits(
            [[1, next(t for t, ids in found.items() if ids == (40,))]], [[2]]
        )[0]
    means = torch.stack([theirs[list(found[token])].mean() for token in range(300)])
    torch.testing.assert_close(ours[:300], means, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_transplanted_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = folders
    for same in ("{", "[]", '{"</s>": 3}'):
        with pytest.raises(UserError, match="same is "):
            transplant(model=str(draft), target=str(target), out=tmp_path / "made", same=same)
    head = llama(tmp_path / "head", other_tokenizer(), tie_word_embeddings=False, head_tokens=50)
    eagle = tmp_path / "eagle"
    write_json(eagle / "config.json", {"draft_vocab_size": 30})
    for model in (head, eagle):
        with pytest.raises(UserError, match="proposes only a part of the vocabulary"):
            transplant(model=str(model), target=str(target), out=tmp_path / "made")
    with pytest.raises(UserError, match="which would be lost"):
        transplant(model=str(draft), target=str(target), out=target)
    assert not (tmp_path / "made").exists()
