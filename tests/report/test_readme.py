"""README states no number by hand: its parts follow the committed tables and the experiments' files."""

import dataclasses
import re
import shutil

import pytest

from draftlab.errors import UserError
from draftlab.report import readme
from draftlab.stages import STAGES
from tests.conftest import ROOT


@pytest.fixture
def copy(tmp_path):
    shutil.copy(ROOT / "README.md", tmp_path)
    for part in ("workflow", "paper_figures/laptop"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("*.png", "*.pdf", "*.tex"))
    readme.update(tmp_path / "README.md", check=False)
    readme.update(tmp_path / "README.md", check=True)
    return tmp_path


def test_another_result_makes_it_stale(copy):
    claims = copy / readme.CLAIMS
    text = claims.read_text()
    row = next(
        line for line in text.splitlines() if line.startswith("T1.alpha_offline/vicuna-7b/llama-160m/spider/orig")
    )
    claims.write_text(text.replace(row, row.replace(",0.1", ",0.7", 1)))
    with pytest.raises(UserError, match="it differs from the code and the committed tables"):
        readme.update(copy / "README.md", check=True)
    readme.update(copy / "README.md", check=False)
    assert "0.28 / **0.7" in (copy / "README.md").read_text()


def test_each_row_of_the_second_table_says_its_n(copy):
    rows = [line for line in (copy / "README.md").read_text().splitlines() if line.startswith("| block efficiency of")]
    assert len(rows) == 6
    assert all(re.search(r"v1 Table 1, Dolly\) \| .* \| \d+ requests \|$", row) for row in rows)


def test_another_answer_makes_it_stale(copy):
    answer = copy / readme.ANSWERS[0]
    answer.write_text("No: " + answer.read_text())
    with pytest.raises(UserError, match="it differs from the code and the committed tables"):
        readme.update(copy / "README.md", check=True)


def test_every_experiment_is_listed(copy):
    names = sorted(path.stem for path in (copy / "workflow/experiments").glob("*.yaml"))
    text = (copy / "README.md").read_text()
    assert len(names) > 50
    assert all(f"| `{name}` |" in text for name in names)
    (copy / "workflow/experiments" / f"{names[0]}.yaml").unlink()
    with pytest.raises(UserError, match="No such file"):
        readme.update(copy / "README.md", check=True)


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
    changed = dataclasses.replace(STAGES["region"], does="Something else")
    monkeypatch.setitem(STAGES, "region", changed)
    with pytest.raises(
        UserError, match=r"tables\.md: it differs from the code and the committed tables \(run `draftlab readme`\)"
    ):
        readme.update(copy / "README.md", check=True)
    readme.update(copy / "README.md", check=False)
    assert page.read_text() != text


@pytest.mark.parametrize("name", STAGES)
def test_every_column_says_what_it_means(name):
    columns = STAGES[name].all_columns
    assert columns
    assert not [key for key, own in columns.items() if not own.meaning]
