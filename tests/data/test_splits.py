"""Train and eval sets: every row is accounted for, and no prompt is on both sides."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftlab.data import check, cleaners, registry, splits
from draftlab.data.prompts import Prompt
from draftlab.data.raw_rows import RawRow
from draftlab.data.registry import Split
from draftlab.data.splits import Options
from draftlab.errors import UserError
from draftlab.files.json_files import read_jsonl
from draftlab.files.seals import remove_damaged


@dataclass(frozen=True)
class Rows:
    """Questions as a source; an empty one is a bad row."""

    train: Sequence[str]
    eval: Sequence[str] = ()

    def rows(self, split: Split) -> Iterator[RawRow]:
        for line, text in enumerate(self.train if split == "train" else self.eval, 1):
            yield RawRow(f"{split}.jsonl", line, {"question": text, "instruction": text, "input": "in"})

    def provenance(self, split: Split) -> dict[str, Any]:
        return {"source": "test"}


def made(out: Path) -> tuple[list[Prompt], list[Prompt]]:
    return list(read_jsonl(out / "prompts.jsonl", Prompt)), list(read_jsonl(out / "eval.jsonl", Prompt))


def test_template_options_are_those_of_the_run_and_of_each_request(tmp_path: Path) -> None:
    """A request's own prevail."""
    rows = [{"prompt": str(number)} for number in range(9)] + [
        {"prompt": "own", "chat_template_kwargs": {"enable_thinking": True}}
    ]
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    options = Options(eval=2, template_options='{"enable_thinking": false, "effort": "low"}')
    splits.make_from("prompts", "raw", raw=tmp_path / "log.jsonl", out=tmp_path / "made", options=options)
    found = {prompt.text: prompt.template_options for prompt in itertools.chain(*made(tmp_path / "made"))}
    assert found.pop("own") == {"enable_thinking": True, "effort": "low"}
    assert list(found.values()) == [{"enable_thinking": False, "effort": "low"}] * 9
    for odd in ("", "[]", "{a: 1}"):
        with pytest.raises(UserError, match=r"template_options is .*, no JSON object"):
            splits.make("gsm8k", Rows("ab"), tmp_path / "other", Options(template_options=odd))


QUESTIONS = st.lists(st.sampled_from([*"abcdefghij", ""]), max_size=30)


@settings(max_examples=60, deadline=None)
@given(train=QUESTIONS, evaluation=st.just([]) | QUESTIONS, n=st.integers(0, 12), seed=st.integers(0, 3))
def test_clean_splits_account_for_every_row(
    tmp_path_factory: pytest.TempPathFactory, train: list[str], evaluation: list[str], n: int, seed: int
) -> None:
    out = tmp_path_factory.mktemp("out")
    try:
        summary = splits.make("gsm8k", Rows(train, evaluation), out, Options(eval=n, seed=seed))
    except UserError:
        assert not list(out.iterdir())  # nothing half-written
        left, measured = set(train) - {""} - set(evaluation), set(evaluation) - {""}
        assert not left or (n and not measured)
        return
    prompts, held_out = made(out)
    texts = [p.text for p in prompts]
    assert len(texts) == len(set(texts)) > 0
    assert not set(texts) & {p.text for p in held_out}
    counts = summary["counts"]["train"]
    parts = ("kept", "held_out", "duplicates", "overlap")
    assert counts["read"] == len(train) == sum(counts[part] for part in parts) + sum(counts["rejected"].values())
    assert counts["kept"] == len(prompts)
    if evaluation:
        counts = summary["counts"]["eval"]
        beyond = len(set(evaluation) - {""}) - len(held_out)
        others = counts["duplicates"] + sum(counts["rejected"].values())
        assert counts["read"] == len(evaluation) == counts["kept"] + others + beyond
    assert set(texts) | {p.text for p in held_out} >= set(train) - {""}
    rejected = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    assert len(rejected) == train.count("") + evaluation.count("")
    assert json.loads((out / "summary.json").read_text()) == summary


def test_eval_is_a_sample_that_the_seed_fixes(tmp_path: Path) -> None:
    rows = Rows(["t"], [f"q{i}" for i in range(100)])

    def chosen(seed: int, questions: Rows = rows) -> list[str]:
        splits.make("gsm8k", questions, tmp_path / "out", Options(eval=20, seed=seed))
        return [p.text for p in made(tmp_path / "out")[1]]

    assert chosen(0) == chosen(0)
    assert set(chosen(0)) != set(chosen(1))
    assert chosen(0) == sorted(chosen(0), key=lambda q: int(q[1:]))  # in the order of their rows
    kept = set(chosen(0)) & {f"q{i}" for i in range(50)}
    assert kept <= set(chosen(0, Rows(["t"], [f"q{i}" for i in range(50)])))  # more rows only push prompts out
    assert 5 <= len(kept) <= 15


def test_a_dataset_without_its_line_in_cleaners_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(cleaners.CLEANERS, "gsm8k")
    with pytest.raises(UserError, match=r"no cleaner for the dataset gsm8k \(add its line to CLEANERS"):
        splits.make("gsm8k", Rows(list("abc")), tmp_path, Options())


def test_at_most_half_is_held_out(tmp_path: Path) -> None:
    splits.make("gsm8k", Rows(list("abcdef")), tmp_path, Options(eval=200))
    prompts, held_out = made(tmp_path)
    assert (len(prompts), len(held_out)) == (3, 3)
    assert all(p.split == "eval" and p.id.startswith("gsm8k/eval/") for p in held_out)


def log(tmp_path: Path, sessions: int, requests: int, *shots: str) -> Path:
    """The log of an agent's server: a row for each request, which repeats all that came before it."""
    rows = []
    for request in range(requests):
        for session in range(sessions):
            said = [
                {"role": role, "content": shot} for role, shot in zip(["user", "assistant"] * 9, shots, strict=False)
            ]
            for earlier in range(request + 1):
                role = "tool" if earlier else "user"
                said += [
                    {"role": role, "content": f"{session}: {earlier}"},
                    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "next"}}]},
                ]
            rows.append({"messages": said[:-1]})
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sessions_of(prompts: Sequence[Prompt]) -> list[str]:
    return [prompt.text.split(":")[0] for prompt in prompts]


def test_a_conversation_is_on_one_side(tmp_path: Path) -> None:
    summary = splits.make_from("prompts", "raw", raw=log(tmp_path, 20, 5), out=tmp_path, options=Options(eval=12))
    train, held_out = (sessions_of(part) for part in made(tmp_path))
    assert not set(train) & set(held_out)
    assert sorted(held_out.count(session) for session in set(held_out)) == [2, 5, 5]
    assert sorted(train.count(session) for session in set(train)) == [5] * 17
    counts = summary["counts"]["train"]
    assert (counts["kept"], counts["held_out"], counts["overlap"], counts["duplicates"]) == (85, 12, 3, 0)


def test_a_first_request_is_not_held_out_without_what_continues_it(tmp_path: Path) -> None:
    """Wherever the last conversation of eval is cut, train holds none of its requests."""
    raw = log(tmp_path, 12, 4)
    cut = 0
    for seed, size in itertools.product(range(8), range(1, 6)):
        splits.make_from("prompts", "raw", raw=raw, out=tmp_path / "made", options=Options(eval=size, seed=seed))
        train, held_out = (sessions_of(part) for part in made(tmp_path / "made"))
        assert len(held_out) == size
        assert not set(train) & set(held_out)
        cut += size % 4 > 0
    assert cut == 32


def test_prompts_that_differ_in_the_space_around_them_are_the_same(tmp_path: Path) -> None:
    """A chat template that removes it, as Llama 3's does, would make them one text on both sides."""
    rows: list[dict[str, Any]] = [{"prompt": f"{text}{space}"} for text in "abcdef" for space in ("", "\n", "  ")]
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "g"}]
    rows += [{"messages": [*said[:1], {"role": "user", "content": f"g{space}"}]} for space in ("", "\n")]
    rows += [{"messages": [*said, {"role": "assistant", "content": f"{space}yes"}, said[1]]} for space in ("", " ")]
    raw = tmp_path / "log.jsonl"
    raw.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for seed in range(5):
        options = Options(eval=3, seed=seed)
        counts = splits.make_from("prompts", "raw", raw=raw, out=tmp_path / "out", options=options)["counts"]["train"]
        train, held_out = ({prompt.whole.strip() for prompt in part} for part in made(tmp_path / "out"))
        assert (len(held_out), train & held_out) == (3, set())
        assert counts["kept"] + counts["held_out"] < 10
    report = check.check(raw)
    assert report.kept - report.duplicates == 9


def test_requests_alike_in_different_conversations_are_no_duplicates(tmp_path: Path) -> None:
    roles = ("user", "assistant", "user")
    said = [zip(roles, (first, "yes", "go on"), strict=True) for first in "aab"]
    rows = [{"messages": [{"role": role, "content": text} for role, text in turns]} for turns in said]
    raw = tmp_path / "log.jsonl"
    raw.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = splits.make_from("prompts", "raw", raw=raw, out=tmp_path / "out", options=Options(eval=1))
    counts = summary["counts"]["train"]
    assert (counts["kept"], counts["held_out"]) == (1, 1)


def test_prompts_that_begin_with_the_same_examples_are_no_conversation(tmp_path: Path) -> None:
    raw = log(tmp_path, 20, 1, "one", "1", "two", "2")
    summary = splits.make_from("prompts", "raw", raw=raw, out=tmp_path, options=Options(eval=5))
    assert summary["counts"]["train"]["overlap"] == 0
    train, held_out = (sessions_of(part) for part in made(tmp_path))
    assert (len(train), len(held_out)) == (15, 5)
    assert held_out != [str(session) for session in range(5)]  # a sample


@pytest.mark.parametrize("seed", range(4))
def test_a_first_message_that_all_share_joins_no_conversations(tmp_path: Path, seed: int) -> None:
    start, answer = {"role": "user", "content": "Start."}, {"role": "assistant", "content": "Well?"}
    rows = [[start], *([start, answer, {"role": "user", "content": f"{number}"}] for number in range(20))]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    options = Options(eval=20, seed=seed)
    summary = splits.make_from("prompts", "raw", raw=tmp_path / "log.jsonl", out=tmp_path / "made", options=options)
    assert summary["counts"]["train"]["overlap"] == (
        "Start." not in {prompt.text for prompt in made(tmp_path / "made")[1]}
    )


def test_one_conversation_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="6 usable rows of 6 in prompts, 3 of them held out, 3 more are of the same conv"
    ):
        splits.make_from("prompts", "raw", raw=log(tmp_path, 1, 6), out=tmp_path / "made", options=Options(eval=9))


def test_train_is_bounded(tmp_path: Path) -> None:
    summary = splits.make("gsm8k", Rows(list("abcdef"), ["z"]), tmp_path, Options(train=2))
    assert summary["counts"]["train"]["read"] == 2
    assert [p.id for p in made(tmp_path)[0]] == ["gsm8k/train/00000", "gsm8k/train/00001"]


def test_osd_keeps_duplicates_and_leaks_and_counts_them(tmp_path: Path) -> None:
    rows = Rows(["a", "b", "a", "c", "c", "", "d"])
    summary = splits.make("finance_alpaca", rows, tmp_path, Options(eval=2, profile="osd_repo_2024"))
    prompts, held_out = made(tmp_path)
    assert [p.text for p in held_out] == ["a", "b"]  # the first rows, input left out
    assert [p.text for p in prompts] == ["a", "c", "c", "d"]
    counts = summary["counts"]["train"]
    assert (counts["overlap"], counts["duplicates"], counts["held_out"]) == (1, 1, 2)
    assert counts["read"] == 7 == counts["kept"] + counts["held_out"] + sum(counts["rejected"].values())
    assert len((tmp_path / "rejected.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("eval_rows", [0, 200])
def test_osd_holds_out_at_most_half(tmp_path: Path, eval_rows: int) -> None:
    rows = Rows(list("abcdef"))
    splits.make("finance_alpaca", rows, tmp_path, Options(eval=eval_rows, profile="osd_repo_2024"))
    prompts, held_out = made(tmp_path)
    assert ([p.text for p in held_out], [p.text for p in prompts]) == (list("abc"), list("def"))


def test_osd_reads_ten_thousand_rows(tmp_path: Path) -> None:
    rows = Rows([f"t{i}" for i in range(10_100)], [f"e{i}" for i in range(10_100)])
    summary = splits.make("gsm8k", rows, tmp_path, Options(profile="osd_repo_2024"))
    assert summary["counts"]["train"]["read"] == summary["counts"]["eval"]["read"] == 10_000
    held_out = [prompt.text for prompt in made(tmp_path)[1]]
    assert len(held_out) == 200
    assert held_out != [f"e{i}" for i in range(200)], "a sample"


def test_clean_reads_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "OSD_LIMIT", 3)
    summary = splits.make("gsm8k", Rows(list("abcdef"), list("uvwxyz")), tmp_path, Options())
    assert (summary["counts"]["train"]["kept"], summary["counts"]["eval"]["kept"]) == (6, 6)


def test_stop_at_a_bad_row_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train.jsonl:2: question is empty"):
        splits.make("gsm8k", Rows(["a", ""], ["b"]), tmp_path, Options(on_bad_row="stop"))
    assert not list(tmp_path.iterdir())


def test_another_run_that_starts_while_prompts_are_made_again_leaves_them_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, write = tmp_path / "data/gsm8k", splits.write_json
    splits.make("gsm8k", Rows("abcd"), out, Options(eval=1))

    def meanwhile(path: Path, value: object) -> None:
        assert list(remove_damaged(tmp_path)) == []
        write(path, value)

    monkeypatch.setattr(splits, "write_json", meanwhile)
    splits.make("gsm8k", Rows("efghi"), out, Options(eval=1))
    assert len(made(out)[0]) == 4
    assert list(remove_damaged(tmp_path)) == []


def test_nothing_usable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train.jsonl:1: 0 usable rows of 1 in gsm8k.*question is empty"):
        splits.make("gsm8k", Rows([""]), tmp_path, Options())
    assert not list(tmp_path.iterdir())


def test_a_long_prompt_is_rejected_or_kept_as_asked(tmp_path: Path) -> None:
    rows = Rows(["x" * 200_000, "short"], ["z"])
    splits.make("gsm8k", rows, tmp_path, Options())
    assert [p.text for p in made(tmp_path)[0]] == ["short"]
    splits.make("gsm8k", rows, tmp_path, Options(max_chars=0))
    assert len(made(tmp_path)[0]) == 2


@pytest.mark.parametrize("dataset", ["spider", "gsm8k", "code_search_net", "finance_alpaca"])
def test_generated_datasets_have_the_sizes_asked_for(tmp_path: Path, dataset: str) -> None:
    splits.make_from(dataset, "generator", raw=None, out=tmp_path, options=Options(train=3000, eval=150))
    prompts, held_out = made(tmp_path)
    assert (len(prompts), len(held_out)) == (3000, 150)
    assert all(p.reference for p in prompts + held_out)


def test_generated_finance_shows_osds_duplicates(tmp_path: Path) -> None:
    options = Options(train=3000, eval=150, profile="osd_repo_2024")
    summary = splits.make_from("finance_alpaca", "generator", raw=None, out=tmp_path, options=options)
    assert summary["counts"]["train"]["duplicates"] > 100


# --- real rows ---------------------------------------------------------------------------------------------------


def records_of(shared: Path, *names: str) -> int:
    manifest = json.loads((shared / "data" / "manifest.json").read_text())
    return sum(entry["records"] for entry in manifest if any(entry["file"].endswith(name) for name in names))


@pytest.mark.parametrize(
    ("dataset", "raw", "files", "rejected"),
    [
        ("spider", "", ("train_spider.json",), 0),
        ("spider_schema", "", ("train_spider.json",), 0),
        ("gsm8k", "", ("gsm8k/train.jsonl",), 0),
        ("code_search_net", "", ("python_train_0.jsonl.gz",), 0),
        ("finance_alpaca", "", ("Cleaned_date.json",), 0),
        ("piqa", "", ("piqa/train.jsonl",), 0),
        ("sharegpt", "", ("dummy_conversation.json",), 0),
        ("sharegpt", "chat_torchspec/sample_conversations.jsonl", ("sample_conversations.jsonl",), 0),
        ("mbpp", "", ("mbpp/mbpp.jsonl",), 0),
        ("mbpp_sanitized", "", ("sanitized-mbpp.json",), 0),
        ("wmt16", "", ("wmt_like.jsonl",), 1),  # line 5 has no English side
        ("dolly", "", ("databricks-dolly-15k.jsonl",), 0),
        ("oasst", "", ("en_message.jsonl",), 0),
        ("arena_hard", "", ("question.jsonl",), 0),
        ("mgsm", "", ("mgsm_de.tsv", "mgsm_en.tsv", "mgsm_es.tsv", "mgsm_fr.tsv"), 0),
        ("self_instruct", "", ("seed_tasks.jsonl",), 0),
        ("tatqa", "", ("tatqa_dataset_dev.json",), 0),
    ],
)
def test_real_rows(shared: Path, tmp_path: Path, dataset: str, raw: str, files: tuple[str, ...], rejected: int) -> None:
    folder = shared / "data" / raw
    summary = splits.make_from(dataset, "raw", raw=folder, out=tmp_path, options=Options(eval=20))
    counts = summary["counts"]["train"]
    assert counts["read"] == records_of(shared, *files) > 0
    assert sum(counts["rejected"].values()) == rejected
    parts = ("kept", "held_out", "duplicates", "overlap")
    assert counts["read"] == sum(counts[part] for part in parts) + rejected
    prompts, held_out = made(tmp_path)
    assert len(held_out) == 20
    assert sum(p.reference is None for p in prompts) == (len(prompts) if dataset == "arena_hard" else 0)


@pytest.mark.parametrize(
    ("dataset", "file"),
    [("spider", "spider/dev.json"), ("gsm8k", "gsm8k/test.jsonl"), ("code_search_net", "python_test_0.jsonl.gz")],
)
def test_real_eval_rows(shared: Path, tmp_path: Path, dataset: str, file: str) -> None:
    summary = splits.make_from(dataset, "raw", raw=shared / "data", out=tmp_path, options=Options(eval=0))
    assert summary["counts"]["eval"]["read"] == records_of(shared, file)


def test_real_schemas_reach_the_prompt(shared: Path, tmp_path: Path) -> None:
    splits.make_from("spider_schema", "raw", raw=shared / "data", out=tmp_path, options=Options(eval=20))
    assert "Tables: stadium(Stadium_ID, " in made(tmp_path)[0][0].text


def test_every_folder_of_real_rows_has_a_reader(shared: Path) -> None:
    table = registry.load().values()
    rows_of = (shared / "data").glob("*/PROVENANCE.md")
    folders = [file.parent for file in rows_of if file.parent.name != "serving"]  # traces of servers, no requests
    assert len(folders) >= 15
    for folder in folders:
        patterns = [p for row in table if row.name != "prompts" for p in (row.raw_train + " " + row.raw_eval).split()]
        assert any(p.startswith(f"{folder.name}/") for p in patterns), folder.name


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    with file.open("w") as lines:
        for i in range(300_000):
            lines.write(json.dumps({"question": f"{i} " + "word " * 40, "answer": "long answer " * 20}) + "\n")
    code = (
        "import re; from pathlib import Path; from draftlab.data import splits\n"
        f"splits.make_from('gsm8k', 'raw', raw=Path({str(file)!r}), out=Path({str(tmp_path / 'out')!r}),"
        " options=splits.Options())\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"  # ru_maxrss begins at the parent's
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert file.stat().st_size > 100 * 2**20
    assert int(run.stdout.split()[-1]) < 110 * 2**10  # KiB: a digest of each prompt, never the prompts
