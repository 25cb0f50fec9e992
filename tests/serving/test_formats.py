"""What engines take and what they report: emitters by each engine's own rule, readers by every name, and the watch over a draft."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.testing import assert_allclose

from draftlab.errors import UserError
from draftlab.files.json_files import write_json
from draftlab.serving import emit, engines, engines_without_draft, monitor, records
from draftlab.serving.acceptance import from_alpha, from_histograms
from draftlab.serving.counts import SpeculationCounts
from draftlab.serving.engines import Deployment
from draftlab.serving.monitor import Bounds, Promise

RANGES = [(1, 4, 4), (5, 64, 3), (65, 128, 1), (129, 512, 0)]
WANTED = Deployment("T.gguf", "D.gguf", 4, RANGES, acceptance=from_alpha(0.5), requests=40, traffic="chat")


# --- emitters --------------------------------------------------------------------------------------------------------


def test_vllm_drafts_from_the_distribution_unless_told_otherwise() -> None:
    found = json.loads(engines.vllm(WANTED).text)
    assert found["method"] == "draft_model"
    assert found["draft_sample_method"] == "probabilistic"
    assert found["num_speculative_tokens_per_batch_size"] == [[1, 4, 4], [5, 64, 3], [65, 128, 1], [129, 512, 0]]
    greedy = engines.vllm(Deployment("T", "D", 2, sampled=False))
    assert json.loads(greedy.text) == {
        "method": "draft_model", "model": "D", "num_speculative_tokens": 2, "draft_sample_method": "greedy"
    }  # fmt: skip


def test_synthetic_acceptance_is_timed_at_the_lengths_that_are_served() -> None:
    served, timed = (json.loads(emitter(WANTED).text) for emitter in (engines.vllm, engines.vllm_synthetic))
    table = "num_speculative_tokens_per_batch_size"
    assert timed[table] == served[table] == [[1, 4, 4], [5, 64, 3], [65, 128, 1], [129, 512, 0]]
    assert engines.vllm_synthetic(WANTED).command.startswith("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve")
    assert table not in engines.vllm_synthetic(dataclasses.replace(WANTED, ranges=[])).text


def test_a_name_with_quotes_stays_one_word_of_the_command() -> None:
    name = "a 'draft'; rm -rf $HOME"
    for emitter in (engines.vllm, engines.sglang):
        words = shlex.split(emitter(Deployment("T", name, 2)).command)
        assert any(word == name or json.dumps(name) in word for word in words)
        assert "rm" not in words


@pytest.mark.parametrize(
    "ranges", [[], [[2, 4, 1]], [[1, 4, 3], [4, 8, 1]], [[1, 4, 3], [9, 8, 1]], [[1, 4, -1]], [[1, 9, 3], [2, 3, 1]]]
)
def test_vllms_rule_refuses(ranges: list[list[int]]) -> None:
    with pytest.raises(UserError):
        engines.check_vllm_ranges(ranges, 4)


def test_vllms_rule_cuts_to_the_longest() -> None:
    assert engines.check_vllm_ranges([[1, 4, 9], [6, 8, 1]], 4) == {1: 4, 6: 1}
    written = json.loads(engines.vllm(dataclasses.replace(WANTED, draft_len=3)).text)
    assert written["num_speculative_tokens_per_batch_size"] == [[1, 4, 3], [5, 64, 3], [65, 128, 1], [129, 512, 0]]


def read_tensorrt(schedule: dict[int, int], batch: int, meaning: str) -> int:
    """The draft length at ``batch`` as TensorRT-LLM would read it."""
    if meaning == "upper":
        return next((schedule[last] for last in sorted(schedule) if batch <= last), 0)
    return next(schedule[first] for first in sorted(schedule, reverse=True) if batch >= first)


@pytest.mark.parametrize("meaning", ["lower", "upper"])
def test_tensorrt_reads_back_the_same_length_in_either_meaning(meaning: str) -> None:
    schedule = engines.tensorrt_schedule(RANGES, 4, meaning)  # type: ignore[arg-type]
    for first, last, length in RANGES:
        for batch in {first, (first + last) // 2, last}:
            assert read_tensorrt(schedule, batch, meaning) == length
    assert schedule == ({1: 4, 5: 3, 65: 1, 129: 0} if meaning == "lower" else {4: 4, 64: 3, 128: 1})


@pytest.mark.parametrize("meaning", ["lower", "upper"])
def test_tensorrts_rule_wants_the_longest_at_one(meaning: str) -> None:
    with pytest.raises(UserError, match=r"the length at batch 1 is 1, not the longest, 4 .*--draft-len 4"):
        engines.tensorrt_schedule([(1, 2, 1), (3, 9, 4)], 4, meaning)  # type: ignore[arg-type]


def test_tensorrt_drafts_at_every_batch_if_there_is_one_length() -> None:
    config = yaml.safe_load(engines.tensorrt("upper", Deployment("T", "D", 4)).text)["speculative_config"]
    assert config == {"decoding_type": "Draft_Target", "max_draft_len": 4, "speculative_model": "D"}


def test_sglang_verifies_one_token_more_than_it_drafts() -> None:
    words = shlex.split(engines.sglang(WANTED).command)
    assert "--enable-metrics" in words, "draftlab monitor reads them"
    flags = dict(itertools.pairwise(words))
    assert flags["--speculative-num-draft-tokens"] == "5"
    assert (flags["--speculative-num-steps"], flags["--speculative-eagle-topk"]) == ("4", "1")
    head = dataclasses.replace(WANTED, head="eagle3")
    adaptive = engines.sglang_adaptive(head)
    found = json.loads(adaptive.text)
    assert found["129"] == {"candidate_steps": [0]}
    flags = ["--speculative-adaptive", "--speculative-adaptive-config", "sglang_adaptive.json"]
    assert shlex.split(adaptive.command) == [*shlex.split(engines.sglang(head).command), *flags]
    with pytest.raises(UserError, match="SGLang reads lengths by batch for heads of EAGLE alone"):
        engines.sglang_adaptive(WANTED)
    with pytest.raises(UserError, match="slot 129"):
        engines.check_sglang_adaptive({**found, "strategy": "throughput_aware"})
    with pytest.raises(UserError, match="not in ascending order"):
        engines.check_sglang_adaptive({"8": {"candidate_steps": [1]}, "1": {"candidate_steps": [3]}})


def test_only_engines_that_can_end_a_block_are_written_a_confidence(tmp_path: Path) -> None:
    pair = dataclasses.replace(WANTED, confidence=0.45)
    assert words_after(engines.llama_cpp(pair).command, "--spec-draft-p-min") == "0.45"
    assert json.loads(engines.transformers(pair).text)["assistant_confidence_threshold"] == 0.45
    assert "where scikit-learn is installed" in engines.transformers(pair).note
    assert "scikit-learn" not in engines.transformers(WANTED).note
    assert {own.file for own in emit.write(pair, (), tmp_path / "all")} == {
        "llama_server.sh",
        "generation_config.json",
    }
    with pytest.raises(UserError, match="blocks of vllm do not end early"):
        emit.write(pair, ("vllm",), tmp_path / "one")
    assert not (tmp_path / "one").exists()
    with pytest.raises(UserError, match="confidence is 1"):
        dataclasses.replace(WANTED, confidence=1.0)


def test_llama_server_names_the_type_and_no_removed_flag() -> None:
    words = shlex.split(engines.llama_cpp(WANTED).command)
    assert words[words.index("--spec-type") + 1] == "draft-simple"
    assert not {"--draft", "--draft-max", "--draft-min", "--draft-n", "--draft-n-min"} & set(words)
    with pytest.raises(UserError, match="not a GGUF"):
        engines.llama_cpp(Deployment("T", "D", 2))
    rates = words_after(engines.llama_cpp_synthetic(WANTED).command, "--spec-synth-rates")
    assert rates == "0.5,0.25,0.125,0.0625"


def words_after(command: str, flag: str) -> str:
    words = shlex.split(command)
    return words[words.index(flag) + 1]


def test_engines_are_told_whether_the_draft_samples_and_a_note_names_those_that_cannot() -> None:
    for sampled, method in ((True, "probabilistic"), (False, "greedy")):
        pair = dataclasses.replace(WANTED, sampled=sampled)
        assert json.loads(engines.vllm(pair).text)["draft_sample_method"] == method
        assert ("--spec-draft-sampling probabilistic" in engines.llama_cpp(pair).command) is sampled
        assert ("b11368" in engines.llama_cpp(pair).version) is sampled, "older versions refuse the flag"
        for written in (engines.sglang(pair), engines.tensorrt("lower", pair), engines.tensorrt("upper", pair)):
            assert ("most probable token at any temperature" in written.note) is sampled
            assert not written.note.startswith("; ")
            assert ("use" in written.note and "rejection" in written.note) is sampled, "how they can be told to sample"
        flag = "unless a version that knows it is given --speculative-use-rejection-sampling"
        assert (flag in engines.sglang(pair).note) is sampled


def test_vllm_needs_a_plugin_for_gguf_files() -> None:
    for target, draft in (("T.gguf", "D"), ("T", "D.gguf"), ("T", "D")):
        pair = dataclasses.replace(WANTED, target=target, draft=draft)
        for written in (engines.vllm(pair), engines.vllm_synthetic(pair)):
            assert ("vllm-gguf-plugin" in written.note) is (".gguf" in target + draft)


def test_a_version_of_llama_cpp_is_named_by_the_newest_flag_of_its_command() -> None:
    """#24850 was never merged; #22964 named the type draft-simple, and #27711 brought synthetic acceptance."""
    greedy = dataclasses.replace(WANTED, target="T.gguf", draft="D.gguf", sampled=False)
    assert engines.llama_cpp(greedy).version == "llama.cpp since PR #22964 (May 2026)"
    assert engines.llama_cpp_synthetic(greedy).version == "llama.cpp since PR #27711 (August 2026)"


def test_engines_without_a_table_by_batch_say_that_they_have_one_length() -> None:
    fixed = dataclasses.replace(WANTED, ranges=[(1, 512, 4)])
    for emitter in (engines.sglang, engines.llama_cpp, engines.llama_cpp_synthetic, engines.transformers):
        assert "one length for all batches: the longest" in emitter(WANTED).note
        assert "one length for all" not in emitter(fixed).note
    for emitter in (engines.vllm, engines.EMITTERS["tensorrt-llm-upper"]):
        assert "one length for all" not in emitter(WANTED).note


def test_acceptance_of_blocks_that_are_too_long_is_not_written() -> None:
    assert len(dataclasses.replace(WANTED, draft_len=32).marginals()) == 32
    with pytest.raises(UserError, match="acceptance is known for up to 32 drafted tokens, not 33"):
        dataclasses.replace(WANTED, draft_len=33).marginals()


@pytest.mark.parametrize("rates", [[0.5], [0.5, 0.6], [1.2, 0.1], [float("nan"), 0.1]])
def test_rates_that_rise_or_are_none_are_refused(rates: list[float]) -> None:
    with pytest.raises(UserError, match="by position"):
        engines.check_marginals(rates, 2)


def test_transformers_takes_its_settings_beside_the_drafts_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from transformers import GenerationConfig

    written = engines.transformers(WANTED)
    (tmp_path / written.file).write_text(written.text)
    monkeypatch.chdir(tmp_path)
    found = GenerationConfig(eos_token_id=7)
    exec(written.command.splitlines()[0], {"json": json, "draft": SimpleNamespace(generation_config=found)})
    assert found.eos_token_id == 7
    assert (found.num_assistant_tokens, found.num_assistant_tokens_schedule) == (4, "constant")
    assert found.assistant_confidence_threshold == 0


def test_nvidias_profile_is_that_of_its_own_test() -> None:
    """100 blocks: 40 emit 1 token, 30 emit 2, 30 emit 3, of 3 drafted."""
    pair = Deployment("T", "D", 3, acceptance=from_histograms([[40, 30, 30, 0]]), requests=40)
    found = json.loads(engines.speculation_profile(pair).text)
    assert_allclose(found["marginal_accept_rates"], [0.6, 0.3, 0.0])
    assert_allclose(found["conditional_accept_rates"], [0.6, 0.5, 0.0])
    assert_allclose(found["mean_accept_length"], 1.9)


def test_acceptance_beyond_the_recorded_length_is_extrapolated_and_said(tmp_path: Path) -> None:
    """Of six blocks that accept three tokens, three accept a fourth: one of one request, two of the other."""
    rows = [{"spec_verify_ct": 10, "spec_accept_token_num": n, "spec_draft_token_num": 40, "spec_accept_histogram": h}
                for n, h in ((15, [4, 2, 1, 2, 1]), (12, [6, 1, 0, 1, 2]))]  # fmt: skip
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = records.acceptance(tmp_path / "r.jsonl")
    assert found.recorded == 4
    assert_allclose(found.survival[:, 3:5], [[0.1, 0.05], [0.2, 0.1]])
    for length, said in ((4, ""), (6, "acceptance was recorded up to length 4, beyond it is extrapolated")):
        pair = Deployment("T", "D", length, acceptance=found, requests=2, traffic="r")
        written = engines.speculation_profile(pair)
        assert (json.loads(written.text)["measured"], written.note) == (not said, said)


def test_ranges_follow_the_simulated_batches() -> None:
    best = [emit.BestLength(batch=b, context=c, best_draft_len=k if c == 512 else 0) for c in (512, 8192)
            for b, k in ((1, 4), (2, 4), (4, 3), (8, 0))]  # fmt: skip
    assert emit.nearest_context(best, 600) == 512
    assert emit.ranges_of(best, 512) == [(1, 2, 4), (3, 4, 3), (5, 8, 0)]
    assert emit.ranges_of(best, 8192) == [(1, 8, 0)]
    with pytest.raises(UserError, match="a context of 0 tokens"):
        emit.nearest_context(best, 0)


def test_of_two_contexts_as_near_the_larger_is_used_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 2048 tokens two requests fit the cache, at 512 four: the batches beyond two are those of 512."""
    best = [emit.BestLength(batch=b, context=c, best_draft_len=k)
            for c, lengths in ((128, (9, 9, 9, 1)), (512, (5, 5, 2)), (2048, (4, 3))) for b, k in zip((1, 2, 4, 8), lengths, strict=False)]  # fmt: skip
    assert [emit.nearest_context(order, 1024) for order in (best, best[::-1])] == [2048, 2048]
    (tmp_path / "load.json").write_text(
        json.dumps({"known": True, "best_by_batch_and_context": [row.model_dump() for row in best]})
    )
    assert emit.from_load(tmp_path / "load.json", 1024) == ([(1, 1, 4), (2, 2, 3), (3, 4, 2), (5, 8, 1)], 4)
    assert capsys.readouterr().out == "draft lengths by batch at 2048 tokens of context\n"


@pytest.mark.parametrize(
    "best",
    [
        "x",
        [],
        [{}],
        [None],
        [{"batch": 1, "context": 10**400, "best_draft_len": 4}],
        [{"batch": 1, "context": 512, "best_draft_len": "x"}],
    ],
)
def test_a_summary_that_is_not_of_load_is_refused(best: object, tmp_path: Path) -> None:
    (tmp_path / "load.json").write_text(json.dumps({"known": True, "best_by_batch_and_context": best}))
    with pytest.raises(
        UserError, match=r"load\.json: not a file of draftlab load, nor of a verdict: best_by_batch_and_context"
    ):
        emit.from_load(tmp_path / "load.json", 1024)


def test_emit_writes_what_fits_and_refuses_what_was_asked_and_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = emit.write(Deployment("T", "D", 4, RANGES, acceptance=from_alpha(0.5)), (), tmp_path / "out")
    assert "```\n\n```" not in (tmp_path / "out/README.md").read_text(), "a file without a command"
    assert {e.file for e in found} >= {"vllm.json", "sglang.sh", "tensorrt_llm_upper.yaml", "generation_config.json"}
    assert "llama_server.sh" not in {e.file for e in found}
    assert "no settings for llama-cpp: T is not a GGUF file (export it first" in capsys.readouterr().err
    schedule = yaml.safe_load((tmp_path / "out/tensorrt_llm_lower.yaml").read_text())["speculative_config"]
    assert schedule["draft_len_schedule"][1] == schedule["max_draft_len"] == 4
    with pytest.raises(UserError, match="not a GGUF"):
        emit.write(Deployment("T", "D", 4), ["llama-cpp"], tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_tensorrt_llm_is_given_no_gguf_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for pair in (Deployment("T.gguf", "D", 2), Deployment("T", "D.gguf", 2)):
        written = {found.file for found in emit.write(pair, (), tmp_path / "out")}
        assert "vllm.json" in written
        assert not any(file.startswith("tensorrt") for file in written)
        assert (
            "tensorrt-llm-upper does not read a GGUF file (give model folders, or hub ids)" in capsys.readouterr().err
        )
        with pytest.raises(UserError, match="tensorrt-llm-lower does not read a GGUF file"):
            emit.write(pair, ("tensorrt-llm-lower",), tmp_path / "one")


def test_the_flags_of_the_verb_reach_the_settings(tmp_path: Path) -> None:
    out, given = tmp_path / "out", {"draft_len": 2, "target": "T.gguf", "draft": "D.gguf"}
    for greedy, method in ((True, "greedy"), (False, "probabilistic")):
        emit.emit(("vllm",), **given, greedy=greedy, out=out)
        assert json.loads((out / "vllm.json").read_text())["draft_sample_method"] == method
    with pytest.raises(UserError, match="two acceptances"):
        emit.emit(("vllm",), **given, alpha=0.5, acceptance=tmp_path / "r.jsonl", out=out)
    with pytest.raises(UserError, match="an empty name of a model"):
        emit.emit(("vllm",), **given | {"target": ""}, out=out)
    emit.emit(("llama-cpp",), **given, confidence=0.4, lookup=True, out=out)
    words = shlex.split((out / "llama_server.sh").read_text())
    flags = dict(itertools.pairwise(words))
    assert flags["--spec-draft-p-min"] == "0.4"
    assert flags["--spec-type"] == "ngram-simple,draft-simple"


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    pair, out = Deployment("T", "D", 4), tmp_path / "out"
    emit.write(pair, (), out)
    emit.write(pair, ("vllm",), out)
    assert {path.name for path in out.iterdir()} == {"README.md", "vllm.json"}
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds (notes\.txt|README\.md|vllm\.json), which would be lost"):
        emit.write(pair, ("vllm",), out)
    assert (out / "notes.txt").read_text() == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").touch()
    with pytest.raises(UserError, match="it holds notes"):
        emit.write(pair, ("vllm",), tmp_path / "other")


@pytest.mark.parametrize("text", ["my notes", "", "## notes.txt\n\nmine", "# Title\n\n## vllm.json\n\nfor vllm"])
def test_a_readme_of_others_is_not_replaced(text: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(UserError, match=r"README\.md, which would be lost"):
        emit.write(Deployment("T", "D", 4), ("vllm",), tmp_path)
    assert (tmp_path / "README.md").read_text() == text


def test_where_no_engine_can_use_the_pair_earlier_settings_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    emit.write(Deployment("T", "D", 4), ("vllm",), tmp_path / "out")
    with pytest.raises(UserError, match="no engine can use this pair"):
        emit.write(Deployment("T", "D", 4, lookup=True), (), tmp_path / "out")
    assert capsys.readouterr().err.count("no settings for ") == len(engines.EMITTERS)
    assert (tmp_path / "out/vllm.json").is_file()


def test_prompt_lookup_comes_first_where_an_engine_can(tmp_path: Path) -> None:
    pair = dataclasses.replace(WANTED, lookup=True)
    assert [found.file for found in emit.write(pair, (), tmp_path / "out")] == ["llama_server.sh"]
    words = shlex.split(engines.llama_cpp(pair).command)
    assert "--metrics" in words
    flags = dict(itertools.pairwise(words))
    assert flags["--spec-type"] == "ngram-simple,draft-simple"
    assert (flags["--spec-ngram-simple-size-n"], flags["--spec-ngram-simple-size-m"]) == ("2", "4")
    with pytest.raises(UserError, match=r"vllm drafts in one way alone .leave out --lookup, or name llama-cpp"):
        emit.write(pair, ("vllm",), tmp_path / "vllm")


def test_llama_cpp_looks_up_no_fewer_tokens_than_it_matches() -> None:
    """Its ``ngram-simple`` drops a draft of fewer tokens than ``size-n``, and would never draft one of a single token."""
    for draft_len, says in ((1, True), (2, False)):
        found = engines.llama_cpp(Deployment("T.gguf", "D.gguf", draft_len, lookup=True))
        alone = engines_without_draft.llama_cpp(Deployment("T.gguf", "", draft_len, lookup=True))
        assert words_after(found.command, "--spec-draft-n-max") == str(draft_len)
        for written in (found, alone):
            assert words_after(written.command, "--spec-ngram-simple-size-m") == "2"
            assert ("prompt lookup drafts 2 tokens" in written.note) is says


def test_prompt_lookup_alone_needs_no_draft(tmp_path: Path) -> None:
    out = tmp_path / "out"
    emit.emit(target="T", draft_len=3, lookup=True, out=out)
    assert {path.name for path in out.iterdir()} == {
        "README.md", "vllm_ngram.json", "tensorrt_llm_ngram.yaml", "prompt_lookup.json"
    }  # fmt: skip
    lengths = {"prompt_lookup_min": 2, "prompt_lookup_max": 2}
    config = {"method": "ngram", "num_speculative_tokens": 3, **lengths}
    assert json.loads((out / "vllm_ngram.json").read_text()) == config
    assert yaml.safe_load((out / "tensorrt_llm_ngram.yaml").read_text()) == {
        "speculative_config": {
            "decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 2,
            "is_keep_all": True, "is_use_oldest": False, "is_public_pool": False,
        },
        "disable_overlap_scheduler": True,
    }  # fmt: skip
    emit.emit(target="T.gguf", draft_len=3, lookup=True, out=out)
    assert {path.name for path in out.iterdir()} == {"README.md", "vllm_ngram.json", "llama_server_lookup.sh"}
    flags = dict(itertools.pairwise(shlex.split((out / "llama_server_lookup.sh").read_text())))
    assert (flags["--model"], flags["--spec-type"], flags["--spec-ngram-simple-size-m"]) == (
        "T.gguf",
        "ngram-simple",
        "3",
    )
    assert "vllm-gguf-plugin" in (out / "README.md").read_text()


def test_transformers_looks_up_as_its_settings_say(tmp_path: Path) -> None:
    from transformers import GenerationConfig

    settings = json.loads(engines_without_draft.transformers(Deployment("T", "", 3, lookup=True)).text)
    config = GenerationConfig(**settings)
    assert (config.prompt_lookup_num_tokens, config.max_matching_ngram_size) == (3, 2)
    config.validate(strict=True)


def test_suffix_decoding_alone_needs_no_draft(tmp_path: Path) -> None:
    out = tmp_path / "out"
    emit.emit(target="T", draft_len=6, suffix=True, out=out)
    files = {"vllm_suffix.json", "sglang_ngram.sh", "tensorrt_llm_sa.yaml"}
    assert {path.name for path in out.iterdir()} == {"README.md", *files}
    suffix = {"method": "suffix", "num_speculative_tokens": 6, "suffix_decoding_max_tree_depth": 24}
    config = json.loads((out / "vllm_suffix.json").read_text())
    assert config == suffix | {"suffix_decoding_min_token_prob": 0.1}
    flags = dict(itertools.pairwise(shlex.split((out / "sglang_ngram.sh").read_text())))
    assert (flags["--speculative-algorithm"], flags["--speculative-num-draft-tokens"]) == ("NGRAM", "7")
    assert flags["--speculative-ngram-max-bfs-breadth"] == "1", "a chain, no tree"
    automaton = yaml.safe_load((out / "tensorrt_llm_sa.yaml").read_text())["speculative_config"]
    assert automaton == {"decoding_type": "SA", "max_draft_len": 6, "enable_global_pool": True}
    assert (out / "README.md").read_text().count("the verdict's promise does not hold") == 2
    emit.emit(target="T", draft_len=6, suffix=True, confidence=0.45, out=out)
    assert {path.name for path in out.iterdir()} == {"README.md", "vllm_suffix.json"}
    assert json.loads((out / "vllm_suffix.json").read_text())["suffix_decoding_min_token_prob"] == 0.45


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "nothing that drafts"),
        ({"lookup": True, "suffix": True}, "nothing that drafts"),
        ({"draft": "D", "suffix": True}, "suffix decoding drafts without a model"),
        ({"lookup": True, "alpha": 0.5}, "--alpha is for a draft model"),
        ({"suffix": True, "greedy": True}, "--greedy is for a draft model"),
        ({"lookup": True, "confidence": 0.4}, "no engine can use this pair"),
        ({"lookup": True, "engine": ("sglang",)}, "sglang has no prompt lookup"),
        ({"suffix": True, "engine": ("llama-cpp",)}, "llama-cpp has no suffix decoding"),
        ({"lookup": True, "engine": ("llama-cpp",)}, "T is not a GGUF file"),
        ({"suffix": True, "target": "T.gguf", "engine": ("sglang",)}, "sglang is given no GGUF file"),
    ],
)
def test_what_cannot_draft_without_a_model_is_refused(given: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        emit.emit(**{"target": "T", "draft_len": 3, "out": tmp_path / "out", **given})  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_lengths_of_a_lookup_come_from_a_simulation_that_costs_nothing(tmp_path: Path) -> None:
    best = [{"batch": b, "context": 512, "best_draft_len": k} for b, k in ((1, 4), (64, 2))]
    for ratio in (0, 0.1):
        write_json(tmp_path / "load.json", {"known": True, "draft_ratio": ratio, "best_by_batch_and_context": best})
        given = {"load": tmp_path / "load.json", "target": "T", "lookup": True, "out": tmp_path / "out"}
        if ratio:
            with pytest.raises(UserError, match="assumed a draft that costs something"):
                emit.emit(("vllm",), **given)
            continue
        emit.emit(("vllm",), **given)
        assert json.loads((tmp_path / "out/vllm_ngram.json").read_text())["num_speculative_tokens"] == 4
        assert "one length for all batches" in (tmp_path / "out/README.md").read_text()


def test_a_head_of_eagle_3_is_served_as_one(tmp_path: Path) -> None:
    (tmp_path / "head").mkdir()
    (tmp_path / "head/config.json").write_text(
        json.dumps({"model_type": "", "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000})
    )
    for draft, more in (("owner/head", {"head": "eagle3"}), (str(tmp_path / "head"), {})):
        emit.emit(draft_len=3, target="T", draft=draft, alpha=0.7, out=tmp_path / "out", **more)
        files = {file.name for file in (tmp_path / "out").iterdir()}
        settings = {"vllm.json", "vllm_synthetic.json", "sglang.sh", "sglang_adaptive.json", "tensorrt_llm_upper.yaml"}
        assert files == {"README.md", *settings}
        tensorrt = yaml.safe_load((tmp_path / "out/tensorrt_llm_upper.yaml").read_text())["speculative_config"]
        assert tensorrt == {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": draft}
        config = json.loads((tmp_path / "out/vllm.json").read_text())
        assert (config["method"], config["model"], config["num_speculative_tokens"]) == ("eagle3", draft, 3)
        flags = dict(itertools.pairwise(shlex.split((tmp_path / "out/sglang.sh").read_text())))
        assert flags["--speculative-algorithm"] == "EAGLE3"
        with pytest.raises(UserError, match="no settings of a head are written for transformers"):
            emit.emit(("transformers",), draft_len=3, target="T", draft=draft, out=tmp_path / "other", **more)


def test_a_draft_that_proposes_a_block_in_one_pass_is_served_so(tmp_path: Path) -> None:
    head = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000, "ptd_token_id": 3}
    for name, config in (("head", head), ("draft", {"pard_token": 3})):
        write_json(tmp_path / name / "config.json", config)
    hub = {"parallel": True}
    for draft, more in (("owner/draft", hub), (str(tmp_path / "draft"), {}), (str(tmp_path / "head"), {})):
        emit.emit(draft_len=3, target="T", draft=draft, alpha=0.7, out=tmp_path / "out", **more)
        files = {file.name for file in (tmp_path / "out").iterdir()}
        is_head = draft.endswith("head")
        without_states = set() if is_head else {
            "tensorrt_llm_lower.yaml", "tensorrt_llm_upper.yaml", "speculation_profile.json"
        }  # fmt: skip
        assert files == {"README.md", "vllm.json", "vllm_synthetic.json"} | without_states
        config = json.loads((tmp_path / "out/vllm.json").read_text())
        assert config["parallel_drafting"] is True
        assert config["method"] == ("eagle3" if is_head else "draft_model")
        if not is_head:
            tensorrt = yaml.safe_load((tmp_path / "out/tensorrt_llm_upper.yaml").read_text())
            assert tensorrt["speculative_config"]["decoding_type"] == "PARD"
        for engine in ("sglang", "llama-cpp", "transformers"):
            with pytest.raises(UserError, match=f"{engine} drafts token after token, and this draft proposes a block"):
                emit.emit((engine,), draft_len=3, target="T", draft=draft, out=tmp_path / "other", **more)
    assert "parallel_drafting" not in json.loads(engines.vllm(WANTED).text)


def test_llama_cpp_is_given_a_head_of_eagle_3_as_a_gguf_file() -> None:
    head = Deployment("T.gguf", "H.gguf", 3, head="eagle3")
    written = engines.settings_for("llama-cpp", head)
    assert words_after(written.command, "--spec-type") == "draft-eagle3"
    assert (written.version, "--spec-draft-sampling" in written.command) == (
        "llama.cpp since PR #18039",
        False,
    )
    assert "most probable token at any temperature" in written.note
    both = engines.settings_for("llama-cpp", dataclasses.replace(head, lookup=True))
    assert words_after(both.command, "--spec-type") == "ngram-simple,draft-eagle3"
    with pytest.raises(UserError, match=r"convert_hf_to_gguf.py HEAD --target-model-dir TARGET"):
        engines.settings_for("llama-cpp", dataclasses.replace(head, draft="owner/head"))


def test_a_head_of_dflash_is_known_by_its_folder_or_by_a_flag(tmp_path: Path) -> None:
    """vLLM and SGLang know by the method that it fills in a block at once; SGLang counts the known token as one of the block."""
    own = {"dflash_config": {"mask_token_id": 9, "target_layer_ids": [1, 5], "block_size": 8}}
    (tmp_path / "head").mkdir()
    write_json(tmp_path / "head/config.json", {"architectures": ["DFlashDraftModel"], "vocab_size": 10} | own)
    for draft, more in ((str(tmp_path / "head"), {}), ("owner/head", {"head": "dflash"})):
        out = tmp_path / "out"
        emit.emit(draft_len=5, target="T", draft=draft, out=out, **more)
        assert {path.name for path in out.iterdir()} == {
            "README.md", "vllm.json", "sglang.sh", "tensorrt_llm_upper.yaml"
        }  # fmt: skip
        assert json.loads((out / "vllm.json").read_text()) == {
            "method": "dflash", "model": draft, "num_speculative_tokens": 5, "draft_sample_method": "probabilistic"
        }  # fmt: skip
        words = shlex.split((out / "sglang.sh").read_text())
        assert words_after(shlex.join(words), "--speculative-algorithm") == "DFLASH"
        assert words_after(shlex.join(words), "--speculative-num-draft-tokens") == "6"
        assert "--speculative-num-steps" not in words
        config = yaml.safe_load((out / "tensorrt_llm_upper.yaml").read_text())["speculative_config"]
        assert config == {"decoding_type": "DFlash", "max_draft_len": 5, "speculative_model": draft}
        noted = "the first 5 tokens of a whole block" in (out / "README.md").read_text()
        assert noted == (draft != "owner/head"), "of one on the hub the block is not known yet"
        emit.emit(draft_len=7, target="T", draft=draft, out=out, **more)
        assert "of a whole block" not in (out / "README.md").read_text()
    file = engines.settings_for("llama-cpp", Deployment("T.gguf", "H.gguf", 3, head="dflash", parallel=True))
    assert words_after(file.command, "--spec-type") == "draft-dflash"
    with pytest.raises(UserError, match="transformers drafts token after token, and this draft proposes a block"):
        emit.emit(("transformers",), draft_len=3, target="T", draft="owner/head", head="dflash", out=tmp_path / "other")


def test_a_head_of_dspark_is_served_by_its_own_method(tmp_path: Path) -> None:
    """Its block is as long as what it drafts; TensorRT-LLM does not serve it."""
    out = tmp_path / "out"
    emit.emit(draft_len=5, target="T", draft="owner/head", head="dspark", out=out)
    assert {path.name for path in out.iterdir()} == {"README.md", "vllm.json", "sglang.sh"}
    config = json.loads((out / "vllm.json").read_text())
    assert (config["method"], config["num_speculative_tokens"]) == ("dspark", 5)
    flags = words_after(command := (out / "sglang.sh").read_text(), "--speculative-dspark-block-size")
    assert (flags, words_after(command, "--speculative-algorithm")) == ("5", "DSPARK")
    assert "--speculative-num-draft-tokens" not in command
    file = engines.settings_for("llama-cpp", Deployment("T.gguf", "H.gguf", 3, head="dspark", parallel=True))
    assert words_after(file.command, "--spec-type") == "draft-dspark"


@pytest.mark.parametrize(
    ("config", "captured"),
    [
        ({}, None),
        ({"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}, [1, 15, 28]),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}}, [1, 15, 28]),
    ],
)
def test_tensorrt_llm_is_told_after_which_layers_a_head_reads(
    config: dict[str, object], captured: list[int] | None, tmp_path: Path
) -> None:
    """vLLM names the layers before which states are taken, TensorRT-LLM those after which: by default 1, n/2 - 1 and n - 4 of n."""
    head = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}
    write_json(tmp_path / "config.json", head | config)
    written = engines.settings_for("tensorrt-llm-upper", Deployment("T", str(tmp_path), 3, head="eagle3"))
    assert yaml.safe_load(written.text)["speculative_config"].get("eagle3_layers_to_capture") == captured


def test_layers_that_vllm_does_not_find_are_named(tmp_path: Path) -> None:
    """A head of SpecForge names the layers that it reads in an object of its own."""
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}
    for config, is_noted in (({"eagle_config": ids}, True), ({"eagle_config": ids, **ids}, False), ({}, False)):
        (tmp_path / "head").mkdir(exist_ok=True)
        known = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}
        (tmp_path / "head/config.json").write_text(json.dumps(known | config))
        emit.emit(("vllm",), draft_len=3, target="T", draft=str(tmp_path / "head"), out=tmp_path / "out")
        noted = (
            "vLLM reads eagle_aux_hidden_state_layer_ids only at the top level"
            in (tmp_path / "out/README.md").read_text()
        )
        assert noted == is_noted


def test_a_simulation_without_answer_or_gain_gives_no_settings(tmp_path: Path) -> None:
    best = [{"batch": 1, "context": 512, "best_draft_len": 0}]
    for known, says in ((False, "no answer"), (True, "no batch gains")):
        (tmp_path / "load.json").write_text(
            json.dumps({"known": known, "requests": 50, "best_by_batch_and_context": best})
        )
        with pytest.raises(UserError, match=says):
            emit.from_load(tmp_path / "load.json", 512)
    (tmp_path / "verdict.json").write_text('{"verdict": "yes"}')
    with pytest.raises(UserError, match=r"verdict\.json: not a file of draftlab load"):
        emit.from_load(tmp_path / "verdict.json", 512)


def test_lengths_by_batch_are_read_from_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone a request was replayed, and at other batches the costs of a machine say which length is best."""
    file = tmp_path / "verdict.json"
    options = [{"name": "lookup", "by_batch": {}}, {"name": "distilled", "by_batch": {"1": 5, "2": 4, "8": 2, "64": 0}}]
    verdict = {"format": "draftlab verdict 1", "options": options, "monitor": {"option": "distilled", "draft_len": 4}}
    write_json(file, verdict)
    emit.emit(("vllm",), load=file, target="T", draft="D", out=tmp_path / "out")
    found = json.loads((tmp_path / "out/vllm.json").read_text())
    assert found["num_speculative_tokens"] == 4
    assert found["num_speculative_tokens_per_batch_size"] == [[1, 2, 4], [3, 8, 2], [9, 64, 0]]
    assert "draft lengths by batch at the context of the verdict's requests" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"the verdict recommends the draft distilled on this traffic .give --draft"):
        emit.from_load(file, 512, has_draft=False)
    write_json(file, verdict | {"monitor": {"option": "lookup", "draft_len": 3}})
    assert emit.from_load(file, 512, has_draft=False) == ([], 3)
    with pytest.raises(UserError, match=r"recommends prompt lookup .leave out --draft, and give --lookup or --suffix"):
        emit.from_load(file, 512)
    write_json(file, verdict | {"monitor": None})
    with pytest.raises(UserError, match=r"the verdict recommends no draft .serve without one"):
        emit.from_load(file, 512)
    write_json(file, {"monitor": {"option": "lookup", "draft_len": 0}, "options": []})
    with pytest.raises(UserError, match=r"not a file of draftlab load, nor of a verdict: monitor\.draft_len"):
        emit.from_load(file, 512)


# --- readers ---------------------------------------------------------------------------------------------------------

VLLM_REQUEST = {"metrics": {"speculative_decoding": {
    "mean_acceptance_length": 2.4, "draft_acceptance_rate": 0.35, "acceptance_histogram": [4, 2, 1, 2, 1], "num_spec_steps": 10,
    "num_accepted_draft_tokens": 14, "num_draft_tokens": 40, "num_spec_tokens": 4}}}  # fmt: skip
SAME = [
    VLLM_REQUEST,
    {"spec_decode_num_drafts": 10, "spec_decode_draft_tokens": 40, "spec_decode_accepted_tokens": 14, "completed": 1,
     "spec_decode_acceptance_rate": 35.0, "spec_decode_per_position_acceptance_rates": [0.6, 0.4, 0.3, 0.1]},
    {"meta_info": {"spec_verify_ct": 10, "spec_num_correct_drafts": 14, "spec_num_proposed_drafts": 40,
                   "spec_correct_drafts_histogram": [4, 2, 1, 2, 1]}},
    {"meta_info": {"spec_verify_ct": 10, "spec_accepted_drafts": 14, "spec_proposed_drafts": 40,
                   "spec_accept_histogram": {"0": 4, "1": 2, "2": 1, "3": 2, "4": 1}}},
    {"spec_verify_ct": 10, "spec_accept_token_num": 14, "spec_draft_token_num": 40, "spec_accept_histogram": [4, 2, 1, 2, 1]},
    {"choices": [{"index": 0, "avg_decoded_tokens_per_iter": 2.27, "speculative_decoding": {
        "acceptance_rate": 0.35, "total_accepted_draft_tokens": 14, "total_draft_tokens": 40, "num_spec_steps": 10,
        "acceptance_histogram": [4, 2, 1, 2, 1], "num_spec_tokens": 4}}]},
]  # fmt: skip


@pytest.mark.parametrize("row", [*SAME, {"request": {}, "response": VLLM_REQUEST}, {"response": {"body": SAME[2]}}])
def test_every_name_says_the_same(row: dict[str, object]) -> None:
    seen = records.read_one(row)
    assert seen is not None
    assert (seen.drafts, seen.drafted, seen.accepted) == (10, 40, 14)
    assert seen.histogram is not None
    assert_allclose(seen.histogram, [4, 2, 1, 2, 1])


def test_counts_that_are_missing_follow_from_lengths() -> None:
    """25 tokens: one from the prompt's call, ten from the blocks' calls, 14 drafted."""
    old = records.read_one({"meta_info": {"spec_verify_ct": 10, "completion_tokens": 25}})
    length = records.read_one({"meta_info": {"spec_verify_ct": 10, "spec_accept_length": 2.5}})
    cpp = records.read_one({"timings": {"predicted_n": 25, "draft_n": 40, "draft_n_accepted": 14}})
    assert old is not None
    assert length is not None
    assert cpp is not None
    assert (old.drafts, old.accepted) == (length.drafts, length.accepted) == (cpp.drafts, cpp.accepted) == (10, 14)
    # TensorRT-LLM counts the prompt's call too, and prints 25 / 11 as a float of four bytes.
    choice = {"index": 0, "avg_decoded_tokens_per_iter": float(np.float32(25 / 11)), "speculative_decoding": None}
    tensorrt = records.read_one({"choices": [choice], "usage": {"completion_tokens": 25}})
    assert tensorrt is not None
    assert (tensorrt.drafts, tensorrt.accepted) == (10, 14)


@pytest.mark.parametrize(
    "row",
    [None, {}, [], {"metrics": None}, {"metrics": {"speculative_decoding": None}}, {"spec_verify_ct": "x"}, {"spec_verify_ct": 5},
     {"timings": {"predicted_n": 4}}, {"timings": {"predicted_n": 9, "draft_n": 3, "draft_n_accepted": 4}},
     {"timings": {"predicted_n": float("nan"), "draft_n": 3, "draft_n_accepted": 2}}, {"timings": {"predicted_n": True, "draft_n": 3, "draft_n_accepted": 0}},
     {"choices": [{"avg_decoded_tokens_per_iter": 2.0}]}, {"choices": [{"avg_decoded_tokens_per_iter": None}], "usage": {"completion_tokens": 4}},
     {"choices": [{"avg_decoded_tokens_per_iter": 2.0}] * 2, "usage": {"completion_tokens": 4}}, {"choices": "x"}, {"choices": [3]},
     {"timings": {"predicted_n": 10**400, "draft_n": 3, "draft_n_accepted": 2}}, {"spec_verify_ct": 1e300, "spec_accept_token_num": 1},
     {"metrics": {"speculative_decoding": {"num_spec_steps": 1, "num_draft_tokens": 4, "num_accepted_draft_tokens": 2,
                                           "acceptance_histogram": {"300000000": 1}}}}],
)  # fmt: skip
def test_rows_that_say_nothing_are_none(row: object) -> None:
    assert records.read_one(row) is None


@pytest.mark.parametrize("name", ["bench.json", "BENCH.JSON"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_results_that_were_appended_to_a_file_are_all_read(name: str, encoding: str, tmp_path: Path) -> None:
    """``vllm bench serve --append-result``."""
    runs = [{"spec_decode_num_drafts": n, "spec_decode_draft_tokens": 40, "spec_decode_accepted_tokens": 20, "completed": 5}
            for n in (10, 11, 12)]  # fmt: skip
    text = "\n".join([json.dumps(runs[0], indent=1), json.dumps(runs[1]), json.dumps(runs[2:]), ""])
    (tmp_path / name).write_text(text, encoding=encoding)
    assert [found.drafts for found in records.read(tmp_path / name) if found] == [10, 11, 12]
    (tmp_path / name).write_text(text + "{")
    with pytest.raises(UserError, match="not JSON"):
        list(records.read(tmp_path / name))


def test_prometheus_text_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    names = {"drafts": 10, "draft_tokens": 40, "accepted_tokens": 20}
    text = "# HELP x y\n" + "".join(f"vllm:spec_decode_num_{name}_total {n}\n" for name, n in names.items())
    (tmp_path / "m").write_text(text, encoding="utf-8-sig")
    (found,) = records.read(tmp_path / "m")
    assert found is not None
    assert found.accepted == 20


def test_perf_metrics_of_tensorrt_llm_are_refused_with_the_reason(tmp_path: Path) -> None:
    """They count drafted and accepted tokens of a request, but not its steps."""
    counted = {"acceptance_rate": 0.5, "total_accepted_draft_tokens": 6, "total_draft_tokens": 12}
    row = {
        "request_id": 3,
        "perf_metrics": {"timing_metrics": {}, "speculative_decoding": counted},
        "status": "complete",
    }
    write_json(tmp_path / "perf_metrics.json", [row])
    for reader in (records.acceptance, lambda file: list(records.read(file))):
        with pytest.raises(
            UserError, match=r"do not say in how many steps it drafted .give its responses, or its /metrics"
        ):
            reader(tmp_path / "perf_metrics.json")
    assert records.read_one({"perf_metrics": {"timing_metrics": {}}}) is None


def test_recorded_histograms_become_acceptance(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text("\n".join(["{", json.dumps(VLLM_REQUEST), json.dumps(SAME[2])]))
    found = records.acceptance(tmp_path / "r.jsonl")
    assert found.survival.shape[0] == 2
    assert_allclose(found.survival[0, :4], [0.6, 0.4, 0.3, 0.1])
    (tmp_path / "r.jsonl").write_text("{}")
    with pytest.raises(UserError, match="no histogram"):
        records.acceptance(tmp_path / "r.jsonl")


def write_records(file: Path, *rows: tuple[list[int], int | None]) -> Path:
    """SGLang's records of requests, each of a histogram and a number of drafted tokens."""
    metas = [{"spec_verify_ct": sum(h), "spec_num_correct_drafts": int(np.dot(h, range(len(h)))), "spec_correct_drafts_histogram": h}
             | ({} if drafted is None else {"spec_num_proposed_drafts": drafted}) for h, drafted in rows]  # fmt: skip
    file.write_text("\n".join(json.dumps({"meta_info": meta}) for meta in metas))
    return file


def test_a_request_of_many_steps_counts_as_much_as_its_steps(tmp_path: Path) -> None:
    """As in the engine's counters: 1002 steps accept 4000 tokens."""
    found = records.acceptance(write_records(tmp_path / "r.jsonl", ([0, 0, 0, 0, 1000], 4000), ([2, 0, 0, 0, 0], 8)))
    assert found.length(4) == pytest.approx(1 + 4000 / 1002)
    assert_allclose(found.marginals(4), 1000 / 1002)


@pytest.mark.parametrize("drafted", [40, None])
def test_a_histogram_cut_at_the_largest_count_seen_is_padded(tmp_path: Path, drafted: int | None) -> None:
    """The first request never accepts a token, the second never more than one."""
    rows = [[10], [5, 5], [4, 3, 2, 0, 1]]
    found = records.acceptance(write_records(tmp_path / "r.jsonl", *((h, drafted) for h in rows)))
    assert_allclose(found.survival[:, :4], [[0, 0, 0, 0], [0.5, 0, 0, 0], [0.6, 0.3, 0.1, 0.1]])
    assert found.length(4) == pytest.approx(1 + (5 + 11) / 30)


def test_a_draft_length_beyond_any_engines_is_not_padded_to(tmp_path: Path) -> None:
    assert records.acceptance(write_records(tmp_path / "r.jsonl", ([5, 5], 10**12))).length(4) == 1.5


def test_a_file_in_which_nothing_is_accepted_is_read(tmp_path: Path) -> None:
    assert records.acceptance(write_records(tmp_path / "r.jsonl", ([10], None))).length(4) == 1


@pytest.mark.parametrize("known", [True, False])
def test_short_drafts_say_nothing_about_later_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], known: bool
) -> None:
    """80 % of tokens are accepted after the one before: 100 blocks draft one, 125 draft three."""
    own = {"1": [20, 80], "3": [25, 20, 16, 64]}
    metrics = {"num_spec_steps": 225, "num_draft_tokens": 475, "num_accepted_draft_tokens": 324, "num_spec_tokens": 3,
               "acceptance_histogram": [45, 100, 16, 64], "acceptance_histogram_by_draft_length": own if known else None}  # fmt: skip
    (tmp_path / "r.jsonl").write_text(json.dumps({"metrics": {"speculative_decoding": metrics}}))
    found = records.acceptance(tmp_path / "r.jsonl")
    assert found.tokens.sum() == pytest.approx(225 + 324)
    if known:
        assert_allclose(found.survival[0, :3], [0.8, 0.64, 0.512])
        assert not capsys.readouterr().err
    else:
        assert capsys.readouterr().err.endswith(
            "1 of 1 records have blocks of fewer drafted tokens, counted as rejections\n"
        )


def test_a_request_for_which_nothing_was_drafted_says_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    idle = {"num_spec_steps": 10, "num_draft_tokens": 0, "num_accepted_draft_tokens": 0, "num_spec_tokens": 4,
            "acceptance_histogram": [10, 0, 0, 0, 0], "acceptance_histogram_by_draft_length": {"0": [10]}}  # fmt: skip
    rows = [VLLM_REQUEST, {"metrics": {"speculative_decoding": idle}}]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = records.acceptance(tmp_path / "r.jsonl")
    assert found.requests == 1
    assert found.length(4) == pytest.approx(2.4)
    assert not capsys.readouterr().err
    (tmp_path / "r.jsonl").write_text(json.dumps(rows[1]))
    with pytest.raises(UserError, match="no histogram of accepted lengths"):
        records.acceptance(tmp_path / "r.jsonl")


# --- the watch -------------------------------------------------------------------------------------------------------

PROMISE = Promise(draft_len=4, acceptance_length=Bounds(low=2.8, high=3.2))


def requests(count: int, alpha: float, seed: int = 0) -> list[SpeculationCounts]:
    """Requests of 20 blocks of four drafted tokens, each with an alpha of its own."""
    rng = np.random.default_rng(seed)
    alphas = np.clip(rng.normal(alpha, 0.05, count), 0, 1)
    blocks = [(rng.random((20, 4)) < a).cumprod(axis=1).sum() for a in alphas]
    return [SpeculationCounts("vllm", 20, 80, float(accepted)) for accepted in blocks]


def judge(rows: Sequence[SpeculationCounts | None]) -> monitor.Status:
    return monitor.judge(iter(rows), PROMISE)


GOOD, BAD = 0.74, 0.45  # lengths of 2.99 and 1.78


def test_the_interval_is_that_of_a_ratio_over_requests() -> None:
    """It covers the true length in 93 to 97 % of 600 samples of 60 requests."""
    truth = 1 + np.mean([s.accepted / s.drafts for s in requests(60_000, GOOD, 99)])
    hits = 0
    for seed in range(600):
        sums = monitor.Sums()
        for seen in requests(60, GOOD, seed):
            sums.add(seen)
        hits += sums.length().low <= truth <= sums.length().high
    assert 0.92 < hits / 600 < 0.975


def test_totals_vary_over_records_if_there_are_enough_and_over_blocks_if_not() -> None:
    many, few, halves = monitor.Sums(), monitor.Sums(), monitor.Sums()
    for number in range(30):
        many.add(SpeculationCounts("vllm", 100, 400, 100 + 200 * (number % 2), requests=50))
    few.add(SpeculationCounts("vllm", 1000, 4000, 2800, requests=500))  # at most as if 7 of 10 blocks accepted all 4
    for blocks in (200, 800):
        counts = (0.3 * blocks, 0, 0, 0, 0.7 * blocks)
        halves.add(SpeculationCounts("vllm", blocks, 4 * blocks, 2.8 * blocks, blocks / 2, counts))
    for sums, length, error in (
        (many, 3, 1 / 29**0.5),
        *((s, 3.8, (0.7 * 0.3 * 16 / 1000) ** 0.5) for s in (few, halves)),
    ):
        found = sums.length()
        expected = (length, length - 1.96 * error, length + 1.96 * error)
        assert_allclose((found.estimate, found.low, found.high), expected, rtol=1e-12)


def test_a_draft_as_promised_is_not_called_stale() -> None:
    assert judge(requests(1000, GOOD)).state == "as promised"
    assert judge(requests(1000, 0.95)).state == "better"


def test_a_stale_draft_is_named_with_the_request_from_which_it_is() -> None:
    found = judge([*requests(500, GOOD), *requests(300, BAD)])
    assert found.state == "stale"
    assert found.text.startswith("stale since request 501: ")


def test_the_newest_requests_are_judged_and_named() -> None:
    found = judge([*requests(300, GOOD), *requests(99, BAD)])
    assert found.state == "falling"
    assert "(requests 300 to 399 of 399)" in found.text
    assert judge([*requests(300, GOOD), *requests(190, BAD)]).state == "stale"
    assert "(120 requests)" in judge(requests(120, GOOD)).text


def test_a_draft_that_recovered_is_not_stale_and_is_not_silent() -> None:
    found = judge([*requests(100, GOOD), *requests(200, BAD), *requests(300, GOOD)])
    assert found.state == "recovered"
    assert found.text.endswith("; requests 101 to 300 were below")


@pytest.mark.parametrize(
    ("accepted", "begins"),
    [
        ([(100, 40), (100, 0), (200, 40)], "as promised:"),  # one window below
        ([(100, 40), (200, 0), (200, 40), (100, 0)], "falling:"),  # for the second time
        ([(1, 0), (1, 70)] * 100 + [(200, 40)], "as promised:"),  # two windows of 2.75, give or take 0.34
        (
            [(150, 40), (50, 0), (100, 40), (50, 0)],
            "stale since request 151:",
        ),  # the window of requests 201 to 300 is as promised
    ],
)
def test_the_state_follows_from_windows(accepted: list[tuple[int, int]], begins: str) -> None:
    """So many requests of 20 blocks, with so many tokens accepted in each."""
    found = judge([SpeculationCounts("vllm", 20, 80, each) for count, each in accepted for _ in range(count)])
    assert found.text.startswith(begins)


def test_a_window_is_of_the_last_hundred_requests() -> None:
    found = judge([SpeculationCounts("vllm", 20, 80, accepted) for accepted in [40] * 100 + [100] + [40] * 99])
    assert found.text.startswith("as promised: 3.03 tokens a step")
    assert found.text.endswith("(requests 101 to 200 of 200)")


def test_a_few_rows_of_many_requests_each_are_known() -> None:
    runs = [SpeculationCounts("vllm", 10_000, 40_000, accepted, requests=500) for accepted in (19_900, 19_800)]
    found = judge(runs)
    assert found.state == "as promised"
    assert "(1000 requests)" in found.text
    assert judge([SpeculationCounts("vllm", 10_000, 40_000, 8000, requests=500)] * 2).state == "stale"


def test_too_little_says_not_yet_known() -> None:
    assert judge(requests(29, BAD)).state == "not yet known"
    assert judge(requests(30, BAD)).state == "stale"
    assert judge([]).state == "not yet known"
    assert judge([None] * 50).text.endswith("50 rows that are broken or without speculation left out")
    assert judge([None]).text.endswith("; 1 row that is broken or without speculation left out")
    assert judge([SpeculationCounts("vllm", 999, 3996, 500, float("nan"))]).state == "not yet known"
    assert judge([SpeculationCounts("vllm", 5000, 20_000, 9950, float("nan"))]).state == "as promised"
    assert judge([SpeculationCounts("vllm", 5000, 20_000, 5000, float("nan"))]).state == "stale"


@pytest.mark.parametrize("requests_", [0, 7, math.nan])
def test_the_counters_of_an_idle_server_are_not_called_broken(requests_: float) -> None:
    found = judge([SpeculationCounts("vllm", 0, 0, 0, requests_)])
    assert found.state == "not yet known"
    assert found.text.endswith("0 blocks (30 requests are needed, or 1000 blocks of counters)")
    assert judge([SpeculationCounts("vllm", 0, 0, 0)]).text.endswith(
        "1 row that is broken or without speculation left out"
    )


def test_counters_say_of_how_many_requests_they_are() -> None:
    few = judge([SpeculationCounts("vllm", 500, 2000, 995, requests=200)])
    assert (few.state, few.text[:43]) == ("not yet known", "not yet known: 200 requests with 500 blocks")
    assert judge([SpeculationCounts("vllm", 5000, 20_000, 9950, requests=29)]).state == "not yet known"
    unknown = judge([SpeculationCounts("vllm", 500, 2000, 995, requests=float("nan"))])
    assert unknown.text.startswith("not yet known: 500 blocks")


def test_counters_vary_at_least_as_much_as_so_many_requests_of_the_promise() -> None:
    """2.8 to 3.2 over 200 requests is 2.6 to 3.4 over 50, so 2.5 tokens give or take 0.4 are no alarm; alone, 2000 blocks say 2.5 give or take 0.06."""
    promise = PROMISE.model_copy(update={"requests": 200})
    for tokens, requests_, state in ((2.5, 50, "as promised"), (2.3, 50, "stale"), (2.5, math.nan, "stale")):
        seen = SpeculationCounts("vllm", 2000, 8000, 2000 * (tokens - 1), requests_)
        assert monitor.judge([seen], promise).state == state
        assert monitor.judge([seen], PROMISE).state == "stale", "a promise that does not say of how many requests it is"


def test_rows_without_speculation_count_where_a_draft_became_stale() -> None:
    found = judge([*[None] * 50, *requests(100, GOOD), *requests(300, BAD)])
    assert found.text.startswith("stale since request 151: ")


def test_a_lookup_may_draft_fewer_tokens_than_the_longest_block() -> None:
    for option in ("lookup", "lookup_first"):
        promise = PROMISE.model_copy(update={"draft_len": 8, "option": option})
        assert monitor.judge(requests(100, GOOD), promise).state == "as promised"


def test_another_draft_length_is_not_compared() -> None:
    with pytest.raises(UserError, match=r"drafts 2\.00 tokens"):
        judge([SpeculationCounts("vllm", 20, 40, 20)] * 50)
    with pytest.raises(UserError, match=r"drafts 5\.00 tokens"):
        judge([SpeculationCounts("vllm", 20, 100, 40)] * 50)


def test_lengths_by_batch_have_a_promise_between_those_of_their_lengths() -> None:
    """Half the blocks draft four tokens, and half of them one: they emit (3 + 1.75) / 2."""
    by_length = {1: Bounds(low=1.7, high=1.8), 2: Bounds(low=2.2, high=2.4)}
    promise = PROMISE.model_copy(update={"by_length": by_length})
    ends = [promise.at(drafted) for drafted in (0.9, 1.0, 2.0, 2.5, 4.0, 4.1, math.nan)]
    assert_allclose([b.low for b in ends], [1.7, 1.7, 1.7 + 1.1 / 3, 1.7 + 1.1 / 2, 2.8, 2.8, 2.8])
    assert_allclose([b.high for b in ends], [1.8, 1.8, 2.4, 2.4 + 0.8 / 4, 3.2, 3.2, 3.2])
    for share, state in ((1.0, "as promised"), (0.85, "stale"), (1.2, "better")):
        accepted = share * 20 * (2 + 0.75) / 2
        rows = [SpeculationCounts("vllm", 20, 50, accepted + 0.1 * (-1) ** n) for n in range(100)]
        found = monitor.judge(rows, promise)
        assert found.state == state
        assert (
            "promised 2.25 to 2.60 for 2.50 drafted tokens a block (the verdict's length: 4) (100 requests)"
            in found.text
        )
    for drafted in (0.7, 4.3):
        with pytest.raises(UserError, match=f"drafts {drafted:.2f} tokens"):
            monitor.judge([SpeculationCounts("vllm", 20, 20 * drafted, 10)] * 50, promise)


def test_each_window_is_compared_at_its_own_mean_length() -> None:
    """Two hundred requests at a large batch draft one token; they accept as much of it as is promised, and far less than four would."""
    promise = PROMISE.model_copy(update={"by_length": {1: Bounds(low=1.7, high=1.8)}})
    rows = [SpeculationCounts("vllm", 20, 20, 15 + (-1) ** n) for n in range(200)]
    found = monitor.judge([*rows, *requests(100, GOOD)], promise)
    assert found.state == "as promised"
    assert monitor.judge([*requests(100, GOOD), *rows], promise).state == "as promised"


def test_blocks_that_end_early_have_no_length_to_compare() -> None:
    early = PROMISE.model_copy(update={"draft_len": 8, "threshold": 0.45})
    assert monitor.judge(requests(100, GOOD), early).state == "as promised"
    timings, responses = SpeculationCounts("llama.cpp", 20, 80, 40), SpeculationCounts("tensorrt-llm", 20, math.nan, 40)
    for promise in (early, PROMISE.model_copy(update={"option": "lookup"})):
        for counts, what in ((timings, "llama.cpp's timings"), (responses, "tensorrt-llm's responses")):
            with pytest.raises(UserError, match=f"{what} do not tell .* .monitor its /metrics"):
                monitor.judge([counts] * 50, promise)
    assert monitor.judge([responses] * 50, PROMISE).state == "as promised"


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"draft_len": 4}', '{"draft_len": 0, "acceptance_length": {"low": 2, "high": 3}}',
             '{"draft_len": 4, "acceptance_length": {"low": 3, "high": 2}}', '{"draft_len": 4, "acceptance_length": {"low": NaN, "high": 2}}',
             '{"draft_len": 4, "acceptance_length": {"low": 2, "high": 3}, "by_length": {"2": {"low": 2, "high": 1.5}}}',
             '{"monitor": 3}', '{"draft_len": 4, "acceptance_length": {"low": 2, "high": 3}, "threshold": 1}'],
)  # fmt: skip
def test_a_verdict_without_a_promise_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text(text)
    with pytest.raises(UserError):
        monitor.read_promise(tmp_path / "v.json")


def test_a_verdict_without_a_recommended_draft_promises_nothing(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text('{"verdict": "no", "monitor": null}')
    with pytest.raises(UserError, match="promises nothing"):
        monitor.read_promise(tmp_path / "v.json")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_promise_is_read_at_the_top_or_inside(encoding: str, tmp_path: Path) -> None:
    inside = {"draft_len": 4, "acceptance_length": {"low": 2.8, "high": 3.2}}
    for value in (inside, {"monitor": inside}):
        (tmp_path / "v.json").write_text(json.dumps(value), encoding=encoding)
        assert monitor.read_promise(tmp_path / "v.json") == PROMISE


def test_a_file_without_records_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n' * 3)
    with pytest.raises(UserError, match="no record of speculation in it"):
        list(monitor.watch(str(tmp_path / "prompts.jsonl"), 0))
    with pytest.raises(UserError, match=r"no such file \(check the path, or begin an address with http://"):
        list(monitor.watch("localhost:8000/metrics", 0))
    with pytest.raises(UserError, match=r"--over is for a server's /metrics"):
        list(monitor.watch(str(tmp_path / "prompts.jsonl"), 3))


@pytest.mark.parametrize("over", [-1.0, 1e10, float("inf"), float("nan")])
def test_a_time_that_cannot_be_waited_is_refused(over: float, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--over is .* seconds"):
        monitor.monitor("http://127.0.0.1:9/metrics", verdict=tmp_path / "v.json", over=over)
