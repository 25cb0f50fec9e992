"""Our Llama against the one of transformers, its cache against its own whole-sequence forward, and its files."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftlab.errors import UserError
from draftlab.files.atomic import SEAL
from draftlab.files.json_files import read_object
from draftlab.files.rope_scaling import RopeScaling
from draftlab.files.weights import parameter_count
from draftlab.models import load_model, set_up_gpu
from draftlab.models.llama import Llama, LlamaConfig
from draftlab.models.llama_decoder import _causal_mask
from draftlab.models.packed import PACKED, PACKED_PRODUCT, PackedLinear
from draftlab.models.rotary import rotation_table
from draftlab.models.weights import read_weights

SMALL = LlamaConfig(
    vocab_size=97,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    head_dim=8,
    tie_word_embeddings=False,
)
LLAMA_3 = RopeScaling(8.0, 1.0, 4.0, 32)
FAMILIES = {
    "llama": SMALL,
    "llama3": dataclasses.replace(SMALL, rope_scaling=LLAMA_3),
    "qwen2": dataclasses.replace(SMALL, qkv_bias=True),
    "qwen3": dataclasses.replace(SMALL, qk_norm=True),
}
PROMPTS = [[1, 5, 9], [1, 7], [1, 30, 31, 32, 33, 34, 35]]
ANSWERS = [[4, 6, 2], [8], [11, 12, 13, 14, 2]]


@pytest.fixture(params=["llama"])
def model(request: pytest.FixtureRequest) -> Llama:
    fresh = Llama(FAMILIES[request.param]).initialise(torch.Generator().manual_seed(0))
    with torch.no_grad():  # larger than an initialisation: attention is far from uniform
        for weight in fresh.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) * 0.2)
    return fresh


def hub_logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    transformers = pytest.importorskip("transformers")
    with torch.no_grad():
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens).logits


@pytest.mark.parametrize("model", FAMILIES, indirect=True)
def test_saved_folder_gives_the_same_logits_in_transformers(model: Llama, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    tokens = torch.randint(0, SMALL.vocab_size, (2, 50), generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(model(tokens), hub_logits(tmp_path / "model", tokens), atol=1e-5, rtol=1e-5)


def test_real_model_gives_the_same_logits_as_transformers(shared: Path) -> None:
    folder = shared / "models/stories260K/hf"
    tokens = torch.randint(0, 512, (2, 100), generator=torch.Generator().manual_seed(2))
    ours = load_model(folder)
    assert isinstance(ours, Llama)
    torch.testing.assert_close(ours(tokens), hub_logits(folder, tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model", FAMILIES, indirect=True)
def test_save_then_load_keeps_every_weight(model: Llama, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert isinstance(again, Llama)
    assert again.config == model.config
    assert ("rope_scaling" in read_object(tmp_path / "model/config.json")) == (model.config.rope_scaling is not None)
    for (name, weight), (other_name, other) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert name == other_name
        assert torch.equal(weight, other)


def test_sharded_weights_are_read(model: Llama, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    tensors = load_file(tmp_path / "model/model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, tmp_path / "model" / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (tmp_path / "model/model.safetensors.index.json").write_text(json.dumps(index))
    single = (tmp_path / "model/model.safetensors").rename(tmp_path / "single")
    again = load_model(tmp_path / "model")
    assert torch.equal(again.answer_logits(PROMPTS, ANSWERS), model.answer_logits(PROMPTS, ANSWERS))
    (tmp_path / "model/b.safetensors").unlink()
    with pytest.raises(UserError, match=r"b\.safetensors: a part of the weights is missing"):
        load_model(tmp_path / "model")
    single.rename(tmp_path / "model/model.safetensors")
    again = load_model(tmp_path / "model")  # as transformers, which leaves the index alone beside it
    assert torch.equal(again.answer_logits(PROMPTS, ANSWERS), model.answer_logits(PROMPTS, ANSWERS))


def test_a_copy_of_the_embedding_as_the_head_counts_once(tmp_path: Path) -> None:
    """As the folders of Qwen3-0.6B and 1.7B hold it."""
    for tied in (True, False):
        model = Llama(dataclasses.replace(SMALL, tie_word_embeddings=tied)).initialise(torch.Generator().manual_seed(0))
        model.save(folder := tmp_path / f"{tied}")
        (folder / SEAL).unlink()
        weights = load_file(folder / "model.safetensors")
        save_file(
            {"lm_head.weight": weights["model.embed_tokens.weight"].clone()} | weights, folder / "model.safetensors"
        )
        again = load_model(folder)
        assert sum(weight.numel() for weight in again.parameters()) == parameter_count(folder)
        torch.testing.assert_close(again.answer_logits(PROMPTS, ANSWERS), model.answer_logits(PROMPTS, ANSWERS))


def test_a_draft_shares_its_targets_table_of_rotations() -> None:
    """That of 128k tokens takes 67 MB."""
    cpu, draft = torch.device("cpu"), dataclasses.replace(SMALL, num_hidden_layers=1, head_tokens=8)
    assert rotation_table(SMALL, cpu) is rotation_table(draft, cpu)
    assert rotation_table(SMALL, cpu) is not rotation_table(FAMILIES["llama3"], cpu)


@pytest.mark.parametrize("model", FAMILIES, indirect=True)
def test_answer_logits_are_those_of_each_request_alone(model: Llama) -> None:
    together = model.answer_logits(PROMPTS, ANSWERS)
    alone = []
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        logits = model(torch.tensor([prompt + answer]))[0]
        alone.append(logits[len(prompt) - 1 : -1])
    torch.testing.assert_close(together, torch.cat(alone))
    where = torch.tensor([0, 3, 8])
    torch.testing.assert_close(model.answer_logits(PROMPTS, ANSWERS, where), together[where])


@pytest.mark.parametrize("model", FAMILIES, indirect=True)
def test_answer_logits_are_differentiable_in_every_weight(model: Llama) -> None:
    model.answer_logits(PROMPTS, ANSWERS).logsumexp(-1).sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


def test_training_works_after_inference() -> None:
    """Tables that are kept between calls must not be born inside inference mode."""
    model = Llama(dataclasses.replace(SMALL, rope_theta=5000.0)).initialise(torch.Generator().manual_seed(0))
    with torch.inference_mode():
        model.decoder().prefill(PROMPTS, room=4)
    model.answer_logits(PROMPTS, ANSWERS).sum().backward()


@pytest.mark.parametrize("model", FAMILIES, indirect=True)
@torch.inference_mode()
def test_cache_equals_the_whole_sequence(model: Llama) -> None:
    """Ragged rows, chunks of one and of several tokens, a crop in between, rows copied and dropped."""
    sequences = [prompt + answer + [3, 5, 7, 9] for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
    whole = [model(torch.tensor([sequence]))[0] for sequence in sequences]
    cache, following = model.decoder().prefill(PROMPTS, room=16)
    assert cache.lengths == [2, 1, 6]
    assert following.tolist() == [9, 7, 35]
    cache.extend(torch.full((3, 4), 50))  # wrong guesses, to be forgotten
    cache.crop([2, 1, 6])
    for new in (1, 2, 1):
        tokens = torch.tensor([s[at : at + new] for s, at in zip(sequences, cache.lengths, strict=True)])
        starts = cache.lengths
        logits = cache.extend(tokens)
        for row, start in enumerate(starts):
            torch.testing.assert_close(logits[row], whole[row][start : start + new], atol=1e-5, rtol=1e-5)
    cache.crop([4, 3, 8])
    cache.take([2, 0])
    assert cache.lengths == [8, 4]
    logits = cache.extend(torch.tensor([[sequences[2][8]], [sequences[0][4]]]))
    torch.testing.assert_close(logits[:, 0], torch.stack([whole[2][8], whole[0][4]]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@torch.inference_mode()
def test_a_wide_model_in_a_large_batch_gives_the_same_logits(dtype: torch.dtype, rounding: float) -> None:
    """Products large enough for the packed weights."""
    config = dataclasses.replace(SMALL, vocab_size=600, hidden_size=128, intermediate_size=512)
    wide = Llama(config).initialise(torch.Generator().manual_seed(0)).to(dtype)
    tokens = torch.randint(3, 600, (9, 12), generator=torch.Generator().manual_seed(1))
    for weight in (wide.layers[0].gate_up, wide.layers[0].down):
        assert tokens[:, 8:].numel() * weight.numel() > PACKED_PRODUCT[dtype]
        assert weight.numel() in PACKED[dtype]
    cache, _ = wide.decoder().prefill([row[: 9 - number % 3].tolist() for number, row in enumerate(tokens)], room=16)
    starts = cache.lengths
    logits = cache.extend(torch.stack([row[at : at + 4] for row, at in zip(tokens, starts, strict=True)]))
    whole = wide(tokens)
    expected = torch.stack([row[at : at + 4] for row, at in zip(whole, starts, strict=True)])
    torch.testing.assert_close(logits, expected, atol=rounding, rtol=rounding)


def test_bfloat16_is_not_packed_where_onednn_does_not_support_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    weight, rows = torch.randn(2, 256, 256).bfloat16()
    linear = PackedLinear(weight)
    assert linear.packed is None
    torch.testing.assert_close(linear(rows), rows @ weight.T)


@torch.inference_mode()
def test_attention_on_a_cpu_is_in_float32_whatever_the_weights(model: Llama) -> None:
    """Keys that were rotated in bfloat16 would be bfloat16 numbers."""
    cache, _ = copy.deepcopy(model).bfloat16().decoder().prefill(PROMPTS, room=16)
    assert cache.store.dtype == torch.float32
    assert not torch.equal(cache.store, cache.store.bfloat16().float())


@torch.inference_mode()
def test_take_copies_the_tail_of_the_winner(model: Llama) -> None:
    prompt, guesses = [1, 4, 6, 8], [[10, 11, 12], [20, 21, 22]]
    cache, _ = model.decoder().prefill([prompt] * 2, room=16)
    cache.extend(torch.tensor([[8, *guess] for guess in guesses]))
    cache.take([1, 1], since=[3, 3])
    cache.crop([6, 6])
    expected = model(torch.tensor([[*prompt, 20, 21, 33]]))[0, -1]
    for logits in cache.extend(torch.tensor([[33], [33]])):
        torch.testing.assert_close(logits[0], expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_a_row_may_run_past_the_context_beside_one_that_does_not(model: Llama) -> None:
    long, short = [5] * 63, [1, 2]
    cache, following = model.decoder().prefill([long, short], room=4)
    logits = cache.extend(torch.stack([following, torch.tensor([1, 3]), torch.tensor([1, 4])], dim=1))
    torch.testing.assert_close(logits[1], model(torch.tensor([[1, 2, 3, 4]]))[0, 1:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("prompts", "answers", "message"),
    [([[1], []], [[2], [2]], "request 1 has an empty prompt"), ([[1] * 40], [[2] * 25], "request 0 has 65 tokens")],
)
def test_requests_that_do_not_fit_are_refused(
    model: Llama, prompts: list[list[int]], answers: list[list[int]], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        model.answer_logits(prompts, answers)


def break_weights(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def pickle_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def pointer_of_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def quantize(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors")


def drop_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def widen_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 98}))


def thin_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["intermediate_size"]
    (folder / "config.json").write_text(json.dumps(config))


def no_head(folder: Path) -> None:
    """A config that does not say whether the embedding is tied: it is not."""
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    del config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))


def no_config(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def tie_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))


@pytest.mark.parametrize(
    "change",
    [
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_parameters": None, "rope_scaling": {"rope_theta": 500.0, "rope_type": "default"}},
        {"rope_theta": 500.0, "rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"}},
        {"rope_theta": 500.0, "rope_parameters": None},
        {"rope_scaling": {"rope_theta": 500.0, "rope_type": "default"}},
    ],
)
def test_positions_turn_as_in_transformers(model: Llama, tmp_path: Path, change: dict[str, object]) -> None:
    model.save(tmp_path / "model")
    (tmp_path / "model" / SEAL).unlink()
    config = json.loads((tmp_path / "model/config.json").read_text()) | change
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    tokens = torch.arange(5, 29)
    [prompt, answer] = tokens.split([4, 20])
    expected = hub_logits(tmp_path / "model", tokens[None])[0, 3:-1]
    found = load_model(tmp_path / "model").answer_logits([prompt.tolist()], [answer.tolist()])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    plain = model.answer_logits([prompt.tolist()], [answer.tolist()])
    assert (plain - expected).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (tie_config, "the head is the embedding, but the folder has another head"),
        (thin_config, r"config\.json: intermediate_size: Field required"),
        (no_head, "no weight 'lm_head"),
        (no_config, r"config\.json: not a JSON object"),
        (break_weights, r"model\.safetensors: damaged weights"),
        (pickle_weights, r"only pickled weights \(pytorch_model.bin\)"),
        (drop_weight, r"no weight 'model\.layers\.1\.mlp\.up_proj\.weight'"),
        (widen_config, r"weights that do not fit config\.json: size mismatch"),
        (shutil.rmtree, r"config\.json: no such file"),
        (pointer_of_weights, r"model\.safetensors: a pointer of Git LFS"),
        (
            quantize,
            r"model\.safetensors: model\.norm\.weight is quantized \(torch\.float8_e4m3fn\) \(use this model in 16",
        ),
    ],
)
def test_damaged_folders_are_refused(model: Llama, tmp_path: Path, damage: object, message: str) -> None:
    model.save(tmp_path / "model")
    (tmp_path / "model" / SEAL).unlink()  # which would notice it first
    damage(tmp_path / "model")  # type: ignore[operator]
    with pytest.raises(UserError, match=message):
        load_model(tmp_path / "model")


def test_device_that_is_not_there_is_refused(shared: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UserError, match="no GPU for device cuda"):
        load_model(shared / "models/stories260K/hf", device="cuda")


def test_merged_weights_do_not_lie_in_memory_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 7B target would need 24 GB to become 13.5."""
    Llama(LlamaConfig(96, 16, 32, 2, 2, 2, 64)).initialise(torch.Generator().manual_seed(0)).save(tmp_path)
    seen: dict[str, torch.Tensor] = {}

    def read(folder: Path, device: str) -> dict[str, torch.Tensor]:
        seen.update(read_weights(folder, device))
        return seen

    monkeypatch.setattr("draftlab.models.llama.read_weights", read)
    load_model(tmp_path)
    assert seen == {}


def test_a_mask_begins_where_a_gpu_can_read_it() -> None:
    assert _causal_mask(3, torch.float16, torch.device("meta"), 11).is_contiguous()
    on_cpu = _causal_mask(3, torch.float16, torch.device("cpu"), 11)
    assert on_cpu.isinf().sum(-1).tolist() == [2, 1, 0]


def test_a_gpu_is_set_up_without_cudnn_s_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = torch.get_float32_matmul_precision(), torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        set_up_gpu()
        assert (torch.get_float32_matmul_precision(), torch.backends.cuda.cudnn_sdp_enabled()) == ("high", False)
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cuda.enable_cudnn_sdp(before[1])
