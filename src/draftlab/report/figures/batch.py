"""Draws figures and printed tables for many experiments in a few processes, because starting one for each takes longer than drawing.

A digest of the table and of the code behind its figure is kept for each figure, so that an edit of one figure redraws only that one.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pandas as pd
import tyro
from pandas.api.types import is_numeric_dtype

from draftlab import plan
from draftlab.errors import UserError
from draftlab.files.json_files import read_json, write_json
from draftlab.files.scratch import die_with_parent
from draftlab.files.tables import table_bytes, tables_in
from draftlab.report import figures, findings, published, tables, tidy
from draftlab.report.figures.style import save

SUFFIXES = (".pdf", ".png", ".md", ".tex", ".csv")


def draw(experiment: str, table: Path, scale: str, prefix: Path, *, own_target: bool = False) -> str:
    """Draw one table's figure, write the table under its finding, and return the finding.

    ``own_target`` says that the target was not trained by the run.
    """
    rows = tidy.read(table, experiment)
    try:
        finding = findings.sentences(experiment, rows)
        _check_figure(experiment, rows)
        save(figures.figure(experiment, rows, scale, _published(), findings.takeaway(finding)), prefix)
        tables.write(experiment, rows, scale, prefix, finding, own_target=own_target)
    except KeyError as error:
        module = plan.module_of(experiment, tidy.plan_of(experiment).figure)
        asker = f"report/figures/{module}.py" if module in plan.DESIGNED else str(tidy.file_of(experiment))
        raise tidy.no_column(error, table, experiment, rows, asker) from None
    return finding


def _check_figure(experiment: str, rows: pd.DataFrame) -> None:
    """Check that the figure of the experiment's file selects rows, and has numbers along its x-axis."""
    block, file = tidy.plan_of(experiment).figure, tidy.file_of(experiment)
    form = (block.curves or block.live) if block else None
    if form is None:
        return
    chosen = tidy.select_rows(rows, getattr(form, "where", {}), experiment)
    if chosen.empty:
        raise UserError("figure: no row of the table is selected", file=file, remedy="change `where`, or leave it out")
    if form.x in chosen and not is_numeric_dtype(chosen[form.x]):
        remedy = "name a column of numbers; words can be the `series` or the `panel`"
        raise UserError(f"figure: x is {form.x}, which holds words", file=file, remedy=remedy)


def draw_all(data: Path, out: Path, scale: str, drawn: Path, processes: int) -> list[str]:
    """Draw the tables of ``data`` whose digest differs from that in ``drawn``, or whose files are missing; return their names."""
    before = read_json(drawn) if drawn.exists() else {}
    paths = tables_in(data)
    if not paths:
        raise UserError(
            "no tables here", file=data, remedy="name the folder of a finished run, or paper_figures/RUN/data"
        )
    digests = {name: _digest(name, path, scale) for name, path in paths.items()}
    files = {name: [out / f"{name}{suffix}" for suffix in SUFFIXES] for name in paths}
    stale = [name for name in paths if before.get(name) != digests[name] or not all(map(Path.exists, files[name]))]
    _published()  # read before forking, so that all processes share it. The libraries of macOS do not survive a fork.
    start = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    # Garbage collection would take a tenth of the time of these short-lived processes, so _begin turns it off.
    with ProcessPoolExecutor(processes, start, initializer=_begin, initargs=(os.getpid(),)) as pool:
        jobs = [pool.submit(draw, name, paths[name], scale, out / name) for name in stale]
        for job in jobs:
            job.result()
    for name in paths.keys() - set(stale):
        for file in files[name]:
            os.utime(file)  # up to date: give it a time after its table's, so that Snakemake sees it as new
    write_json(drawn, digests)
    return stale


def _begin(parent: int) -> None:
    gc.disable()
    die_with_parent(parent)


def _digest(experiment: str, table: Path, scale: str) -> str:
    """Digest of what a figure and its table depend on: the observations, the printed numbers, the experiment's file, its measures, and the code."""
    known = tidy.plan_of(experiment)
    figure = f"report.figures.{plan.module_of(experiment, known.figure)}"
    modules = (figure, "report.figures.forms", "report.findings", f"stages.{known.stage}")
    code = plan.code_digest(*(f"draftlab.{module}" for module in modules))
    printed = [path.read_bytes() for path in sorted(published.FOLDER.glob("*.csv"))]
    text = f"{code} {scale} {known.shown}"
    return hashlib.sha256(b"".join([table_bytes(table), *printed, text.encode()])).hexdigest()[:16]


@functools.cache
def _published() -> published.Published:
    return published.load()


def draw_one(
    experiment: tyro.conf.Positional[str], *, table: Path, scale: plan.Scale, own_target: bool = False, out: Path
) -> None:
    """Draw one experiment's table as OUT.pdf and OUT.png, format it as OUT.md, OUT.csv and OUT.tex, and print its finding.

    **Arguments:**
    - `experiment`: the name of the experiment, or your own FILE.yaml
    - `table`: its table
    - `scale`: the scale of the run
    - `own_target`: the run did not train its target, so that the target was not padded
    - `out`: path of the files to write, without a suffix
    """
    print(f"{out.with_suffix('.png')}: {draw(experiment, table, scale, out, own_target=own_target)}")


def draw_changed(*, data: Path, scale: plan.Scale, out: Path, drawn: Path, processes: int = 1) -> None:
    """Draw and format every table of a folder that has changed since the last time, or whose figure's code has.

    **Arguments:**
    - `data`: the folder of the tables
    - `scale`: the scale of the run
    - `out`: the folder for the figures
    - `drawn`: a JSON file of digests, by which the next call knows what has changed
    - `processes`: number of processes that draw
    """
    if processes < 1:
        raise UserError(f"processes is {processes}", remedy="give 1 or more")
    for name in draw_all(data, out, scale, drawn, processes):
        print(f"drawn: {name}")
