"""The benchmark of verifiers: every contender in every cell, and the speed the project promises, with a margin for a busy machine."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from draftlab.errors import UserError
from draftlab.stages._stage import Bench, NoInputs
from draftlab.stages.verifier_cost import (
    ROW_BY_ROW,
    STAGE,
    TURN,
    Settings,
    _interleaved,
    _interval,
    as_text,
    bench,
    contenders,
    measure,
)


def test_every_contender_in_every_cell() -> None:
    frame = measure(Settings(vocabs=[2000], num_drafts=[2], rounds=2, batches=[1, 3]))
    for (name, batch), rows in frame.groupby(["filter", "batch"]):
        expected = set(contenders()) | {"sort", "optimum value"} | ({"restrict"} if name != "no truncation" else set())
        assert set(rows["scheme"]) == (expected if batch == 1 else expected - {ROW_BY_ROW})
    assert set(frame["filter"]) == set(Settings().filters)
    assert (frame["ms"] > 0).all()
    assert (frame["ms_p90"] >= frame["ms"]).all()
    assert (frame["ms_low"] <= frame["ms"]).all()
    assert (frame["ms_high"] >= frame["ms"]).all()
    assert (frame.loc[frame["scheme"] == "single", ["over_single", "over_single_low", "over_single_high"]] == 0).all(
        axis=None
    )
    assert (frame.loc[frame["scheme"] == "optimal", "over_single"] > 0).all()
    assert set(frame.loc[frame["filter"] == "no truncation", "support"]) == {2000}
    assert "K=2 batch 3" in as_text(frame)


@pytest.mark.parametrize("size", [10, 100])
def test_top_k_leaves_as_many_tokens_of_each_distribution(size: int) -> None:
    frame = measure(Settings(vocabs=[2000], num_drafts=[3], rounds=2, batches=[1], filters=[f"top-k {size}"]))
    assert size <= frame["support"].min() == frame["support"].max() <= 2 * size
    assert set(frame["filter"]) == {f"top-k {size}"}
    assert {"optimal", "restrict", ROW_BY_ROW} <= set(frame["scheme"])


def test_each_round_has_an_order_of_its_own() -> None:
    calls: list[str] = []
    every = {name: (lambda name=name: lambda: calls.append(name)) for name in "abcd"}
    spent = _interleaved(every, 18, np.random.default_rng(0), time.perf_counter)
    rounds = [calls[i : i + 4 * TURN : TURN] for i in range(0, len(calls), 4 * TURN)]
    assert len(rounds) == 20
    assert all(sorted(own) == list("abcd") for own in rounds)
    assert {own[0] for own in rounds} == set("abcd")
    assert [len(times) for times in spent.values()] == [18] * 4


def test_the_interval_of_the_same_against_itself_holds_zero() -> None:
    """Timings of one thing are noise about one value: of 200 differences of two such about 95 % have 0 in their intervals."""
    rng = np.random.default_rng(1)
    noise = rng.gamma(2.0, size=(2, 200, 20))
    ends = [_interval(one - other, rng) for one, other in zip(*noise, strict=True)]
    assert 0.88 < np.mean([low <= 0 <= high for low, high in ends]) < 0.995
    shifted = [_interval(one - other + 5, rng) for one, other in zip(*noise, strict=True)]
    assert all(low > 0 for low, _ in shifted)


def test_command_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(vocabs=[500], num_drafts=[2], rounds=2, batches=[1, 2])
    bench(settings, out=tmp_path / "bench.csv")
    assert "vocabulary 500, top-p .95, sharp" in capsys.readouterr().out
    assert len(pd.read_csv(tmp_path / "bench.csv")) > 30


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no GPU for device cuda"):
        STAGE.run(Settings(device="cuda"), NoInputs(), Bench(tmp_path))
    with pytest.raises(UserError, match="no GPU for device cuda"):
        bench(Settings(device="cuda"))


def test_large_batches_without_truncation_alone_are_refused() -> None:
    with pytest.raises(UserError, match="of no truncation, only a batch of 1 is measured"):
        measure(Settings(vocabs=[50], batches=[8], filters=["no truncation"]))


@pytest.mark.slow
def test_costs_stay_within_three_times_the_promise() -> None:
    """Promised: optimum and K-SEQ 0.2 ms, direct truncated program 0.3, with HiGHS 1.5, cheap schemes in a batch 0.02."""
    frame = measure(Settings(vocabs=[32_000], num_drafts=[2], batches=[1, 64], rounds=15))
    sharp = frame[frame["filter"] == "top-p .95, sharp"].set_index(["batch", "scheme"])["ms"]
    promised = {
        (1, "optimal"): 0.2,
        (1, "k_seq"): 0.2,
        (1, "importance_truncated s=5"): 0.3,
        (1, ROW_BY_ROW): 1.5,
        (64, "single"): 0.02,
        (64, "specinfer"): 0.02,
        (64, "rrs"): 0.02,
    }
    for place, most in promised.items():
        assert sharp[place] < 3 * most, place
