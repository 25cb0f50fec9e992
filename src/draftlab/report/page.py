"""The report: one HTML page with a run's questions, headline figures, ledger, and every experiment with its provenance.

The page is self-contained: figures are data URIs, styles and scripts are inline, and its content policy forbids all requests.
"""

from __future__ import annotations

import base64
import json
import shlex
import struct
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, ValidationError

from draftlab import __version__
from draftlab.data import dropped
from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.files.cells import split_common
from draftlab.files.json_files import read_json
from draftlab.files.tables import read_texts
from draftlab.plan import Scale
from draftlab.report import findings, published, summary, tables, tidy
from draftlab.report.contrast import PAIRED
from draftlab.report.judgement import CLAIM_VERDICTS
from draftlab.report.ledger import by_chance
from draftlab.report.provenance import cells_of, flatten

PAPERS = {
    "osd": "Online Speculative Decoding",
    "mdss": "Multi-Draft Speculative Sampling",
    "beyond": "Beyond the papers",
}
ON_PAGE = 0.62
"""Pixels on the page for each pixel of a figure."""
HEADLINES = ("osd_online", "mdss_acceptance")
LIBRARY = Path(__file__).parent / "templates/vendor/dataTables.min.js"


class Token(BaseModel):
    """One token of the token view: drafted and ``accepted``, drafted and ``rejected``, or written by the ``target``."""

    token: str
    kind: str


class TokenView(BaseModel):
    """One request decoded before and after distillation: which drafted tokens the target accepted."""

    model_config = ConfigDict(coerce_numbers_to_str=True)
    dataset: str
    request_id: str
    prompt: str
    draft_len: int
    before: list[Token]
    after: list[Token]


def write(
    results: Path, scale: Scale, out: Path, config: tuple[str, ...] = (), experiments: tuple[str, ...] = ()
) -> None:
    """Write the report of a run as one page.

    Experiments without a table are left out. If the run used the user's prompts or models, the page begins with the answer for them.

    **Arguments:**
    - `results`: the folder of the run
    - `scale`: the scale of the run
    - `out`: the HTML file to write
    - `config`: the settings that the run was given, each KEY=VALUE
    - `experiments`: the experiments of the run, names or your own FILE.yaml; without one, every table that an experiment has
    """
    given = [text for text in config if text.partition("=")[0] in ("dataset", "target", "draft")]
    traffic = any(text.startswith("dataset=") for text in config)
    ledger = read_texts(results / "claims.csv")
    ledger = ledger[:0] if traffic else ledger  # no paper printed numbers for the user's prompts
    by_table = _rows_by_table(ledger)
    settings = config or (f"scale={scale}",)
    paths = tidy.tables_of(results, experiments)
    shows_tokens = "show_tokens=False" not in config and "osd_offline" in (experiments or ["osd_offline"])
    sections = [_section(name, path, results, settings, by_table.get(name, [])) for name, path in paths.items()]
    sections.sort(key=lambda section: list(PAPERS).index(section["paper"]))
    environment = templates()
    environment.filters |= {"visible": visible, "number": number, "pretty": pretty, "setting": setting}
    page = environment.get_template("report.html.j2").render(
        scale=scale,
        run=results.name,
        version=__version__,
        given=given,
        traffic=traffic,
        answers=list(summary.headlines(results)) if given else [],
        dropped=[line.partition("  ")[2] for line in dropped.lines(results)],
        papers=PAPERS,
        sections=sections,
        headlines=[section for section in sections if section["id"] in HEADLINES],
        ledger=tidy.records(ledger),
        verdicts={verdict: int((ledger["verdict"] == verdict).sum()) for verdict in CLAIM_VERDICTS},
        chance=by_chance(ledger),
        statements=[row for row in tidy.records(ledger) if row["published"] == "in words"],
        tokens=_token_view(results / "tokens.json") if shows_tokens else None,
        paired=PAIRED,
        library=Markup(LIBRARY.read_text(encoding="utf-8")),  # not text of a run
    )
    write_text(out, page)


def templates() -> Environment:
    """The Jinja environment for the templates of this folder; an undefined name is an error."""
    loader = PackageLoader("draftlab.report")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _section(
    experiment: str, table: Path, results: Path, config: Sequence[str], claims: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What the page shows of one experiment: its ``table``, figure, run records and ``claims`` of the ledger."""
    name, plan = table.stem, tidy.plan_of(experiment)
    prefix = results / "figures" / name
    figure, cells = prefix.with_name(f"{name}.png"), prefix.with_name(f"{name}.csv")
    page, labels, columns, caption, finding = pd.DataFrame(), 0, list[str](), "", ""
    if cells.exists():
        rows = tidy.read(table, experiment)
        layout = tables.layout_of(experiment, rows)
        finding = findings.sentences(experiment, rows)
        measure, labels = plan.measure(), len(layout.rows)
        page = tables.arrange(tables.read_cells(cells), layout, measure, bold=Markup("<b>{}</b>").format)
        columns = tables.header(page, layout)
        caption = prefix.with_name(f"{name}.md").read_text(encoding="utf-8").strip().splitlines()[-1]
        if name == "osd_offline" and (loops := summary.looping(rows)):
            caption += f" Of these, {loops}."
    runs = cells_of(results, name).items()
    facts = [{key: value for key, value in run.items() if key != "inputs"} | {"cell": cell} for cell, run in runs]
    common, varied = split_common([flatten(cell) for cell in facts])
    return {
        "id": name,
        "paper": plan.paper,
        "title": plan.title,
        "question": plan.question,
        "finding": finding,
        "artefact": plan.artefact,
        "figure": data_uri("png", figure.read_bytes()) if figure.exists() else "",
        "size": _size(figure) if figure.exists() else (0, 0),
        "columns": columns,
        "rows": [[*row[:labels], *map(Markup, row[labels:])] for row in page.to_numpy().tolist()],
        "caption": caption,
        "claims": claims,
        "common": common,
        "cells": varied,
        "command": shlex.join(
            ["snakemake", "--cores", "all", f"results/{results.name}/{name}.csv", "--config", *config]
        ),
    }


def _rows_by_table(ledger: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Group the rows of the ledger by the table that answers them."""
    known = published.load()
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in tidy.records(ledger):
        name = row["claim_id"].split("/")[0]
        rule = known.claims[name].rule if name in known.claims else None
        compared = {part.table for part in known.statements[name].comparisons} if name in known.statements else set()
        for table in {rule.table_of(published.parse_setting(row["setting"]))} if rule else compared:
            groups.setdefault(table, []).append(row)
    return groups


def data_uri(kind: str, content: bytes) -> str:
    """An image of this ``kind`` (png, svg+xml) as an address that holds it."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _size(path: Path) -> tuple[int, ...]:
    """Width and height of a PNG on the page, given in the HTML so that nothing moves while figures load."""
    return tuple(round(ON_PAGE * pixels) for pixels in struct.unpack(">II", path.read_bytes()[16:24]))


def _token_view(path: Path) -> TokenView | None:
    """Read the token view of a run; None if the run has none."""
    if not path.exists() or (view := read_json(path)) is None:
        return None
    try:
        return TokenView.model_validate(view)
    except ValidationError as error:
        fault = error.errors()[0]
        what = f"not a token view: {'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        raise UserError(what, file=path, remedy="delete it and run again") from None


def visible(text: str) -> str:
    """Spell out control and format characters, so that text of a request cannot control a terminal or reorder or hide text."""
    return "".join("⏎\n" if char == "\n" else _spell_out(char) for char in text)


def _spell_out(char: str) -> str:
    return f"\\u{ord(char):04x}" if unicodedata.category(char) in {"Cc", "Cf", "Cs"} else char


def setting(text: str) -> str:
    """A printed setting as text for readers: words stand alone, numbers follow the name of their setting."""
    parts = published.parse_setting(text).items()
    return " · ".join(f"{key} {value}" if value[:1].isdigit() else value for key, value in parts)


def number(text: str) -> str:
    """A number of the ledger with four significant digits; other text is unchanged, and NaN becomes empty."""
    try:
        value = float(text)
    except ValueError:
        return text
    return "" if value != value else f"{value:.4g}"


def pretty(value: Any) -> str:
    """A value of a run's configuration as text for readers."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
