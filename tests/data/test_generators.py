"""Generated rows: the real fields, new prompts as long as there are any, the same rows for the same seed."""

from __future__ import annotations

import ast
import itertools
import re
from typing import Any

import pytest

from draftlab.data import generators
from draftlab.data.cleaners import CLEANERS
from draftlab.errors import UserError

FIELDS = {
    "spider": "db_id query query_toks query_toks_no_value question question_toks",
    "gsm8k": "question answer",
    "code_search_net": "repository_name func_path_in_repository func_name whole_func_string language func_code_string"
    " func_code_tokens func_documentation_string func_documentation_tokens split_name func_code_url",
    "finance_alpaca": "instruction input output text",
    "cnn_dailymail": "article highlights id",
    "xsum": "document summary id",
    "wmt16": "translation",
    "dolly": "instruction context response category",
}


def draw(dataset: str, n: int, seed: int = 0) -> list[dict[str, Any]]:
    return list(itertools.islice(generators.rows(dataset, "train", seed=seed), n))


@pytest.mark.parametrize(("dataset", "fields"), FIELDS.items())
def test_rows_have_the_fields_of_the_hub(dataset: str, fields: str) -> None:
    assert set(draw(dataset, 1)[0]) == set(fields.split())


@pytest.mark.parametrize("dataset", generators.FOUR)
def test_three_thousand_prompts_without_a_repeat(dataset: str) -> None:
    texts = [CLEANERS[dataset](row).text for row in draw(dataset, 3500)]
    assert len(set(texts)) == 3500


@pytest.mark.parametrize("dataset", generators.GENERATORS)
def test_seed_decides(dataset: str) -> None:
    assert draw(dataset, 20) == draw(dataset, 20)
    assert draw(dataset, 20) != draw(dataset, 20, seed=1)


@pytest.mark.parametrize("dataset", generators.GENERATORS)
def test_no_prompt_crosses_the_split(dataset: str) -> None:
    train = {CLEANERS[dataset](row).text for row in draw(dataset, 400)}
    evaluation = {CLEANERS[dataset](row).text for row in itertools.islice(generators.rows(dataset, "eval", seed=0), 60)}
    assert not train & evaluation


def test_a_small_space_repeats_in_the_end() -> None:
    texts = [CLEANERS["spider"](row).text for row in draw("spider", 12_000)]
    assert 7_000 < len(set(texts)) < 12_000


def test_the_answer_is_open_and_follows_the_prompt() -> None:
    answers: dict[str, set[str]] = {}
    for said in itertools.islice(generators._draws("spider", "x", 0, "service"), 20_000):
        answers.setdefault(said[1].text, set()).add(said[1].reference or "")
    assert sum(len(found) > 1 for found in answers.values()) > 1000  # count or COUNT, quotes, LIMIT or a subquery
    for text, found in itertools.islice(answers.items(), 500):
        number = re.search(r"(?:above|than) (\d+)", text)
        assert all(number is None or number[1] in answer for answer in found)


def test_arithmetic_is_right() -> None:
    steps = 0
    for row in draw("gsm8k", 300):
        for left, right in re.findall(r"<<([^=<>]+)=([^=<>]+)>>", row["answer"]):
            assert eval(compile(ast.parse(left, mode="eval"), "", "eval"), {}) == int(right)  # noqa: S307
            steps += 1
        assert row["answer"].rpartition("#### ")[2] == right
    assert steps >= 600


def test_code_compiles() -> None:
    for row in draw("code_search_net", 300):
        assert ast.parse(row["func_code_string"]).body[0].name == row["func_name"]  # type: ignore[attr-defined]


def test_public_words_are_not_the_services() -> None:
    service = " ".join(row["question"] for row in draw("spider", 300))
    drawn = itertools.islice(generators._draws("spider", "public", 0, "public"), 300)
    public = " ".join(row["question"] for row, _ in drawn)
    assert "singers" in service
    assert "singers" not in public
    assert "authors" in public


def test_public_documents_are_unpaired_and_half_prose() -> None:
    documents = list(generators.public_documents(400, 0))
    assert len(documents) == 400
    code = sum(text.startswith("def ") for text in documents)
    assert 20 < code < 80  # a quarter of the other half
    assert documents == list(generators.public_documents(400, 0))
    assert not any("FROM singer" in text for text in documents)
    answers = [text for text in documents if text.startswith(("SELECT", "def "))]
    assert 60 < len(answers) < 140  # half of the other half


def test_arena_drifts_and_names_its_topic() -> None:
    rows = [row for row in draw("arena", 3000) if row["language"] == "English"]
    early, late = (
        [row["topic"] for row in rows if (row["tstamp"] > 1_680_739_200 + 62 * 86_400) == later]
        for later in (False, True)
    )
    assert late.count("Business_Corporate") / len(late) > 1.3 * early.count("Business_Corporate") / len(early)
    assert late.count("Games") / len(late) < 0.8 * early.count("Games") / len(early)


def test_unknown_dataset_is_refused() -> None:
    with pytest.raises(UserError, match="no generator for 'tatqa'"):
        next(generators.rows("tatqa", "train", seed=0))
