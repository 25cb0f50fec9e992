"""The counters on a server's page: which are read, of which model, and what was counted between two readings."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest

from draftlab.errors import UserError
from draftlab.serving import monitor, prometheus, records
from draftlab.serving.counts import SpeculationCounts
from rehearsal.hub import listening

VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 600.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 400.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 2000.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 900.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 600.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 100.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="1"} 200.0
"""


def record(text: str, model: str = "") -> SpeculationCounts:
    return prometheus.total(prometheus.read(text, "m", model), "m")


def between(before: str, after: str) -> SpeculationCounts:
    return prometheus.total(prometheus.since(prometheus.read(before, "m"), prometheus.read(after, "m"), "m"), "m")


def page(prefix: str = "vllm:", labels: str = "", **counts: float) -> str:
    """A page with these counters and, as ``place_0``, ``place_1``, ..., the tokens accepted at each place."""
    names = {"requests": f"{prefix}request_success"}
    return "".join(
        f'{prefix}spec_decode_num_accepted_tokens_per_pos_total{{position="{name[6:]}"{"," * bool(labels)}{labels}}} {n}\n'
        if name.startswith("place_")
        else f"{names.get(name, f'{prefix}spec_decode_num_{name}')}_total{{{labels}}} {n}\n"
        for name, n in counts.items()
    )


def test_prometheus_text_is_summed_over_engines() -> None:
    seen = record(VLLM)
    assert (seen.drafts, seen.drafted, seen.accepted) == (1000, 2000, 900)
    assert seen.histogram == (400, 300, 300)
    cpp = record(VLLM.replace("vllm:", "llamacpp:"))
    assert (cpp.engine, cpp.accepted) == ("llama.cpp", 900)


def sglang(calls: float, tokens: float, requests: float) -> str:
    return f"sglang:spec_verify_calls_total {calls}\nsglang:generation_tokens_total {tokens}\nsglang:num_requests_total {requests}\n"


def test_sglangs_counters_are_summed_and_its_gauges_are_not_read() -> None:
    """Two ranks: 1950 tokens, of which 50 come from prompts and 1000 are the target's own."""
    gauges = "".join(f'sglang:spec_accept_length{{dp_rank="{rank}"}} 3.1\n' for rank in "01")
    calls = "".join(f'sglang:spec_verify_calls_total{{dp_rank="{rank}"}} 500\n' for rank in "01")
    text = f"{gauges}{calls}sglang:generation_tokens_total 1950\nsglang:num_requests_total 50\n"
    found = record(text)
    assert (found.engine, found.drafts, found.accepted, found.requests) == ("sglang", 1000, 900, 50)
    assert np.isnan(found.drafted)
    assert between(sglang(400, 1120, 20), sglang(1000, 1950, 50)).accepted == 200


def test_sglangs_accepted_tokens_follow_from_counters_and_never_fall_below_0() -> None:
    assert between(sglang(10, 18, 5), sglang(30, 36, 5)).accepted == 0


def test_tensorrt_llms_blocks_are_those_that_drafted_a_first_token() -> None:
    drafted = {0: 60, 1: 60, 2: 30}
    accepted = {0: 50, 1: 20}  # nothing at the third place, for which there is then no counter
    text = "".join(f'trtllm_spec_decode_drafted_tokens_total{{token_position="{p}"}} {n}\n' for p, n in drafted.items())
    text += "".join(
        f'trtllm_spec_decode_accepted_tokens_total{{token_position="{p}"}} {n}\n' for p, n in accepted.items()
    )
    found = record(f'{text}trtllm_request_success_total{{finished_reason="stop"}} 7\n')
    assert found == SpeculationCounts("tensorrt-llm", 60, 150, 70, 7, (10, 30, 20, 0))


def test_a_server_of_tensorrt_llm_that_was_idle_meanwhile_drafted_nothing() -> None:
    text = 'trtllm_spec_decode_drafted_tokens_total{token_position="0"} 9\n'
    assert between(text, text).drafts == 0


def test_a_file_with_tensorrt_llms_counters_is_known_without_a_comment(tmp_path: Path) -> None:
    text = 'trtllm_spec_decode_drafted_tokens_total{token_position="0"} 9\n'
    (tmp_path / "m").write_text(text)
    assert [found.drafts for found in records.read(tmp_path / "m") if found] == [9]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no counters"),
        ("vllm:x{", "not Prometheus"),
        ("a 1\n", "no counters"),
        ('vllm:spec_decode_num_accepted_tokens_per_pos_total{position="x"} 1\n', "not Prometheus"),
        ("vllm:spec_decode_num_accepted_tokens_per_pos_total 1\n", "not Prometheus"),
        (
            "sglang:spec_verify_calls_total 9\nsglang:spec_accept_length 2\n",
            "sglang:generation_tokens_total, sglang:num",
        ),
        (
            "trtllm_spec_decode_num_draft_tokens_total 8\ntrtllm_spec_decode_num_accepted_tokens_total 4\n",
            "in how many steps it drafted.*return_perf_metrics",
        ),
        (page(drafts=10, draft_tokens=40, accepted_tokens="NaN"), "impossible counters: nan tokens accepted"),
        (page(drafts=10, draft_tokens="+Inf", accepted_tokens=3), "impossible counters"),
        (page(drafts=-1, draft_tokens=40, accepted_tokens=3), "impossible counters.*in -1 blocks"),
        (page(drafts=10, draft_tokens=40, accepted_tokens=41), "impossible counters: 41 tokens accepted, 40 drafted"),
        (page(drafts=10, draft_tokens=40, accepted_tokens=3, requests=-2), "impossible counters"),
    ],
)  # fmt: skip
def test_text_without_counters_is_refused(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        record(text)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"# \xff\n")
    with pytest.raises(UserError, match="no counters"):
        next(records.read(tmp_path / "m"))


@pytest.mark.parametrize(
    "text", [VLLM, "\n" + json.dumps({"timings": {"predicted_n": 61, "draft_n": 80, "draft_n_accepted": 40}}) + "\n"]
)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_pipe_is_read_from_its_beginning(zipped: bool, text: str, tmp_path: Path) -> None:
    """As in ``zcat log.jsonl.gz | draftlab monitor /dev/stdin``; a pipe cannot be opened twice."""
    data = (text * 500 if text.startswith("\n") else text).encode()
    (tmp_path / "file").write_bytes(gzip.compress(data) if zipped else data)
    os.mkfifo(tmp_path / "pipe")
    sender = threading.Thread(
        target=lambda: (tmp_path / "pipe").write_bytes((tmp_path / "file").read_bytes()), daemon=True
    )
    sender.start()
    found = list(records.read(tmp_path / "pipe"))
    sender.join(10)
    assert found == list(records.read(tmp_path / "file"))
    assert len(found) == (500 if text.startswith("\n") else 1)
    assert None not in found


# --- several models --------------------------------------------------------------------------------------------------

TWO = page(labels='model_name="a"', drafts=100, draft_tokens=400, accepted_tokens=200, requests=10) + page(
    labels='model_name="b"', drafts=900, draft_tokens=3600, accepted_tokens=90, requests=30
)


def test_the_counters_of_two_models_are_not_summed() -> None:
    """A model that is served well is not called stale because of another on the same page."""
    with pytest.raises(UserError, match=r"counters of 2 models: a, b \(name .* --model"):
        record(TWO)
    assert record(TWO, "a") == SpeculationCounts("vllm", 100, 400, 200, 10)
    assert record(TWO, "b").requests == 30
    with pytest.raises(UserError, match="no counters of 'c', but of a, b"):
        record(TWO, "c")
    with pytest.raises(UserError, match="no counters of 'c', but of a model without a name"):
        record(page("llamacpp:", drafts=10, draft_tokens=40, accepted_tokens=20), "c")


def test_a_model_that_does_not_draft_needs_no_name() -> None:
    other = 'vllm:request_success_total{model_name="plain"} 3\n'
    assert record(VLLM + other).drafts == 1000


def vllm_row(model: str | None, accepted: int) -> Mapping[str, object]:
    counts = {"num_spec_steps": 20, "num_draft_tokens": 80, "num_accepted_draft_tokens": accepted}
    return {"response": {"model": model, "metrics": {"speculative_decoding": counts}}}


@pytest.mark.parametrize("name", ["log.jsonl", "log.json"])
def test_the_records_of_two_models_are_not_mixed(name: str, tmp_path: Path) -> None:
    rows = [vllm_row("a", 40), {"response": {"model": "plain"}}, vllm_row(None, 41), vllm_row("b", 7)]
    text = json.dumps(rows) if name.endswith("json") else "\n".join(map(json.dumps, rows))
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=r"a record of the model b, after records of a \(.*--model") as error:
        list(records.read(tmp_path / name))
    assert error.value.line == (4 if name == "log.jsonl" else None)
    for model, accepted in (("a", [40, 41]), ("b", [41, 7])):
        found = [counts.accepted for counts in records.read(tmp_path / name, model) if counts is not None]
        assert found == accepted


def test_the_verb_judges_the_model_that_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "v.json").write_text('{"draft_len": 4, "acceptance_length": {"low": 2.9, "high": 3.1}}')
    (tmp_path / "m").write_text(
        TWO.replace(" 100\n", " 10000\n").replace(" 400\n", " 40000\n").replace(" 200\n", " 20000\n")
    )
    monitor.monitor(str(tmp_path / "m"), verdict=tmp_path / "v.json", model="a")
    assert capsys.readouterr().out.startswith("not yet known")  # 10 requests
    with pytest.raises(UserError, match="counters of 2 models"):
        monitor.monitor(str(tmp_path / "m"), verdict=tmp_path / "v.json")


# --- between two readings --------------------------------------------------------------------------------------------


def test_what_was_counted_between_two_moments() -> None:
    before = page(
        drafts=10, draft_tokens=40, accepted_tokens=20, requests=5, place_0=8, place_1=5, place_2=4, place_3=3
    )
    after = page(
        drafts=30, draft_tokens=120, accepted_tokens=70, requests=12, place_0=24, place_1=17, place_2=13, place_3=9
    )
    assert between(before, after) == SpeculationCounts("vllm", 20, 80, 50, 7, (4, 4, 3, 3, 6))
    found = between(before, after + page(place_4=2))  # the first block that was so long
    assert found.histogram == (4, 4, 3, 3, 4, 2)


@pytest.mark.parametrize("fallen", [{"drafts": 9}, {"draft_tokens": 39}, {"accepted_tokens": 19}, {"requests": 4}])
def test_a_server_that_was_restarted_is_known_by_any_counter_that_fell(fallen: dict[str, float]) -> None:
    before = {"drafts": 10, "draft_tokens": 40, "accepted_tokens": 20, "requests": 5}
    after = {"drafts": 30, "draft_tokens": 120, "accepted_tokens": 70, "requests": 12}
    with pytest.raises(UserError, match="a server was restarted"):
        between(page(**before), page(**after | fallen))


def test_one_engine_of_several_that_was_restarted_is_known() -> None:
    """Their sums grow, because the other engine counts on: 3000 blocks in place of 2000 + 30."""
    first, second = ({"drafts": n, "draft_tokens": 4 * n, "accepted_tokens": 2 * n} for n in (1000, 4000))
    again = {"drafts": 30, "draft_tokens": 120, "accepted_tokens": 60}
    zero, one = 'engine="0"', 'engine="1"'
    before = page(labels=zero, **first) + page(labels=one, **first)
    for after in (page(labels=zero, **again) + page(labels=one, **second), page(labels=one, **second)):
        with pytest.raises(UserError, match="a server was restarted"):
            between(before, after)
    more = page(labels=zero, **second) + page(labels=one, **first) + page(labels='engine="2"', **again)
    assert between(before, more).drafts == 3030


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (1.23456e8, 1.23457e8, "1000 more drafts, give or take 1000"),
        (5e6, 5e6, "0 more drafts, give or take 10"),
        (5e6, 5.0009e6, "900 more drafts, give or take 10"),
        (5e6, 5.01e6, ""),
        (100.0, 300.0, ""),
    ],
)
def test_what_llama_cpp_rounds_away_is_not_taken_for_a_change(before: float, after: float, says: str) -> None:
    """It prints six digits of a counter, but all of those by place."""
    pages = [
        page("llamacpp:", drafts=f"{n:g}", draft_tokens=f"{4 * n:g}", accepted_tokens=f"{2 * n:g}", place_0=int(n), place_1=int(n))
        for n in (before, after)
    ]  # fmt: skip
    if says:
        with pytest.raises(UserError, match=rf"{says} \(give a longer --over"):
            between(*pages)
    else:
        found = between(*pages)
        assert found.drafts == after - before
        assert found.accepted == 2 * (after - before)


def test_a_draft_that_llama_cpp_accepts_whole_is_judged_though_its_blocks_were_rounded_down(tmp_path: Path) -> None:
    promise = monitor.Promise(draft_len=1, acceptance_length=monitor.Bounds(low=1.9, high=2))
    rounded = {"drafts": "1.23456e+06", "draft_tokens": "1.23456e+06", "accepted_tokens": "1.23456e+06"}
    (tmp_path / "m").write_text(page("llamacpp:", **rounded, place_0=1234569))
    assert monitor.judge(records.read(tmp_path / "m"), promise).state == "as promised"


def test_a_server_is_asked_twice_and_the_difference_is_judged() -> None:
    answers = [VLLM, VLLM.replace("600.0", "1600.0").replace("2000.0", "4000.0").replace(" 900.0", " 2700.0")]

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers.pop(0).encode())

        def log_message(self, *_: object) -> None:
            pass

    with listening(Answer) as address:
        seen = next(monitor.watch(f"{address}/metrics", 0.01))
    assert seen is not None
    assert (seen.drafts, seen.drafted, seen.accepted) == (1000, 2000, 1800)
    for url in ("http://127.0.0.1:9/metrics", "http://localhost:abc/metrics", "http://local host/metrics"):
        with pytest.raises(UserError, match="no answer"):
            next(monitor.watch(url, 0))
