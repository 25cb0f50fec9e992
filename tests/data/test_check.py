"""``draftlab data check FILE`` reports a file's format and contents, and whether it can be used."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from draftlab import cli
from draftlab.data import check, formats, registry, sources, splits
from draftlab.data.cleaners import CLEANERS
from draftlab.data.prompts import Prompt
from draftlab.data.readers import read_rows
from draftlab.errors import UserError
from draftlab.files.json_files import read_jsonl
from tests.data import raw_rows


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ALIKE = {  # formats that cannot be told apart, and conversations, which are a user's traffic
    "finance_alpaca": "alpaca", "spider_schema": "spider", "spec_bench": "mt_bench",
    "arena": "prompts", "lmsys_chat_1m": "prompts", "sharegpt": "prompts",
}  # fmt: skip


@pytest.mark.parametrize("dataset", [*raw_rows.GENERATORS])
def test_generated_rows_are_recognised(tmp_path: Path, dataset: str) -> None:
    file = write(tmp_path / "rows.jsonl", raw_rows.rows(dataset, 30))
    assert formats.detect(read_rows(file)) == ALIKE.get(dataset, dataset)
    report = check.check(file)
    assert report.kept == report.references == 30
    assert report.usable


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "first question\nsecond question\n"),
        ("a.jsonl", '{"prompt": "first question"}\n{"prompt": "second question"}\n'),
        ("a.json", '[{"messages": [{"role": "user", "content": "first question"}]}, {"text": "second question"}]'),
        ("a.csv", "prompt,when\nfirst question,1\nsecond question,2\n"),
        ("a.csv", 'when;prompt\n1;"first question"\n2,5;second question\n'),
        ("a", '{"question": "first question"}\n{"question": "second question"}\n'),
    ],
)
def test_a_users_own_traffic(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    report = check.check(tmp_path / name)
    assert (report.format, report.kept, report.read) == ("prompts", 2, 2)
    assert report.prompt_lengths == check.Lengths(2, 2, 2, 2)


def test_counts(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": f"question number {i} is this one"} for i in range(10)]
    rows += [rows[0], {"prompt": ""}, {"prompt": "</s> USER: do as I say"}, {"prompt": 3}]
    file = write(tmp_path / "mine.jsonl", rows)
    other = write(tmp_path / "other.jsonl", rows[3:5])
    report = check.check(file, against=other)
    assert (report.read, report.kept, report.duplicates, report.overlap) == (14, 12, 1, 2)
    assert report.special_strings == 1
    assert report.rejected == {"prompt is empty": 1, "prompt is int, not text": 1}
    assert report.first_rejected["prompt is empty"].startswith("line 12: ")
    assert sum(report.languages.values()) == 12
    assert "0 (a run cannot train a target on them: give it target=MODEL)" in check.table(report)
    check.check_file(file, out=tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["usable"] is True


@pytest.mark.parametrize(
    ("rows", "message"),
    [([], "mine.jsonl: it has no rows"), ([{"prompt": "Why?"}] * 3, r"two different prompts \(see the counts above\)")],
)
def test_a_file_that_no_run_could_use_is_refused(tmp_path: Path, rows: list[dict[str, object]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check.check_file(write(tmp_path / "mine.jsonl", rows))


@pytest.mark.parametrize(
    "text",
    [
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>",
        "<bos><start_of_turn>user\nWhy?<end_of_turn>\n",
        "<s> [INST] Why? [/INST]",
        "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Why?<｜Assistant｜>",
        "Be brief. USER: Why? ASSISTANT: So.</s>USER: Why not? ASSISTANT:",
        "Below is an instruction.\n\n### Instruction:\nWhy?\n\n### Response:\n",
    ],
)
def test_prompts_in_a_chat_template_are_counted(tmp_path: Path, text: str) -> None:
    asked: list[dict[str, object]] = [{"prompt": "What does <|im_end|> do?"}, {"prompt": "<s>truck</s> [INST]"}]
    asked += [{"prompt": "What is USER: in a template that ends with ASSISTANT: and then?"}]
    asked += [{"prompt": "Explain ### Instruction:\n\n### Response:"}, {"prompt": "Answer as ASSISTANT:"}]
    asked += [{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]}]
    report = check.check(write(tmp_path / "log.jsonl", [*asked, {"prompt": text}]))
    assert report.rendered == 1
    assert "template=rendered" in check.table(report)
    assert "template=rendered" not in check.table(check.check(write(tmp_path / "log.jsonl", asked)))


def test_a_question_asked_again_later_in_a_conversation_is_another_prompt(tmp_path: Path) -> None:
    asked, answer = {"role": "user", "content": "Go on."}, {"role": "assistant", "content": "Fine then."}
    earlier = {"role": "user", "content": "Go so."}
    file = write(tmp_path / "log.jsonl", [{"messages": [asked]}, {"messages": [earlier, answer, asked]}] * 2)
    report = check.check(file)
    assert (report.kept, report.duplicates, report.conversations, report.first_prompt) == (4, 2, 2, "Go on.")
    assert report.prompt_lengths == check.Lengths(3, 3, 11, 11)  # with marks and line breaks
    splits.make_from("prompts", "raw", raw=file, out=tmp_path / "made", options=splits.Options(eval=1))
    prompts = [*read_jsonl(tmp_path / "made/prompts.jsonl", Prompt), *read_jsonl(tmp_path / "made/eval.jsonl", Prompt)]
    assert {len(prompt.messages) for prompt in prompts} == {1, 3}
    assert check.check(file, max_chars=20).rejected == {"the prompt is longer than 20 characters": 2}


def test_results_of_tools_reasoning_and_tools_are_counted(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "2 + 3?"}
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}
    thought = {**called, "reasoning": "I add " * 20}
    result = {"role": "tool", "content": "5"}
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    rows: list[dict[str, object]] = [
        {"messages": [asked]},
        {"messages": [asked], "tools": tools},
        {"messages": [asked, called, result], "tools": tools},
        {"messages": [asked, thought, result], "chat_template_kwargs": {"enable_thinking": True}},
    ]
    file = write(tmp_path / "log.jsonl", rows)
    report = check.check(file)
    assert (report.kept, report.duplicates, report.conversations, report.results) == (4, 0, 2, 2)
    assert (report.with_reasoning, report.with_tools, report.with_template_options) == (1, 2, 1)
    assert "the result of a tool" in check.table(report)
    assert check.check(file, max_chars=150).kept == 3  # reasoning counts, because the model reads it


def test_prompts_before_a_message_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    asked, picture = {"role": "user", "content": "And?"}, {"type": "image_url", "image_url": {"url": "x"}}
    rows: list[dict[str, object]] = [
        {"messages": [asked]},
        {"messages": [asked, {"role": "user", "content": [picture]}]},
    ]
    report = check.check(write(tmp_path / "log.jsonl", rows))
    assert (report.kept, report.cut) == (2, 1)
    assert "before a message that cannot be read" in check.table(report)
    assert "with tools to call" not in check.table(report), "nothing is said of what there is none of"


@pytest.mark.parametrize(
    "more",
    [
        {"system": "You are ACME support."},
        {"messages": [{"role": "user", "content": "What?"}]},
        {"history": [["a", "b"]]},
        {"tools": [{"name": "add"}]},
        {"context": "A passage."},
        {"images": ["cat.png"]},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_a_row_that_says_more_than_a_dataset_is_the_users_traffic(tmp_path: Path, more: dict[str, object]) -> None:
    rows = [{"question": f"What is {number}?", "answer": "a"} for number in range(4)]
    file = write(tmp_path / "rows.jsonl", rows)
    assert formats.detect(read_rows(file)) == "gsm8k"
    assert formats.detect(read_rows(write(file, [{**row, **more} for row in rows]))) == "prompts"
    assert formats.detect(read_rows(write(file, [{**row, **dict.fromkeys(more)} for row in rows]))) == "gsm8k"


def test_what_a_few_rows_say_more_than_a_dataset_is_read(tmp_path: Path) -> None:
    """A log of questions, of which a third continue a conversation."""
    before = [["Who wrote Faust?", "Goethe."]]
    rows = [
        {"question": f"What of {number}?", "answer": "a", "history": before * (number % 3 == 2)} for number in range(9)
    ]
    file = write(tmp_path / "rows.jsonl", rows)
    report = check.check(file)
    assert (report.format, report.kept, report.conversations) == ("prompts", 9, 3)


def test_the_other_file_has_a_format_of_its_own(tmp_path: Path) -> None:
    questions = write(tmp_path / "gsm8k.jsonl", [{"question": q, "answer": "1"} for q in "abc"])
    mine = write(tmp_path / "mine.jsonl", [{"prompt": q} for q in "bcd"])
    assert check.check(questions, against=mine).overlap == check.check(mine, against=questions).overlap == 2
    assert check.check(questions, dataset="gsm8k", against=mine).overlap == 2
    nothing = write(tmp_path / "nothing.jsonl", [{"id": 1}])
    with pytest.raises(UserError, match=r"nothing.jsonl: no prompt in the file to compare with"):
        check.check(mine, against=nothing)


def test_check_and_make_have_the_same_longest_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "mine.jsonl", [{"prompt": "x" * 100_001}, {"prompt": "y" * 100_000}, {"prompt": "z"}])
    assert check.check(file).kept == 2
    assert run(monkeypatch, "data", "check", str(file), "--out", str(tmp_path / "report.json")) == 0
    assert json.loads((tmp_path / "report.json").read_text())["kept"] == 2
    options = ["--dataset", "prompts", "--source", "raw", "--eval", "1", "--raw"]
    assert run(monkeypatch, "data", "make", *options, str(file), "--out", str(tmp_path / "out")) == 0
    assert "1 rejected" in capsys.readouterr().out


def test_lengths_in_tokens_of_a_model(shared: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", [{"prompt": "Once upon a time"}, {"prompt": "</s>"}])
    report = check.check(file, tokenizer=shared / "models" / "stories260K" / "hf")
    assert report.length_unit == "tokens"
    assert report.prompt_lengths is not None
    assert report.prompt_lengths.largest >= 4
    with pytest.raises(UserError, match=r"no tokenizer.json"):
        check.check(file, tokenizer=tmp_path)


def test_the_table_is_safe_to_print(tmp_path: Path) -> None:
    file = write(tmp_path / "mi\x1b[2Jne.jsonl", [{"prompt": 3, "note": "\x1b[2J"}, {"prompt": "ok"}])
    assert all(line.isprintable() for line in check.table(check.check(file)).splitlines())


def assert_agree(file: Path, folder: Path) -> None:
    """``data check`` counts what a run on the file keeps, when it is fetched and cleaned as ``prompts``."""
    report = check.check(file)
    for split in ("train", "eval"):
        sources.fetch("prompts", split, "raw", raw=file, rows=0, seed=0, out=folder / "raw" / f"{split}.jsonl")
    options = splits.Options(eval=1, max_chars=0)
    summary = splits.make_from("prompts", "fetched", raw=folder / "raw", out=folder / "out", options=options)
    counts = summary["counts"]["train"]
    assert (counts["read"], counts["rejected"]) == (report.read, report.rejected)
    # The held-out conversation may have other requests, which train leaves out too.
    related = counts["duplicates"] + counts["overlap"] - report.duplicates
    assert related == 0 or (related > 0 and report.conversations)
    made = [p for name in ("prompts", "eval") for p in read_jsonl(folder / "out" / f"{name}.jsonl", Prompt)]
    assert len(made) == report.kept - report.duplicates - related > 0
    if not report.duplicates and not related:
        assert sum(prompt.reference is not None for prompt in made) == report.references
    assert {prompt.dataset for prompt in made} == {"prompts"}


@pytest.mark.parametrize("dataset", sorted(raw_rows.GENERATORS))
def test_a_run_on_a_file_reads_it_as_check_does(tmp_path: Path, dataset: str) -> None:
    rows = raw_rows.rows(dataset, 30)
    assert_agree(write(tmp_path / "rows.jsonl", [*rows, {"nothing": 1}]), tmp_path)


def test_a_run_on_a_file_of_piqa_has_the_labels_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine-labels.lst").write_text("0\n1\n")
    rows = [{"goal": goal, "sol1": "one", "sol2": "two"} for goal in "ab"]
    assert_agree(write(tmp_path / "mine.jsonl", rows), tmp_path)
    (made,) = read_jsonl(tmp_path / "out/eval.jsonl", Prompt)
    assert made.reference == {"a": "one", "b": "two"}[made.text]


def test_every_file_of_a_folder_is_read_for_what_it_is(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"translation": {"en": "yes", "de": "ja"}}])
    write(tmp_path / "b.jsonl", [{"prompt": "own"}])
    splits.make_from("prompts", "raw", raw=tmp_path, out=tmp_path / "out", options=splits.Options(eval=1))
    made = [p for name in ("prompts", "eval") for p in read_jsonl(tmp_path / "out" / f"{name}.jsonl", Prompt)]
    found = {(p.id.rsplit("/", 1)[1], p.text) for p in made}
    assert found == {("00000", "translate English to German: yes"), ("00001", "own")}


def test_a_folder_may_hold_compressed_files_alone(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(f"prompt\n{name}\n".encode()))
    rows = sources.RawFiles(registry.find("prompts"), tmp_path).rows("train")
    assert [row.row for row in rows] == [{"prompt": "one"}, {"prompt": "two"}]


def test_a_number_for_an_answer_is_of_no_known_format(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", [{"question": "two and two?", "answer": 4}])
    assert formats.detect(read_rows(file)) == "prompts"
    assert check.check(file).kept == 1


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["draftlab", *words])
    try:
        cli.main()
    except SystemExit as stop:
        return 0 if stop.code in (None, 0) else 1
    return 0


def test_exit_code_says_whether_it_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write(tmp_path / "good.jsonl", [{"prompt": "ok"}, {"prompt": "fine"}, {"prompt": ""}])
    one = write(tmp_path / "one.jsonl", [{"prompt": "ok"}, {"prompt": "ok"}])
    bad = write(tmp_path / "bad.jsonl", [{"prompt": ""}])
    assert run(monkeypatch, "data", "check", str(good), "--out", str(tmp_path / "report.json")) == 0
    assert "format  " in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text())["kept"] == 2
    assert run(monkeypatch, "data", "check", str(bad)) == 1
    assert run(monkeypatch, "data", "check", str(one)) == 1  # none would be left to measure on
    assert run(monkeypatch, "data", "check", str(tmp_path / "absent.jsonl")) == 1


REAL = {
    "arena_hard/question.jsonl": "arena_hard",
    "chat_torchspec/sample_conversations.jsonl": "prompts",
    "code_search_net/python/final/jsonl/test/python_test_0.jsonl.gz": "code_search_net",
    "dolly/databricks-dolly-15k.jsonl": "dolly",
    "finance_like/Cleaned_date.json": "alpaca",
    "gsm8k/test.jsonl": "gsm8k",
    "mbpp/mbpp.jsonl": "mbpp",
    "mbpp/sanitized-mbpp.json": "mbpp_sanitized",
    "oasst/en_message.jsonl": "oasst",
    "piqa/train.jsonl": "piqa",
    "self_instruct_seed/seed_tasks.jsonl": "self_instruct",
    "sharegpt_fastchat/dummy_conversation.json": "prompts",
    "spider/dev.json": "spider",
    "tatqa/tatqa_dataset_dev.json": "tatqa",
    "translation_ende/wmt_like.jsonl": "wmt16",
}


def test_a_terminal_that_lacks_a_character_shows_its_number(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", [{"prompt": "caf\xe9 \u2603"}, {"prompt": "ok"}])
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(
        [sys.executable, "-m", "draftlab", "data", "check", str(file)],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert "caf\xe9 \\u2603" in done.stdout.decode("latin-1")


def test_a_real_table_without_a_header_needs_its_datasets_name(shared: Path) -> None:
    file = shared / "data/mgsm/mgsm_de.tsv"
    with pytest.raises(UserError, match=r"mgsm_de.tsv:1: no column is called prompt"):
        check.check(file)
    assert check.check(file, dataset="mgsm").kept > 200


@pytest.mark.parametrize("name", REAL)
def test_every_real_file_is_recognised_and_a_run_on_it_reads_the_same(shared: Path, tmp_path: Path, name: str) -> None:
    assert formats.detect(read_rows(shared / "data" / name)) == REAL[name]
    assert_agree(shared / "data" / name, tmp_path)


def test_every_format_has_a_cleaner() -> None:
    assert {name for name, _ in formats.FORMATS} <= set(CLEANERS)


def test_a_folder_and_a_negative_limit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a folder, not a file"):
        check.check(tmp_path)
    file = tmp_path / "p.txt"
    file.write_text("one\ntwo\n")
    with pytest.raises(UserError, match="--max-chars is -5"):
        check.check(file, max_chars=-5)


def test_a_pipe_is_refused_because_a_file_is_read_more_than_once(tmp_path: Path) -> None:
    """``draftlab data check <(zcat x.gz)``, and the same after ``--against`` and ``--raw``."""
    file = write(tmp_path / "mine.jsonl", [{"prompt": "one"}, {"prompt": "two"}])
    end, start = os.pipe()
    os.write(start, file.read_bytes())
    os.close(start)
    pipe = Path(f"/dev/fd/{end}")
    calls: list[Callable[[], object]] = [
        lambda: check.check(pipe),
        lambda: check.check(file, against=pipe),
        lambda: splits.make_from("prompts", "raw", raw=pipe, out=tmp_path / "made", options=splits.Options(eval=1)),
    ]
    for call in calls:
        with pytest.raises(UserError, match=rf"{pipe}: a pipe, which can be read only once \(write it to a file"):
            call()
    os.close(end)
