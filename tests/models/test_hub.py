"""Models that exist already: tokenizers from before tokenizer.json, weights that outlive the hub's cache, pickled ones refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import tokenizers
import transformers
from huggingface_hub import constants

from draftlab import cli
from draftlab.engine.settings import Recipe
from draftlab.errors import UserError
from draftlab.models import check_same_tokenizer, hub, load_tokenizer

TEXT = "One text, two texts;\n  three  texts."


@pytest.fixture
def opt(tmp_path: Path) -> Path:
    """A folder laid out as OPT's repository: GPT-2's files, an answer begins with its end token, no tokenizer.json."""
    folder = tmp_path / "opt"
    folder.mkdir()
    words = tokenizers.ByteLevelBPETokenizer()
    words.train_from_iterator([TEXT] * 3, vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>"])
    words.save_model(str(folder))
    said = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "pad_token": "<pad>"}
    said |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>")
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    (folder / "config.json").write_text(json.dumps({"model_type": "opt", "bos_token_id": 2, "eos_token_id": 2}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_tokenizer_json_is_made_of_older_files(opt: Path, tmp_path: Path) -> None:
    hub.copy_model(str(opt), tmp_path / "copy")
    made = load_tokenizer(tmp_path / "copy")
    theirs = transformers.GPT2Tokenizer.from_pretrained(opt)
    assert made.encode_prompt(TEXT, "plain") == theirs.encode(TEXT)
    assert made.encode_prompt(TEXT, "plain")[0] == 2
    assert made.decode(made.encode(TEXT)) == TEXT
    assert (made.vocab_size, made.eos_ids) == (len(theirs), (2,))
    (tmp_path / "words").mkdir()
    hub.copy_tokenizer(str(opt), tmp_path / "words")
    check_same_tokenizer(made, load_tokenizer(tmp_path / "words"))
    assert not (opt / "tokenizer.json").exists(), "the user's folder stays as it is"


@pytest.mark.parametrize(("file", "kind", "eos"), [("tokenizer.model", "Llama", 2), ("spiece.model", "T5", 1)])
def test_a_tokenizer_json_is_made_of_a_sentencepiece_model(file: str, kind: str, eos: int, tmp_path: Path) -> None:
    spm = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (pip install sentencepiece)")
    folder = tmp_path / kind
    folder.mkdir()
    (tmp_path / "text").write_text(f"{TEXT}\n" * 9)
    layout = {
        "Llama": {"unk_id": 0, "bos_id": 1, "eos_id": 2, "byte_fallback": True, "model_type": "bpe", "vocab_size": 290},
        "T5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "hard_vocab_limit": False},
    }
    stem = str(folder / file.removesuffix(".model"))
    spm.SentencePieceTrainer.train(input=str(tmp_path / "text"), model_prefix=stem, minloglevel=2, **layout[kind])
    (folder / "config.json").write_text(json.dumps({"model_type": kind.lower(), "eos_token_id": eos}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": f"{kind}Tokenizer"}))
    (folder / "model.safetensors").write_bytes(b"weights")
    hub.copy_model(str(folder), tmp_path / "copy")
    ids = load_tokenizer(tmp_path / "copy").encode("two texts")
    assert ids == spm.SentencePieceProcessor(model_file=f"{stem}.model").encode("two texts")


def test_what_a_tokenizer_json_cannot_be_made_of(opt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (opt / "merges.txt").write_text("no merges\n")
    with pytest.raises(UserError, match=r"none can be made from vocab.json and merges.txt: .*use a model that has one"):
        hub.copy_model(str(opt), tmp_path / "copy")
    (opt / "vocab.json").unlink()
    with pytest.raises(UserError, match=r"opt: no tokenizer.json \("):
        hub.copy_model(str(opt), tmp_path / "copy")
    (opt / "tokenizer.model").write_bytes(b"")
    monkeypatch.setattr("transformers.utils.import_utils.is_sentencepiece_available", lambda: False)
    with pytest.raises(UserError, match=r"tokenizer.model is read with .*pip install sentencepiece protobuf"):
        hub.copy_model(str(opt), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_chat_template_in_a_file_of_its_own_comes_along(opt: Path, tmp_path: Path) -> None:
    """Where transformers 5 saves it; ``template=own`` reads it from the model's folder."""
    (opt / "chat_template.jinja").write_text("{% for m in messages %}</s>{{ m.role }}: {{ m.content }}{% endfor %}")
    recipe = Recipe(model=str(opt))
    cli.pretrain_target(recipe, prompts=(), tokenizer=tmp_path, template="own", out=tmp_path / "copy")
    words = load_tokenizer(tmp_path / "copy")
    assert words.encode_prompt(TEXT, "own") == [2, *words.encode(f"user: {TEXT}")]


def test_pickled_weights_are_refused(opt: Path, tmp_path: Path) -> None:
    (opt / "model.safetensors").rename(opt / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"opt: no safetensors weights.*save_pretrained"):
        hub.copy_model(str(opt), tmp_path / "copy")


@pytest.mark.parametrize(
    "name", ["a/b@", "a/b@../x", "a/b@refs/../x", "a/b@/x", "a/..", "a/b/c@main", "./a", "a", "@x"]
)
def test_what_is_neither_a_folder_nor_a_hub_id(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a hub id"):
        hub.copy_model(name, tmp_path / "copy")


@pytest.mark.parametrize("links", [True, False])
def test_weights_outlive_the_hubs_cache(
    links: bool, opt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster's node has a home of its own, and caches are purged: what Snakemake takes for made must stay whole."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(opt))
    if not links:

        def refuse(*_: object) -> None:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "link", refuse)
    blob = (opt / "model.safetensors").rename(tmp_path / "blob")
    (opt / "model.safetensors").symlink_to(blob)
    hub.copy_model("owner/name", tmp_path / "copy")
    kept = tmp_path / "copy" / "model.safetensors"
    assert kept.samefile(blob) == links
    blob.unlink()
    assert kept.read_bytes() == b"weights"


def test_the_weights_of_a_local_folder_are_not_copied(opt: Path, tmp_path: Path) -> None:
    hub.copy_model(str(opt), tmp_path / "copy")
    assert (tmp_path / "copy" / "model.safetensors").readlink() == opt / "model.safetensors"
