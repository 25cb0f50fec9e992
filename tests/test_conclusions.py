"""The sentence that answers an experiment's question: it follows its table, and says so with the interval."""

import re

import pandas as pd
import pytest

from draftlab import conclusions, tidy
from draftlab.experiments import Answer
from tests.synthetic import TABLES

SMALLER = {"beyond_compute_matched", "beyond_context_batch"}
"""Their sentences speak of sizes that the smoke scale does not run."""


def _sentence(name: str, table: pd.DataFrame | None = None) -> str:
    rows = tidy.derive(name, TABLES[name]()) if table is None else table
    return conclusions.sentences(name, rows, conclusions.answers_of(name))


@pytest.mark.parametrize("name", sorted(path.stem for path in conclusions.EXPERIMENTS.glob("*.yaml")))
def test_every_experiment_answers_its_question(name):
    assert conclusions.answers_of(name), "add `answer` to the experiment's YAML file"
    if name not in SMALLER:
        said = _sentence(name)
        assert said.endswith(".")
        assert "{" not in said
        exact = tidy.unit(TABLES[name]()) is None or "(one run each)" in said
        assert exact or re.search(r"\[[+-][0-9.]+, [+-][0-9.]+\]", said), "no interval"


def test_it_falls_whichever_way_the_table_does():
    table = tidy.derive("osd_online", TABLES["osd_online"]())
    assert _sentence("osd_online", table).startswith("Yes: over the last fifth of the stream alpha is 0.7")
    other = table.replace({"method": {"online": "static_10", "static_10": "online"}})
    assert _sentence("osd_online", other).startswith("No: ")
    same = table[table["method"] == "online"]
    same = pd.concat([same, same.assign(method="static_10")])
    assert "+0.000 [+0.000, +0.000]" in _sentence("osd_online", same)
    assert _sentence("osd_online", same).startswith("Undecided: ")


def test_each_dataset_is_told_apart():
    table = tidy.derive("osd_online", TABLES["osd_online"]())
    swap = table["dataset"] == "gsm8k"
    names = {"online": "static_10", "static_10": "online"}
    table.loc[swap, "method"] = table.loc[swap, "method"].replace(names)
    said = _sentence("osd_online", table)
    assert re.search(r"by dataset: Spider \+0\.\d+ .*, GSM8K -0\.\d+ ", said)


def test_the_best_setting_needs_an_interval_to_win():
    rows = pd.DataFrame({"request": [*range(40)] * 2, "loss": ["a"] * 40 + ["b"] * 40, "visited": 10.0})
    rows["overlap"] = [5 + i % 3 for i in range(40)] + [6 + i % 3 for i in range(40)]
    answer = Answer(
        best=["loss"], measure=("overlap", "visited"), more="{best} by {gap}", level="tie of {best}, {second}"
    )
    told = conclusions.sentence("beyond_divergences", rows.assign(source="x"), answer)
    assert told == "b by +0.100 [+0.100, +0.100]."
    rows["overlap"] = [5 + i % 3 for i in range(40)] + [5 + (i + 1) % 3 for i in range(40)]
    assert conclusions.sentence("beyond_divergences", rows.assign(source="x"), answer) == "tie of b, a."


def test_without_the_rows_it_is_silent():
    table = tidy.derive("osd_online", TABLES["osd_online"]())
    assert _sentence("osd_online", table[table["method"] != "online"]) == ""
    assert _sentence("osd_online", table[~table["method"].str.startswith("static_10")]) == ""
    assert conclusions.sentences("osd_online", table, []) == ""
