"""The sentence that answers an experiment's question follows its table, with its interval."""

import dataclasses
import re

import pandas as pd
import pytest

from draftlab.core.stats import Interval
from draftlab.errors import UserError
from draftlab.plan import WORKFLOW, Finding
from draftlab.report import findings, ledger, published, tidy
from draftlab.report.intervals import show
from tests.synthetic import TABLES

SMALLER = {"beyond_compute_matched"}
"""Their sentences need sizes that the smoke scale does not run."""

ONLINE = {"method": {"online": 0.25}}


def _sentence(name: str, table: pd.DataFrame | None = None) -> str:
    rows = tidy.derive(name, TABLES[name]()) if table is None else table
    return findings.sentences(name, rows)


@pytest.mark.parametrize("name", sorted(path.stem for path in (WORKFLOW / "experiments").glob("*.yaml")))
def test_every_experiment_answers_its_question(name):
    assert tidy.plan_of(name).finding, "add `finding` to the experiment's YAML file"
    if name not in SMALLER:
        sentence = _sentence(name)
        assert sentence.endswith(".")
        assert "{" not in sentence
        exact = tidy.resampled_column(TABLES[name]()) is None or "(one run each)" in sentence
        assert exact or re.search(r"\[[+-]?[0-9.]+, [+-]?[0-9.]+\]", sentence), "no interval"


@pytest.mark.parametrize("name", sorted(path.stem for path in (WORKFLOW / "experiments").glob("*.yaml")))
def test_a_title_is_a_short_statement(name):
    """What stands before the first colon is the title of the figure, whichever way the table falls."""
    first = tidy.plan_of(name).finding[0]
    for text in filter(None, (first.more, first.less, first.level)):
        title = findings.takeaway(text)
        assert 15 < len(title) < 100
        assert not re.search(r"[{\[]|^(Yes|It)\b", title.replace("{best}", "that one"))


def test_it_follows_the_table_in_all_directions():
    table = tidy.derive("osd_online", TABLES["osd_online"](ONLINE))
    assert _sentence("osd_online", table).startswith(
        "The online draft overtakes a briefly distilled one: over the last fifth of the stream alpha is 0.7"
    )
    other = table.replace({"method": {"online": "static_10", "static_10": "online"}})
    assert _sentence("osd_online", other).startswith("The online draft stays below a briefly distilled one: ")
    same = table[table["method"] == "online"]
    same = pd.concat([same, same.assign(method="static_10")])
    assert "+0.000 [+0.000, +0.000]" in _sentence("osd_online", same)
    assert _sentence("osd_online", same).startswith(
        "The online draft is not shown to overtake a briefly distilled one: "
    )


def test_a_finding_without_words_for_one_side_says_what_holds_for_none():
    table = tidy.derive("osd_online", TABLES["osd_online"](ONLINE))
    (first, *_) = tidy.plan_of("osd_online").finding
    said = first.model_copy(update={"more": "", "level": "They differ by {gap}"})
    assert findings.sentence("osd_online", table, said).startswith("They differ by +0.")


def test_each_dataset_has_a_value():
    table = tidy.derive("osd_online", TABLES["osd_online"](ONLINE))
    swap = table["dataset"] == "gsm8k"
    names = {"online": "static_10", "static_10": "online"}
    table.loc[swap, "method"] = table.loc[swap, "method"].replace(names)
    sentence = _sentence("osd_online", table)
    assert re.search(r"\(Spider: \+0\.\d+ .*; GSM8K: -0\.\d+ ", sentence)


def test_the_best_setting_needs_an_interval_to_win():
    rows = pd.DataFrame({"request_id": [*range(40)] * 2, "loss": ["a"] * 40 + ["b"] * 40, "visited": 10.0})
    rows["overlap"] = [5 + i % 3 for i in range(40)] + [6 + i % 3 for i in range(40)]
    finding = Finding(best=["loss"], measure="alpha", more="{best} by {gap}", level="tie of {best}, {second}")
    sentence = findings.sentence("beyond_divergences", rows.assign(source="x"), finding)
    assert sentence == "b by +0.100 [+0.100, +0.100]."
    rows["overlap"] = [5 + i % 3 for i in range(40)] + [5 + (i + 1) % 3 for i in range(40)]
    assert findings.sentence("beyond_divergences", rows.assign(source="x"), finding) == "tie of b, a."


def test_the_best_setting_has_to_win_against_each_of_the_others():
    """It is surely above the second, but not above the third."""
    rows = pd.DataFrame({"request_id": [*range(40)] * 3, "loss": ["a"] * 40 + ["b"] * 40 + ["c"] * 40, "visited": 20.0})
    rows["overlap"] = [9.0] * 40 + [8.9] * 40 + [0.0, 17.0] * 20
    finding = Finding(best=["loss"], measure="alpha", more="{best} wins", level="{best}, {second}: {gap}")
    sentence = findings.sentence("beyond_divergences", rows.assign(source="x"), finding)
    assert sentence.startswith("a, b: +0.005 [+0.005, +0.005], but a and c by +0.025 [-0.")
    assert sentence.endswith("], no significant difference.")
    two = rows[rows["loss"] != "c"].assign(source="x")
    assert findings.sentence("beyond_divergences", two, finding) == "a wins."


def test_the_best_of_a_group_is_marked_where_it_does_not_stand_out():
    rows = pd.DataFrame({"request_id": [*range(40)] * 2, "loss": ["a"] * 40 + ["b"] * 40, "visited": 10.0})
    above = [5 + i % 3 for i in range(40)]
    clear = rows.assign(source="x", overlap=[*above, *(value + 1 for value in above)])
    near = rows.assign(source="y", overlap=[*above, *(5 + (i + 1) % 3 for i in range(40))])
    finding = Finding(best=["loss"], each=["source"], measure="alpha", more="{best} wins", level="tie")
    sentence = findings.sentence("beyond_divergences", pd.concat([clear, near]), finding)
    assert sentence == "b wins (best for x: b; y: b, not clearly)."


def test_groups_named_in_the_text_are_not_pooled():
    """``level`` where they disagree, however the pooled rows fall."""
    rows = pd.DataFrame({"request_id": [*range(20)] * 2, "num_drafts": [2] * 20 + [8] * 20, "one_branch_seconds": 1.0})
    finding = Finding(
        measure="branch_ratio",
        right=1.0,
        each=["num_drafts"],
        digits=2,
        more="M {each}, {values}",
        level="L {each}",
    )
    for two, start in (
        (0.9, "L 2 drafts: -0.10 [-0.10, -0.10]; 8 drafts: +2.00 [+2.00, +2.00]."),
        (1.5, "M 2 drafts: +0.50 [+0.50, +0.50]; 8 drafts: +2.00 [+2.00, +2.00], 2 drafts: 1.50 "),
    ):
        seconds = [two] * 20 + [3.0] * 20
        assert findings.sentence("beyond_branches", rows.assign(branches_seconds=seconds), finding).startswith(start)


def test_a_part_of_the_values_that_it_selects_is_refused():
    table = tidy.derive("beyond_update_lag", TABLES["beyond_update_lag"](scale="smoke"))
    finding = Finding(left={"lag": [0, 32]}, right={"lag": [32, 128]}, more="", level="")
    with pytest.raises(UserError, match="no rows with lag 128"):
        findings.sentence("beyond_update_lag", table, finding)
    absent = finding.model_copy(update={"right": {"lag": [128, 256]}})
    assert findings.sentence("beyond_update_lag", table, absent) == "", "a scale may run none of them"


def test_each_estimator_is_beside_live_decoding():
    table = tidy.derive("beyond_temperature", TABLES["beyond_temperature"]())
    off = table["estimator"] == "OSD's repository"
    sentence = _sentence("beyond_temperature", table.assign(counted=table["counted"].where(~off, 0)))
    assert sentence.count("draft: ") == 6
    assert "is too low at temperature 1: it gives 0.0" in sentence


def test_an_additional_request_costs_what_the_shorter_stream_lacks():
    rows = pd.DataFrame(
        {
            "length": ["x1"] * 10 + ["x4"] * 40,
            "stream_index": [*range(10), *range(40)],
            "cpu_seconds": [2.0] * 10 + [5.0] * 40,
        }
    )
    found = tidy.derive("beyond_stream_length", rows)
    assert found.groupby("length")["request_ms"].first().tolist() == [200.0, 125.0]
    assert found.groupby("length")["added_ms"].first()["x4"] == pytest.approx(100.0)


def test_the_share_of_eq_1_is_measured_over_promised():
    table = tidy.derive("osd_latency_alpha", TABLES["osd_latency_alpha"]())
    rows = table[table["alpha"] == 0.8]
    share = re.search(
        r"promises (?:less|more|as much): (?:a share of )?([0-9.]+) of it", _sentence("osd_latency_alpha")
    )
    assert float(share[1]) == pytest.approx(rows["speedup"].sum() / rows["eq1"].sum(), abs=0.006)


def test_without_a_value_it_is_silent():
    """A dataset in which nothing was drafted has no alpha."""
    table = tidy.derive("osd_offline", TABLES["osd_offline"]())
    nothing = {"overlap": 0.0, "visited": 0}
    assert _sentence("osd_offline", table.assign(**nothing)) == ""
    first = table["dataset"] == table["dataset"].iloc[0]
    sentence = _sentence("osd_offline", pd.concat([table[first].assign(**nothing), table[~first]]))
    assert "(GSM8K: " in sentence
    assert "nan" not in sentence.replace("Finance", "")


def test_without_the_rows_it_is_silent():
    table = tidy.derive("osd_online", TABLES["osd_online"]())
    assert _sentence("osd_online", table[table["method"] != "online"]) == ""
    assert _sentence("osd_online", table[~table["method"].str.startswith("static_10")]) == ""


@pytest.mark.parametrize("page", sorted(WORKFLOW.parent.glob("paper_figures/*/*_*.md")), ids=lambda page: page.stem)
def test_every_published_table_stands_below_its_answer(page):
    first = page.read_text(encoding="utf-8").splitlines()[0]
    assert findings.takeaway(first), "its finding asks for rows that the scale does not run"
    assert not first.startswith("|")


def _settled(left, right):
    """The columns that tell both sides of a contrast apart, with their values."""
    return {key: (left[key], right[key]) for key in left.keys() & right.keys() if left[key] != right[key]}


PAIRS = [
    pytest.param(name, comparison, finding, sign, id=f"{name}-{comparison.table}")
    for name, statement in published.load().statements.items()
    for comparison in statement.comparisons
    for finding in tidy.plan_of(comparison.table).finding
    if isinstance(comparison.right, dict)
    and isinstance(finding.right, dict)
    and tidy.plan_of(comparison.table).measure(finding.measure) == comparison.select(comparison.left).measure
    for sign, sides in ((1, (comparison.left, comparison.right)), (-1, (comparison.right, comparison.left)))
    if _settled(*sides) == _settled(finding.left, finding.right) != {}
]
"""A statement's comparison and a sentence of its table that speaks of the same two settings; -1: in the other order."""
EXPECTED = {"greater": "more", "not_less": "more", "less": "less", "not_greater": "less", "similar": "level"}
OTHER = {"more": "less", "less": "more"} | {"level": "level", "": ""}


def test_sentences_and_statements_meet():
    assert len(PAIRS) > 15
    assert {param.values[3] for param in PAIRS} == {1, -1}


def _side(name, table, finding):
    """Which of its three texts a finding chooses."""
    texts = {side: side + (" {each}" if finding.apart else "") for side in ("more", "less", "level")}
    return re.match(r"\w*", findings.sentence(name, table, finding.model_copy(update=texts)))[0]


@pytest.mark.parametrize(
    ("path", "name", "comparison", "finding", "sign"),
    [
        pytest.param(path, *pair.values, id=f"{path.parent.parent.name}-{pair.id}")
        for pair in PAIRS
        for path in sorted(WORKFLOW.parent.glob(f"paper_figures/*/data/{pair.values[1].table}.csv.gz"))
    ],
)
def test_no_sentence_contradicts_the_verdict_of_its_statement(known, path, name, comparison, finding, sign):
    """What holds is denied by no sentence; what fails is asserted by none, unless it says for which groups."""
    tables = {comparison.table: tidy.read(path)}
    statement = known.statements[name].model_copy(update={"comparisons": [comparison]})
    alone = dataclasses.replace(known, numbers=known.numbers.iloc[:0], statements={name: statement}, checks={})
    verdict = ledger.judge_claims(alone, tables, path.parent.parent.name).iloc[0]
    side = _side(comparison.table, tables[comparison.table], finding)
    side = side if sign > 0 else OTHER[side]
    expected = EXPECTED[comparison.expect]
    if verdict["verdict"] in ("same direction", "reproduced"):
        assert side in {expected, "level"} - ({"level"} if comparison.expect in ("greater", "less") else set()), (
            verdict["note"]
        )
    if verdict["verdict"] == "contradicts":
        assert side != expected or finding.each, verdict["note"]


def test_an_end_of_a_difference_is_not_shown_as_0():
    """+0.5 [-0.0, +1.0] does not say on which side of 0 the interval begins."""
    assert show(Interval(0.52, -0.02, 1.04, n=12), 1, sign="+") == "+0.52 [-0.02, +1.04]"
    assert show(Interval(0.52, 0.0, 1.04, n=12), 1, sign="+") == "+0.5 [+0.0, +1.0]"
    assert show(Interval(0.52, -1e-9, 1.04, n=12), 1, sign="+") == "+0.5 [+0.0, +1.0]", "no number of digits helps"
    assert show(Interval(-0.01, -0.3, 0.3, n=12), 1, sign="+") == "+0.0 [-0.3, +0.3]", "0 has no side"
    assert show(Interval(0.2, 0.02, 0.3, n=12), 1) == "0.2 [0.0, 0.3]", "a ratio is no difference"


def test_both_sides_have_as_many_digits_as_their_difference():
    rows = pd.DataFrame({"request_id": [*range(40)] * 2, "method": ["a"] * 40 + ["b"] * 40, "visited": 10.0})
    rows["overlap"] = [5.0] * 40 + [5.0 + 0.9 * (i % 2) - 0.2 for i in range(40)]
    said = Finding(
        left={"method": "b"}, right={"method": "a"}, measure="alpha", digits=1, more="{left} {right} {gap}", level=""
    )
    gap = re.fullmatch(r"(0\.\d+) (0\.\d+) \+(0\.\d+) \[\+(0\.\d+), .*", findings.sentence("osd_offline", rows, said))
    assert gap, findings.sentence("osd_offline", rows, said)
    assert {len(number) for number in gap.groups()} == {4}


def test_a_difference_that_the_table_has_shows_its_sign():
    table = tidy.read(WORKFLOW.parent / "paper_figures/laptop/data/beyond_regime.csv.gz", "beyond_regime")
    sentence = findings.sentences("beyond_regime", table)
    assert "over 2 nats: -0.0" in sentence
    assert "1 to 2: +0.0" in sentence
