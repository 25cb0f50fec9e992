"""Models whose vocabularies are padded to different sizes: the draft gets its target's rows."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from draftlab.engine.llama_cpp import GgufTarget
from draftlab.engine.settings import Recipe
from draftlab.errors import UserError
from draftlab.files.json_files import read_object, write_json
from draftlab.latency.loop import decode, fixed, speculate
from draftlab.latency.pair import open_pair
from draftlab.latency.settings import Engine
from draftlab.models import hub, load_model, load_tokenizer, shared_tokenizer
from draftlab.models.gguf import export
from draftlab.models.gguf_import import ORIGINAL
from draftlab.models.llama import Llama, LlamaConfig
from draftlab.models.tokenizer import train_tokenizer
from draftlab.models.vocabulary_rows import fit_rows, rows_of
from draftlab.stages import latency_update
from draftlab.stages._inputs import TargetAndDraft
from draftlab.stages._stage import Bench
from draftlab.train import pretrain

TEXTS = ["SELECT name FROM singer WHERE age > 20", "Each box has 12 apples, so 12 * 345 = 4140 apples."] * 5
TOKENS, SMALL, LARGE = 300, 320, 384
SIZES = LlamaConfig(SMALL, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                    max_position_embeddings=128)  # fmt: skip
PROMPTS, ANSWERS = [[5, 9, 11], [7, 8]], [[4, 6, 299], [8, 2]]


def llama(folder: Path, rows: int, seed: int = 0, **sizes: int | bool) -> Path:
    """A folder with the tokenizer and a model of so many rows; models of one seed differ in the rows that one of them lacks."""
    config = dataclasses.replace(SIZES, **sizes)
    whole = Llama(dataclasses.replace(config, vocab_size=LARGE)).initialise(torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for weight in whole.parameters():
            weight.mul_(8 if weight.ndim == 2 else 1)
    model = Llama(dataclasses.replace(config, vocab_size=rows))
    state = {name: value[: len(model.state_dict()[name])] for name, value in whole.state_dict().items()}
    model.load_state_dict(state)
    model.save(folder)
    train_tokenizer(TEXTS, vocab_size=TOKENS).save(folder)
    return folder


def network(kind: str, folder: Path, rows: int) -> Path:
    """The same for a model that transformers runs."""
    transformers.set_seed(0)
    sizes = {"vocab_size": rows, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
    configs = {
        "opt": lambda: transformers.OPTConfig(**sizes, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=32,
                                              word_embed_proj_dim=16),
        "phi": lambda: transformers.PhiConfig(**sizes, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32),
        "t5": lambda: transformers.T5Config(vocab_size=rows, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
                                            decoder_start_token_id=0, eos_token_id=2, tie_word_embeddings=False),
    }  # fmt: skip
    maker = transformers.AutoModelForSeq2SeqLM if kind == "t5" else transformers.AutoModelForCausalLM
    maker.from_config(configs[kind]()).save_pretrained(folder, max_shard_size="20KB")
    train_tokenizer(TEXTS, vocab_size=TOKENS).save(folder)
    return folder


@pytest.mark.parametrize(("had", "wanted"), [(SMALL, LARGE), (LARGE, SMALL)])
@pytest.mark.parametrize("kind", ["tied", "untied", "opt", "phi", "t5"])
def test_a_copied_draft_has_the_rows_of_its_target_and_the_same_logits(
    kind: str, had: int, wanted: int, tmp_path: Path
) -> None:
    if kind in ("tied", "untied"):
        draft = llama(tmp_path / "draft", had, tie_word_embeddings=kind == "tied")
    else:
        draft = network(kind, tmp_path / "draft", had)
        assert (draft / "model.safetensors.index.json").is_file(), "several files of weights"
    target = llama(tmp_path / "target", wanted)
    before = {file.name: file.read_bytes() for file in draft.iterdir()}
    hub.copy_model(str(draft), tmp_path / "copy", target)
    assert {file.name: file.read_bytes() for file in draft.iterdir()} == before, "the user's own folder stays as it is"
    assert rows_of(tmp_path / "copy") == wanted
    assert read_object(tmp_path / "copy/config.json")["draftlab_rows_before"] == had
    shared_tokenizer(target, tmp_path / "copy")
    with torch.inference_mode():
        given, made = (load_model(folder).answer_logits(PROMPTS, ANSWERS) for folder in (draft, tmp_path / "copy"))
    assert made.shape[1] == wanted
    torch.testing.assert_close(made[:, :SMALL], given[:, :SMALL], atol=1e-6, rtol=1e-6)
    for column in range(had, wanted):
        torch.testing.assert_close(made[:, column], given[:, had - 1], atol=1e-6, rtol=1e-6)


def test_numbers_keep_their_type_and_files_without_rows_stay_links(tmp_path: Path) -> None:
    draft = network("opt", tmp_path / "draft", SMALL)
    model = transformers.AutoModelForCausalLM.from_pretrained(draft, dtype=torch.bfloat16)
    model.save_pretrained(draft, max_shard_size="10KB")
    hub.copy_model(str(draft), tmp_path / "copy", llama(tmp_path / "target", LARGE))
    links = {file.is_symlink() for file in (tmp_path / "copy").glob("*.safetensors")}
    assert links == {True, False}
    for file in (tmp_path / "copy").glob("*.safetensors"):
        assert {tensor.dtype for tensor in load_file(file).values()} == {torch.bfloat16}


def test_a_size_inside_a_layer_is_not_taken_for_the_vocabulary(tmp_path: Path) -> None:
    draft = llama(tmp_path / "draft", SMALL, intermediate_size=SMALL)
    hub.copy_model(str(draft), tmp_path / "copy", llama(tmp_path / "target", LARGE))
    model = load_model(tmp_path / "copy")
    assert isinstance(model, Llama)
    assert (model.vocab_size, model.config.intermediate_size) == (LARGE, SMALL)


def test_a_config_for_text_and_images_has_its_rows_inside(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "gemma3", "text_config": {"vocab_size": SMALL}})
    assert rows_of(tmp_path) == SMALL
    torch_file = tmp_path / "model.safetensors"
    from safetensors.torch import save_file

    save_file({"language_model.embed_tokens.weight": torch.arange(float(SMALL))[:, None]}, torch_file)
    fit_rows(tmp_path, SMALL + 2)
    assert read_object(tmp_path / "config.json")["text_config"]["vocab_size"] == SMALL + 2
    assert load_file(torch_file)["language_model.embed_tokens.weight"][-3:, 0].tolist() == [SMALL - 1] * 3


@pytest.mark.parametrize(("had", "wanted"), [(SMALL, LARGE), (LARGE, SMALL)])
def test_a_gguf_file_with_other_padding_is_a_draft_for_torch_and_as_it_is_for_llama_cpp(
    had: int, wanted: int, tmp_path: Path
) -> None:
    target, draft = llama(tmp_path / "target", wanted, num_hidden_layers=2), llama(tmp_path / "draft", had)
    for folder in (target, draft):
        export(folder, folder.with_suffix(".gguf"))
    hub.copy_model(f"{draft}.gguf", tmp_path / "copy", target)
    assert load_model(tmp_path / "copy").vocab_size == wanted
    files = (tmp_path / "target.gguf", tmp_path / "copy")
    with open_pair(*files, settings=Engine(weights="own"), context_length=128) as (one, other):
        assert other.describe()["file"] == ORIGINAL, "the file as it is"
        assert one.vocab_size == other.vocab_size == wanted
        with torch.inference_mode():
            expected = load_model(draft).answer_logits([[1, 5, 9]], [[0]])[0].numpy()
        logits = other.prefill([1, 5, 9])
        np.testing.assert_allclose(logits[:SMALL], expected[:SMALL], atol=1e-3)
        assert np.isneginf(logits[had:]).all()
        assert len(logits) == wanted
        other.trim(0)
        plain = decode(one, [1, 5, 9], 40)
        assert speculate(one, other, [1, 5, 9], 40, fixed(3)).tokens == plain.tokens


@pytest.mark.parametrize(("had", "wanted"), [(SMALL, LARGE), (LARGE, SMALL)])
def test_two_folders_with_other_padding_are_timed_in_torch_as_in_llama_cpp(
    had: int, wanted: int, tmp_path: Path
) -> None:
    folders = llama(tmp_path / "target", wanted, num_hidden_layers=2), llama(tmp_path / "draft", had)
    texts = []
    for backend in ("torch", "llama_cpp"):
        with open_pair(*folders, settings=Engine(backend=backend), context_length=128) as (one, other):
            assert one.vocab_size == other.vocab_size == wanted
            logits = other.prefill([1, 5, 9])
            assert len(logits) == wanted
            assert np.isneginf(logits[had:]).all()
            assert np.isfinite(logits[:had]).all()
            other.trim(0)
            logits = other.extend([wanted - 1])[0].copy()
            other.trim(0)
            np.testing.assert_array_equal(logits, other.extend([min(wanted, had) - 1])[0])
            other.trim(0)
            texts.append(speculate(one, other, [1, 5, 9], 40, fixed(3)).tokens)
            assert texts[-1] == decode(one, [1, 5, 9], 40).tokens
    assert texts[0] == texts[1]


def test_an_update_is_timed_on_tokens_that_the_draft_has(tmp_path: Path) -> None:
    folders = llama(tmp_path / "target", LARGE), llama(tmp_path / "draft", SMALL)
    settings = latency_update.Settings(backend="torch", prompt=20, generated=4, update_interval=20, blocks=1)
    rows, _ = latency_update.run(settings, TargetAndDraft(target=folders[0], draft=folders[1]), Bench(tmp_path))
    assert (rows["update_seconds"] > 0).all()


def test_a_draft_never_guesses_a_row_that_its_target_lacks(tmp_path: Path) -> None:
    target, draft = llama(tmp_path / "target", SMALL), llama(tmp_path / "draft", LARGE)
    for folder in (target, draft):
        export(folder, folder.with_suffix(".gguf"))
    with open_pair(tmp_path / "draft.gguf", settings=Engine(), context_length=128) as (alone,):
        found = next(token for token in range(3, TOKENS) if int(alone.greedy([token])[0]) >= SMALL)
    with open_pair(tmp_path / "target.gguf", tmp_path / "draft.gguf", settings=Engine(), context_length=128) as models:
        assert models[1].guess([found]) in range(SMALL)
        assert int(models[1].greedy([found])[0]) < SMALL


def test_other_tokens_are_refused_however_they_are_padded(tmp_path: Path) -> None:
    target, draft = llama(tmp_path / "target", SMALL), llama(tmp_path / "draft", LARGE)
    train_tokenizer(["Zebras zigzag"] * 9, vocab_size=TOKENS).save(draft)
    for folder in (target, draft):
        export(folder, folder.with_suffix(".gguf"))
    files = [tmp_path / name for name in ("target.gguf", "target.gguf", "draft.gguf")]
    pair = open_pair(*files, settings=Engine(), context_length=128)
    with pytest.raises(UserError, match=r"draft\.gguf: the target has 320 tokens, the draft has 384"), pair:
        pytest.fail("ids would mean different tokens")


def test_the_file_behind_a_target_may_have_other_padding_than_its_folder(tmp_path: Path) -> None:
    target = llama(tmp_path / "target", SMALL)
    export(target, tmp_path / "target.gguf", vocabulary=False)
    opened = GgufTarget(tmp_path / "target.gguf", {"vocab_size": LARGE, "max_position_embeddings": 128})
    cache, first = opened.prefill([[1, 5, 9]], 4)
    logits = cache.extend(first[:, None])
    assert logits.shape == (1, 1, LARGE)
    torch.testing.assert_close(
        logits[0, 0, :SMALL], load_model(target).answer_logits([[1, 5, 9]], [[0]])[0], atol=1e-4, rtol=0
    )
    opened.close()


@pytest.mark.parametrize("of_file", [False, True])
def test_the_draft_of_a_run_gets_the_rows_of_a_target_in_a_folder_or_a_file(of_file: bool, tmp_path: Path) -> None:
    target, draft = llama(tmp_path / "target", LARGE, num_hidden_layers=2), llama(tmp_path / "draft", SMALL)
    name = str(target)
    if of_file:
        export(target, tmp_path / "target.gguf")
        name = f"{target}.gguf"
    (tmp_path / "tokenizer").mkdir()
    hub.copy_tokenizer(name, tmp_path / "tokenizer")
    recipe = Recipe(model=str(draft))
    pretrain.make_draft(recipe, tokenizer=tmp_path / "tokenizer", template="plain", out=tmp_path / "made")
    assert load_model(tmp_path / "made").vocab_size == LARGE
    assert not (tmp_path / "made" / ORIGINAL).exists()


def test_two_folders_by_hand_are_refused_and_the_remedy_works(tmp_path: Path) -> None:
    target, draft = llama(tmp_path / "target", LARGE), llama(tmp_path / "draft", SMALL)
    with pytest.raises(UserError, match="share 300 tokens, but padded to 384 and 320") as refused:
        shared_tokenizer(target, draft)
    assert f"draftlab pretrain draft --model {draft} --tokenizer {target}" in str(refused.value)
    pretrain.make_draft(Recipe(model=str(draft)), tokenizer=target, template="plain", out=tmp_path / "copy")
    assert shared_tokenizer(target, tmp_path / "copy").vocab_size == load_tokenizer(target).vocab_size
    shutil.rmtree(draft)
    assert not any(file.is_symlink() for file in (tmp_path / "copy").glob("*.safetensors")), "rows of its own"
