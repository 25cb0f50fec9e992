"""The last lines of a run: they follow its tables, and answer whether an adapted draft pays."""

import os
import re

import pandas as pd
import pytest

from draftlab.core import theory
from draftlab.data.prompts import Rejection
from draftlab.errors import UserError
from draftlab.files.json_files import write_jsonl
from draftlab.report import page as report_page
from draftlab.report import summary
from tests.synthetic import TABLES

PAYS = {"contender": {"distilled": 0.133, "none": -0.2, "none_again": -0.2}}  # a speed-up of 1.5


@pytest.fixture
def run(tmp_path):
    for name in ("osd_latency_dataset", "osd_offline", "osd_online"):
        TABLES[name](PAYS).to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "report.html").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "pays off"), (2.0, "does not pay off"), (1.5, "is not shown to pay off")]
)
def test_whether_a_draft_pays_follows_the_interval(factor, verdict, run):
    table = TABLES["osd_latency_dataset"](PAYS)
    table.loc[table["contender"] == "distilled", "seconds"] *= factor
    table.to_csv(run / "osd_latency_dataset.csv", index=False)
    assert f"an adapted draft {verdict}: compared with no draft" in next(summary.headlines(run))


def test_theory_has_the_measured_acceptance_and_costs(run):
    rows = TABLES["osd_latency_dataset"](PAYS)
    plain, distilled = (
        rows[rows["contender"].isin(["none", "none_again"])],
        rows[rows["contender"] == "distilled"].sum(numeric_only=True),
    )
    step = plain["seconds"].sum() / plain["tokens"].sum()
    alpha, cost = distilled["accepted"] / distilled["visited"], distilled["draft_seconds"] / distilled["drafted"] / step
    line = next(summary.headlines(run))
    assert f"(alpha {alpha:.2f}; Eq. 1 predicts {theory.speedup(alpha, 5, cost):.2f}, " in line
    verified = theory.speedup(alpha, 5, cost, distilled["verify_seconds"] / distilled["blocks"] / step)
    assert f"with the measured cost of verification {verified:.2f})" in line


def test_an_experiment_that_did_not_run_has_no_line(run):
    assert len(list(summary.headlines(run))) == 3
    (run / "osd_latency_dataset.csv").unlink()
    assert [line.split()[0] for line in summary.lines(run)] == ["Offline", "Online", "Report", "Tables", "Figures"]


def test_an_experiment_of_ones_own_may_leave_contenders_and_schemes_out(run):
    table = TABLES["osd_latency_dataset"](PAYS)
    for left_out, words in (("before", ["compared with no draft"]), ("distilled", [])):
        table[table["contender"] != left_out].to_csv(run / "osd_latency_dataset.csv", index=False)
        found = [line for line in summary.headlines(run) if line.startswith("Traffic")]
        assert len(found) == len(words)
        assert all(word in line and "undistilled" not in line for word, line in zip(words, found, strict=True))
    table = TABLES["mdss_acceptance"]({"scheme": {"optimal": 0.1}})
    table[table["scheme"] == "rrs"].to_csv(run / "mdss_acceptance.csv", index=False)
    assert not any(line.startswith("Drafts") for line in summary.headlines(run))


def test_the_summary_is_that_of_the_run_that_was_asked_for(run, capsys):
    results = run / "results"
    for name in ("smoke-raw", "smoke"):
        (results / name).mkdir(parents=True)
        (results / name / "report.html").touch()
    os.utime(results / "smoke-raw" / "report.html", (1, 1))
    for config, found in ((("scale=smoke", f"raw={run}"), "smoke-raw"), ((), "smoke")):
        summary.print_summary(results=results, config=config)
        assert f"Report   {results / found}/report.html" in capsys.readouterr().out
    with pytest.raises(UserError, match="no finished run"):
        summary.print_summary(results=results, config=("scale=smoke", "name=other"))


def test_no_scheme_accepts_more_than_its_optimum(run):
    """RRS draws without replacement, paths count something else, and the synthetic distributions are no text."""
    table = TABLES["mdss_acceptance"]({"scheme": {"optimal": 0.1}})
    table.loc[(table["scheme"] == "rrs") | (table["dataset"] == "synthetic"), "acceptance_sum"] *= 1.2
    table.to_csv(run / "mdss_acceptance.csv", index=False)
    line = next(line for line in summary.headlines(run) if line.startswith("Drafts"))
    assert line.startswith("Drafts   accepted with 2 drafts at temperature 1.2: optimal ")
    found = {name: float(value) for name, value in re.findall(r"(\w+) ([\d.]+) \[", line)}
    assert list(found) == ["optimal", "importance_truncated", "k_seq", "specinfer", "single"]
    assert max(found.values()) == found["optimal"]
    texts = table[(table["dataset"] != "synthetic") & (table["draft_temperature"] == 1.2) & (table["num_drafts"] == 2)]
    best = texts[texts["scheme"] == "optimal"][["acceptance_sum", "positions"]].sum()
    assert found["optimal"] == pytest.approx(best["acceptance_sum"] / best["positions"], abs=5e-4)


def test_a_page_on_your_own_prompts_begins_with_the_answer(run):
    (run / "claims.csv").write_text("claim_id,setting,published,ci_low,verdict,note\n")
    report_page.write(run, "laptop", run / "report.html", ["dataset=<b>.jsonl"])
    page = (run / "report.html").read_text()
    assert (
        page.index("Would an adapted draft help?") < page.index("an adapted draft pays") < page.index("The experiments")
    )
    for of_papers in ("The questions", "What held", "ledger-heading", "Two papers", "printed claims", "arXiv"):
        assert of_papers not in page, of_papers
    assert "dataset=&lt;b&gt;.jsonl" in page
    assert "small and trained on the spot" not in page
    report_page.write(run, "laptop", run / "report.html")
    assert "ledger-heading" in (run / "report.html").read_text()
    assert "Would an adapted draft help?" not in (run / "report.html").read_text()


def test_few_requests_are_not_an_answer_and_prompts_without_room_are_counted(run):
    table = TABLES["osd_latency_dataset"]()
    first = table["request_id"].unique()[:1]
    table[table["request_id"].isin(first) & (table["dataset"] == table["dataset"].iloc[0])].to_csv(
        run / "osd_latency_dataset.csv", index=False
    )
    for split, rows in (("train", "ab"), ("eval", "bc")):
        folder = run / "main" / "answers" / f"prompts.{split}"
        folder.mkdir(parents=True)
        write_jsonl(folder / "rejected.jsonl", [Rejection("prompts.jsonl", 1, "600 tokens", row) for row in rows])
    line = next(iter(summary.answers(run)))
    assert "not yet known whether an adapted draft pays" in line
    assert "on 1 request;" in line
    assert "nan" not in line
    assert "; left out: 3 prompts too long for the target, refused by its chat template, or without a token" in line


def test_answers_that_repeat_themselves_are_counted_and_left_out(run):
    table = pd.read_csv(run / "osd_offline.csv")
    assert "Loops" not in " ".join(summary.headlines(run))
    first = table["dataset"].iloc[0]
    table["looping"] = (table["dataset"] == first) & (table["request_id"] % 2 == 0)
    table.loc[table["looping"], "overlap"] = table["visited"]
    table.to_csv(run / "osd_offline.csv", index=False)
    line = next(line for line in summary.headlines(run) if line.startswith("Loops"))
    rest = table[(table["dataset"] == first) & ~table["looping"] & (table["sample_source"] == "none")]
    count = table[table["dataset"] == first].drop_duplicates("request_id")["looping"].agg(["sum", "size"])
    assert f"{first} {count['sum']} of {count['size']}" in line
    assert f"without them alpha {rest['overlap'].sum() / rest['visited'].sum():.2f}" in line
