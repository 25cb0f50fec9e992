"""A profile of this machine: the fit on times that are known, and a small pair really measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from numpy.testing import assert_allclose
from pydantic import ValidationError

from draftlab.errors import UserError
from draftlab.latency import cost
from draftlab.latency.controlled import UNTIMED
from draftlab.latency.self_check import write_toy
from draftlab.models.gguf import export
from draftlab.serving import measure, profiles, sweep
from draftlab.serving.acceptance import from_alpha


def test_the_fit_finds_known_times_again() -> None:
    """``f(n) = 5 + n`` ms and 0.02 ms per cached token, with one wild time in each cell of five."""
    cells = [(batch * n, batch * context) for batch in (1, 4) for context in (64, 512) for n in (1, 2, 8)]
    rows = [(n, c, (5 + n + 0.02 * c) * (9 if i == 2 else 1)) for n, c in cells for i in range(5)]
    found = measure.fit(rows)
    assert_allclose(list(found.tokens.values()), [5 + n for n in found.tokens], rtol=1e-6)
    assert_allclose(found.decode.per_cached, 0.02, rtol=1e-6)


class Warming:
    """An engine with its own time: a call of n tokens takes 5 + n ms, and 9 ms more while it is one of the first two of its shape in a row."""

    def __init__(self) -> None:
        self.now, self.shape, self.calls = 0.0, (0, 0), 0

    def clock(self) -> Callable[[], float]:
        return lambda: self.now

    def fill(self, sequences: int, context: int) -> None:
        self.batch = sequences
        self._call(0)

    def probe(self, tokens: int) -> None:
        self._call(tokens)

    def _call(self, tokens: int) -> None:
        self.calls = self.calls + 1 if self.shape == (self.batch, tokens) else 1
        self.shape = (self.batch, tokens)
        self.now += 1e-3 * (5 + self.batch * tokens + 9 * (self.calls <= UNTIMED))


def test_a_step_is_timed_after_others_of_its_shape() -> None:
    """An engine changes its graph with the shape, but a server repeats a step."""
    (rows,) = measure._times([Warming()], 512, measure.ProfileSettings(Path("none"), blocks=2))  # type: ignore[list-item]
    steps = [(tokens, ms) for tokens, cached, ms in rows if cached]
    assert len(steps) == 2 * len(measure.BATCHES) * len(measure.CONTEXTS) * len(measure.TOKENS)
    assert_allclose([ms for _, ms in steps], [5 + tokens for tokens, _ in steps])


def test_a_pair_is_measured_and_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loops, steps = [], []
    around_calls, fit = cost.around_calls, measure.fit
    monkeypatch.setattr(cost, "around_calls", lambda *given: loops.append(around_calls(*given)) or loops[0])
    monkeypatch.setattr(measure, "fit", lambda times: steps.append(times) or fit(times))
    found = measure.measure(measure.ProfileSettings(Path("tinyllama-1.1b/8"), Path("llama-160m/8"), blocks=1))
    assert found.per_block == 1e3 * loops[0]["loop_seconds"]
    grid = {(batch * n, batch * context) for batch in (1, 4) for context in (64, 512) for n in (1, 2, 4, 8)}
    assert [{(tokens, cached) for tokens, cached, _ in times} for times in steps] == [{(256, 0), *grid}] * 2
    profiles.save(found, tmp_path / "here.yaml")
    again = profiles.load(tmp_path / "here.yaml")
    assert again.draft is not None
    assert 0 < again.per_block < again.target.tokens[256]
    assert again.draft.tokens[256] < again.target.tokens[256]
    assert set(sweep.best_lengths(again, from_alpha(0.9), [0, 2])["best_draft_len"]) <= {0, 2}


def test_a_gguf_file_is_measured_as_it_is(tmp_path: Path) -> None:
    folder, file = tmp_path / "toy", tmp_path / "toy.gguf"
    write_toy(folder, num_hidden_layers=1, hidden_size=64, vocab_size=96, max_position_embeddings=600)
    export(folder, file, "q4_0", vocabulary=False)
    found = measure.measure(measure.ProfileSettings(file, folder, blocks=1))
    assert found.engine.endswith("q4_0")
    with pytest.raises(UserError, match=r"toy\.gguf: the file holds q4_0 weights, not f16"):
        measure.measure(measure.ProfileSettings(file, weights="f16"))


def test_torch_measures_the_same_grid_on_the_weights_that_are_named(shared: Path, tmp_path: Path) -> None:
    folder = shared / "models/stories260K/hf"
    given = {"backend": "torch", "weights": "f32", "blocks": 1}
    found = measure.measure(measure.ProfileSettings(folder, folder, **given))  # type: ignore[arg-type]
    assert found.engine.startswith("torch ")
    assert found.engine.endswith("float32")
    assert found.hardware.endswith("1 thread")
    assert set(found.target.tokens) == {1, 2, 4, 8, 16, 32, 256}
    assert min(found.target.tokens.values()) > 0
    with pytest.raises(UserError, match="torch has no q8_0 weights"):
        measure.measure(measure.ProfileSettings(folder, backend="torch", weights="q8_0"))
    with pytest.raises(ValidationError, match="device is for backend torch"):
        measure.measure(measure.ProfileSettings(folder, device="cuda"))


@pytest.mark.parametrize("given", [{"blocks": 0}, {"kv_tokens": 0}, {"max_sequences": 0}, {"seed": -1}])
def test_what_cannot_be_measured_or_written_is_refused_at_once(given: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"--blocks is|give at least 1 token"):
        measure.measure(measure.ProfileSettings(Path("no-such-model"), **given))


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_file_that_is_not_there_or_not_for_this_engine_is_named(role: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    for file, backend, says in (
        ("none.gguf", "llama_cpp", r"none\.gguf: no such file \(check the path"),
        ("m.gguf", "torch", r"m\.gguf: a file, but torch takes model folders only \(leave out --backend.*gguf import"),
    ):
        given = {"target": Path("llama-160m/8"), "backend": backend} | {role: tmp_path / file}
        with pytest.raises(UserError, match=says):
            measure.measure(measure.ProfileSettings(**given))  # type: ignore[arg-type]


def test_the_verb_says_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = profiles.load("rtx4090-llama-3.1-8b")
    monkeypatch.setattr(measure, "measure", lambda _: shipped)
    measure.profile(measure.ProfileSettings(Path("T")), out=tmp_path / "here.yaml")
    said = capsys.readouterr().out
    assert said == f"{tmp_path / 'here.yaml'}: {measure.summary(shipped)}\n"
    assert "draft step" not in said
    pair = shipped.model_copy(update={"draft": shipped.target.scaled(0.25)})
    assert measure.summary(pair) == measure.summary(shipped) + "; a draft step takes 0.250 of it"
