"""Any GGUF file is a model: the logits of transformers and llama.cpp, their tokens, and a refusal by name of what is not represented."""

from __future__ import annotations

import functools
import os
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import llama_cpp.llama_cpp as lib
import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from draftlab.errors import UserError
from draftlab.files import gguf_header
from draftlab.files.gguf_header import read_header
from draftlab.files.json_files import read_object, write_json
from draftlab.files.rope_scaling import RopeScaling
from draftlab.files.weights import parameter_count
from draftlab.latency.pair import open_pair
from draftlab.latency.settings import Engine
from draftlab.models import hub, load_model, load_tokenizer
from draftlab.models.gguf import export
from draftlab.models.gguf_import import ORIGINAL, SPLITS, TRIAL, check_loads, write_folder
from draftlab.models.llama_cpp import LlamaCpp
from draftlab.models.tokenizer import train_tokenizer
from draftlab.plan import WORKFLOW, load_run
from tests.models.test_gguf import llama_ids

LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama3": (LlamaConfig, LlamaForCausalLM, {"rope_scaling": LLAMA_3}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 64}),
}
QUANTIZED = {
    "q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_1": lib.LLAMA_FTYPE_MOSTLY_Q4_1,
    "q4_k_m": lib.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "q5_0": lib.LLAMA_FTYPE_MOSTLY_Q5_0,
    "q5_k_m": lib.LLAMA_FTYPE_MOSTLY_Q5_K_M,
    "q6_k": lib.LLAMA_FTYPE_MOSTLY_Q6_K,
    "q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0,
    "f16": lib.LLAMA_FTYPE_MOSTLY_F16,
    "bf16": lib.LLAMA_FTYPE_MOSTLY_BF16,
}
IDS = [1, *np.random.default_rng(0).integers(4, 512, 60).tolist()]
TEXTS = ["a b 1,234.5!!", " two  spaces\n\n", "naïve 日本語 😀", "it's SELECT x;", "</s> typed"]
REAL = Path(os.environ.get("DRAFTLAB_GGUF_FILES", "/nonexistent"))


def network(family: str, tied: bool) -> Any:
    """A small model of ``transformers`` with random weights, biases too."""
    config, kind, options = FAMILIES[family]
    torch.manual_seed(0)
    model = kind(
        config(
            vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8,
            num_key_value_heads=2, max_position_embeddings=256, rope_theta=50_000.0, rms_norm_eps=1e-6,
            tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2, pad_token_id=0, **options,
        )
    )  # fmt: skip
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn_like(weight), alpha=0.3)
            else:
                weight.mul_(3 if "embed" in name else 2)
    return model.eval()


def gguf_of(network: Any, folder: Path) -> Path:
    network.save_pretrained(folder)
    train_tokenizer(TEXTS * 40, 512).save(folder)
    export(folder, folder.with_suffix(".gguf"))
    return folder.with_suffix(".gguf")


def logits_of(model: Any) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model.answer_logits([IDS[:1]], [[*IDS[1:], 0]]).numpy())


def llama_cpp_logits(file: Path) -> np.ndarray:
    with LlamaCpp(file) as model:
        return model.extend(IDS).copy()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers_and_of_llama_cpp(tmp_path: Path, family: str, tied: bool) -> None:
    theirs = network(family, tied)
    file = gguf_of(theirs, tmp_path / family)
    with torch.no_grad():
        reference = theirs(torch.tensor([IDS])).logits[0].numpy()
    assert np.abs(reference).max() > 1, "logits near 0 would agree whatever is read"
    np.testing.assert_allclose(llama_cpp_logits(file), reference, atol=1e-4, rtol=1e-4)
    write_folder(file, tmp_path / "made")
    for name in (file, tmp_path / "made", tmp_path / family):
        np.testing.assert_allclose(logits_of(load_model(name)), reference, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        cache, _ = load_model(file).decoder().prefill([[*IDS[:30], 0]], room=31)
        cache.crop([30])
        decoded = cache.extend(torch.tensor([IDS[30:]]))[0].numpy()
    np.testing.assert_allclose(decoded, reference[30:], atol=1e-4, rtol=1e-4)


def test_positions_stretched_in_another_way_are_refused(tmp_path: Path) -> None:
    """A GGUF file has the divisors of the frequencies alone; those of Llama 3 tell which numbers they came from."""
    folder = tmp_path / "toy"
    assert read_header(gguf_of(network("llama3", True), folder)).rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192)
    for change in ({"low_freq_factor": 2.0}, {"original_max_position_embeddings": 4096}):
        config = read_object(folder / "config.json")
        write_json(folder / "config.json", config | {"rope_scaling": LLAMA_3 | change})
        export(folder, tmp_path / "toy.gguf")
        assert "scaled or partial rotary positions" in refused(tmp_path / "toy.gguf")
    file = gguf_of(network("llama3", True), tmp_path / "toy")
    divisors = struct.pack("<16f", *read_header(file).rope_divisors)
    for other in (0.5, float("nan"), float("inf")):
        (tmp_path / "other.gguf").write_bytes(file.read_bytes().replace(divisors, struct.pack("<f", other) * 16))
        assert "scaled or partial rotary positions" in refused(tmp_path / "other.gguf")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("packing", QUANTIZED)
def test_packed_weights_are_read_as_llama_cpp_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, packing: str
) -> None:
    monkeypatch.setattr("draftlab.models.gguf.ALIGNMENT", 32)  # llama.cpp's quantizer damages files of any other
    file, packed = gguf_of(network(family, False), tmp_path / family), tmp_path / f"{packing}.gguf"
    wanted = lib.llama_model_quantize_default_params()
    wanted.ftype = QUANTIZED[packing]
    assert lib.llama_model_quantize(str(file).encode(), str(packed).encode(), wanted) == 0
    assert {stored.packing for stored in read_header(packed).tensors.values()} != {0}, "nothing was packed"
    ours, theirs = logits_of(load_model(packed)), llama_cpp_logits(packed)
    # llama.cpp rounds activations too: argmaxes may differ where two tokens are as good as level.
    assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.999
    assert (ours.argmax(-1) == theirs.argmax(-1)).mean() > 0.9
    unpacked = logits_of(load_model(file))
    assert np.abs(ours - theirs).mean() < 0.5 * np.abs(ours - unpacked).mean() or packing in ("f16", "bf16", "q8_0")


def test_a_file_that_crashes_llama_cpp_is_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take the whole job with it, so a child process opens the file first."""
    file = gguf_of(network("llama", True), tmp_path / "toy")
    check_loads(file)
    file.write_bytes(file.read_bytes()[:-1000])
    check_loads(file)  # an error, not a crash
    monkeypatch.setattr("draftlab.models.gguf_import.TRIAL", f"{TRIAL}\nimport os\nos.abort()")
    with pytest.raises(UserError, match=r"toy.gguf: llama.cpp crashes with SIGABRT"):
        hub.copy_model(str(gguf_of(network("llama", True), tmp_path / "toy")), tmp_path / "made")
    assert not (tmp_path / "made").exists()
    opened = functools.partial(open_pair, settings=Engine(), context_length=64)
    with pytest.raises(UserError, match=r"toy.gguf: llama.cpp crashes with SIGABRT"), opened(file):
        pass
    monkeypatch.undo()
    hub.copy_model(str(gguf_of(network("llama", True), tmp_path / "toy")), tmp_path / "made")
    monkeypatch.setattr("draftlab.models.gguf_import.TRIAL", "import os\nos.abort()")
    with opened(tmp_path / "made", settings=Engine(weights="own")) as (model,):  # tried when the folder was made
        assert model.vocab_size


def test_a_folder_that_holds_the_file_is_not_replaced(tmp_path: Path) -> None:
    file = gguf_of(network("llama", True), tmp_path / "toy")
    with pytest.raises(UserError, match=r"it holds the model .*toy\.gguf, which would be lost"):
        write_folder(file, file.parent)
    assert file.is_file()


def test_a_made_folder_keeps_the_file_its_tokenizer_and_its_template(tmp_path: Path) -> None:
    file = gguf_of(network("llama", True), tmp_path / "toy")
    hub.copy_model(str(file), tmp_path / "made")
    assert (tmp_path / "made" / ORIGINAL).resolve() == file.resolve()
    made = read_object(tmp_path / "made" / "config.json")
    assert made["draftlab_made_of"]["file"] == "toy.gguf"
    assert (made["bos_token_id"], made["eos_token_id"], made["pad_token_id"]) == (1, 2, 0)
    assert parameter_count(tmp_path / "made") == parameter_count(file)
    hub.copy_tokenizer(str(file), tmp_path)
    for name in (file, tmp_path / "made", tmp_path):
        ours, original = load_tokenizer(name), load_tokenizer(tmp_path / "toy")
        assert ours.eos_ids == original.eos_ids == (2,)
        assert (ours.bos_token, ours.eos_token) == ("<s>", "</s>")
        for text in TEXTS:
            assert ours.encode_prompt(text, "vicuna_short") == original.encode_prompt(text, "vicuna_short")
            assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize(("name", "is_end"), [("<|eot_id|>", True), ("<|im_end|>", True), ("<|eom|>", False)])
def test_the_end_of_a_turn_ends_an_answer_though_the_header_names_another_token(
    tmp_path: Path, name: str, is_end: bool
) -> None:
    """As in the first files of Llama 3, whose header names only the end of a text; llama.cpp finds the token by its name."""
    folder = tmp_path / "toy"
    network("llama", True).save_pretrained(folder)
    tokenizer = train_tokenizer(TEXTS * 40, 511)
    tokenizer.backend.add_special_tokens([name])
    tokenizer.save(folder)
    export(folder, file := tmp_path / "toy.gguf")
    with LlamaCpp(file) as model:
        vocabulary = lib.llama_model_get_vocab(model._model)
        ends = {token for token in range(512) if lib.llama_vocab_is_eog(vocabulary, token)}
    token = tokenizer.backend.token_to_id(name)
    assert set(load_tokenizer(file).eos_ids) == ends == ({2, token} if is_end else {2})
    write_folder(file, tmp_path / "made")
    assert load_tokenizer(tmp_path / "made").eos_ids == load_tokenizer(file).eos_ids


@pytest.mark.parametrize("split", gguf_header.SPLITS)
def test_texts_are_cut_as_in_llama_cpp(split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_split = gguf.GGUFWriter.add_tokenizer_pre
    monkeypatch.setattr(gguf.GGUFWriter, "add_tokenizer_pre", lambda writer, _: name_split(writer, split))
    file = gguf_of(network("llama", True), tmp_path / "toy")
    ours = load_tokenizer(file)
    with LlamaCpp(file) as model:
        for text in [*TEXTS, "in 2024: 12345 or 7\n\n  it'LL do", "a.b,,c\r\n\tTAB  "]:
            assert ours.encode(text) == llama_ids(model, text), text
    assert set(SPLITS) == set(gguf_header.SPLITS)


def refused(path: Path) -> str:
    with pytest.raises(UserError) as error:
        read_header(path)
    return str(error.value)


def test_what_cannot_be_represented_is_refused_before_a_job_starts(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "gemma3")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    assert "architecture 'gemma3'" in refused(tmp_path / "other.gguf")
    with pytest.raises(UserError, match="gemma3"):
        load_run({"scale": "smoke", "target": str(tmp_path / "other.gguf")}, WORKFLOW)
    whole = gguf_of(network("llama", True), tmp_path / "toy").read_bytes()
    for name, content in {"cut": whole[: len(whole) // 2], "header": whole[:4000], "text": b"a,b\n1,2\n"}.items():
        (tmp_path / f"{name}.gguf").write_bytes(content)
    assert "cut off after" in refused(tmp_path / "cut.gguf")
    assert "not a whole GGUF file" in refused(tmp_path / "header.gguf")
    assert "not a whole GGUF file" in refused(tmp_path / "text.gguf")
    (tmp_path / "moe.gguf").write_bytes(whole.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xp.weight"))
    assert "a tensor blk.1.ffn_xp.weight" in refused(tmp_path / "moe.gguf")
    load_run({"scale": "smoke", "target": str(tmp_path / "toy.gguf")}, WORKFLOW)


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    ("damaged", "what"),
    [
        (entry(b"key", 13, b""), "the unknown kind 13"),
        (entry(b"key", 9, struct.pack("<IQ", 13, 1)), "the unknown kind 13"),
        (entry(b"key", 9, struct.pack("<IQ", 9, 1) * 5000), "recursion"),
        (entry(b"general.alignment", 4, struct.pack("<I", 0)), "by zero"),
        (entry(b"general.alignment", 8, struct.pack("<Q", 0)), "unsupported operand"),
    ],
)
def test_a_damaged_header_is_one_line(damaged: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / "file.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + damaged)
    assert re.search(f"not a whole GGUF file: .*{what}", refused(tmp_path / "file.gguf"))


def test_sizes_that_are_no_sizes_are_one_line(tmp_path: Path) -> None:
    file = gguf_of(network("llama", True), tmp_path / "toy")
    heads = entry(b"llama.attention.head_count", 4, struct.pack("<I", 8))
    assert file.read_bytes().count(heads) == 1
    file.write_bytes(file.read_bytes().replace(heads, heads[:-4] + bytes(4)))
    assert "llama.attention.head_count: Input should be greater than 0" in refused(file)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("llama.block_count", 2**32 - 1, "less than or equal to 1024"),
        ("llama.context_length", "x", "a valid integer"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "a finite number"),
        ("tokenizer.ggml.tokens", None, "its tokenizer has no tokens"),
        ("tokenizer.ggml.tokens", [1], "a valid string"),
        ("tokenizer.ggml.token_type", [1], "another number of token_type"),
        ("tokenizer.ggml.merges", None, "its tokenizer has no merges"),
        ("tokenizer.ggml.merges", ["no such"], "no tokenizer: "),
        ("tokenizer.ggml.bos_token_id", 2**31, "its bos_token_id is 2147483648, but it has"),
        ("tokenizer.ggml.eos_token_id", [], "a valid integer"),
        ("tokenizer.ggml.model", "llama", "its tokenizer has no scores"),
        ("tokenizer.ggml.pre", None, r"its tokenizer \(default\) is not one of"),
        ("tokenizer.ggml.tokens", ["<s>"], "its tokenizer has 1 tokens, but its model 512"),
        ("split.count", 3, "one of 3 parts of a model"),
        ("llama.rope.scaling.factor", 4.0, "scaled or partial rotary positions"),
        ("llama.rope.scale_linear", 4.0, "scaled or partial rotary positions"),
        ("llama.rope.scaling.attn_factor", 2.0, "scaled or partial rotary positions"),
        ("llama.attention.causal", False, "llama with this attention"),
        ("tokenizer.chat_template", 1, "a valid string"),
    ],
)
def test_metadata_that_cannot_be_read_are_one_line(
    key: str, value: object, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, parse = gguf_of(network("llama", True), tmp_path / "toy"), gguf_header._parse

    def damaged(*args: Any) -> gguf_header.Header:
        header = parse(*args)
        metadata = {name: other for name, other in header.metadata.items() if name != key}
        return replace(header, metadata=metadata if value is None else metadata | {key: value})

    monkeypatch.setattr(gguf_header, "_parse", damaged)
    with pytest.raises(UserError, match=what):
        load_tokenizer(file)


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(REAL.glob("*.gguf")) or [None], ids=lambda file: file.name if file else "none")
def test_a_real_file_agrees_with_llama_cpp(file: Path | None) -> None:
    """Positions whose two best logits are .5 apart or more have the same argmax in llama.cpp on the file and in torch on its weights."""
    if file is None:
        pytest.skip("no GGUF files: name their folder in DRAFTLAB_GGUF_FILES")
    text = (Path(__file__).parents[2] / "DEVIATIONS.md").read_text(encoding="utf-8")
    ids = load_tokenizer(file).encode(text)[:500]
    with LlamaCpp(file) as model:
        theirs = [model.extend(ids[start : start + 100]).copy() for start in range(0, len(ids), 100)]
    with torch.no_grad():
        ours = load_model(file).answer_logits([ids[:1]], [[*ids[1:], 0]]).numpy()
    same = ours.argmax(-1) == np.concatenate(theirs).argmax(-1)
    best = np.sort(ours, -1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > 0.5
    agreement = f"{same.mean():.4f} of {len(same)} argmaxes, {same[clear].mean():.4f} of {clear.sum()} clear ones"
    print(f"{file.name}: {agreement}")
    assert same.mean() > 0.9
    assert same[clear].mean() > 0.97
