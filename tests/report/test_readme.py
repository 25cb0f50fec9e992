"""The generated parts of the README follow the committed tables and the experiments' files."""

import dataclasses
import json
import re
import shutil

import pytest

from draftlab.errors import UserError
from draftlab.files.tables import read_table, read_texts
from draftlab.report import findings, readme, tidy
from draftlab.report.figures import style
from draftlab.stages import STAGES
from tests.conftest import ROOT


@pytest.fixture
def copy(tmp_path):
    shutil.copy(ROOT / "README.md", tmp_path)
    for part in ("workflow", "paper_figures/laptop", "paper_figures/smollm2"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("*.png", "*.pdf", "*.tex"))
    readme.update(tmp_path / "README.md", check=False)
    readme.update(tmp_path / "README.md", check=True)
    return tmp_path


def test_figures_of_a_run_with_a_name_of_its_own_have_an_index(copy):
    shutil.copytree(copy / "paper_figures/smollm2", copy / "paper_figures/mine")
    readme.update(copy / "README.md", check=False)
    pages = [(copy / "paper_figures" / name / "README.md").read_text() for name in ("mine", "smollm2")]
    assert [page.splitlines()[0] for page in pages] == [
        "# Figures and tables of `name=mine`",
        "# Figures and tables of `scale=smollm2`",
    ]


def test_another_result_makes_it_stale(copy):
    claims = copy / readme.CLAIMS
    text = claims.read_text()
    row = next(
        line for line in text.splitlines() if line.startswith("T1.alpha_offline/vicuna-7b/llama-160m/spider/tea")
    )
    claims.write_text(text.replace(row, row.replace(",0.76,0.7", ",0.76,0.2", 1)))
    with pytest.raises(UserError, match="it differs from the code and the committed tables"):
        readme.update(copy / "README.md", check=True)
    readme.update(copy / "README.md", check=False)
    assert "| alpha, draft distilled offline (OSD Table 1), Spider | 0.76 | 0.2" in (copy / "README.md").read_text()


def test_it_names_every_statement_that_did_not_hold_and_counts_each_verdict(copy):
    rows = read_texts(copy / readme.CLAIMS)
    wrong = rows[(rows["published"] == "in words") & (rows["verdict"] == "contradicts")]
    text = (copy / "README.md").read_text()
    assert len(wrong)
    assert [claim for claim in wrong["quantity"] if f"| {claim} |" not in text] == []
    assert f" and {len(wrong)} do not:" in text
    held = rows[(rows["published"] == "in words") & rows["verdict"].isin(["reproduced", "same direction"])]
    ran = (held["experiment"] != "").sum()
    assert 0 < ran < len(held)
    assert f"claims in words, {ran} hold in our runs, {len(held) - ran} in the printed numbers alone," in text
    score = text.split("<!-- begin:score -->")[1].split("<!-- end:score -->")[0]
    *lines, _, chance = score.strip().splitlines()
    names, _, counts = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    assert dict(zip(names, map(int, counts), strict=True)) == rows["verdict"].value_counts().to_dict()
    decided = rows["verdict"].isin(["same direction", "printed size excluded", "undecided", "contradicts"])
    of_intervals = sum(decided & (rows["ci_low"] != ""))
    assert 0 < of_intervals < sum(decided)
    assert chance.startswith(f"Of the {of_intervals} verdicts that rest on an interval, ")
    assert f"at most {of_intervals / 40:.1f} " in chance


def test_a_statement_about_an_exact_table_has_no_interval(copy):
    rows = read_texts(copy / readme.CLAIMS).set_index("claim_id", drop=False)
    place = "mdss.optimum_dominates_region"
    assert rows.loc[place, "ci_low"] == ""
    note = "0 of 1 comparisons hold, 1 fail; least favourable (acceptance, panel left): -0.1"
    rows.loc[place, ["verdict", "ours", "note"]] = "contradicts", "-0.1", note
    rows.to_csv(copy / readme.CLAIMS, index=False)
    readme.update(copy / "README.md", check=False)
    assert " | 0 of 1 comparisons hold, 1 fail | acceptance, panel left | -0.100 |" in (copy / "README.md").read_text()


@pytest.mark.parametrize(("name", "count"), readme.REAL_ANSWERS.items())
def test_the_real_model_s_lines_are_the_first_sentences_of_each_finding(name, count):
    """As many as stated, whole, and without their groups."""
    text = (ROOT / "README.md").read_text().split("<!-- begin:real -->\n")[1].split("<!-- end:real -->")[0]
    line = text.splitlines()[list(readme.REAL_ANSWERS).index(name)]
    table = tidy.read(ROOT / readme.REAL / f"data/{name}.csv.gz", name)
    sentences = [
        sentence for finding in tidy.plan_of(name).finding if (sentence := findings.sentence(name, table, finding))
    ]
    assert len(sentences) >= count
    assert line == "* " + " ".join(readme.GROUPS.sub("", sentence) for sentence in sentences[:count])


def test_processors_are_compared_by_summed_times_over_all_datasets(copy):
    """Each published table gives one row per format of the weights; only speed-ups whose interval is above 1 are bold."""
    text = (copy / "README.md").read_text().split("<!-- begin:processors -->\n")[1].split("<!-- end:processors -->")[0]
    head, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.strip().splitlines())
    seconds = {}
    for path in (copy / readme.REAL).glob(f"*/{readme.ON_PROCESSORS}.csv.gz"):
        rows = read_table(path)
        for weights, part in rows.groupby("weights"):
            shown = part.assign(contender=part["contender"].map(lambda one: style.setting("contender", one))).groupby(
                "contender"
            )
            seconds[path.parent.name, weights] = shown[["seconds", "tokens"]].sum()
    assert len(lines) == len(seconds)
    ms = {
        f"{1e3 * one.loc['no draft', 'seconds'] / one.loc['no draft', 'tokens']:.2f}": one for one in seconds.values()
    }
    for machine, weights, time, *speedups in lines:
        assert machine in readme.PROCESSORS.values()
        assert weights in ("q8_0", "q4_0")
        sums = ms.pop(time.split(" ")[0])["seconds"]
        plain = {"no draft, against itself": sums["no draft"]}
        for name, cell in zip(head[3:], speedups, strict=True):
            value, low, _ = re.findall(r"[\d.]+", cell)
            both = (sums["no draft"] + sums["no draft, against itself"]) / 2
            assert float(value) == pytest.approx(plain.get(name, both) / sums[name], abs=0.0051)
            if name != "no draft, against itself" and low != "1.00":
                assert cell.startswith("**") == (float(low) > 1)


def test_it_is_read_in_a_minute():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_a_finding_of_a_published_figure_is_in_the_index_of_its_folder(copy):
    folder = copy / "paper_figures/laptop"
    text = (folder / "README.md").read_text()
    sections = dict(re.findall(r"## `(\w+)`\n(.*?)(?=\n## |\Z)", text, re.S))
    assert set(sections) == {path.stem for path in folder.glob("*.md")} - {"README"}
    assert (
        list(sections).index("osd_online") < list(sections).index("mdss_cone") < list(sections).index("beyond_hybrid")
    )
    page = folder / "mdss_cone.md"
    page.write_text("No: " + page.read_text())
    with pytest.raises(UserError, match=r"laptop/README\.md: it differs"):
        readme.update(copy / "README.md", check=True)


def test_a_time_measurement_names_its_processor_and_no_other_table_does(copy):
    """Each in the section of its experiment."""
    record = json.loads((copy / "paper_figures/laptop/data/provenance.json").read_text())
    sections = (copy / "paper_figures/laptop/README.md").read_text().split("\n## `")[1:]
    found = {section.partition("`")[0]: re.findall(r"timed on (.*)", section) for section in sections}
    assert found["osd_online"] == []
    assert record["osd_latency_alpha"]["common"]["machine.processor"] == "AMD EPYC"
    assert found["osd_latency_alpha"] == ["AMD EPYC (Zen 5)"]
    assert found["beyond_break_even"] == ["AMD EPYC (Zen 4)"]


def test_a_lost_marker_is_named(copy):
    path = copy / "README.md"
    path.write_text(path.read_text().replace("<!-- end:results -->", ""))
    with pytest.raises(UserError, match="no part 'results'"):
        readme.update(path, check=True)


def test_a_stage_that_changed_makes_the_page_of_tables_stale(copy, monkeypatch):
    page = copy / readme.stages_page.PAGE
    text = page.read_text()
    for name, stage in STAGES.items():
        section = text.split(f"## {name}\n")[1].split("\n## ")[0]
        for key in [*stage.settings.model_fields, *stage.all_columns, *stage.measures, *stage.views]:
            assert f"| `{key}` |" in section, (name, key)
    changed = dataclasses.replace(STAGES["region"], summary="Something else")
    monkeypatch.setitem(STAGES, "region", changed)
    with pytest.raises(
        UserError, match=r"tables\.md: it differs from the code and the committed tables \(run `draftlab readme`\)"
    ):
        readme.update(copy / "README.md", check=True)
    readme.update(copy / "README.md", check=False)
    assert page.read_text() != text


@pytest.mark.parametrize("name", STAGES)
def test_every_column_has_a_meaning(name):
    columns = STAGES[name].all_columns
    assert columns
    assert not [key for key, column in columns.items() if not column.meaning]


def test_every_setting_has_a_meaning():
    tables = re.findall(
        r"\| setting \| default \| meaning \|\n\| --- .*\n((?:\|.*\n)+)", readme.stages_page.render(ROOT)
    )
    assert len(tables) == len(STAGES)
    assert [line for table in tables for line in table.splitlines() if line.endswith("|  |")] == []
