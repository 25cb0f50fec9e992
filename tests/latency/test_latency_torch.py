"""torch as a latency engine: the same logits and text as llama.cpp, and the papers' architectures at reduced width."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from draftlab.core.sampling_numpy import Sampling
from draftlab.errors import UserError
from draftlab.latency.loop import decode, fixed, speculate
from draftlab.latency.self_check import write_toy
from draftlab.latency.settings import Engine
from draftlab.latency.shapes import on_meta
from draftlab.latency.sizes import architectures, reduced
from draftlab.latency.torch_backend import open_torch
from draftlab.models.backend import EngineOptions
from draftlab.models.gguf import export
from draftlab.models.llama_cpp import LlamaCpp
from draftlab.stages import latency_alpha, latency_branches, latency_cost, latency_length, latency_update
from draftlab.stages._inputs import Target, TargetAndDraft
from draftlab.stages._stage import Bench
from tests.pretended_gpu import pretended_gpu

ON_TORCH = Engine(backend="torch")


def test_torch_and_llama_cpp_agree(tmp_path: Path) -> None:
    write_toy(tmp_path / "target", num_hidden_layers=2)
    export(tmp_path / "target", tmp_path / "target.gguf", vocabulary=False)
    model = open_torch(tmp_path / "target", ON_TORCH, EngineOptions(context_length=128))
    with LlamaCpp(tmp_path / "target.gguf") as reference:
        np.testing.assert_allclose(model.extend([1, 5, 9]), reference.extend([1, 5, 9]), atol=1e-4)
        np.testing.assert_allclose(model.prefill([4]), reference.prefill([4]), atol=1e-4)
        model.trim(2)
        reference.trim(2)
        np.testing.assert_allclose(model.extend([7, 7]), reference.extend([7, 7]), atol=1e-4)
        np.testing.assert_array_equal(model.greedy([3]), reference.greedy([3]))
        assert model.guess([2, 8], 1e-6) == reference.guess([2, 8], 1e-6) is not None
        assert model.guess([2], 1.0) is reference.guess([2], 1.0) is None
        assert decode(model, [1, 5], 40).tokens == decode(reference, [1, 5], 40).tokens
    with pytest.raises(UserError, match="do not fit the context of 128"):
        model.extend([1] * 200)
    with pytest.raises(ValueError, match="cannot trim"):
        model.trim(10**6)


@pytest.mark.parametrize("engine", ["torch", "llama.cpp"])
def test_broken_logits_choose_no_token_and_no_tokens_are_not_read(engine: str, tmp_path: Path) -> None:
    write_toy(tmp_path / "target", num_hidden_layers=2)
    if engine == "torch":
        model = open_torch(tmp_path / "target", ON_TORCH, EngineOptions(context_length=64))
        dict(model.model.named_parameters())["norm"].data[3] = np.nan
        model.encode([0])
    else:
        export(tmp_path / "target", tmp_path / "target.gguf", vocabulary=False)
        tensors = gguf.GGUFReader(tmp_path / "target.gguf", "r+").tensors
        next(tensor for tensor in tensors if tensor.name == "output_norm.weight").data[3] = np.nan
        model = LlamaCpp(tmp_path / "target.gguf")
    for choose in (model.greedy, model.guess, lambda tokens: model.guess(tokens, 0.5)):
        with pytest.raises(UserError, match=r"logits.* hold NaN"):
            choose([1, 5])
    for read in (model.prefill, model.extend, model.greedy, model.guess):
        with pytest.raises(UserError, match="no tokens to read"):
            read([])
    model.fill(1, 4)
    with pytest.raises(UserError, match=r"logits.* hold NaN"):
        model.probe(2)
    model.close()


def test_speculative_text_in_torch(tmp_path: Path) -> None:
    write_toy(tmp_path / "target", num_hidden_layers=2)
    write_toy(tmp_path / "draft", seed=1)
    target, draft = (open_torch(tmp_path / name, ON_TORCH, EngineOptions()) for name in ("target", "draft"))
    plain = decode(target, [1, 5], 40).tokens
    assert speculate(target, draft, [1, 5], 40, fixed(3)).tokens == plain
    sampled = speculate(target, target, [1, 5], 12, fixed(3), sampling=Sampling(1.0))
    assert len(sampled.tokens) == 12


@pytest.mark.parametrize(
    ("name", "millions"),
    [("vicuna-33b", 32529), ("vicuna-7b", 6738), ("tinyllama-1.1b", 1100), ("llama-160m", 162), ("t5-xl", 2784), ("t5-small", 60)],
)  # fmt: skip
def test_architectures_have_their_published_sizes(name: str, millions: int) -> None:
    found = sum(weight.numel() for weight in on_meta(architectures()[name]).parameters()) / 1e6
    assert found == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("name", list(architectures()))
def test_reduction_keeps_the_shape_valid(name: str) -> None:
    for by in (4, 16, 64):
        small = reduced(architectures()[name], by)
        assert small.heads % small.kv_heads == 0
        assert small.hidden == small.heads * (architectures()[name].hidden // architectures()[name].heads)
        assert small.layers >= 1


@pytest.mark.parametrize(
    ("target", "draft"),
    [("vicuna-33b/32", "tinyllama-1.1b/32"), ("vicuna-7b/16", "llama-160m/16"), ("t5-xl/16", "t5-small/16")],
)
def test_tables_of_the_papers_pairs_at_reduced_width(target: str, draft: str) -> None:
    pair, bench = TargetAndDraft(target=Path(target), draft=Path(draft)), Bench(Path())
    on_torch = {"backend": "torch"}
    settings = latency_alpha.Settings(alpha=[0.8], draft_len=[3], blocks=2, rounds=2, **on_torch)
    rows, run = latency_alpha.run(settings, pair, bench)
    assert len(rows) >= 2
    assert (rows.filter(like="seconds") > 0).all(axis=None)
    assert (rows["disagreements"] <= rows["rounds"]).all()
    assert (run["target"]["engine"], run["target"]["model"]) == ("torch", target)
    assert run["target"]["parameters"] > run["drafts"][0]["parameters"]
    settings_cost = latency_cost.Settings(context=[8, 16], batch=[1, 2], verified=[4], blocks=2, **on_torch)
    assert len(latency_cost.run(settings_cost, pair, bench)[0]) == 8
    settings_length = latency_length.Settings(
        alpha=[0.5], length=[4, 8], prefix=8, draft_len=2, blocks=1, rounds=2, **on_torch
    )
    assert len(latency_length.run(settings_length, pair, bench)[0]) == 2
    settings_update = latency_update.Settings(prompt=6, generated=6, update_interval=2, blocks=2, **on_torch)
    updates, _ = latency_update.run(settings_update, pair, bench)
    assert (updates["update_seconds"] > updates["update_forward_seconds"]).all()
    assert (updates["update_forward_seconds"] > 0).all()
    assert (updates["target_request_seconds"] > 0).all()


def test_the_smallest_blocks_leave_room_for_the_probes_of_draft_steps() -> None:
    settings = latency_alpha.Settings(alpha=[0.5], draft_len=[1], blocks=1, rounds=1, backend="torch")
    pair = TargetAndDraft(target=Path("llama-160m/16"), draft=Path("llama-160m/16"))
    assert (latency_alpha.run(settings, pair, Bench(Path()))[0]["draft_probe_seconds"] > 0).all()


def test_probes_in_torch_append_and_forget() -> None:
    for name in ("llama-160m/16", "t5-small/16"):
        model = open_torch(Path(name), ON_TORCH, EngineOptions(context_length=64))
        model.fill(3, 10)
        for _ in range(20):
            model.probe(5)
        assert model._batch.lengths == [10, 10, 10]


@pytest.mark.parametrize("name", ["llama-160m/16", "t5-small/16"])
def test_a_filled_cache_is_ready_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile times how long a prompt takes: the GPU must have read it, not only have been told to."""
    waits = list[str]()
    with pretended_gpu(monkeypatch):
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waits.append(str(device)))
        model = open_torch(Path(name), Engine(backend="torch", device="cuda"), EngineOptions(context_length=64))
        model.fill(1, 10)
        assert waits == ["cuda:0"]


@pytest.mark.parametrize("name", ["llama-160m/16", "t5-small/16"])
def test_a_closed_model_keeps_no_cache(name: str) -> None:
    model = open_torch(Path(name), ON_TORCH, EngineOptions(context_length=64))
    model.fill(3, 10)
    held = [weakref.ref(cache) for cache in (model._cache, model._batch)]
    model.close()
    gc.collect()
    assert [cache() for cache in held] == [None, None]


@pytest.mark.parametrize("name", ["llama-160m/16", "t5-small/16"])
def test_torch_decodes_in_bfloat16(name: str) -> None:
    model = open_torch(Path(name), Engine(backend="torch", weights="bf16"), EngineOptions(context_length=64))
    assert model.describe()["weights"] == "bfloat16"
    assert np.isfinite(model.extend([1, 5, 9])).all()
    assert len(decode(model, [1, 5], 8).tokens) == 8


def test_what_torch_cannot_do_is_refused() -> None:
    with pytest.raises(UserError, match="no folder or architecture named 'gpt-5'"):
        open_torch(Path("gpt-5"), ON_TORCH, EngineOptions())
    with pytest.raises(UserError, match="torch has no q8_0 weights"):
        open_torch(Path("llama-160m/16"), Engine(backend="torch", weights="q8_0"), EngineOptions())
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no GPU"):
            open_torch(Path("llama-160m/16"), Engine(backend="torch", device="cuda"), EngineOptions())
    branches = latency_branches.Settings(num_drafts=[2], draft_len=2, blocks=1, backend="torch")
    with pytest.raises(UserError, match=r"need llama\.cpp"):
        latency_branches.run(branches, Target(target=Path("llama-160m/16")), Bench(Path()))
    with pytest.raises(UserError, match="does not train"):
        latency_update.run(
            latency_update.Settings(blocks=1),
            TargetAndDraft(target=Path("vicuna-7b/32"), draft=Path("llama-160m/32")),
            Bench(Path()),
        )


@pytest.mark.parametrize(("prefix", "length"), [(509, 2), (512, 64)])  # three of four plain steps fit, or none
def test_an_answer_beyond_the_models_context_is_not_measured(tmp_path: Path, prefix: int, length: int) -> None:
    write_toy(tmp_path / "model")  # its context is 512
    pair = TargetAndDraft(target=tmp_path / "model", draft=tmp_path / "model")
    settings = {"alpha": [0.5], "draft_len": 1, "blocks": 1, "rounds": 1, "backend": "torch"}
    with pytest.raises(UserError, match="do not fit the context of 512"):
        latency_length.run(latency_length.Settings(prefix=prefix, length=[length], **settings), pair, Bench(Path()))
    fits = latency_length.Settings(prefix=507, length=[2], **settings)
    assert len(latency_length.run(fits, pair, Bench(Path()))[0]) == 1
