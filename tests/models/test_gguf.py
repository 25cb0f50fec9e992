"""GGUF export: the same logits and tokens as the model folder, and a refusal for whatever llama.cpp could not run."""

from __future__ import annotations

import ctypes
import dataclasses
import json
from pathlib import Path
from typing import Any

import gguf
import llama_cpp.llama_cpp as lib
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from draftlab.errors import UserError
from draftlab.files.gguf_header import read_header
from draftlab.latency.self_check import write_toy
from draftlab.models import load_model, load_tokenizer
from draftlab.models.gguf import export
from draftlab.models.llama_cpp import LlamaCpp
from draftlab.models.tokenizer import train_tokenizer
from rehearsal import models as rehearsed
from tests.pair import small_llama

IDS = [1, *np.random.default_rng(0).integers(4, 320, 40).tolist()]
TEXTS = [
    "SELECT name FROM shops;",
    " two  spaces",
    "naïve façade",
    "日本語 😀",
    "a\n\n\tb",
    "it's 1,234.5!!  1,234.5 (12)",
    "USER: hi ASSISTANT:",
]


def byte_level(alphabet: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, show_progress=False, special_tokens=["<pad>", "<s>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
    )  # fmt: skip
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def toy(folder: Path, **changes: Any) -> Path:
    write_toy(folder, num_hidden_layers=2, vocab_size=320, **({"hidden_size": 64} | changes))
    byte_level().save(str(folder / "tokenizer.json"))
    return folder


def llama_logits(file: Path) -> np.ndarray:
    with LlamaCpp(file) as model:
        return model.extend(IDS).copy()


def llama_ids(model: LlamaCpp, text: str, *, begins: bool = False, special: bool = False) -> list[int]:
    """The tokens of a text in llama.cpp."""
    vocabulary, raw, buffer = lib.llama_model_get_vocab(model._model), text.encode(), (ctypes.c_int32 * 4096)()
    count = lib.llama_tokenize(vocabulary, raw, len(raw), buffer, len(buffer), begins, special)
    return list(buffer[:count])


def our_logits(folder: Path) -> np.ndarray:
    """Logits after each of ``IDS``, from the project's own Llama."""
    with torch.no_grad():
        return load_model(folder).answer_logits([IDS[:1]], [[*IDS[1:], 0]]).numpy()


def kl(reference: np.ndarray, other: np.ndarray) -> float:
    log_p, log_q = (torch.log_softmax(torch.from_numpy(x).double(), -1) for x in (reference, other))
    return float((log_p.exp() * (log_p - log_q)).sum(-1).max())


@pytest.mark.parametrize("weights", ["f32", "q4_0"])
def test_every_tensor_begins_with_a_page_of_memory(tmp_path: Path, weights: Any) -> None:
    export(toy(tmp_path / "toy"), tmp_path / "toy.gguf", weights)
    assert {tensor.data_offset % 4096 for tensor in gguf.GGUFReader(tmp_path / "toy.gguf").tensors} == {0}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("weights", "distance"), [("f32", 1e-4), ("f16", 2e-2)])
def test_logits_equal_those_of_the_folder(tmp_path: Path, weights: Any, distance: float, tied: bool) -> None:
    folder = toy(tmp_path / "toy", tie_word_embeddings=tied)
    export(folder, tmp_path / "toy.gguf", weights)
    np.testing.assert_allclose(llama_logits(tmp_path / "toy.gguf"), our_logits(folder), atol=distance, rtol=0)


@pytest.mark.parametrize(("weights", "divergence"), [("bf16", 5e-3), ("q8_0", 5e-3), ("q4_0", 0.5)])
def test_quantized_logits_stay_close(tmp_path: Path, weights: Any, divergence: float) -> None:
    folder = toy(tmp_path / "toy")
    export(folder, tmp_path / "toy.gguf", weights)
    assert 0 < kl(our_logits(folder), llama_logits(tmp_path / "toy.gguf")) < divergence


def test_another_head_width_and_rotation(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    export(folder, tmp_path / "toy.gguf")
    np.testing.assert_allclose(llama_logits(tmp_path / "toy.gguf"), our_logits(folder), atol=1e-4, rtol=0)


@pytest.mark.parametrize("beside", [{}, {"rope_parameters": {"rope_type": "default", "rope_theta": 20_000.0}}])
def test_a_rotation_in_the_field_that_prevails_is_exported(tmp_path: Path, beside: dict[str, Any]) -> None:
    folder = toy(tmp_path / "toy", rope_scaling={"rope_type": "default", "rope_theta": 50.0}, **beside)
    export(folder, tmp_path / "toy.gguf")
    np.testing.assert_allclose(llama_logits(tmp_path / "toy.gguf"), our_logits(folder), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_scaled_positions_are_refused_whatever_the_other_field_says(tmp_path: Path, kind: str) -> None:
    plain = {"rope_type": "default", "rope_theta": 1e4}
    folder = toy(tmp_path / "toy")
    edit_config(folder, rope_parameters=plain, rope_scaling={"rope_type": kind, "factor": 8.0})
    with pytest.raises(UserError, match="rope type"):
        export(folder, tmp_path / "toy.gguf")


def test_a_window_over_the_past_is_refused(tmp_path: Path) -> None:
    """A Mistral has one unless its config says that it has none."""
    folder = toy(tmp_path / "toy", tie_word_embeddings=False)
    for window in ({}, {"sliding_window": 4096}):
        edit_config(folder, model_type="mistral", architectures=["MistralForCausalLM"], **window)
        with pytest.raises(UserError, match="this sliding_window has no counterpart"):
            export(folder, tmp_path / "toy.gguf")
    edit_config(folder, sliding_window=None)
    export(folder, tmp_path / "toy.gguf")
    np.testing.assert_allclose(llama_logits(tmp_path / "toy.gguf"), our_logits(folder), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "rope", [{"rope_theta": None}, {"rope_parameters": {"rope_type": "default", "rope_theta": None}}]
)
def test_a_rotation_that_the_config_leaves_open_is_the_usual_one(tmp_path: Path, rope: dict[str, Any]) -> None:
    folder = toy(tmp_path / "toy", **rope)
    export(folder, tmp_path / "toy.gguf")
    np.testing.assert_allclose(llama_logits(tmp_path / "toy.gguf"), our_logits(folder), atol=1e-4, rtol=0)


def test_bfloat16_weights_are_read(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy")
    tensors = {name: torch.from_numpy(x).bfloat16() for name, x in load_file(folder / "model.safetensors").items()}
    save_torch(tensors, folder / "model.safetensors")
    export(folder, tmp_path / "toy.gguf")
    np.testing.assert_allclose(llama_logits(tmp_path / "toy.gguf"), our_logits(folder), atol=1e-4, rtol=0)


def test_real_model(shared: Path, tmp_path: Path) -> None:
    folder = shared / "models" / "stories260K" / "hf"
    export(folder, tmp_path / "stories.gguf", vocabulary=False)
    ours = llama_logits(tmp_path / "stories.gguf")
    np.testing.assert_allclose(ours, our_logits(folder), atol=1e-4, rtol=0)
    np.testing.assert_allclose(ours, llama_logits(folder.parent / "stories260K-f32.gguf"), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("kind", "tied", "weights", "divergence"),
    [
        *((kind, tied, "f32", 5e-4 if kind == "gated-gelu" else 1e-8) for kind in ("relu", "gated-gelu") for tied in (True, False)),
        *((kind, True, "f16", 5e-4) for kind in ("relu", "gated-gelu")),
        *((kind, True, "q8_0", 2e-2) for kind in ("relu", "gated-gelu")),
        *((kind, True, "q4_0", 1.0) for kind in ("relu", "gated-gelu")),
    ],
)  # fmt: skip
def test_t5(tmp_path: Path, kind: str, tied: bool, weights: Any, divergence: float) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=1, num_heads=4,
        feed_forward_proj=kind, tie_word_embeddings=tied, decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                wide = "shared" in name or "relative" in name
                parameter.copy_(torch.randn_like(parameter) * (1 if wide else parameter.shape[-1] ** -0.5))
    model.save_pretrained(tmp_path / "t5")
    export(tmp_path / "t5", tmp_path / "t5.gguf", weights, vocabulary=False)
    source, answer = [5, 9, 33, 80, 1], [0, 7, 60, 12]
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([answer])).logits[0].numpy()
    # llama.cpp's GELU is a table of half-precision values
    with LlamaCpp(tmp_path / "t5.gguf") as decoder:
        for _ in range(2):  # what an earlier prompt left is gone
            decoder.encode(source)
            found = decoder.extend(answer)
            if weights == "f32":
                np.testing.assert_allclose(found, expected, atol=1e-4 if kind == "relu" else 5e-2, rtol=0)
            assert kl(expected, found) < divergence


@pytest.mark.parametrize("scaled", [False, True])
def test_a_t5_keeps_an_output_layer_that_its_config_calls_the_embedding(tmp_path: Path, scaled: bool) -> None:
    """transformers 5 calls every T5's output layer tied when it saves it, and reads the layer that it finds."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0,
        tie_word_embeddings=scaled,
    )  # fmt: skip
    folder = tmp_path / "t5"
    T5ForConditionalGeneration(config).save_pretrained(folder)
    edit_tensors(folder, lambda x: x.update({"lm_head.weight": np.random.default_rng(0).random((96, 32), np.float32)}))
    load_model(folder).save(again := tmp_path / "again")
    assert json.loads((again / "config.json").read_text())["tie_word_embeddings"]
    export(again, tmp_path / "t5.gguf", vocabulary=False)
    source, answer = [5, 9, 33, 80, 1], [7, 60, 12]
    with torch.no_grad():
        expected = load_model(again).answer_logits([source], [answer]).numpy()
    with LlamaCpp(tmp_path / "t5.gguf") as decoder:
        decoder.encode(source)
        np.testing.assert_allclose(decoder.extend([0, *answer[:-1]]), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "changed",
    [{"feed_forward_proj": name} for name in ("gelu", "gated-silu", "gated-relu")]
    + [{"relative_attention_max_distance": 64}],
)
def test_a_t5_that_llama_cpp_would_compute_otherwise_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    T5ForConditionalGeneration(T5Config(**sizes, **changed, decoder_start_token_id=0)).save_pretrained(tmp_path / "t5")
    ((name, value),) = changed.items()
    with pytest.raises(UserError, match=f"{name} {value}"):
        export(tmp_path / "t5", tmp_path / "t5.gguf", vocabulary=False)


def test_text_is_tokenized_as_by_the_tokenizer(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy")
    export(folder, tmp_path / "toy.gguf")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with LlamaCpp(tmp_path / "toy.gguf") as model:
        for text in TEXTS:
            assert llama_ids(model, text) == tokenizer.encode(text).ids, text


def test_a_token_that_begins_texts_is_written_though_the_config_names_none(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", bos_token_id=None)
    train_tokenizer(["some text"] * 5, 300).save(folder)
    export(folder, tmp_path / "toy.gguf")
    own, found = load_tokenizer(folder), load_tokenizer(tmp_path / "toy.gguf")
    assert found.encode_prompt("text", "plain") == own.encode_prompt("text", "plain")
    assert found.bos_token == "<s>"
    with LlamaCpp(tmp_path / "toy.gguf") as model:
        assert llama_ids(model, "text", begins=True) == own.encode_prompt("text", "plain")


@pytest.mark.parametrize("is_old", [False, True])
def test_text_is_tokenized_as_by_sentencepiece(tmp_path: Path, is_old: bool) -> None:
    """A tokenizer as Llama and Vicuna have it. Newer files put no space before a text that begins with one; llama.cpp does."""
    made = json.loads(rehearsed.tokenizers()["llama"]["tokenizer.json"])
    if is_old:
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        made["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}
        made["pre_tokenizer"], made["model"]["unk_token"] = None, "<unk>"
    write_toy(tmp_path, vocab_size=len(made["model"]["vocab"]))
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(made))
    export(tmp_path, tmp_path / "toy.gguf")
    tokenizer, found = Tokenizer.from_file(str(file)), load_tokenizer(tmp_path / "toy.gguf")
    kinds = read_header(tmp_path / "toy.gguf").metadata["tokenizer.ggml.token_type"]
    assert kinds.count(gguf.TokenType.BYTE) == 256
    texts = [text for text in (*rehearsed.texts(200), *TEXTS, "", " ", "\t x  ") if is_old or text[:1] != " "]
    assert len(texts) > 200
    with LlamaCpp(tmp_path / "toy.gguf") as model:
        for text in texts:
            assert llama_ids(model, text, begins=True) == tokenizer.encode(text).ids, text
            assert found.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids
    made["model"]["merges"].pop(5)
    file.write_text(json.dumps(made))
    with pytest.raises(UserError, match="no merge makes"):
        export(tmp_path, tmp_path / "toy.gguf")


@pytest.mark.parametrize("tools", [None, "{{ tools }}"])
def test_the_chat_template_goes_along(tmp_path: Path, tools: str | None) -> None:
    folder = tmp_path / "model"
    small_llama(32, 0).save(folder)
    trained = train_tokenizer(["one two three"] * 20, vocab_size=300)
    dataclasses.replace(trained, chat_template="{{ messages }}", tool_template=tools).save(folder)
    export(folder, tmp_path / "model.gguf")
    found = load_tokenizer(tmp_path / "model.gguf")
    assert (found.chat_template, found.tool_template) == ("{{ messages }}", tools)


def test_a_draft_gets_the_vocabulary_of_its_target(tmp_path: Path) -> None:
    export(toy(tmp_path / "target"), tmp_path / "target.gguf")
    other_tokenizer(toy(tmp_path / "draft"))
    with pytest.raises(UserError, match="--vocabulary-of"):
        export(tmp_path / "draft", tmp_path / "draft.gguf")
    export(tmp_path / "draft", tmp_path / "draft.gguf", vocabulary_of=tmp_path / "target.gguf")
    read = []
    for name in ("target", "draft"):
        with LlamaCpp(tmp_path / f"{name}.gguf") as model:
            vocabulary, ids = (
                lib.llama_model_get_vocab(model._model),
                llama_ids(model, " ".join(TEXTS), begins=True, special=True),
            )
            read.append((ids, lib.llama_vocab_bos(vocabulary), lib.llama_vocab_eos(vocabulary)))
    assert read[0] == read[1]
    assert len(read[0][0]) > 10
    write_toy(tmp_path / "small", num_hidden_layers=2, vocab_size=300)
    with pytest.raises(UserError, match="320 tokens, but the model has 300"):
        export(tmp_path / "small", tmp_path / "small.gguf", vocabulary_of=tmp_path / "target.gguf")


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, edit: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def without_bytes(folder: Path) -> None:
    byte_level(alphabet=False).save(str(folder / "tokenizer.json"))


def more_tokens(folder: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([f"<{i}>" for i in range(100)])
    tokenizer.save(str(folder / "tokenizer.json"))


def token_with_its_space(folder: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<t>", rstrip=True, special=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_toy(folder, vocab_size=tokenizer.get_vocab_size())


def dropout(folder: Path) -> None:
    content = json.loads(byte_level().to_str())
    content["model"]["dropout"] = 0.1
    (folder / "tokenizer.json").write_text(json.dumps(content))


def other_tokenizer(folder: Path) -> None:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))


def not_finite(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.norm.weight"][3] = np.nan


def in_8_bits(folder: Path) -> None:
    tensors = {name: torch.from_numpy(tensor) for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    save_torch(tensors, folder / "model.safetensors")


def another_head(tensors: dict[str, np.ndarray]) -> None:
    tensors["lm_head.weight"] = 2 * tensors["model.embed_tokens.weight"]


BROKEN = {
    "byte tokens are missing": without_bytes,
    "neither a plain byte-level BPE": other_tokenizer,
    "neither a plain": dropout,
    "the token '<t>' takes the space beside it": token_with_its_space,
    "tokens, but the model has 320": more_tokens,
    "not a tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{}"),
    "architecture 'gpt2'": lambda folder: edit_config(folder, model_type="gpt2"),
    "rope type": lambda folder: edit_config(folder, rope_parameters={"rope_type": "llama3", "rope_theta": 1e4}),
    "is_causal": lambda folder: edit_config(folder, is_causal=False),
    "Field required": lambda folder: (folder / "config.json").write_text('{"model_type": "llama"}'),
    "3 key-value heads": lambda folder: edit_config(folder, num_key_value_heads=3),
    "eos_token_id is 320": lambda folder: edit_config(folder, eos_token_id=[320]),
    "not whole": truncate,
    "no model.safetensors": lambda folder: (folder / "model.safetensors").unlink(),
    "model.norm.weight is missing": lambda folder: edit_tensors(folder, lambda x: x.pop("model.norm.weight")),
    "has shape": lambda folder: edit_config(folder, intermediate_size=32),
    "implies no tensor": lambda folder: edit_config(folder, num_hidden_layers=1),
    "not finite": lambda folder: edit_tensors(folder, not_finite),
    "another head": lambda folder: edit_tensors(folder, another_head),
    r"quantized weights \(awq\)": lambda folder: edit_config(folder, quantization_config={"quant_method": "awq"}),
    r"model.norm.weight is quantized \(F8_E4M3\)": in_8_bits,
}


@pytest.mark.parametrize("message", BROKEN)
def test_refused_before_llama_cpp_sees_it(tmp_path: Path, message: str) -> None:
    folder = toy(tmp_path / "toy")
    BROKEN[message](folder)
    with pytest.raises(UserError, match=message):
        export(folder, tmp_path / "out" / "toy.gguf")
    assert not list((tmp_path / "out").glob("*")), "a refused export leaves no file"


def test_a_token_that_old_files_call_none_is_none(tmp_path: Path) -> None:
    export(toy(tmp_path / "toy", pad_token_id=-1), tmp_path / "toy.gguf")
    fields = gguf.GGUFReader(tmp_path / "toy.gguf").fields
    assert "tokenizer.ggml.padding_token_id" not in fields
    assert "tokenizer.ggml.eos_token_id" in fields


@pytest.mark.parametrize(
    ("own", "generation", "ends"),
    [(2, None, (2,)), ([5, 2], None, (5, 2)), (2, [7, 2, 9], (2, 7, 9)), (4, [7, 2], (7, 2)), (2, 7, (7,))],
)
def test_all_tokens_that_end_an_answer_go_along(
    tmp_path: Path, own: Any, generation: Any, ends: tuple[int, ...]
) -> None:
    folder = toy(tmp_path / "toy", eos_token_id=own)
    if generation:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    export(folder, tmp_path / "toy.gguf")
    found = load_tokenizer(tmp_path / "toy.gguf").eos_ids
    assert found == ends
    assert set(found) == set(load_tokenizer(folder).eos_ids)
    with LlamaCpp(tmp_path / "toy.gguf") as model:
        vocabulary = lib.llama_model_get_vocab(model._model)
        assert all(lib.llama_vocab_is_eog(vocabulary, token) for token in ends)
        assert model.ends == set(ends)


def test_more_ends_than_a_file_can_name_are_refused_with_a_vocabulary(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", eos_token_id=[2, 5, 7, 9])
    with pytest.raises(UserError, match="4 tokens end an answer, but a GGUF file can name 3"):
        export(folder, tmp_path / "toy.gguf")
    export(folder, tmp_path / "toy.gguf", vocabulary=False)


@pytest.mark.parametrize("weights", ["q8_0", "q4_0"])
def test_rows_that_blocks_do_not_fill_are_stored_in_16_bits(tmp_path: Path, weights: Any) -> None:
    folder = toy(tmp_path / "toy", intermediate_size=72)
    export(folder, tmp_path / "toy.gguf", weights)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "toy.gguf").tensors}
    assert {kind for name, kind in kinds.items() if "ffn_down" in name} == {"F16"}
    assert {kind for name, kind in kinds.items() if "ffn_up" in name} == {weights.upper()}
    assert kl(our_logits(folder), llama_logits(tmp_path / "toy.gguf")) < 0.5


@pytest.mark.parametrize("weights", ["q8_0", "q4_0"])
def test_rows_of_one_block_are_stored_in_16_bits(tmp_path: Path, weights: Any) -> None:
    """llama.cpp's AMX kernels misread them in calls of 32 tokens or more; ``IDS`` has 41."""
    folder = toy(tmp_path / "toy", hidden_size=32, intermediate_size=96)
    export(folder, tmp_path / "toy.gguf", weights)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "toy.gguf").tensors}
    assert {kind for name, kind in kinds.items() if "ffn_up" in name} == {"F16"}
    assert {kind for name, kind in kinds.items() if "ffn_down" in name} == {weights.upper()}
    assert kl(our_logits(folder), llama_logits(tmp_path / "toy.gguf")) < 0.5


@pytest.mark.parametrize("inner", [72, 96])
def test_a_file_says_the_type_that_its_weights_have(tmp_path: Path, inner: int) -> None:
    """No row of 48 or 72 numbers can be cut into blocks of 32; one of 96 can."""
    write_toy(tmp_path / "toy", hidden_size=48, intermediate_size=inner)
    export(tmp_path / "toy", tmp_path / "toy.gguf", "q4_0", vocabulary=False)
    with LlamaCpp(tmp_path / "toy.gguf") as model:
        assert model.describe()["weights"] == ("f16" if inner == 72 else "q4_0")


def test_an_unknown_weight_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="f32, f16, bf16, q8_0, q4_0"):
        export(toy(tmp_path / "toy"), tmp_path / "toy.gguf", "q5_1")  # type: ignore[arg-type]
