"""Existing models: tokenizers from before tokenizer.json, weights that outlive the hub's cache, and converted pickles."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from huggingface_hub import constants
from safetensors.torch import save

from draftlab.engine.settings import Recipe
from draftlab.errors import UserError
from draftlab.files.digests import sha256
from draftlab.models import check_same_tokenizer, hub, load_model, load_tokenizer
from draftlab.train import pretrain

WEIGHTS = save({"weight": torch.zeros(3)})
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 13476839\n" % 7
TEXT = "One text, two texts;\n  three  texts."


@pytest.fixture
def opt(tmp_path: Path) -> Path:
    """A folder laid out as OPT's repository: GPT-2's files, an answer begins with its end token, no tokenizer.json."""
    folder = tmp_path / "opt"
    folder.mkdir()
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator([TEXT] * 3, vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>"])
    bpe.save_model(str(folder))
    config = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "pad_token": "<pad>"}
    config |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "opt", "bos_token_id": 2, "eos_token_id": 2}))
    (folder / "model.safetensors").write_bytes(WEIGHTS)
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
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    hub.copy_model(str(folder), tmp_path / "copy")
    ids = load_tokenizer(tmp_path / "copy").encode("two texts")
    assert ids == spm.SentencePieceProcessor(model_file=f"{stem}.model").encode("two texts")


def test_a_tokenizer_json_that_cannot_be_made_is_refused(
    opt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (opt / "merges.txt").write_text("no merges\n")
    with pytest.raises(UserError, match=r"none can be made from vocab.json and merges.txt: .*use a model that has one"):
        hub.copy_model(str(opt), tmp_path / "copy")
    (opt / "vocab.json").unlink()
    with pytest.raises(UserError, match=r"opt: no tokenizer.json \("):
        hub.copy_model(str(opt), tmp_path / "copy")
    (opt / "tokenizer.model").write_bytes(b"")
    monkeypatch.setattr("transformers.utils.import_utils.is_sentencepiece_available", lambda: False)
    with pytest.raises(UserError, match=r"reading tokenizer.model needs .*pip install sentencepiece protobuf"):
        hub.copy_model(str(opt), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_chat_template_in_a_separate_file_is_copied(opt: Path, tmp_path: Path) -> None:
    """Where transformers 5 saves it; ``template=own`` reads it from the model's folder."""
    (opt / "chat_template.jinja").write_text("{% for m in messages %}</s>{{ m.role }}: {{ m.content }}{% endfor %}")
    recipe = Recipe(model=str(opt))
    pretrain.make_target(recipe, tokenizer=tmp_path, template="own", out=tmp_path / "copy")
    tokenizer = load_tokenizer(tmp_path / "copy")
    assert tokenizer.encode_prompt(TEXT, "own") == [2, *tokenizer.encode(f"user: {TEXT}")]


def model_of(folder: Path) -> torch.nn.Module:
    """A small OPT, whose output layer is its embedding, written as transformers writes it."""
    config = transformers.OPTConfig(
        vocab_size=300, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=16
    )
    model = transformers.OPTForCausalLM(config).eval()
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    return model


def shards_of(state: dict[str, torch.Tensor], folder: Path, **how: Any) -> None:
    """Two pickles and their index, as repositories older than safetensors have them."""
    names = list(state)
    parts = {f"pytorch_model-0000{n}-of-00002.bin": names[n - 1 :: 2] for n in (1, 2)}
    for file, part in parts.items():
        torch.save({name: state[name] for name in part}, folder / file, **how)
    index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("how", ["one", "shards", "before torch 1.6"])
def test_pickled_weights_are_converted_once(
    how: str, opt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    model = model_of(opt)
    if how == "one":
        torch.save(model.state_dict(), opt / "pytorch_model.bin")
    else:
        shards_of(model.state_dict(), opt, _use_new_zipfile_serialization=how == "shards")
    hub.copy_model(str(opt), tmp_path / "copy")
    read = load_model(tmp_path / "copy").answer_logits([[2, 5, 7]], [[9, 8]])
    with torch.no_grad():
        theirs = model(torch.tensor([[2, 5, 7, 9]])).logits[0, 2:]
    torch.testing.assert_close(read, theirs[:, : read.shape[1]])
    [converted] = (tmp_path / "home/converted").iterdir()
    digests = json.loads((converted / "converted.json").read_text())
    assert len(digests) == (1 if how == "one" else 2)
    for name, entry in digests.items():
        assert entry["sha256"] == sha256(tmp_path / "copy" / name)
        assert entry["pickled_sha256"] == sha256(opt / entry["pickled"])
    assert not list((tmp_path / "copy").glob("*.bin"))
    monkeypatch.setattr("draftlab.models.pickled.convert", lambda *_: pytest.fail("converted again"))
    hub.copy_model(str(opt), tmp_path / "again")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors", POINTER, r"model.safetensors: a pointer of Git LFS.*git lfs pull"),
        ("pytorch_model.bin", POINTER, r"pytorch_model.bin: a pointer of Git LFS.*git lfs pull"),
        ("model.safetensors", WEIGHTS[:-1], r"model.safetensors: damaged weights: .*fetch or make the model again"),
        (
            "model.safetensors.index.json",
            ("1.safetensors", "2.safetensors"),
            r"2.safetensors: a part of the weights is",
        ),
        ("pytorch_model.bin.index.json", ("1.bin", "2.bin"), r"pytorch_model-2.bin: a part of the weights is missing"),
        ("model.safetensors.index.json", ("2.safetensors",), r"model-2.safetensors: a part of the weights is missing"),
        ("pytorch_model.bin.index.json", ("2.bin",), r"pytorch_model-2.bin: a part of the weights is missing"),
    ],
)
def test_a_model_whose_weights_are_not_all_there_is_refused_before_it_is_taken_as_made(
    file: str,
    content: bytes | tuple[str, ...],
    message: str,
    opt: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Snakemake makes nothing again that a job ended with."""
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    (opt / "model.safetensors").unlink()
    if isinstance(content, bytes):
        (opt / file).write_bytes(content)
    else:
        kind = file.split(".")[0]
        (opt / file).write_text(json.dumps({"weight_map": {name: f"{kind}-{name}" for name in content}}))
        for name in content[:-1]:
            (opt / f"{kind}-{name}").write_bytes(WEIGHTS)
    with pytest.raises(UserError, match=message):
        hub.copy_model(str(opt), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert not list((tmp_path / "home").rglob("*.*"))


class Runs:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch ran",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Runs()), "not a file of weights alone"),
        ({"weight": torch.zeros(2), "more": Runs()}, "not a file of weights alone"),
        ({"weight": torch.zeros(2), "step": 3}, "does not hold tensors by name"),
        (b"weights", "not a file of weights alone"),
        (b"", "not a file of weights alone"),
    ],
)
def test_a_pickle_of_anything_but_weights_is_refused(
    content: Any, message: str, opt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (opt / "model.safetensors").unlink()
    file = opt / "pytorch_model.bin"
    file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    with pytest.raises(UserError, match=message):
        hub.copy_model(str(opt), tmp_path / "copy")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "copy").exists()
    assert not list((tmp_path / "home").rglob("*.*"))


@pytest.mark.parametrize(
    ("renamed", "also", "message"),
    [
        ("adapter_model.safetensors", "adapter_config.json", r"opt: an adapter \(LoRA\), not a whole model \(merge it"),
        ("adapter_model.bin", "adapter_config.json", r"opt: an adapter \(LoRA\), not a whole model \(merge it"),
        ("a.gguf", "b.gguf", r"opt: a folder of GGUF files \(name the file: .*a.gguf\)"),
        ("consolidated.safetensors", "params.json", r"opt: no model.safetensors and no index .* only consolidated"),
        (
            "model-00001-of-00002.safetensors",
            "README.md",
            r"opt: no model.safetensors and no index .* only model-00001",
        ),
    ],
)
def test_a_folder_of_something_else_than_a_models_weights_is_named(
    renamed: str, also: str, message: str, opt: Path, tmp_path: Path
) -> None:
    (opt / "model.safetensors").rename(opt / renamed)
    (opt / also).write_text("{}")
    with pytest.raises(UserError, match=message):
        hub.copy_model(str(opt), tmp_path / "copy")


def test_a_model_file_under_another_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "sha256-1f").write_bytes(b"GGUF")
    with pytest.raises(UserError, match=r"sha256-1f: a file, but not called .gguf \(name the folder"):
        hub.copy_model(str(tmp_path / "sha256-1f"), tmp_path / "copy")


def test_a_model_without_weights_is_refused(opt: Path, tmp_path: Path) -> None:
    (opt / "model.safetensors").rename(opt / "flax_model.msgpack")
    with pytest.raises(UserError, match=r"opt: no weights: neither"):
        hub.copy_model(str(opt), tmp_path / "copy")


@pytest.mark.parametrize(
    "name", ["a/b@", "a/b@../x", "a/b@refs/../x", "a/b@/x", "a/..", "a/b/c@main", "./a", "a", "@x"]
)
def test_a_name_that_is_neither_a_folder_nor_a_hub_id_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a hub id"):
        hub.copy_model(name, tmp_path / "copy")


@pytest.mark.parametrize("links", [True, False])
def test_weights_outlive_the_hubs_cache(
    links: bool, opt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches are purged, and a cluster's nodes have different homes: a file that Snakemake takes as made must stay whole."""
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
    assert kept.read_bytes() == WEIGHTS


def test_a_model_that_the_cache_holds_in_part_is_refused(
    opt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's library does not notice it in a cache of older versions; without its config a tokenizer writes other tokens."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", tmp_path / "cache")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(opt))
    (opt / "flax_model.msgpack").symlink_to("absent")  # what nobody needs may be gone
    hub.copy_model("owner/name", tmp_path / "whole")
    settings = (opt / "tokenizer_config.json").rename(opt / "settings")
    (opt / "tokenizer_config.json").symlink_to("absent")
    with pytest.raises(
        UserError, match=r"cannot read model owner/name .*: tokenizer_config.json is gone \(unset HF_HUB"
    ):
        hub.copy_model("owner/name", tmp_path / "copy")
    settings.replace(opt / "tokenizer_config.json")
    again = r"\(use .*, or fetch it again with a network and without HF_HUB_OFFLINE\)"
    for file, what in {
        "vocab.json": "tokenizer.json",
        "config.json": "config.json",
        "model.safetensors": "weights",
    }.items():
        (opt / file).unlink()
        with pytest.raises(UserError, match=f"owner/name: no {what}.*{again}"):
            hub.copy_model("owner/name", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", ["opt", "opt/model.gguf", "opt/inside"])
def test_a_model_is_not_replaced_by_links_to_itself(
    name: str, opt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"it holds the model {name}, which would be lost"):
        hub.copy_model(name, Path("opt"))
    with pytest.raises(UserError, match=f"it holds the model {name}, which would be lost"):
        pretrain.make_tokenizer(Recipe(model=name), out=Path("opt"))
    with pytest.raises(UserError, match=f"it holds the model {name}, which would be lost"):
        pretrain.make_draft(Recipe(), tokenizer=opt, template="plain", out=Path("opt"), target=Path(name))
    assert (opt / "model.safetensors").read_bytes() == WEIGHTS


def test_the_weights_of_a_local_folder_are_not_copied(opt: Path, tmp_path: Path) -> None:
    hub.copy_model(str(opt), tmp_path / "copy")
    assert (tmp_path / "copy" / "model.safetensors").readlink() == opt / "model.safetensors"
