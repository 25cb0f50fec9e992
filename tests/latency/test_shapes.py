"""Scales shapes and shapes_cpu: their plans, and every measurement, table and figure of it at a sixteenth of the papers' widths on the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import pandas as pd
import pytest
import torch

from draftlab import cli
from draftlab.errors import UserError
from draftlab.files.json_files import read_json
from draftlab.files.weights import parameter_count
from draftlab.latency.pair import open_pair
from draftlab.latency.self_check import write_toy
from draftlab.latency.settings import Engine
from draftlab.latency.shapes import random_gguf, random_model
from draftlab.latency.sizes import read_model
from draftlab.models.backend import EngineOptions
from draftlab.models.gguf import export, random_weights
from draftlab.models.llama_cpp import LlamaCpp
from draftlab.models.tokenizer import train_tokenizer
from draftlab.plan import Run, flags, load_run
from tests.checkout import jobs, snakemake
from tests.conftest import ROOT

MEASURED = (
    "osd_latency_alpha",
    "osd_latency_alpha_33b",
    "osd_latency_length",
    "osd_update_cost",
    "beyond_context_batch",
    "beyond_best_draft_len",
    "beyond_branches",
    "beyond_noise_floor",
)
BITS = {"f16", "q8_0", "q4_0"}  # of beyond_weights, a cell each
MEASURED_ON_CPU = set(MEASURED) - {"osd_update_cost", "beyond_noise_floor", "osd_latency_alpha_33b"}
ON_CPU: dict[str, object] = {"device": "cpu", "gpu_layers": 0, "blocks": 2}
SMALLER: dict[str, dict[str, object]] = {
    "osd_latency_alpha": {"alpha": [0.5, 0.9], "rounds": 2},
    "osd_latency_alpha_33b": {"alpha": [0.5, 0.9], "rounds": 2},
    "beyond_best_draft_len": {"alpha": [0.5, 0.9], "draft_len": [1, 2], "rounds": 2},
    "osd_latency_length": {"alpha": [0.5, 0.9], "length": [16, 64], "rounds": 2, "prefix": 32},
    "osd_update_cost": {"prompt": 8, "generated": 8, "update_interval": 2},
    "beyond_context_batch": {"context": [16], "batch": [1, 2], "verified": [2, 4]},
}


@pytest.fixture
def run() -> Run:
    return load_run({"scale": "shapes", "experiments": "all"}, ROOT / "workflow")


def draftlab(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["draftlab", *words])
    cli.main()


def test_the_plan_measures_on_a_gpu_and_downloads_nothing(run: Run) -> None:
    assert set(
        run.of_stage(
            "latency_alpha", "latency_length", "latency_update", "latency_cost", "latency_branches", "latency_null"
        )
    ) == {*MEASURED, "beyond_weights"}
    pairs = {"main": ["vicuna-7b", "llama-160m"], "large": ["vicuna-33b", "tinyllama-1.1b"]}
    named = {name: [recipe.model for recipe in pair.models.values()] for name, pair in run.settings.pairs.items()}
    assert named == pairs
    assert run.settings.every_dataset == []
    ((costs,),) = run.cells("mdss_cost").values()
    assert costs.settings.device == "cuda"
    for name in MEASURED:
        for (own,) in run.cells(name).values():
            assert isinstance(own.settings, Engine)
            assert (own.settings.gpu_layers, own.settings.device) in [(-1, "cpu"), (0, "cuda")]
            assert own.settings.weights == "f16"
        for cell in run.cells(name):
            inputs = run.cell_file(name, cell)["inputs"]
            expected = dict(zip(("target", "draft"), pairs[run.pair_of(name, cell)], strict=True))
            assert inputs.items() <= expected.items()
            assert inputs["target"]


def test_without_a_gpu_the_same_models_are_measured_in_four_bits_on_one_core(run: Run) -> None:
    found = load_run({"scale": "shapes_cpu", "experiments": "all"}, ROOT / "workflow")
    assert set(found.experiments) == {*MEASURED_ON_CPU, "beyond_weights"}
    assert {own.settings.weights for (own,) in found.cells("beyond_weights").values()} == BITS
    assert found.settings.pairs["main"].models == run.settings.pairs["main"].models
    for name in MEASURED_ON_CPU:
        ((own,),) = found.cells(name).values()
        settings = own.settings
        assert isinstance(settings, Engine)
        assert (settings.gpu_layers, settings.threads, settings.weights, settings.backend) == (
            0,
            1,
            "q4_0",
            "llama_cpp",
        )


@pytest.mark.workflow
@pytest.mark.parametrize(("scale", "measured"), [("shapes", len(MEASURED)), ("shapes_cpu", len(MEASURED_ON_CPU))])
def test_the_dag_holds_no_data_and_no_training(tmp_path: Path, scale: str, measured: int) -> None:
    words = ["--directory", str(tmp_path), "--config", f"scale={scale}", "experiments=all"]
    planned = jobs(snakemake(ROOT, "-n", *words))
    cells = {name: count for name, count in planned.items() if name.startswith("latency_")}
    others = {"collect", "claims", "figure", "report", "all"}
    assert set(planned) - set(cells) - {"speedup_theory", "utilisation", "verifier_cost"} == others
    assert sum(cells.values()) == measured + len(BITS)


@pytest.mark.parametrize("experiment", MEASURED[:-2])  # the last two measure a target alone
@pytest.mark.parametrize("backend", ["llama_cpp", "torch"])
def test_a_measurement_and_its_figure_at_reduced_width(
    run: Run, experiment: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (backend, experiment) == ("llama_cpp", "osd_update_cost"):
        pytest.skip("llama.cpp does not train")
    ((own,),) = run.cells(experiment).values()
    settings = own.settings.model_copy(update=ON_CPU | {"backend": backend} | SMALLER[experiment])
    words = flags(settings, target="vicuna-7b/16", draft="llama-160m/16", out=tmp_path / "cell")
    draftlab(monkeypatch, run.at_scale[experiment].stage.replace("_", "-"), *words)
    (record,) = read_json(tmp_path / "cell" / "run.json")["runs"]
    assert record["target"]["engine"] == {"llama_cpp": "llama.cpp", "torch": "torch"}[backend]
    assert record["target"]["parameters"] > 5 * record["drafts"][0]["parameters"]
    rows = pd.read_csv(tmp_path / "cell" / "rows.csv")
    times = rows.filter(like="seconds")
    assert (times.dropna(axis=1) > 0).all(axis=None)
    assert set(times.columns[times.isna().any()]) <= {"caught_up_seconds", "turns_seconds"}, "probed at batch 1 alone"
    out = tmp_path / experiment
    draftlab(
        monkeypatch, "figure", experiment, "--scale", "shapes", "--out", str(out),
        "--table", str(tmp_path / "cell" / "rows.csv"),
    )  # fmt: skip
    assert out.with_suffix(".png").stat().st_size > 5000
    assert out.with_suffix(".md").read_text(encoding="utf-8").count("\n") > 3


@pytest.mark.parametrize("weights", ["f32", "f16", "q8_0"])
def test_a_random_gguf_has_the_size_of_the_architecture(tmp_path: Path, weights: str) -> None:
    random_gguf("tinyllama-1.1b/16", tmp_path / "model.gguf", weights)  # type: ignore[arg-type]
    expected = random_model("tinyllama-1.1b/16", torch.float32, torch.device("cpu"))
    with LlamaCpp(tmp_path / "model.gguf", EngineOptions(context_length=64)) as model:
        logits = model.extend([1, 5, 9]).copy()
        found = model.describe()
    assert found["parameters"] == sum(weight.numel() for weight in expected.parameters())
    assert found["weights"] == weights
    assert np.isfinite(logits).all()
    assert logits.std() > 0.001
    assert not np.allclose(logits[0], logits[1])


@pytest.mark.parametrize("tied", [True, False])
def test_the_plan_counts_tied_embeddings_of_a_file_once(tmp_path: Path, tied: bool) -> None:
    write_toy(tmp_path / "toy", vocab_size=320, tie_word_embeddings=tied)
    train_tokenizer(["some text"], 320).save(tmp_path / "toy")
    export(tmp_path / "toy", tmp_path / "toy.gguf")
    known = read_model(tmp_path / "toy.gguf")
    assert known
    assert known.sizes.parameters == parameter_count(tmp_path / "toy.gguf") == parameter_count(tmp_path / "toy")


@pytest.mark.parametrize("tied", [True, False, None])
def test_the_plan_takes_a_head_as_the_embedding_where_a_config_does_not_say(tmp_path: Path, tied: bool | None) -> None:
    """transformers ties by default, and does not write that: released folders of Gemma say nothing."""
    write_toy(tmp_path / "toy", vocab_size=320, tie_word_embeddings=tied is not False)
    config = read_json(tmp_path / "toy" / "config.json") | {"model_type": "gemma", "tie_word_embeddings": tied}
    said = {key: value for key, value in config.items() if value is not None}
    (tmp_path / "toy" / "config.json").write_text(json.dumps(said))
    known = read_model(tmp_path / "toy")
    assert known
    assert known.sizes.parameters == parameter_count(tmp_path / "toy")
    (tmp_path / "null").mkdir()
    (tmp_path / "null" / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": None}))
    unsaid = read_model(tmp_path / "null")
    assert unsaid
    assert not unsaid.sizes.tied


@pytest.mark.parametrize("field", ["num_local_experts", "num_experts", "n_routed_experts", "mamba_d_state"])
def test_the_plan_does_not_guess_the_size_of_a_mixture_of_experts(tmp_path: Path, field: str) -> None:
    write_toy(tmp_path / "toy", vocab_size=320)
    assert read_model(tmp_path / "toy")
    config = read_json(tmp_path / "toy" / "config.json") | {"model_type": "mixtral", field: 8}
    (tmp_path / "mixture").mkdir()
    (tmp_path / "mixture" / "config.json").write_text(json.dumps(config))
    assert read_model(tmp_path / "mixture") is None


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "Q8_0")])
def test_random_weights_follow_the_seed_and_differ(kind: gguf.GGMLQuantizationType) -> None:
    shapes = {"a.weight": (8, 1024), "b.weight": (8, 1024), "norm": (4,)}
    one, again, other = (random_weights(shapes, seed) for seed in (0, 0, 1))
    values = gguf.dequantize(one("a.weight", kind).reshape(8, -1), kind).reshape(8, 1024)
    assert values.std() == pytest.approx(0.02, rel=0.05)
    assert len(np.unique(values, axis=0)) == 8
    np.testing.assert_array_equal(one("a.weight", kind), again("a.weight", kind))
    assert not np.array_equal(one("a.weight", kind), other("a.weight", kind))
    assert not np.array_equal(one("a.weight", kind), one("b.weight", kind))
    assert one("norm", kind).tolist() == [1.0] * 4


def test_an_update_trains_in_f32_whatever_the_target_runs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--backend", "torch", "--weights", "f16", "--prompt", "4", "--generated", "4", "--blocks", "1"]
    models = ["--target", "t5-xl/16", "--draft", "t5-small/16", "--out", str(tmp_path)]
    draftlab(monkeypatch, "latency-update", *words, *models)
    (record,) = read_json(tmp_path / "run.json")["runs"]
    assert (record["target"]["weights"], record["drafts"][0]["weights"]) == ("float16", "float32")


def test_what_cannot_be_measured_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("draftlab.latency.pair.self_check", lambda: None)
    for name, settings, message in (
        ("vicuna-7b", Engine(gpu_layers=-1), "finds no GPU"),
        ("vicuna-8b", Engine(), "no folder or architecture named 'vicuna-8b'"),
        ("vicuna-7b/0", Engine(), "architecture named 'vicuna-7b/0'.*NAME/8"),
        ("vicuna-7b/²", Engine(), "architecture named 'vicuna-7b/²'"),
        ("vicuna-7b/99999", Engine(), "architecture named 'vicuna-7b/99999'"),
    ):
        if "GPU" in message and torch.cuda.is_available():
            continue
        with (
            pytest.raises(UserError, match=message),
            open_pair(Path(name), settings=settings, context_length=64),
        ):
            pass
