"""Traces, profiles and records as users have them, broken ones too; the verbs that read them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose

from draftlab.data import check, formats
from draftlab.errors import UserError
from draftlab.serving import emit, load, profiles, sweep, traces

TRACES = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.18059,396,109\n",
    "azure_2024.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,374,44\n2024-05-10 00:00:00.509930+00:00,396,109\n",
    "burst_1.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,m,374,44,418,c\n5.5,m,396,109,505,c\n",
    "burst_3.csv": "Timestamp(s),Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,1,9,m,374,44,418,c\n5.5,2,9,m,396,109,505,c\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 374, "output_length": 44, "hash_ids": [0]}\n'
    '{"timestamp": 500, "input_length": 396, "output_length": 109, "hash_ids": [0]}\n',
    "qwen.jsonl": '{"chat_id": 1, "timestamp": 0.0, "input_length": 374, "output_length": 44}\n'
    '{"chat_id": 2, "timestamp": 0.5, "input_length": 396, "output_length": 109}\n',
    "sim.jsonl": '{"input_toks": 374, "output_toks": 44, "arrival_time_ns": 0}\n'
    '{"input_toks": 396, "output_toks": 109, "arrival_time_ns": 500000000}\n',
    "openai.jsonl": '{"timestamp": "2026-11-16T18:15:46Z", "request": {}, "response": {"usage": {"prompt_tokens": 374, "completion_tokens": 44}}}\n'
    '{"timestamp": "2026-11-16T20:15:46.5+02:00", "usage": {"prompt_tokens": 396, "completion_tokens": 109}}\n',
    "litellm.jsonl": '{"startTime": 100.0, "prompt_tokens": 374, "completion_tokens": 44}\n'
    '{"startTime": 100.5, "prompt_tokens": 396, "completion_tokens": 109}\n',
}


@pytest.mark.parametrize("name", TRACES)
def test_each_format_is_read_by_its_names(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(TRACES[name])
    found = traces.read_trace(tmp_path / name)
    assert_allclose(found.seconds, [0, 0.5], atol=1e-6)
    assert_allclose(found.rate, 2.0, rtol=1e-5)
    assert found.prompt.tolist() == [374, 396]
    assert found.output.tolist() == [44, 109]


def test_real_traces_are_read_whole(shared: Path) -> None:
    folder = shared / "data/serving"
    sizes = {"azure/AzureLLMInferenceTrace_conv_head1000.csv": 1000, "mooncake/conversation_trace_head500.jsonl": 500,
             "vidur/splitwise_conv_head500.csv": 500, "llmservingsim/RTX4090/requests.jsonl": 300}  # fmt: skip
    for name, rows in sizes.items():
        assert len(traces.read_trace(folder / name).seconds) == rows


def test_what_cannot_be_read_is_left_out_and_counted(tmp_path: Path) -> None:
    rows = ["{", '{"timestamp": 0, "input_length": 5, "output_length": 5}', '{"timestamp": "x", "input_length": 5, "output_length": 5}',
            '{"timestamp": NaN, "input_length": 5, "output_length": 5}', '{"timestamp": 0, "input_length": 1e30, "output_length": 5}',
            '{"timestamp": 9, "input_length": 5, "output_length": 0}']  # fmt: skip
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    found = traces.read_trace(tmp_path / "t.jsonl.gz")
    assert len(found.seconds) == 1
    assert found.left_out == {"broken line": 1, "no time, or no numbers of tokens": 3, "no tokens read or written": 1}


@pytest.mark.parametrize("failed", [{}, {"response": None}, {"response": {"usage": None}}, {"usage": None}])
def test_a_log_may_begin_with_a_request_that_failed(failed: dict[str, object], tmp_path: Path) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 7}
    rows = [{"timestamp": 0, **failed}, *({"timestamp": at, "response": {"usage": usage}} for at in (1, 2))]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = traces.read_trace(tmp_path / "t.jsonl")
    assert found.seconds.tolist() == [0, 1]
    assert found.left_out == {"no time, or no numbers of tokens": 1}


def test_a_null_outside_hides_nothing_inside(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 7}
    for empty in ({"usage": None}, {"prompt_tokens": None, "completion_tokens": None}):
        (tmp_path / "t.jsonl").write_text(json.dumps({"timestamp": 0, **empty, "response": {"usage": usage}}))
        assert traces.read_trace(tmp_path / "t.jsonl").output.tolist() == [7]


@pytest.mark.parametrize("name", ["T.CSV", "T.Csv.GZ"])
def test_a_table_is_known_by_a_suffix_in_capitals_too(name: str, tmp_path: Path) -> None:
    text = TRACES["azure.csv"].encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("GZ") else text)
    assert traces.read_trace(tmp_path / name).output.tolist() == [44, 109]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no usable request: it is empty"),
        ('{"a": 1}\n', "t.jsonl:1: no known columns"),
        ('cut off"}\n\n{"a": 1}\n', "t.jsonl:3: no known columns"),
        ('{"timestamp": 5, "input_length": 5, "output_length": 5}\n{"timestamp": 4, "input_length": 5, "output_length": 5}\n',
         "t.jsonl:2: comes 0.001 s before the request above it"),
        ('{"timestamp": 1700000000000, "prompt_tokens": 5, "completion_tokens": 5}\n',
         r"t.jsonl:1: a time of 1.7e\+12 s since 1970 is after the year 9999 .give timestamp in seconds"),
        ('{"timestamp": 1700000000000000, "input_length": 5, "output_length": 5}\n', "give timestamp in milliseconds"),
    ],
)  # fmt: skip
def test_a_trace_that_cannot_be_used_says_why(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(UserError, match=says):
        traces.read_trace(tmp_path / "t.jsonl")


@pytest.mark.parametrize("columns", traces.FORMATS.values())
def test_a_trace_in_place_of_prompts_says_what_it_is_for(columns: traces.Columns, tmp_path: Path) -> None:
    row = {columns.arrived: 0, columns.prompt: 5, columns.output: 7}
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
    assert [*check.check(tmp_path / "t.jsonl").rejected] == [formats.NO_TEXTS]
    (tmp_path / "t.csv").write_text(f"{','.join(row)}\n0,5,7\n")
    with pytest.raises(UserError, match=formats.NO_TEXTS):
        check.check(tmp_path / "t.csv")


def test_times_since_1970_are_read_in_the_unit_of_their_format(tmp_path: Path) -> None:
    for line in (
        '{"timestamp": 1700000000000, "input_length": 5, "output_length": 5}',
        '{"arrival_time_ns": 1700000000000000000, "input_toks": 5, "output_toks": 5}',
        '{"timestamp": "9999-12-31T23:59:59Z", "prompt_tokens": 5, "completion_tokens": 5}',
    ):
        (tmp_path / "t.jsonl").write_text(line)
        assert traces.read_trace(tmp_path / "t.jsonl").seconds.tolist() == [0]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrived_at,num_prefill_tokens,num_prefill_tokens,num_decode_tokens\n0,5,500,7\n")
    with pytest.raises(UserError, match=r"t\.csv:1: two columns are called 'num_prefill_tokens'"):
        traces.read_trace(tmp_path / "t.csv")


def test_a_line_too_long_is_a_broken_one_at_bounded_memory(tmp_path: Path) -> None:
    """200 MB in 0.2 MB of gzip."""
    import tracemalloc

    row = b'{"timestamp": 0, "input_length": 5, "output_length": 5}\n'
    huge = gzip.compress(b"x" * (100 << 20), 1)  # a file may be several that were compressed one by one
    files = {
        "t.jsonl.gz": (row, b"\n" + row),
        "t.csv.gz": (b"arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n", b",1,1\n1,5,5\n"),
    }
    for name, (head, tail) in files.items():
        (tmp_path / name).write_bytes(gzip.compress(head) + 2 * huge + gzip.compress(tail))
        tracemalloc.start()
        found = traces.read_trace(tmp_path / name)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(found.seconds) == 2
        assert found.left_out == {"broken line": 1}
        assert peak < 100 << 20


def test_damaged_gzip_and_times_that_are_all_the_same_are_refused(tmp_path: Path) -> None:
    damaged = bytearray(gzip.compress(b"x" * 5000))
    damaged[20] ^= 0xFF
    (tmp_path / "t.csv.gz").write_bytes(damaged)
    with pytest.raises(UserError, match="broken: "):
        traces.read_trace(tmp_path / "t.csv.gz")
    with pytest.raises(UserError, match="all requests come at once"):
        traces.constant(8, 8).take(np.zeros(2, int)).at_rate(1.0)


def test_a_long_trace_takes_24_bytes_a_request(tmp_path: Path) -> None:
    import tracemalloc

    row = '{"timestamp": 0, "input_length": 5, "output_length": 5}\n'
    (tmp_path / "t.jsonl").write_text(row * 50_000)
    tracemalloc.start()
    traces.read_trace(tmp_path / "t.jsonl")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000 * 24 * 2 + 500_000


@pytest.mark.parametrize("burst", [0.0, 1e-310, float("inf"), float("nan")])
def test_a_burst_from_which_no_time_follows_is_refused(burst: float) -> None:
    with pytest.raises(UserError, match="a burst of"):
        traces.poisson(traces.constant(8, 8), 5, 1.0, np.random.default_rng(0), burst)


def test_bursts_keep_the_rate_and_raise_the_spread() -> None:
    rng = np.random.default_rng(0)
    for burst in (1.0, 9.0):
        gaps = np.diff(traces.poisson(traces.constant(1, 1), 50_000, 4.0, rng, burst).seconds)
        assert_allclose(gaps.mean(), 0.25, rtol=0.05)
        assert_allclose(gaps.var() / gaps.mean() ** 2, burst, rtol=0.1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("1: 15.2226", "1: .nan"), r"p.yaml:\d+: target.tokens.1: Input should be a finite number"),
        (("1: 15.2226", "1: -3"), "greater than or equal to 0"),
        (("target:\n", "target: {tokens: {1: 0.0, 8: 1.0}}\ndraft:\n"), r"p.yaml:\d+: target: .*takes no time"),
        (("1: 15.2226", "1000000000: 15.2226"), "target.tokens: .*from 1 to 1048576"),
        (("kv_tokens: 41408", "kv_tokens: 0"), r"p.yaml:\d+: kv_tokens"),
        (("licence: MIT\n", ""), "licence is missing"),
        (("name:", "nome:"), r"p.yaml:1: unknown key 'nome' .*allowed: .*name"),
    ],
)
def test_a_wrong_profile_names_its_line(change: tuple[str, str], says: str, tmp_path: Path) -> None:
    text = (profiles.SHIPPED / "rtx4090-llama-3.1-8b.yaml").read_text()
    assert change[0] in text
    (tmp_path / "p.yaml").write_text(text.replace(*change, 1))
    with pytest.raises(UserError, match=says):
        profiles.load(tmp_path / "p.yaml")


def test_every_shipped_profile_names_source_commit_and_licence() -> None:
    assert len(profiles.shipped()) >= 6
    for name in profiles.shipped():
        found = profiles.load(name)
        assert found.name == name
        assert found.source
        assert len(found.commit) == 40
        assert found.licence == "MIT"


def settings(**changes: object) -> load.LoadSettings:
    return load.LoadSettings(**{"profile": "h100-llama-2-7b", "requests": 30, "alpha": 0.7, "draft_ratio": 0.1,
                        "output": 20, "draft_lens": (2, 4), "rates": (1.0, 20.0), **changes})  # type: ignore[arg-type]  # fmt: skip


def simulate(given: load.LoadSettings, out: Path) -> dict[str, Any]:
    """What a load comes to. Its figure is empty, because drawing takes most of the time of a small simulation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "draw", lambda *_: Figure())
        return load.run(given, out, lambda _: None)


def test_load_writes_a_table_a_summary_and_a_figure(tmp_path: Path) -> None:
    found = load.run(settings(), tmp_path / "out", lambda _: None)
    assert json.loads((tmp_path / "out.json").read_text())["best_by_rate"] == found["best_by_rate"]
    assert (tmp_path / "out.csv").read_text().count("\n") == 1 + 2 * 3
    assert (tmp_path / "out.png").read_bytes()[:4] == b"\x89PNG"
    assert found["best_by_rate"][0]["speedup"] > 1.5
    first = (tmp_path / "out.csv").read_bytes()
    simulate(settings(), tmp_path / "out")
    assert (tmp_path / "out.csv").read_bytes() == first


def test_a_parallel_draft_is_simulated_and_said_to_be_one(tmp_path: Path) -> None:
    """One step for a block, where the usual draft takes one for each token."""
    one_by_one, at_once = (
        simulate(settings(rates=(1.0,), draft_lens=(4,), parallel=parallel), tmp_path / "out")
        for parallel in (False, True)
    )
    assert [found["parallel"] for found in (one_by_one, at_once)] == [False, True]
    assert at_once["best_by_rate"][0]["speedup"] > one_by_one["best_by_rate"][0]["speedup"] > 1


def test_the_name_of_a_profile_is_text_in_the_figure(tmp_path: Path) -> None:
    named = profiles.load("h100-llama-2-7b").model_copy(update={"name": r"$\frac$"})
    profiles.save(named, tmp_path / "named.yaml")
    load.run(settings(profile=str(tmp_path / "named.yaml"), rates=(1.0,)), tmp_path / "out", lambda _: None)
    assert (tmp_path / "out.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("trace", "changes", "differ"),
    [
        (False, {"seed": 1}, [True, True]),
        (True, {"seed": 1}, [False, True]),
        (False, {"burst": 4.0}, [True, True]),
        (False, {"goal_first": 1e-3}, [False, False]),
        (False, {"goal_per_token": 1e-3}, [False, False]),
    ],
)
def test_settings_reach_the_simulation(
    trace: bool, changes: dict[str, float], differ: list[bool], tmp_path: Path
) -> None:
    """Without drafts and with two drafted tokens; a trace has its own times, so that only acceptance is drawn."""
    rows = [{"timestamp": 1000 * i, "input_length": 300, "output_length": 20} for i in range(30)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    own = {"trace": tmp_path / "t.jsonl"} if trace else {}
    for name, given in {"one": own, "other": own | changes}.items():
        simulate(settings(rates=(20.0,), draft_lens=(2,), **given), tmp_path / name)
    one, other = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("one", "other"))
    assert (one["whole_mean"] != other["whole_mean"]).tolist() == differ
    assert any(differ) or (one["goodput"] > other["goodput"]).all()


def test_requests_larger_than_the_cache_are_left_out_and_the_rest_comes_at_the_rate(tmp_path: Path) -> None:
    rows = [{"timestamp": 1000 * i, "input_length": 10**7 if i % 2 else 300, "output_length": 20} for i in range(80)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = simulate(settings(trace=tmp_path / "t.jsonl", requests=80, rates=(1.0,)), tmp_path / "out")
    assert (found["requests"], found["left_out"]) == (40, {sweep.TOO_LARGE: 40})
    assert f"left out: 40 {sweep.TOO_LARGE}" in load.lines(found)
    seconds = pd.read_csv(tmp_path / "out.csv")["seconds"]
    assert_allclose(seconds, 39, rtol=0.1)  # 40 requests at one a second


def test_rates_that_overload_the_server_without_drafts_are_marked(tmp_path: Path) -> None:
    found = simulate(settings(rates=(1.0, 500.0), goal_first=0.001), tmp_path / "out")
    calm, busy = found["best_by_rate"]
    assert (calm["overloaded"], busy["overloaded"]) == (False, True)
    table = pd.read_csv(tmp_path / "out.csv").set_index(["rate", "draft_len"])
    assert busy["to_first_without_drafts"] == pytest.approx(table.loc[(500.0, 0), "to_first_mean"])
    patient = simulate(settings(rates=(500.0,)), tmp_path / "out")
    assert not patient["best_by_rate"][0]["overloaded"], "no first token is late"
    first, second, *_ = load.lines(found)
    assert first.endswith("times as fast as no draft")
    assert second.endswith(f"(overloaded without drafts: first token after {busy['to_first_without_drafts']:.1f} s)")


def test_a_draft_that_costs_nothing_is_said_and_gives_no_settings_for_a_draft_model(tmp_path: Path) -> None:
    found = simulate(settings(draft_ratio=None), tmp_path / "free")
    assert (found["alpha"], found["draft_ratio"]) == (0.7, 0)
    assert load.lines(found)[-2].startswith("drafting is assumed to cost nothing")
    with pytest.raises(UserError, match="assumed a draft that costs nothing"):
        emit.from_load(tmp_path / "free.json", 512)
    paid = simulate(settings(), tmp_path / "paid")
    assert paid["draft_ratio"] == pytest.approx(0.1)
    assert not any("nothing" in line for line in load.lines(paid))
    assert emit.from_load(tmp_path / "paid.json", 512)


@pytest.mark.parametrize(
    ("drafted", "lengths", "is_beyond"), [(2, (0, 2, 6), True), (2, (0, 2), False), (6, (0, 2, 6), False)]
)
def test_a_best_length_beyond_the_recorded_acceptance_is_said(
    drafted: int, lengths: tuple[int, ...], is_beyond: bool, tmp_path: Path
) -> None:
    """Of 100 blocks, nearly all were accepted whole, so longer ones look even better."""
    counts = {"drafts": 100, "draft_tokens": 100 * drafted, "accepted_tokens": 99 * drafted}
    text = "".join(f"vllm:spec_decode_num_{name}_total {n}\n" for name, n in counts.items())
    text += "".join(
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{p}"}} 99\n' for p in range(drafted)
    )
    (tmp_path / "metrics").write_text(text)
    given = settings(alpha=None, acceptance=tmp_path / "metrics", draft_lens=lengths, rates=(1.0,))
    found = simulate(given, tmp_path / "out")
    assert found["acceptance_recorded"] == drafted
    assert (
        f"acceptance was recorded up to length {drafted}, beyond it is extrapolated" in load.lines(found)
    ) is is_beyond
    assert not any("recorded" in line for line in load.lines(simulate(settings(rates=(1.0,)), tmp_path / "a")))


def test_a_draft_may_have_a_profile_of_its_own() -> None:
    found = load._profile(settings(draft_ratio=None, draft_profile="h100-llama-2-7b"))
    assert found.draft == found.target


def test_few_requests_say_not_yet_known(tmp_path: Path) -> None:
    found = simulate(settings(requests=29), tmp_path / "out")
    assert load.lines(found)[0].startswith("not yet known")
    assert found["best_by_rate"] == []
    alone = load.run(
        settings(requests=1, rates=(1.0, 1.0)), tmp_path / "one", lambda _: None
    )  # its figure has no interval
    assert load.lines(alone)[0].startswith("not yet known: fewer than 30 requests")


@pytest.mark.parametrize("name", [".", ".."])
def test_files_without_a_name_are_refused_before_the_simulation(name: str) -> None:
    with pytest.raises(UserError, match="a folder"):
        load.run(settings(), Path(name), pytest.fail)


def test_where_a_length_stops_paying_off_is_shown_with_its_interval(tmp_path: Path) -> None:
    found = simulate(settings(), tmp_path / "out")
    rates = {3: 0.00123, 4: 1234.4, 5: 0.0, 6: None, 7: 0.0}
    ends = {3: [0.0, 0.002], 4: [1200.0, None], 5: [0.0, 0.0], 6: [3.0, None], 7: [0.0, 2.0]}
    shown = load.lines(found | {"crossing_rate": rates, "crossing_interval": ends})
    assert "draft length 3 stops paying off at 0.00123 [below 1, 0.002] requests a second" in shown
    assert "draft length 4 stops paying off at 1234 [1200, above 20] requests a second" in shown
    assert "draft length 5 pays off at none of these rates" in shown
    assert "draft length 7 is not known to pay off at any of these rates" in shown
    assert not any(line.startswith("draft length 6") for line in shown)


def test_answers_under_load_have_intervals_and_say_of_how_many_requests(tmp_path: Path) -> None:
    found = simulate(settings(requests=40), tmp_path / "out")
    table = pd.read_csv(tmp_path / "out.csv").set_index(["rate", "draft_len"])
    for best in found["best_by_rate"]:
        own = table.loc[(best["rate"], best["draft_len"])]
        assert [best[name] for name in load.SPEEDUP] == pytest.approx(own[[*load.SPEEDUP]].tolist())
        assert 1 < best["speedup_low"] < best["speedup"] < best["speedup_high"]
        assert best["pays_off"] == "yes"
    plain = table.xs(0, level="draft_len")
    assert (plain[[*load.SPEEDUP]] == 1).all(axis=None)
    shown = load.lines(found)
    assert shown[-1] == "40 simulated requests at each rate; 95 % intervals"
    estimate, low, high = (f"{found['best_by_rate'][0][name]:.2f}" for name in load.SPEEDUP)
    assert shown[0] == f"1 requests a second: draft length 4, {estimate} [{low}, {high}] times as fast as no draft"


def test_a_gain_or_a_loss_within_chance_is_not_yet_known(tmp_path: Path) -> None:
    """Drafts that cost about as much as the steps that they save."""
    for ratio in (0.38, 0.4):
        given = settings(alpha=0.5, draft_ratio=ratio, draft_lens=(1,), rates=(1.0,))
        found = simulate(given, tmp_path / "out")
        row = pd.read_csv(tmp_path / "out.csv").iloc[1]
        assert row["speedup_low"] < 1 < row["speedup_high"]
        assert found["best_by_rate"][0]["pays_off"] == "not yet known"
        assert load.lines(found)[0].endswith(" (not yet known whether one pays off)")
    hopeless = simulate(settings(draft_ratio=3.0, rates=(1.0,)), tmp_path / "out")
    assert hopeless["best_by_rate"][0]["pays_off"] == "no"
    assert load.lines(hopeless)[0] == "1 requests a second: no draft"
    plain = load.run(
        settings(draft_lens=(0,), rates=(1.0,)), tmp_path / "out", lambda _: None
    )  # its figure has no draft
    assert plain["best_by_rate"][0]["pays_off"] == "no"


def test_acceptance_of_recorded_requests_gives_an_interval_by_batch_and_one_number_for_all_does_not(
    tmp_path: Path,
) -> None:
    rows = [{"meta_info": {"spec_verify_ct": 10, "completion_tokens": 21 + i % 9, "spec_correct_drafts": 1,
                           "spec_correct_drafts_histogram": [3, 3, 3, 1 + i % 9]}} for i in range(40)]  # fmt: skip
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = settings(alpha=None, acceptance=tmp_path / "log.jsonl", rates=(1.0,))
    recorded, assumed = (simulate(one, tmp_path / "out") for one in (given, settings(rates=(1.0,))))
    (first, *_), (other, *_) = (found["best_by_batch_and_context"] for found in (recorded, assumed))
    assert first["speedup_low"] < first["speedup"] < first["speedup_high"]
    assert [other[name] for name in load.SPEEDUP[1:]] == [None, None]


def test_a_rate_given_twice_is_simulated_once(tmp_path: Path) -> None:
    assert len(simulate(settings(rates=(20.0, 1.0, 20.0)), tmp_path / "out")["best_by_rate"]) == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"alpha": None}, "no acceptance"),
        ({"alpha": 1.5}, "between 0 and 1"),
        ({"alpha": float("nan")}, "between 0 and 1"),
        ({"profile": "h200"}, "no profile 'h200'"),
        ({"rates": (0.0,)}, "rate of 0"),
        ({"rates": (1.0, float("inf"))}, "rate of inf"),
        ({"draft_lens": (-1,)}, r"--draft-lens is \[-1\]"),
        ({"draft_lens": ()}, "give one length or more"),
        ({"draft_ratio": None, "draft_profile": "a100-llama-3-8b"}, "timed on NVIDIA A100"),
        ({"draft_ratio": float("nan")}, "--draft-ratio is nan"),
        ({"requests": 0}, "no requests"),
        ({"goal_per_token": float("nan")}, "--goal-per-token nan"),
        ({"goal_first": -1.0}, "--goal-first is -1.0"),
        ({"seed": -1}, "--seed is -1"),
        ({"trace": Path("t"), "burst": 4.0}, "--burst is for random arrivals"),
        ({"prompt": 10**6}, "no request fits the cache"),
        ({"prompt": 10**6, "rates": ()}, "no request fits the cache"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_written(
    changes: dict[str, object], says: str, tmp_path: Path
) -> None:
    simulated: list[str] = []
    with pytest.raises(UserError, match=says):
        load.run(settings(**changes), tmp_path / "out", simulated.append)
    assert not list(tmp_path.iterdir())
    assert not simulated


def test_a_trace_whose_requests_all_come_at_once_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"timestamp": 5, "input_length": 5, "output_length": 5}\n' * 40)
    with pytest.raises(UserError, match=r"t\.jsonl: all its requests come at once .*--poisson"):
        simulate(settings(trace=tmp_path / "t.jsonl"), tmp_path / "out")
    found = simulate(settings(trace=tmp_path / "t.jsonl", poisson=True), tmp_path / "out")
    assert found["requests"] == 30


def test_a_cache_too_small_for_any_context_is_refused(tmp_path: Path) -> None:
    text = (profiles.SHIPPED / "rtx4090-llama-3.1-8b.yaml").read_text()
    (tmp_path / "p.yaml").write_text(text.replace("kv_tokens: 41408", "kv_tokens: 100"))
    with pytest.raises(UserError, match="not even one request with 128 tokens fits"):
        simulate(settings(profile=str(tmp_path / "p.yaml")), tmp_path / "out")


def test_the_room_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, pkgutil, importlib, draftlab.serving as room\n"
        "for m in pkgutil.iter_modules(room.__path__): importlib.import_module(f'draftlab.serving.{m.name}')\n"
        "print(sorted({'torch', 'transformers', 'llama_cpp', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_prompts_that_repeat_the_beginning_of_earlier_ones_are_said(tmp_path: Path) -> None:
    """Half of the second prompt and two thirds of the third; a block that is known but not at the beginning does not count."""
    blocks = [[0, 1], [0, 2], [0, 2, 3], [7, 0], None, "x", []]
    rows = [
        {"timestamp": 1e3 * n, "input_length": 60, "output_length": 5, "hash_ids": ids} for n, ids in enumerate(blocks)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    read = traces.read_trace(tmp_path / "t.jsonl")
    assert read.repeated == pytest.approx((30 + 40) / (7 * 60))
    assert read.at_rate(3.0).take(np.arange(2)).repeated == read.repeated
    assert traces.read_trace(tmp_path / "t.jsonl", limit=1).repeated == 0
    found = load.run(settings(trace=tmp_path / "t.jsonl", rates=(1.0,)), tmp_path / "out", lambda _: None)
    (said,) = (line for line in load.lines(found) if line.startswith("17% of the prompts' tokens repeat"))
    assert said.endswith("and is slower than one that caches prefixes")
