"""The parts of README.md that are rendered from committed tables and files: a README never states a number by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from draftlab.data import table_markdown
from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.files.tables import read_table, tables_in
from draftlab.plan import load_experiment
from draftlab.report import stages_page
from draftlab.report.ledger import VERDICTS

CLAIMS = Path("paper_figures/laptop/data/claims.csv")
ANSWERS = (Path("paper_figures/laptop/osd_online.md"), Path("paper_figures/laptop/mdss_drafts.md"))
"""Their first lines say how the online draft does against both static ones, and how far each scheme is from the optimum at each K."""

PAPERS = ("osd", "mdss", "beyond")
PAIR = "vicuna-7b/llama-160m"
DATASETS = {
    "spider": "Spider",
    "gsm8k": "GSM8K",
    "code_search_net": "CodeSearchNet",
    "finance_alpaca": "Finance-Alpaca",
}


def render(text: str, root: Path) -> str:
    """``text`` with every ``<!-- begin:NAME -->`` ... ``<!-- end:NAME -->`` part made anew from the tables below ``root``."""
    for name, part in PARTS.items():
        begin, end = f"<!-- begin:{name} -->\n", f"<!-- end:{name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise UserError(
                f"no part {name!r}", file="README.md", remedy=f"restore the lines {begin.strip()} and {end}"
            )
        before, rest = text.split(begin)
        text = before + begin + part(root).strip("\n") + "\n" + end + rest.split(end)[1]
    return text


def update(readme: Path, *, check: bool) -> None:
    """Rewrite the rendered parts of ``readme``, the page of tables and the indexes of published figures beside it.

    With ``check`` only refuse what is stale.
    """
    root = readme.parent
    new = {readme: render(readme.read_text(encoding="utf-8"), root), root / stages_page.PAGE: stages_page.render(root)}
    new |= {data.parent / "README.md": index(data.parent, root) for data in sorted(root.glob("paper_figures/*/data"))}
    for file, text in new.items():
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        if check:
            what = "it differs from the code and the committed tables"
            raise UserError(what, file=file, remedy="run `draftlab readme`")
        write_text(file, text)


def index(folder: Path, root: Path) -> str:
    """The page of one folder of published figures: each with its question, its finding, and where its numbers are."""
    lines = [f"# Figures and tables of `scale={folder.name}`", ""]
    known = {name: load_experiment(root / f"workflow/experiments/{name}.yaml") for name in tables_in(folder / "data")}
    for table, experiment in sorted(known.items(), key=lambda item: (PAPERS.index(item[1].paper), item[0])):
        first = (folder / f"{table}.md").read_text(encoding="utf-8").splitlines()[0]
        finding = "" if first.startswith("|") else first  # a table of some scales has none
        numbers = f"[table]({table}.md) · [cells]({table}.csv) · [LaTeX]({table}.tex) · [PDF]({table}.pdf) · [rows](data/{table}.csv.gz)"
        lines += [f"## `{table}`", "", f"**{experiment.artefact}.** {experiment.question}", ""]
        lines += [finding, "", f"![{experiment.title}]({table}.png)", "", numbers, ""]
    return "\n".join(lines)


def _results(root: Path) -> str:
    claims = read_table(root / CLAIMS, dtype=str, keep_default_na=False).set_index("claim_id")
    lines = [f"| alpha: printed / ours | {' | '.join(DATASETS.values())} |", "|---|" + "---|" * len(DATASETS)]
    for what, claim in BY_DATASET.items():
        cells = [_cell(claims, claim.format(dataset=dataset)) for dataset in DATASETS]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    lines += ["", "| | printed / ours | n |", "|---|---|---|"]
    lines += [
        f"| {what} | {_cell(claims, claim)} | {claims['n'][claim]} {unit} |"
        for unit, rows in OTHERS.items()
        for what, claim in rows.items()
    ]
    for answer in ANSWERS:
        lines += ["", (root / answer).read_text(encoding="utf-8").splitlines()[0]]
    return "\n".join(lines)


def _cell(claims: pd.DataFrame, claim: str) -> str:
    if claim not in claims.index:
        raise UserError(f"no claim {claim}", file=CLAIMS, remedy="run `make publish`")
    row = {name: str(claims.at[claim, name]) for name in ("published", "ours", "ci_low", "ci_high")}
    if not row["ours"]:
        return f"{float(row['published']):.3g} / not run"
    interval = f" [{float(row['ci_low']):.2f}, {float(row['ci_high']):.2f}]" if row["ci_low"] else ""
    return f"{float(row['published']):.3g} / **{float(row['ours']):.2f}**{interval}"


def _experiments(root: Path) -> str:
    lines = ["| experiment | shows | question |", "|---|---|---|"]
    every = [(path.stem, load_experiment(path)) for path in sorted((root / "workflow/experiments").glob("*.yaml"))]
    for paper in PAPERS:
        lines += [f"| `{name}` | {it.artefact} | {it.question} |" for name, it in every if it.paper == paper]
    return "\n".join(lines)


BY_DATASET = {
    "draft as it was (OSD Table 1)": f"T1.alpha_offline/{PAIR}/{{dataset}}/original",
    "distilled offline on the target's answers (Table 1)": f"T1.alpha_offline/{PAIR}/{{dataset}}/teacher_fwd",
    "static draft, end of the stream (Fig. 3)": f"F3.online_last20pct_mean/{PAIR}/{{dataset}}/static_10pct",
    "online draft, end of the stream (Fig. 3)": f"F3.online_last20pct_mean/{PAIR}/{{dataset}}/osd",
}
BLOCKS = "v1T1.block_efficiency/dolly/draft_temperature=1.2"
OTHERS = {
    "blocks": {"speed-up in llama.cpp at alpha = 0.8 (OSD Table 2)": f"T2.speedup_by_alpha/{PAIR}/alpha=0.8/measured"},
    "requests": {
        f"block efficiency of {drafts} drafts, {label} (MDSS v1 Table 1, Dolly)": f"{BLOCKS}/num_drafts={drafts}/{scheme}"
        for drafts in (2, 4, 6)
        for scheme, label in {"importance_truncated": "importance sampling", "k_seq": "SpecTr"}.items()
    },
}


def _score(root: Path) -> str:
    """What the ledger says of both papers, in numbers."""
    verdicts = read_table(root / CLAIMS, dtype=str, keep_default_na=False)["verdict"]
    counts = [f"{(verdicts == verdict).sum()} {verdict}" for verdict in VERDICTS if (verdicts == verdict).any()]
    return f"Of {len(verdicts)} printed numbers and claims in words: {', '.join(counts)}."


PARTS: dict[str, Callable[[Path], str]] = {
    "score": _score,
    "results": _results,
    "experiments": _experiments,
    "datasets": lambda _: table_markdown(),
}
