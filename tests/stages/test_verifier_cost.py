"""The benchmark of verifiers: every contender in every cell, and the speed the project promises, with a margin for a busy machine."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from draftlab.cli import bench_verify
from draftlab.stages.verifier_cost import ROW_BY_ROW, SLOPES, Settings, as_text, contenders, measure


def test_every_contender_in_every_cell() -> None:
    frame = measure(Settings(vocabs=[2000], num_drafts=[2], rounds=2, batch=3))
    for (name, batch), rows in frame.groupby(["filter", "batch"]):
        expected = set(contenders()) | {"optimum value"} | ({"restrict"} if name != "no truncation" else set())
        assert set(rows["scheme"]) == (expected if batch == 1 else expected - {ROW_BY_ROW})
    assert set(frame["filter"]) == set(SLOPES)
    assert (frame["ms"] > 0).all()
    assert (frame["ms_p90"] >= frame["ms"]).all()
    assert set(frame.loc[frame["filter"] == "no truncation", "support"]) == {2000}
    assert "K=2 batch 3" in as_text(frame)


def test_command_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(vocabs=[500], num_drafts=[2], rounds=2, batch=2)
    bench_verify(settings, out=tmp_path / "bench.csv")
    assert "vocabulary 500, top-p .95, sharp" in capsys.readouterr().out
    assert len(pd.read_csv(tmp_path / "bench.csv")) > 30


@pytest.mark.slow
def test_costs_stay_within_three_times_the_promise() -> None:
    """Promised: optimum and K-SEQ 0.2 ms, direct truncated program 0.3, with HiGHS 1.5, cheap schemes in a batch 0.02."""
    frame = measure(Settings(vocabs=[32_000], num_drafts=[2], rounds=15))
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
