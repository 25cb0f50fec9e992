"""What is published: drawn again from the committed tables, and no more of it than changed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from draftlab.files.tables import tables_in
from draftlab.report import findings, tables, tidy
from tests.checkout import jobs, snakemake
from tests.conftest import ROOT
from tests.pictures import look_the_same

pytestmark = pytest.mark.workflow
PUBLISHED = sorted(path.parent.name for path in (ROOT / "paper_figures").glob("*/data"))


@pytest.fixture(scope="module")
def redrawn(checkout) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The published files before and after they were drawn again."""
    folder = checkout / "paper_figures" / "laptop"

    def read() -> dict[str, bytes]:
        drawn = (path for path in folder.iterdir() if path.is_file() and path.name != "README.md")
        return {path.name: path.read_bytes() for path in drawn}

    before = read()
    assert {path.suffix for path in folder.iterdir()} >= {".pdf", ".png", ".md", ".tex"}
    for name in before:
        (folder / name).unlink()
    assert set(jobs(snakemake(checkout, "paper_figures"))) == {"paper_figures"}
    return before, read()


def test_published_figures_are_redrawn_from_their_tables_and_nothing_is_trained(redrawn):
    before, after = redrawn
    assert after.keys() == before.keys()
    assert [name for name in before if not look_the_same(name, before[name], after[name])] == []
    # The published files were drawn with AVX-512, whose logarithms are rounded in another way.
    cpuinfo = Path("/proc/cpuinfo")
    is_alike = cpuinfo.exists() and "avx512vl" in cpuinfo.read_text()
    assert sum(before[name] != after[name] for name in before) <= (0 if is_alike else 10)


@pytest.mark.parametrize("scale", PUBLISHED)
def test_the_published_figures_of_every_scale_need_no_model_and_no_data(checkout, scale):
    assert set(jobs(snakemake(checkout, "-n", "paper_figures", "--config", f"scale={scale}"))) <= {"paper_figures"}


@pytest.mark.slow
@pytest.mark.parametrize("scale", PUBLISHED)
def test_every_published_table_is_printed_from_the_rows_beside_it(scale, tmp_path):
    folder = ROOT / "paper_figures" / scale
    names = sorted(tables_in(folder / "data"))
    assert names
    for name in names:
        rows = tidy.read(folder / "data" / f"{name}.csv.gz")
        finding = findings.sentences(name, rows)
        tables.write(name, rows, scale, tmp_path / name, finding)
        assert (tmp_path / f"{name}.md").read_text() == (folder / f"{name}.md").read_text(), name


def test_an_edit_of_a_stage_or_figure_and_a_new_table_redraw_what_they_change_and_nothing_else(checkout, redrawn):
    code = checkout / "src/draftlab/report/figures/mdss_cone.py"
    table = checkout / "paper_figures/laptop/data/mdss_region.csv.gz"
    stage = checkout / "src/draftlab/stages/cone.py"
    kept = {path: path.read_bytes() for path in (code, table, stage)}
    try:
        stage.write_bytes(kept[stage] + b"\nEXTRA = 1\n")
        assert set(jobs(snakemake(checkout, "-n", "paper_figures"))) == {"paper_figures"}
        stage.write_bytes(kept[stage])
        code.write_bytes(kept[code] + b"\nEXTRA = 1\n")
        table.write_bytes(gzip.compress(gzip.decompress(kept[table]).rsplit(b"\n", 2)[0] + b"\n"))
        snakemake(checkout, "paper_figures")
        log = checkout / "results/laptop/logs/paper_figures.log"
        assert log.read_text() == "drawn: mdss_cone\ndrawn: mdss_region\n"
        assert "Nothing to be done" in snakemake(checkout, "paper_figures")
    finally:
        for path, content in kept.items():
            path.write_bytes(content)
