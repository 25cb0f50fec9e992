"""The simulator against closed forms, and against times that others measured on real servers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from benchmarks import load_validate as validate
from benchmarks import profiles as derived
from draftlab.core.theory import expected_block_length
from draftlab.errors import UserError
from draftlab.serving import load, profiles, simulate, sweep, traces
from draftlab.serving.acceptance import alphas_of_blocks, from_alpha, from_histograms
from draftlab.serving.profiles import Attention, Costs, Profile
from draftlab.serving.traces import Arrivals


def machine(**changes: object) -> Profile:
    """A step takes 10 ms whatever it reads."""
    facts = {"name": "m", "hardware": "h", "model": "x", "engine": "e", "source": "made", "licence": "none"}
    return Profile.model_validate(
        {**facts, "target": {"tokens": {1: 10.0}}, "kv_tokens": 100_000, "max_tokens": 4096, **changes}
    )


def together(requests: int, prompt: int, output: int) -> Arrivals:
    return Arrivals(np.zeros(requests), np.full(requests, prompt), np.full(requests, output), {})


def serve(arrivals: Arrivals, profile: Profile, k: int = 0, alpha: float = 0.0, seed: int = 0) -> simulate.Served:
    drafts = from_alpha(alpha) if k else None
    return simulate.serve(arrivals, profile, k, drafts, np.random.default_rng(seed))


@pytest.mark.parametrize("load_", [0.3, 0.7])
def test_one_at_a_time_waits_as_an_m_d_1_queue(load_: float) -> None:
    """Every request waits what its predecessor leaves; the mean wait is ``rho D / (2 (1 - rho))`` (Pollaczek and Khinchine) with D = 10 ms."""
    arrivals = traces.poisson(traces.constant(1, 1), 60_000, load_ / 0.01, np.random.default_rng(3))
    waits = [0.0]
    for gap in np.diff(arrivals.seconds).tolist():
        waits.append(max(0.0, waits[-1] + 0.01 - gap))
    assert_allclose(np.mean(waits), load_ * 0.01 / (2 * (1 - load_)), rtol=0.05)
    first = Arrivals(arrivals.seconds[:4000], arrivals.prompt[:4000], arrivals.output[:4000], {})
    assert_allclose(serve(first, machine(max_sequences=1)).to_first - 0.01, waits[:4000], rtol=0, atol=1e-9)


def test_a_batch_without_events_takes_its_steps() -> None:
    served = serve(together(8, 100, 51), machine())
    assert_allclose(served.per_token, 0.01)
    assert_allclose(served.to_first, 0.01)
    assert (served.steps, served.batch) == (51, 8)


def test_a_long_prompt_is_read_in_chunks() -> None:
    """Three steps of 10 ms; its tokens make half a hundred million pairs, however it is cut."""
    costs = {"tokens": {1: 10.0}, "decode": {"per_pair": 1e-6}}
    assert_allclose(serve(together(1, 10_000, 1), machine(target=costs)).to_first, 0.03 + 0.05)
    both = serve(together(1, 10_000, 1), machine(target=costs, draft=costs), k=2)
    assert_allclose(both.to_first, 2 * (0.03 + 0.05), err_msg="a draft as expensive as the target")


def test_steps_cost_what_lies_before_them() -> None:
    """One request, k ms per token before it: step i reads prompt + i tokens, the last token never."""
    profile = machine(target={"tokens": {1: 1.0}, "decode": {"per_cached": 0.5}})
    served = serve(together(1, 10, 5), profile)
    assert_allclose(served.last - served.first, sum(1 + 0.5 * (10 + i) for i in range(4)) / 1e3)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_blocks_have_the_expected_length(alpha: float) -> None:
    served = serve(together(1, 10, 20_001), machine(), k=3, alpha=alpha)
    assert_allclose(0.01 / served.per_token[0], expected_block_length(alpha, 3), rtol=0.02)


def test_a_parallel_draft_takes_one_step_for_each_block() -> None:
    """It reads the block that the target reads, and a mask for each token after the first: with 0.1 ms a token, 4 x (5 + 3) tokens."""
    costs = Costs(tokens={1: 1.0, 1001: 101.0})
    profile = machine(draft=costs, parallel=True)
    served = serve(together(4, 10, 41), profile, k=4, alpha=1.0)
    assert_allclose(served.per_token, (0.010 + 0.001 + 31 * 0.0001) / 5)
    assert_allclose(profile.block_ms(4, 0, 4), 10 + 1 + 31 * 0.1)
    assert_allclose(machine(draft=costs).block_ms(4, 0, 4), 10 + (1 + 19 * 0.1) + 3 * (1 + 3 * 0.1))
    waits = {"tokens": {1: 1.0}, "decode": {"per_cached": 0.5}}
    slowed = serve(together(1, 10, 5), machine(draft=waits, parallel=True), k=2, alpha=0.0)
    assert_allclose(slowed.last - slowed.first, sum(10 + 1 + 0.5 * (10 + i) for i in range(4)) / 1e3)


def test_the_draft_takes_one_step_for_each_token() -> None:
    profile = machine(draft=Costs(tokens={1: 1.0}), per_block=3.0)
    served = serve(together(4, 10, 41), profile, k=4, alpha=1.0)
    assert_allclose(served.per_token, (0.010 + 4 * 0.001 + 0.003) / 5)
    assert_allclose(served.to_first, 0.010 + 0.001, err_msg="both models read the prompts, which are no block")
    plain = serve(together(4, 10, 41), profile)
    assert_allclose([*plain.per_token, *plain.to_first], 0.010, err_msg="without drafts no draft reads or steps")


def test_a_step_that_drafts_nothing_reads_one_token() -> None:
    """Of four steps three verify four drafted tokens: 30 ms and 5 ms for the logits; one takes 10 ms and 1 ms."""
    profile = machine(target={"tokens": {1: 10.0, 5: 30.0}, "rows": {1: 1.0, 5: 5.0}})
    served = simulate.serve(together(1, 1, 11), profile, 4, from_alpha(0.0), np.random.default_rng(0), 0.75)
    assert_allclose(served.per_token, (0.75 * 35 + 0.25 * 11) / 1e3)


@pytest.mark.parametrize(("k", "cache"), [(0, 2000), (3, 2000), (3, 400)])
def test_steps_computed_together_are_the_steps_one_by_one(k: int, cache: int, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = machine(
        target={"tokens": {1: 5.0, 100: 9.0}, "decode": {"per_cached": 0.001}},
        draft={"tokens": {1: 0.5}, "decode": {"per_cached": 0.0005}},
        kv_tokens=cache,
    )
    arrivals = traces.poisson(traces.constant(40, 60), 200, 8.0, np.random.default_rng(1), burst=4)
    fast = serve(arrivals, profile, k, alpha=1.0)
    monkeypatch.setattr(simulate, "MOST_AT_ONCE", 1)
    slow = serve(arrivals, profile, k, alpha=1.0)
    assert fast.preempted == slow.preempted
    assert (slow.preempted > 0) == (cache == 400)
    assert_allclose(fast.first, slow.first)
    assert_allclose(fast.last, slow.last)


def test_a_full_cache_preempts_the_youngest_and_loses_no_token() -> None:
    served = serve(together(20, 64, 200), machine(kv_tokens=1024))
    assert served.preempted > 0
    assert served.last[0] == served.last.min()
    assert np.isfinite(served.last).all()


def test_nobody_joins_in_a_step_that_preempts() -> None:
    """The second request leaves in step 18, the last one of the first. It reads its 31 tokens in steps 19 and 20, and writes two more."""
    served = serve(together(2, 16, 18), machine(kv_tokens=64, max_tokens=16))
    assert (served.preempted, served.steps) == (1, 22)


def test_a_request_larger_than_the_cache_is_left_out() -> None:
    arrivals = Arrivals(np.zeros(2), np.array([10, 5000]), np.array([2, 2]), {})
    served = serve(arrivals, machine(kv_tokens=1024))
    assert len(served.last) == 1


def test_a_request_as_large_as_the_cache_drafts_without_being_read_again() -> None:
    """150 tokens read and 10 written fill the cache; drafted tokens beyond the last one need no room."""
    served = serve(together(1, 150, 10), machine(kv_tokens=160), k=4)
    assert (served.steps, served.preempted) == (10, 0)
    assert simulate.fits_cache(together(1, 150, 11), machine(kv_tokens=160)).tolist() == [False]
    assert_allclose(served.whole, 0.1)


def test_a_request_keeps_its_own_class() -> None:
    """Five tokens after the first: one step where all drafts are accepted, five where none is."""
    arrivals = Arrivals(np.zeros(2), np.full(2, 9), np.full(2, 6), {}, classes=np.array([1, 0]))
    served = simulate.serve(arrivals, machine(), 4, from_alpha([0.0, 1.0]), np.random.default_rng(0))
    assert_allclose(served.last - served.first, [0.01, 0.05])
    drawn = traces.poisson(arrivals.take(np.array([1])), 3, 1.0, np.random.default_rng(0))
    assert drawn.at_rate(2.0).classes is not None
    assert list(drawn.at_rate(2.0).classes) == [0, 0, 0]


def test_the_same_seed_gives_the_same_times() -> None:
    arrivals = traces.poisson(traces.constant(30, 40), 50, 5.0, np.random.default_rng(1))
    one, two, other = (serve(arrivals, machine(), 4, 0.5, seed) for seed in (0, 0, 1))
    assert (one.last == two.last).all()
    assert (one.last != other.last).any()


def test_histograms_keep_their_shape_and_go_on_beyond_it() -> None:
    found = from_histograms([[50, 25, 25]])
    assert_allclose(found.survival[0, :4], [0.5, 0.25, 0.125, 0.0625])
    assert_allclose(found.length(2), 1.75)
    draws = found.draw(np.zeros(40_000, int), 2, np.random.default_rng(0))
    assert_allclose(np.bincount(draws) / 40_000, [0.5, 0.25, 0.25], atol=0.01)


@pytest.mark.parametrize("counts", [[], [1], [0, 0], [1, -1], [1, float("nan")]])
def test_a_histogram_that_cannot_be_is_refused(counts: list[float]) -> None:
    with pytest.raises(UserError, match="histogram"):
        from_histograms([counts])


def test_a_request_that_accepts_less_takes_more_steps() -> None:
    acceptance = from_histograms([[100, 0, 0, 0, 0], [0, 0, 0, 0, 20]])
    # Two requests of 100 tokens each: 100 steps and 20.
    assert acceptance.length(4) == pytest.approx(200 / 120)
    assert acceptance.marginals(4) == pytest.approx([20 / 120] * 4)
    assert 1 + acceptance.marginals(3).sum() == pytest.approx(acceptance.length(3))
    assert from_alpha(0.5).marginals(2) == pytest.approx([0.5, 0.25])


def test_requests_drawn_from_classes_take_as_many_tokens_per_step_as_measured() -> None:
    """One class wrote 2500 tokens in 500 steps, the other 100 in 100; lengths of requests do not depend on the class."""
    acceptance = from_histograms([[0, 0, 0, 0, 500], [100, 0, 0, 0, 0]])
    rng = np.random.default_rng(0)
    classes = acceptance.classes(2600, rng)
    assert_allclose(np.bincount(classes), [2500, 100])
    assert 0 < classes[:1300].sum() < 100, "in random order"
    arrivals = Arrivals(np.arange(2600.0) * 1e3, np.ones(2600, int), rng.choice([51, 251], 2600), {})
    served = simulate.serve(arrivals, machine(), 4, acceptance, rng)
    steps = (served.last - served.first).sum() / 0.01
    assert (served.output - 1).sum() / steps == pytest.approx(2600 / 600, rel=0.02)
    assert acceptance.length(4) == pytest.approx(2600 / 600)
    assert len(acceptance.classes(0, rng)) == 0


def test_the_best_lengths_are_those_of_a_server_that_is_full() -> None:
    mixed, many = from_histograms([[100, 0, 0, 0, 0], [0, 0, 0, 0, 20]]), together(400, 8, 200)
    profile = machine(max_sequences=8)
    plain, drafted = (
        simulate.serve(many, profile, k, mixed if k else None, np.random.default_rng(0)).seconds for k in (0, 4)
    )
    rows = sweep.best_lengths(profile, mixed, [4])
    full = rows[(rows["context"] == 128) & (rows["batch"] == 8)]
    assert plain / drafted == pytest.approx(float(full["speedup"].iloc[0]), rel=0.05)


def test_more_tokens_never_cost_less() -> None:
    costs = Costs(tokens={1: 10, 2: 10.2, 4: 10.3, 9: 11, 16: 12.05, 36: 11.9})
    assert costs.step(2048, 0, 1, 0) == pytest.approx(11.9)


def test_the_alpha_of_an_answer_follows_from_its_blocks_of_which_the_last_may_be_cut() -> None:
    """By hand: two tokens take 2 - alpha blocks; with one drafted token, three take 1 + (1 - alpha) (2 - alpha) + alpha."""
    blocks, tokens = np.array([1.7, 2.25, 3.0, 1.0]), np.array([2, 3, 3, 1])
    assert_allclose(alphas_of_blocks(blocks, tokens, 1), [0.3, 0.5, 0.0, 0.0], atol=1e-12)
    rng, left, taken = np.random.default_rng(0), np.full(20_000, 9), 0
    while len(left):
        taken += len(left)
        left = left - 1 - from_alpha(0.8).draw(np.zeros(len(left), dtype=int), 4, rng)
        left = left[left > 0]
    assert_allclose(alphas_of_blocks(np.array([taken / 20_000]), np.array([9]), 4), 0.8, atol=0.005)


def test_the_speedup_without_a_queue_is_the_papers_formula() -> None:
    """A lone request: ``E[block] / (k c + 1 + p)`` with c = 0.1, and p = 0.2 around the models in a block."""
    profile = machine(draft=Costs(tokens={1: 1.0}), per_block=2.0)
    lengths = sweep.best_lengths(profile, from_alpha(0.8), [4])
    assert_allclose(lengths["speedup"].iloc[0], expected_block_length(0.8, 4) / 1.6)


def test_the_best_length_falls_where_reading_more_costs_more() -> None:
    profile = machine(target={"tokens": {1: 10.0, 64: 10.0, 4096: 500.0}}, draft={"tokens": {1: 0.5}})
    found = sweep.best_lengths(profile, from_alpha(0.7))
    assert (found["batch"] * found["context"]).max() == 65_536, "the cache holds 100,000 tokens"
    lengths = found.groupby("batch")["best_draft_len"].max()
    assert max(lengths.index) == 256, "of so many sequences"
    assert lengths[1] > lengths[32] > 0
    assert lengths[256] == 0


def test_a_block_must_fit_a_step() -> None:
    """A server that reads four tokens at once verifies at most three drafted ones, and serves at most four requests."""
    small = machine(max_tokens=4)
    assert serve(together(3, 5, 9), small, k=3, alpha=1.0).steps > 0
    assert serve(together(3, 1, 9), machine(max_tokens=6), k=3, alpha=1.0).batch == 1, "two blocks do not fit"
    with pytest.raises(UserError, match="4 drafted tokens does not fit a step of 4"):
        serve(together(3, 5, 9), small, k=4, alpha=1.0)
    lengths = sweep.best_lengths(small, from_alpha(0.7)).groupby("batch")["best_draft_len"].max()
    assert lengths.to_dict() == {1: 3, 2: 1, 4: 0}, "each request reads one token more than it drafts"
    assert sweep.best_lengths(small, from_alpha(0.0))["best_draft_len"].max() == 0, "of equals, the shortest"


def test_rates_of_a_slow_machine_are_above_0() -> None:
    slow = machine(target={"tokens": {1: 1e5}})
    rates = load.rates_for(sweep.capacity(together(2, 5, 100), slow))
    assert_allclose(rates, np.array([0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1]) * 2 / 1e4, rtol=5e-3)


def test_a_sweep_finds_where_drafts_stop_to_pay() -> None:
    profile = machine(target={"tokens": {1: 10.0, 8: 10.0, 4096: 4000.0}}, draft={"tokens": {1: 1.0}}, max_sequences=64)
    arrivals = traces.poisson(traces.constant(8, 30), 60, 1.0, np.random.default_rng(0))
    table = sweep.sweep(arrivals, [0.1, 40.0], profile, from_alpha(0.6), sweep.Goal(), draft_lens=[3])
    drafted = table[table["draft_len"] == 3].set_index("rate")
    assert drafted.loc[0.1, "speedup"] > 1 > drafted.loc[40.0, "speedup"]
    crossing = sweep.crossing(table, 3)
    assert crossing is not None
    assert 0.1 < crossing < 40
    assert sweep.crossing(table, 0) is None
    assert sweep.crossing(table[table["rate"] == 40], 3) == 0


def test_a_request_is_served_well_if_it_begins_and_goes_on_in_time() -> None:
    """Four requests in 5 s: well served, late to begin, slow to go on, and of one token, which has no pace."""
    first, last = np.array([0.5, 3.5, 1.0, 1.0]), np.array([1.0, 3.75, 5.0, 1.0])
    served = simulate.Served(np.full(4, 9.0), 9 + first, 9 + last, np.array([5, 3, 4, 1]), 9, 2, 1.5, np.zeros(4, int))
    found = sweep.measures(served, sweep.Goal(first=1.0, per_token=0.125))
    assert found["goodput"] == 2 / 5
    assert found["tokens_per_second"] == 13 / 5
    assert found["to_first_mean"] == 6 / 4
    assert found["per_token_mean"] == pytest.approx((0.125 + 0.125 + 4 / 3) / 3)
    assert found["whole_p50"] == pytest.approx((1.0 + 3.75) / 2)


def served_in(whole: np.ndarray, classes: np.ndarray | None = None) -> simulate.Served:
    """Requests that take ``whole`` seconds each."""
    count = len(whole)
    own = np.zeros(count, int) if classes is None else classes
    return simulate.Served(np.zeros(count), whole, whole, np.full(count, 9), 9, 0, 1.0, own)


def test_neighbours_in_a_queue_are_drawn_together() -> None:
    """Hundreds of requests in a row are as slow as one another: one by one, they would look like as many chances."""
    rng = np.random.default_rng(0)
    each = rng.uniform(0.5, 1.5, 20)
    plain = served_in(np.full(2000, 2.0))
    together = sweep.speedup(plain, served_in(np.repeat(each, 100)))
    apart = sweep.speedup(plain, served_in(rng.permutation(np.repeat(each, 100))))
    assert together.estimate == pytest.approx(apart.estimate)
    widths = [found.high - found.low for found in (together, apart)]
    assert widths[0] > 5 * widths[1] > 0


def test_few_recorded_requests_widen_the_interval_however_many_are_simulated() -> None:
    """Ten records, half of them of slow requests, are drawn two hundred times each."""
    own = np.tile(np.arange(10), 200)
    found = sweep.speedup(served_in(np.full(2000, 2.0)), served_in(np.where(own < 5, 0.5, 1.5), own))
    once = sweep.speedup(served_in(np.full(10, 2.0)), served_in(np.where(np.arange(10) < 5, 0.5, 1.5)))
    assert found.estimate == once.estimate == 2.0
    assert found.high - found.low == pytest.approx(once.high - once.low, rel=0.05)
    assert sweep.speedup(served_in(np.ones(1)), served_in(np.ones(1))).estimate == 1


@pytest.mark.parametrize(
    ("gains", "rate"),
    [
        ([1.3, 0.9], 1.75),
        ([1.2, 0.8, 1.1, 0.9], 3.5),
        ([1.2, 0.8, 1.1], None),
        ([0.8, 1.1, 0.9, 0.8], 2.5),
        ([0.9, 0.8], 0.0),
    ],
)
def test_a_length_stops_paying_off_at_the_last_crossing(gains: list[float], rate: float | None) -> None:
    table = pd.DataFrame({"draft_len": 4, "rate": range(1, len(gains) + 1), "speedup": gains})
    assert sweep.crossing(table, 4) == (None if rate is None else pytest.approx(rate))


def test_times_of_many_tokens_are_used() -> None:
    costs = Costs(tokens={1: 10.0, 16_384: 20.0, 32_768: 100.0})
    assert [costs.step(n, 0, 1, 0) for n in (16_384, 24_576, 32_768)] == pytest.approx([20, 60, 100])


def test_beyond_the_known_numbers_of_tokens_the_slope_is_that_of_the_second_half() -> None:
    costs = Costs(tokens={1: 1.0, 64: 10.0, 127: 11.5, 128: 12.0})
    assert costs.step(256, 0, 1, 0) == pytest.approx(12 + 128 * (12 - 10) / 64)
    assert Costs(tokens={1: 1.0, 10: 10.0}).step(20, 0, 1, 0) == pytest.approx(20)


# --- real servers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "folder"),
    [("rtx4090-llama-3.1-8b", "RTX4090"), ("rtxpro6000x2-qwen3-32b", "RTXPRO6000_Qwen3-32B")],
)
def test_vllms_own_times_are_met(profile: str, folder: str, shared: Path) -> None:
    found = validate.queueing(profile, shared / "data/serving/llmservingsim" / folder / "requests.jsonl")
    errors = {row["quantity"]: row["error"] for row in found}
    assert abs(errors["mean time per token (s)"]) < 0.05
    assert abs(errors["mean time to first token (s)"]) < 0.10


def test_a_shipped_profile_is_what_its_source_gives(shared: Path, tmp_path: Path) -> None:
    cases = {"rtx4090-llama-3.1-8b": "llmservingsim/RTX4090", "h100-llama-2-7b": "vidur/h100_Llama-2-7b_mlp.csv"}
    for name, source in cases.items():
        profiles.save(derived.derive(name, shared / "data/serving" / source), tmp_path / "p.yaml")
        assert (tmp_path / "p.yaml").read_text() == (profiles.SHIPPED / f"{name}.yaml").read_text()


def test_attention_is_found_again_from_times_made_of_it(tmp_path: Path) -> None:
    """Two layers whose decoding attention takes 3 us + 2 us per sequence + 0.01 us per cached token."""
    grid = [(0, 0, n, kv, 3 + 2 * n + 0.01 * n * kv) for n in (1, 2, 4, 8) for kv in (16, 256, 4096)]
    grid += [(c, 0, n, 64, 5 + 0.5 * c + n) for c in (16, 64) for n in (1, 4)]
    lines = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *(",".join(map(str, row)) for row in grid)]
    (tmp_path / "attention.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "dense.csv").write_text("layer,tokens,time_us\nqkv,1,10\nqkv,2,12\nlayernorm,1,1\nlayernorm,2,1\n")
    (tmp_path / "per_sequence.csv").write_text("layer,sequences,time_us\nlm_head,1,7\nlm_head,2,8\n")
    found = derived.from_llmservingsim("p", tmp_path, derived.Machine("x", "h", "m", layers=2, kv_tokens=100)).target
    assert_allclose(
        [found.decode.fixed, found.decode.per_sequence, found.decode.per_cached], [6e-3, 4e-3, 2e-5], rtol=1e-6
    )
    assert_allclose(list(found.tokens.values()), [24e-3, 28e-3])  # two layers, each with two layernorms
    assert found.rows == {1: 7e-3, 2: 8e-3}


def test_attention_differs_where_prompts_are_read() -> None:
    costs = Costs(tokens={1: 1.0}, decode=Attention(fixed=1.0), mixed=Attention(fixed=3.0, per_token=0.5, per_mix=0.25))
    assert costs.step(2, 2, 2, 0.0) == 2.0
    assert costs.step(4, 1, 0, 0.0, chunk=4) == 6.0
    assert costs.step(6, 3, 2, 0.0, chunk=4) == 8.0
    assert costs.scaled(2).step(4, 1, 0, 0.0, chunk=4) == 12.0
