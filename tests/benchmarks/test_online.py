"""The benchmark of online distillation: the contenders serve and learn alike, refusals."""

from __future__ import annotations

import pytest

from benchmarks.online import OnlineBench, bench, table
from draftlab.errors import UserError
from tests.pair import ROOM


def test_contenders_serve_and_learn_alike(results):
    settings = OnlineBench(requests=24, learning_rate=1e-2, draft_len=3, max_new_tokens=ROOM, repeats=2)
    frame = bench(results, "toy", settings=settings)
    rows = frame.set_index("contender")
    assert list(rows.index) == ["repository", "live", "replay"]
    assert rows.loc["live", "alpha_accepted"] == rows.loc["replay", "alpha_accepted"] > 0
    assert rows.loc["repository", "alpha_accepted"] == pytest.approx(rows.loc["replay", "alpha_accepted"], abs=0.05)
    assert rows.loc["repository", "speedup"] == pytest.approx(1)
    assert rows.loc["replay", "speedup"] > 1  # its interval waits for more turns than a test has
    assert len(table(frame).splitlines()) == 4


def test_bad_input_is_refused(results):
    with pytest.raises(UserError, match="update_interval is 80"):
        bench(results, "toy", settings=OnlineBench(update_interval=80))
