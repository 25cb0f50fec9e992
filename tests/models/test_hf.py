"""The adapter around transformers: every architecture's cache against its own whole-sequence logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from draftlab.errors import UserError
from draftlab.models import LanguageModel, load_model
from draftlab.models.hf import HubModel

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {"vocab_size": 60, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
WIDTHS: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
CONFIGS = {
    "opt": lambda: transformers.OPTConfig(**SIZES, **WIDTHS, ffn_dim=32, word_embed_proj_dim=16, pad_token_id=0),
    "qwen3": lambda: transformers.Qwen3Config(  # with biases, which the project's Llama has only without norms of heads
        **SIZES, **WIDTHS, num_key_value_heads=1, intermediate_size=32, head_dim=8, attention_bias=True
    ),
    "mistral": lambda: transformers.MistralConfig(  # attention over a window of 4
        **SIZES, **WIDTHS, num_key_value_heads=1, intermediate_size=32, sliding_window=4
    ),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=60, n_positions=64, n_embd=16, n_layer=2, n_head=2),
    "t5": lambda: transformers.T5Config(
        vocab_size=60, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0, eos_token_id=1
    ),
}
PROMPTS = [[5, 9, 11], [7, 8], [30, 31, 32, 33, 34, 35, 36]]
ANSWERS = [[4, 6, 2], [8, 9, 12, 2], [11, 12, 13, 14, 2]]


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> LanguageModel:
    transformers.set_seed(0)
    config = CONFIGS[request.param]()
    kind = transformers.T5ForConditionalGeneration if request.param == "t5" else transformers.AutoModelForCausalLM
    network = kind(config) if request.param == "t5" else kind.from_config(config)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    network.save_pretrained(tmp_path / "model")
    return load_model(tmp_path / "model")


def logits_of_one(model: HubModel, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """Logits that predict the answer, from a plain call without padding, cache or mask."""
    if model.is_encoder_decoder:
        decoder = torch.tensor([[0, *answer[:-1]]])
        logits: torch.Tensor = model.network(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder).logits[0]
        return logits
    return model.network(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]


def test_answer_logits_are_those_of_each_request_alone(model: LanguageModel) -> None:
    assert isinstance(model, HubModel)
    alone = [logits_of_one(model, prompt, answer) for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
    together = model.answer_logits(PROMPTS, ANSWERS)
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-4)
    where = torch.tensor([0, 4, 11])
    torch.testing.assert_close(model.answer_logits(PROMPTS, ANSWERS, where), together[where], atol=1e-6, rtol=1e-5)
    together.logsumexp(-1).sum().backward()
    assert sum(float(weight.grad.abs().sum()) for weight in model.parameters() if weight.grad is not None) > 0


@torch.inference_mode()
def test_ragged_cache_equals_the_whole_sequence(model: LanguageModel) -> None:
    assert isinstance(model, HubModel)
    whole = [logits_of_one(model, prompt, answer) for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
    cache, first = model.prefill(PROMPTS, room=16)
    base = cache.lengths
    fed = [[int(token), *answer] for token, answer in zip(first, ANSWERS, strict=True)]

    def feed(done: list[int], new: int, rows: tuple[int, ...] = (0, 1, 2)) -> None:
        logits = cache.extend(torch.tensor([fed[row][at : at + new] for row, at in zip(rows, done, strict=True)]))
        for place, (row, at) in enumerate(zip(rows, done, strict=True)):
            torch.testing.assert_close(logits[place], whole[row][at : at + new], atol=1e-5, rtol=1e-4)

    def keep(done: list[int], rows: tuple[int, ...] = (0, 1, 2)) -> None:
        cache.crop([base[row] + at for row, at in zip(rows, done, strict=True)])

    feed([0, 0, 0], 2)
    keep([1, 2, 0])  # rows keep different numbers of tokens
    feed([1, 2, 0], 1)
    cache.extend(torch.full((3, 3), 50))  # wrong guesses, to be forgotten
    keep([2, 3, 1])
    cache.take([2, 1])
    keep([1, 2], (2, 1))
    feed([1, 2], 2, (2, 1))


def test_save_writes_a_folder_that_loads_again(model: LanguageModel, tmp_path: Path) -> None:
    model.save(tmp_path / "again")
    again = load_model(tmp_path / "again")
    torch.testing.assert_close(again.answer_logits(PROMPTS, ANSWERS), model.answer_logits(PROMPTS, ANSWERS))


def small_opt(folder: Path) -> Path:
    transformers.AutoModelForCausalLM.from_config(CONFIGS["opt"]()).save_pretrained(folder)
    return folder


def edit_config(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def test_architecture_that_is_no_language_model_is_refused(tmp_path: Path) -> None:
    folder = small_opt(tmp_path / "model")
    edit_config(folder, model_type="vit", architectures=["ViTModel"])
    with pytest.raises(UserError, match="cannot read this model"):
        load_model(folder)


def test_code_in_the_folder_is_never_run(tmp_path: Path) -> None:
    folder = small_opt(tmp_path / "model")
    (folder / "evil.py").write_text("open('ran', 'w')")
    edit_config(folder, model_type="evil", auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})
    with pytest.raises(UserError, match="cannot read this model"):
        load_model(folder)


def test_missing_weights_are_not_drawn_at_random(tmp_path: Path) -> None:
    folder = small_opt(tmp_path / "model")
    edit_config(folder, num_hidden_layers=3)
    with pytest.raises(UserError, match=r"no usable weight '.*layers\.2\."):
        load_model(folder)


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    folder = small_opt(tmp_path / "model")
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])
    with pytest.raises(UserError, match="damaged weights"):
        load_model(folder)


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        (transformers.MambaConfig, {"state_size": 4, "num_hidden_layers": 1}, "cannot be cropped"),
        (
            transformers.Lfm2Config,
            {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
            | {"layer_types": ["conv", "full_attention"]},
            "fails to read two tokens, at once or with a cache",
        ),
    ],
)
def test_a_state_that_cannot_be_cropped_is_refused(tmp_path: Path, kind: Any, sizes: dict[str, Any], message: str):
    config = kind(vocab_size=60, hidden_size=16, **sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match=message):
        load_model(tmp_path / "model")


@pytest.mark.parametrize("kind", [transformers.LlamaConfig, transformers.Qwen3Config])
def test_attention_that_is_not_causal_is_refused(tmp_path: Path, kind: Any) -> None:
    config = kind(**SIZES, **WIDTHS, intermediate_size=32, num_key_value_heads=1, is_causal=False)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match="sees the tokens after a position"):
        load_model(tmp_path / "model")


def test_positions_that_the_model_counts_itself_need_rows_of_one_length(tmp_path: Path) -> None:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = transformers.BartConfig(vocab_size=60, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32, **sizes)
    transformers.BartForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    cache, first = load_model(tmp_path / "model").prefill(PROMPTS, room=4)
    cache.extend(first[:, None].expand(-1, 3))
    cache.crop([2, 2, 2])
    cache.extend(first[:, None])
    cache.crop([3, 1, 2])
    with pytest.raises(UserError, match="bart counts positions from the longest request"):
        cache.extend(first[:, None])


def test_longrope_is_used_where_its_positions_do_not_turn(tmp_path: Path) -> None:
    """Beyond 24 tokens all rotations change, so a padded request would be read with those of a longer one."""
    factors = {"long_factor": [4.0] * 4, "short_factor": [1.0] * 4}
    config = transformers.Phi3Config(
        vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=96, original_max_position_embeddings=24, pad_token_id=0,
        rope_scaling={"type": "longrope", **factors},
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    model = load_model(tmp_path / "model")
    assert model.context_length == 24
    prompt, answer = list(range(3, 18)), [1, 2, 4, 5, 6]  # 20 tokens, which would be padded to 32
    expected = logits_of_one(model, prompt, answer)
    torch.testing.assert_close(model.answer_logits([prompt], [answer]), expected, atol=1e-4, rtol=0)
    with pytest.raises(UserError, match="24"):
        model.answer_logits([prompt], [answer * 3])
