"""The report: one HTML page with a run's questions, headline figures, ledger, and every experiment with its provenance.

The page is self-contained: figures are data URIs, styles and scripts are inline, and its content policy forbids all requests.
"""

from __future__ import annotations

import base64
import json
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from draftlab import __version__
from draftlab.data import dropped
from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.files.json_files import read_json, split_common
from draftlab.files.tables import read_table, tables_in
from draftlab.plan import Experiment, Scale, load_experiment
from draftlab.report import findings, published, summary, tables, tidy
from draftlab.report.ledger import COLUMNS, VERDICTS
from draftlab.report.provenance import flatten

WORKFLOW = published.FOLDER.parent
PAPERS = {
    "osd": "Online Speculative Decoding",
    "mdss": "Multi-Draft Speculative Sampling",
    "beyond": "Beyond the papers",
}
ON_PAGE = 0.62
"""Pixels on the page for each pixel of a figure."""
HEADLINES = ("osd_online", "mdss_acceptance")


@dataclass(frozen=True)
class Token:
    """One token of the token view: drafted and ``accepted``, drafted and ``rejected``, or written by the ``target``."""

    token: str
    kind: str


@dataclass(frozen=True)
class TokenView:
    """One request decoded before and after distillation: which drafted tokens the target accepted."""

    dataset: str
    request: str
    prompt: str
    draft_len: int
    before: Sequence[Token]
    after: Sequence[Token]


@dataclass(frozen=True)
class Section:
    """Everything that the page shows about one experiment."""

    id: str
    paper: str
    title: str
    question: str
    finding: str
    artefact: str
    figure: str
    size: tuple[int, int]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    claims: Sequence[Mapping[str, Any]]
    common: Mapping[str, Any]
    cells: Sequence[Mapping[str, Any]]
    command: str
    highlights: Sequence[str] = field(default_factory=tuple)


def write(results: Path, scale: Scale, out: Path, config: tuple[str, ...] = ()) -> None:
    """Write the report of a run as one page; --config repeats the KEY=VALUE settings that the run was given.

    Experiments without a table are left out. If the run used the user's own prompts or models, the page begins with what it says
    about those.
    """
    own = [given for given in config if given.partition("=")[0] in ("dataset", "target", "draft")]
    traffic = any(
        given.startswith("dataset=") for given in config
    )  # no paper printed numbers for the user's own prompts
    ledger = read_table(results / "claims.csv", dtype=str, keep_default_na=False)
    ledger = ledger[:0] if traffic else ledger
    by_table = _rows_by_table(ledger)
    sections = [
        _section(path, results, config or [f"scale={scale}"], by_table.get(path.stem, [])) for path in _tables(results)
    ]
    order = list(PAPERS)
    sections.sort(key=lambda section: order.index(section.paper))
    environment = templates()
    environment.filters |= {"visible": visible, "number": number, "pretty": pretty, "setting": setting}
    script = environment.loader.get_source(environment, "vendor/dataTables.min.js")[0] if environment.loader else ""
    page = environment.get_template("report.html.j2").render(
        scale=scale,
        run=results.name,
        version=__version__,
        own=own,
        traffic=traffic,
        answers=list(summary.headlines(results)) if own else [],
        dropped=[line.partition("  ")[2] for line in dropped.lines(results)],
        papers=PAPERS,
        sections=sections,
        headlines=[section for section in sections if section.id in HEADLINES],
        ledger=tidy.records(ledger),
        columns=COLUMNS,
        verdicts={verdict: int((ledger["verdict"] == verdict).sum()) for verdict in VERDICTS},
        statements=[row for row in tidy.records(ledger) if row["published"] == "in words"],
        tokens=None if "show_tokens=False" in config else _tokens(results / "tokens.json"),
        library=Markup(script),  # the vendored script, not text of a run
    )
    write_text(out, page)


def templates() -> Environment:
    """The Jinja environment for the templates of this folder; an undefined name is an error."""
    loader = PackageLoader("draftlab.report")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _tables(results: Path) -> list[Path]:
    paths = list(tables_in(results).values())
    if not paths:
        raise UserError("no tables here", file=results, remedy="run the experiments first")
    return paths


def _section(table: Path, results: Path, config: Sequence[str], claims: Sequence[Mapping[str, Any]]) -> Section:
    """The section of one experiment, from its ``table``, its figure, the records of its cells and its rows of the ledger."""
    name = table.stem
    about = _about(name)
    prefix = results / "figures" / name
    figure = prefix.with_name(f"{name}.png")
    cells = prefix.with_name(f"{name}.csv")
    page, header = pd.DataFrame(), list[str]()
    caption = finding = ""
    if cells.exists():
        rows = tidy.read(table)
        layout = tables.layout_of(name, rows)
        finding = findings.sentences(name, rows, about.finding if about else [])
        page = tables.arrange(tables.read_cells(cells), layout, tables.measure_of(name))
        header = tables.header(page, layout)
        caption = prefix.with_name(f"{name}.md").read_text(encoding="utf-8").strip().splitlines()[-1]
        if name == "osd_offline" and (loops := summary.looping(rows)):
            caption += f" Of these, {loops}."
    runs = [(path.parent.name, read_json(path)) for path in sorted((results / "cells" / name).glob("*/run.json"))]
    about_cells = [{key: value for key, value in run.items() if key != "inputs"} | {"cell": cell} for cell, run in runs]
    common, varied = split_common([flatten(cell) for cell in about_cells])
    return Section(
        id=name,
        paper=about.paper if about else "beyond",
        title=about.title if about else name,
        question=about.question if about else "",
        finding=finding,
        artefact=about.artefact if about else "",
        figure=_data_uri(figure) if figure.exists() else "",
        size=_size(figure) if figure.exists() else (0, 0),
        columns=header,
        rows=page.to_numpy().tolist(),
        caption=caption,
        claims=claims,
        common=common,
        cells=varied,
        command=shlex.join(["snakemake", "--cores", "all", f"results/{results.name}/{name}.csv", "--config", *config]),
    )


def _rows_by_table(ledger: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Group the rows of the ledger by the table that answers them."""
    known = published.load()
    found: dict[str, list[dict[str, Any]]] = {}
    for row in tidy.records(ledger):
        name = row["claim_id"].split("/")[0]
        rule = known.claims[name].rule if name in known.claims else None
        compared = {part.table for part in known.statements[name].holds} if name in known.statements else set()
        for table in {rule.table_of(published.parse_setting(row["setting"]))} if rule else compared:
            found.setdefault(table, []).append(row)
    return found


def _about(name: str) -> Experiment | None:
    path = WORKFLOW / "experiments" / f"{name}.yaml"
    return load_experiment(path) if path.exists() else None


def _data_uri(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG on the page, given in the HTML so that nothing moves while figures load."""
    head = path.read_bytes()[16:24]  # where a PNG stores its width and height
    return tuple(round(ON_PAGE * int.from_bytes(part)) for part in (head[:4], head[4:]))  # type: ignore[return-value]


def _tokens(path: Path) -> TokenView | None:
    """Read the token view of a run; None if the run has none."""
    if not path.exists():
        return None
    raw = read_json(path)
    try:
        before, after = ([Token(str(t["token"]), str(t["kind"])) for t in raw[key]] for key in ("before", "after"))
        facts = str(raw["dataset"]), str(raw["request_id"]), str(raw["prompt"]), int(raw["draft_len"])
        return TokenView(*facts, before, after)
    except (KeyError, TypeError) as error:
        raise UserError(f"not a token view: {error!r}", file=path, remedy="delete it and run again") from None


def visible(text: str) -> str:
    """Spell out control and format characters, so that text of a request cannot control a terminal or reorder or hide text."""
    return "".join("⏎\n" if char == "\n" else _spelled(char) for char in text)


def _spelled(char: str) -> str:
    hidden = unicodedata.category(char) in {"Cc", "Cf", "Cs"}
    return f"\\u{ord(char):04x}" if hidden else char


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
