"""Predicted classes are counted against the true labels."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from draftlab.data import classify, generators
from draftlab.data.cleaners import CLEANERS
from draftlab.data.prompts import Prompt
from draftlab.errors import UserError
from draftlab.files.json_files import read_json, read_jsonl, write_jsonl


def arena(split: str, n: int) -> list[Prompt]:
    cleaned = (CLEANERS["arena"](row) for row in itertools.islice(generators.rows("arena", split, seed=0), n))
    return [
        Prompt(f"arena/{split}/{i:05d}", "arena", split, c.text, c.reference, c.meta) for i, c in enumerate(cleaned)
    ]


def test_languages_of_generated_requests() -> None:
    marked, report = classify.classify(arena("train", 600), classify.languages, "language")
    assert report.labelled == 600
    assert report.accuracy > 0.9
    assert set(report.confusion) == {"English", "Chinese", "Japanese", "Spanish", "Portuguese", "Russian"}
    assert all(p.meta["true_language"] for p in marked)


def test_a_text_without_words_is_unknown() -> None:
    assert classify.languages(["12 + 3", ""]) == ["unknown", "unknown"]


def test_languages_of_real_questions(shared: Path) -> None:
    from draftlab.data.readers import read_rows

    for code, name in (("de", "German"), ("es", "Spanish"), ("fr", "French"), ("en", "English")):
        rows = read_rows(shared / "data" / "mgsm" / f"mgsm_{code}.tsv", ("question", "answer"))
        found = classify.languages([row.row["question"] for row in rows])
        assert found.count(name) >= 0.98 * len(found)


def test_topics_are_learned() -> None:
    english = [p for p in arena("train", 800) if p.meta["language"] == "English"]
    held_out = [p for p in arena("eval", 200) if p.meta["language"] == "English"]
    marked, report = classify.classify(held_out, classify.naive_bayes(english, "topic"), "topic")
    assert report.accuracy > 0.95
    assert {p.meta["topic"] for p in marked} >= {"Games", "Education"}


def test_naive_bayes_is_unsure_of_what_it_never_saw() -> None:
    known = [
        Prompt("", "", "", text, None, {"topic": topic}) for text, topic in (("red apple", "a"), ("blue sky", "b"))
    ]
    classifier = classify.naive_bayes(known * 5, "topic")
    assert classifier(["red apple", "a blue sky"]) == ["a", "b"]
    three = [*known, Prompt("", "", "", "green leaf", None, {"topic": "c"})]
    assert classify.naive_bayes(three * 5, "topic")(["xylophone"]) == ["unknown"]


def test_the_report_counts_confusion() -> None:
    prompts = [Prompt(f"{i}", "d", "train", text, None, meta) for i, (text, meta) in enumerate([
        ("x", {"topic": "a"}), ("y", {"topic": "a"}), ("x", {"topic": "b"}), ("y", {}),
    ])]  # fmt: skip
    marked, report = classify.classify(prompts, lambda texts: ["a" if t == "x" else "b" for t in texts], "topic")
    assert report.confusion == {"a": {"a": 1, "b": 1}, "b": {"a": 1}}
    assert (report.correct, report.labelled) == (1, 3)
    assert [p.meta.get("true_topic") for p in marked] == ["a", "a", "b", None]
    assert [p.meta["topic"] for p in marked] == ["a", "b", "a", "b"]


def test_the_verb_writes_labels_and_their_agreement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(tmp_path / "in", arena("train", 20))
    classify.classify_file(
        prompts=tmp_path / "in", label="language", method="langid", out=tmp_path / "out", report=tmp_path / "report"
    )
    marked, report = list(read_jsonl(tmp_path / "out", Prompt)), read_json(tmp_path / "report")
    agree = sum(prompt.meta["language"] == prompt.meta["true_language"] for prompt in marked)
    assert (report["method"], report["labelled"], report["correct"]) == ("langid", 20, agree)
    assert report["accuracy"] == agree / 20 > 0.5
    assert capsys.readouterr().out == f"language: {agree} of 20 predictions agree with the label\n"


def test_requests_without_labels_have_no_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(tmp_path / "in", [Prompt("1", "d", "train", "Why is the sky blue today?", None, {})])
    classify.classify_file(
        prompts=tmp_path / "in", label="language", method="langid", out=tmp_path / "out", report=tmp_path / "report"
    )
    assert read_json(tmp_path / "report")["accuracy"] is None
    assert "language: 1 requests labelled; none came with a label" in capsys.readouterr().out
    with pytest.raises(UserError, match="langid finds languages, not topics"):
        classify.classify_file(
            prompts=tmp_path / "in", label="topic", method="langid", out=tmp_path / "q", report=tmp_path / "r"
        )
    assert not (tmp_path / "q").exists()


def test_a_file_of_ones_own_has_to_be_made_first(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text('{"prompt": "Why?"}\n')
    with pytest.raises(UserError, match="run draftlab data make first"):
        classify.classify_file(
            prompts=tmp_path / "mine", label="language", method="langid", out=tmp_path / "q", report=tmp_path / "r"
        )


def test_one_class_teaches_nothing() -> None:
    with pytest.raises(UserError, match="fewer than two classes"):
        classify.naive_bayes([Prompt("", "", "", "x", None, {"topic": "a"})], "topic")
