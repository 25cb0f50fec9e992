"""Forecasts of acceptance: on curves whose law is known, on recorded streams, and refused."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import forecasts
from draftlab.serving.forecast import SCALE, SLOPE, Curve, fit

ROOT = Path(__file__).parents[2]


def stream(requests: int, start: float, slope: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    alphas = 1 / (1 + np.exp(-(start + slope * np.log1p(np.arange(requests) / SCALE))))
    visited = np.full(requests, 40.0)
    return rng.binomial(40, alphas).astype(float), visited


def test_a_stream_of_the_law_is_continued():
    curve = fit(*stream(240, -1.0, SLOPE))
    assert isinstance(curve, Curve)
    at = curve.at(1200)
    expected = 1 / (1 + np.exp(-(-1.0 + SLOPE * np.log1p(1200 / SCALE))))
    assert at.estimate == pytest.approx(expected, abs=0.02)
    assert at.low < expected < at.high
    half, whole, beyond = (known.high - known.low for known in (curve.at(120), curve.at(240), at))
    assert half < whole + 1e-3 < beyond
    rest = curve.enough(0.07)
    assert rest is not None
    assert curve.at(2 * rest).estimate - curve.at(rest).estimate < 0.07
    assert curve.enough(1e-9) is None
    assert curve.enough(curve.at(14 * 240).estimate - curve.at(7 * 240).estimate) is None, "7 times as many is too far"


def test_short_and_flat_streams_are_refused():
    assert "too few" in str(fit(*stream(59, -1.0, SLOPE)))
    assert "does not grow" in str(fit(*stream(400, 0.0, 0.0)))
    assert "too few" in str(fit(np.zeros(100), np.zeros(100)))


@pytest.mark.parametrize(("height", "is_refused"), [(0.03, False), (0.035, True)])
def test_a_stream_that_leaves_its_line_too_far_is_refused(height: float, is_refused: bool):
    """Every other eighth lies higher; the mean squared errors are 5.2 and 6.7 standard errors."""
    accepted, visited = stream(240, -1.0, SLOPE)
    waves = np.where(np.arange(240) // 30 % 2, height, -height)
    assert isinstance(fit(accepted + waves * visited, visited), str) == is_refused


def test_neighbours_summed_give_the_same_curve():
    accepted, visited = stream(400, -1.0, SLOPE)
    alone = fit(accepted, visited)
    summed = fit(*(values.reshape(-1, 10).sum(axis=1) for values in (accepted, visited)), requests_of_row=10)
    assert isinstance(alone, Curve)
    assert isinstance(summed, Curve)
    assert summed.at(2000).estimate == pytest.approx(alone.at(2000).estimate, abs=0.01)


def test_recorded_streams_end_where_their_first_fifth_says():
    data = [ROOT / "paper_figures/laptop/data", ROOT / "paper_figures/smollm2/data"]
    found, drafts = forecasts.table(data), forecasts.distilled(data)
    assert (ROOT / "docs/forecast_validation.md").read_text() == forecasts.as_markdown(found, drafts)
    assert len(drafts) >= 20
    assert (drafts["forecast"] - drafts["measured"]).abs().mean() <= 0.03
    assert ((drafts["low"] <= drafts["measured"]) & (drafts["measured"] <= drafts["high"])).mean() >= 0.90
    found = found[~found["table"].str.contains("stream_length")]
    given = found[found["refused"] == ""]
    assert len(given) >= 12
    assert (given["forecast"] - given["measured"]).abs().mean() <= 0.03
    inside = (given["low"] <= given["measured"]) & (given["measured"] <= given["high"])
    assert 0.90 <= inside.mean() <= 1


def test_a_stream_expects_the_slope_of_other_datasets(monkeypatch: pytest.MonkeyPatch):
    own = [
        forecasts.Stream("t", str(slope), name, 1, accepted, visited)
        for name, slope in (("a", 0.2), ("a", 0.2), ("b", 0.6))
        for accepted, visited in [stream(1000, -1.0, slope)]
    ]
    monkeypatch.setattr(forecasts, "streams", lambda _: own)
    expected = []
    monkeypatch.setattr(forecasts, "fit", lambda *a, **k: expected.append(k.get("slope")) or fit(*a, **k))
    forecasts.table([Path()])
    assert expected[:3] == [None] * 3, "whole streams, which expect nothing"
    assert expected[3:] == [pytest.approx(0.6, abs=0.1)] * 2 + [pytest.approx(0.2, abs=0.1)]
