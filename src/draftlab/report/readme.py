"""Renders the generated parts of README.md from committed tables and files; no number in the README is written by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.files.json_files import read_json
from draftlab.files.tables import read_texts, tables_in
from draftlab.plan import Layout, load_experiment
from draftlab.report import stages_page, tables, tidy
from draftlab.report.contrast import PAIRED
from draftlab.report.judgement import CLAIM_VERDICTS
from draftlab.report.ledger import by_chance

CLAIMS = Path("paper_figures/laptop/data/claims.csv")
REAL = Path("paper_figures/smollm2")
REAL_ANSWERS = {
    "osd_offline": 1,
    "osd_online": 2,
    "beyond_suffixes": 2,
    "osd_latency_dataset": 2,
    "osd_latency_alpha": 2,
    "beyond_served_length": 3,
    "beyond_engine": 3,
    "mdss_drafts": 4,
}
"""The experiments whose findings the README quotes, and how many sentences of each."""
ON_PROCESSORS = "beyond_quantized_latency"
"""The experiment of which the README compares the processors where it was measured."""
CONTENDERS = ("lookup", "lookup_first_confident", "distilled", "none_again")
"""The contenders of that comparison."""
GROUPS = re.compile(r" \((?!f16)[^()]*: [^()]*\)")
"""The results by group that README leaves out: those of datasets, not those of weights, on which it depends whether a draft pays."""
PAPERS = ("osd", "mdss", "beyond")
WHAT_IS_BOLD = (
    "The words in bold say what an experiment answers: a table or figure of a paper, or a question of its public review (reviewers by their "
    "codes there, such as fopk)."
)
PROCESSORS = {
    "AMD EPYC": "AMD EPYC (Zen 5)",
    "AMD EPYC (family 26 model 2)": "AMD EPYC (Zen 5)",
    "AMD EPYC (family 25 model 17)": "AMD EPYC (Zen 4)",
    "AMD EPYC (family 25 model 1)": "AMD EPYC (Zen 3)",
    "Intel(R) Xeon(R) Processor (family 6 model 167)": "Intel Xeon with AMX",
}
"""Microarchitectures of the processors of published tables. The family was not recorded for the first tables, which are all of Zen 5."""
PAIR = "vicuna-7b/llama-160m"
DATASETS = {
    "spider": "Spider",
    "gsm8k": "GSM8K",
    "code_search_net": "CodeSearchNet",
    "finance_alpaca": "Finance-Alpaca",
}


def render(text: str, root: Path) -> str:
    """Return ``text`` with every ``<!-- begin:NAME -->`` ... ``<!-- end:NAME -->`` part regenerated from the tables below ``root``."""
    for name, part in PARTS.items():
        begin, end = f"<!-- begin:{name} -->\n", f"<!-- end:{name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            remedy = f"restore the lines {begin.strip()} and {end}"
            raise UserError(f"no part {name!r}", file="README.md", remedy=remedy)
        before, rest = text.split(begin)
        text = before + begin + part(root).strip("\n") + "\n" + end + rest.split(end)[1]
    return text


def update(file: Path = Path("README.md"), *, check: bool = False) -> None:
    """Regenerate the generated parts of README.md, docs/tables.md and the indexes of paper_figures/.

    **Arguments:**
    - `file`: the README.md; the other pages are found from its folder
    - `check`: write nothing, and fail if a page differs
    """
    root = file.parent
    new = {file: render(file.read_text(encoding="utf-8"), root), root / stages_page.PAGE: stages_page.render(root)}
    new |= {data.parent / "README.md": index(data.parent, root) for data in sorted(root.glob("paper_figures/*/data"))}
    for page, text in new.items():
        if page.exists() and page.read_text(encoding="utf-8") == text:
            continue
        if check:
            what = "it differs from the code and the committed tables"
            raise UserError(what, file=page, remedy="run `draftlab readme`")
        write_text(page, text)


def index(folder: Path, root: Path) -> str:
    """The page for one folder of published figures: each with its question, its finding, and links to its numbers."""
    key = "scale" if (root / f"workflow/scales/{folder.name}.yaml").is_file() else "name"
    machines = {name: _machine(one) for name, one in read_json(folder / "data/provenance.json").items()}
    lines = [f"# Figures and tables of `{key}={folder.name}`", "", f"{WHAT_IS_BOLD} {PAIRED}", ""]
    known = {name: load_experiment(root / f"workflow/experiments/{name}.yaml") for name in tables_in(folder / "data")}
    for table, experiment in sorted(known.items(), key=lambda item: (PAPERS.index(item[1].paper), item[0])):
        numbers = f"[table]({table}.md) · [cells]({table}.csv) · [LaTeX]({table}.tex) · [PDF]({table}.pdf) · [rows](data/{table}.csv.gz)"
        lines += [f"## `{table}`", "", f"**{experiment.artefact}.** {experiment.question}", ""]
        lines += [_finding(folder, table), "", f"![{experiment.title}]({table}.png)", ""]
        lines += [numbers + (f" · timed on {machines[table]}" if experiment.stage_kind.exclusive else ""), ""]
    return "\n".join(lines)


def _machine(table: dict[str, dict[str, str]]) -> str:
    """The device on which a published table was measured."""
    common = table["common"]
    processor = common.get("machine.processor", "several processors")
    device = common.get("runs.target.device", "CPU")
    return PROCESSORS.get(processor, processor) if device == "CPU" else device


def _finding(folder: Path, table: str) -> str:
    """The sentence above a published table; empty at scales where the table has none."""
    first = (folder / f"{table}.md").read_text(encoding="utf-8").splitlines()[0]
    return "" if first.startswith("|") else first


def _real(root: Path) -> str:
    """The findings of the main experiments on a real language model, all datasets pooled."""
    lines = []
    for table, count in REAL_ANSWERS.items():
        sentences = GROUPS.sub("", _finding(root / REAL, table)).split(". ")
        lines.append(f"* {'. '.join(sentences[:count]).rstrip('.')}.")
    return "\n".join(lines)


def _processors(root: Path) -> str:
    """The speed-ups over all datasets on each processor where they were measured, and the time per token that they refer to."""
    frames = dict[str, pd.DataFrame]()
    for path in (root / REAL).glob(f"*/{ON_PROCESSORS}.csv.gz"):
        machine = _machine(read_json(path.with_name("provenance.json"))[ON_PROCESSORS])
        frames[machine] = tidy.read(path, ON_PROCESSORS).assign(processor=machine)
    table = pd.concat([frames[machine] for machine in sorted(frames)])
    plan = load_experiment(root / f"workflow/experiments/{ON_PROCESSORS}.yaml")
    layout = Layout(
        rows=["processor", "weights"], columns=["contender"], where={"contender": list(CONTENDERS)}, digits=2
    )
    speedups = tables.summary(table, layout, plan.measure("speedup"))
    speedups["best"] = (speedups["ci_low"] > 1) & (speedups["contender"] != "none_again")
    plain = layout.model_copy(update={"where": {"contender": "none"}})
    times = tables.summary(table, plain, plan.measure("token_ms")).assign(contender="no draft, ms per token")
    return tables.markdown(pd.concat([times, speedups]), layout, plan.measure("speedup"))


def _results(root: Path) -> str:
    """Headline numbers from both papers beside ours."""
    claims = {str(row["claim_id"]): row for row in tidy.records(_claims(root))}
    lines = ["| | printed | ours | 95 % interval |", "|---|---:|---:|---|"]
    for what, claim in BY_DATASET.items():
        lines += [_row(claims, f"{what}, {label}", claim.format(dataset=name)) for name, label in DATASETS.items()]
    lines += [_row(claims, what, claim) for what, claim in OTHERS.items()]
    machine = read_json(root / CLAIMS.with_name("provenance.json"))["osd_latency_alpha"]["common"]["machine.processor"]
    where = f"{SPEEDUP}, {machine} ([other processors](docs/latency.md#kernels-matter-more-than-drafts-by-hand))"
    return "\n".join(lines).replace(SPEEDUP, where)


def _row(claims: dict[str, dict[str, str]], what: str, claim: str) -> str:
    """One line of the table of results: the quantity, the printed number, ours, and our interval."""
    if claim not in claims:
        raise UserError(f"no claim {claim}", file=CLAIMS, remedy="run `make publish`")
    row = claims[claim]
    printed, ours, low, high = (
        f"{float(row[name]):.2f}" if row[name] else "" for name in ("published", "ours", "ci_low", "ci_high")
    )
    return f"| {what} | {printed} | {ours or 'not run'} | {low and f'{low} to {high}'} |"


def _contradicted(root: Path) -> str:
    """How many claims in words hold, and every one that our runs contradict, with its least favourable comparison."""
    claims = _claims(root)
    statements = claims[claims["published"] == "in words"]
    held = statements[statements["verdict"].isin(["reproduced", "same direction"])]
    ran = (held["experiment"] != "").sum()
    print_alone = f", {len(held) - ran} in the printed numbers alone," if len(held) > ran else ""
    wrong = statements[statements["verdict"] == "contradicts"]
    lines = [
        f"Of the papers' {len(statements)} claims in words, {ran} hold in our runs{print_alone} and {len(wrong)} do not:",
        "",
        "| the paper says | where | what fails | least favourable comparison | difference, 95 % interval |",
        "|---|---|---|---|---|",
    ]
    for row in tidy.records(wrong):
        ours, *ends = (f"{float(row[name]):+.3f}" for name in ("ours", "ci_low", "ci_high") if row[name])
        difference = ", ".join(filter(None, [ours, " to ".join(ends)]))  # no interval for an exact table
        count, _, least = str(row["note"]).partition("; least favourable (")
        claim = f"| {row['quantity']} | {row['paper']}, {row['location']} "
        lines.append(f"{claim}| {count} | {least.partition('): ')[0]} | {difference} |")
    return "\n".join(lines)


BY_DATASET = {
    "alpha, draft distilled offline (OSD Table 1)": f"T1.alpha_offline/{PAIR}/{{dataset}}/teacher_fwd",
    "alpha, draft that learns online (OSD Fig. 3)": f"F3.online_last20pct_mean/{PAIR}/{{dataset}}/osd",
}
SPEEDUP = "speed-up in llama.cpp at alpha = 0.8 (OSD Table 2)"
OTHERS = {
    SPEEDUP: f"T2.speedup_by_alpha/{PAIR}/alpha=0.8/measured",
    **{
        f"tokens per target call, 6 drafts, {label} (MDSS v1 Table 1)": f"v1T1.block_efficiency/dolly/draft_temperature=1.2/num_drafts=6/{scheme}"
        for scheme, label in {"importance_truncated": "importance sampling", "k_seq": "SpecTr"}.items()
    },
}


def _score(root: Path) -> str:
    """How many claims of both papers got each verdict, and how many contradictions chance alone would make."""
    claims = _claims(root)
    verdicts = claims["verdict"]
    counts = {verdict: (verdicts == verdict).sum() for verdict in CLAIM_VERDICTS if (verdicts == verdict).any()}
    rows = (counts, ["---:"] * len(counts), counts.values())
    return "\n".join([*(f"| {' | '.join(map(str, row))} |" for row in rows), "", by_chance(claims)])


def _claims(root: Path) -> pd.DataFrame:
    return read_texts(root / CLAIMS)


PARTS: dict[str, Callable[[Path], str]] = {
    "score": _score,
    "results": _results,
    "contradicted": _contradicted,
    "real": _real,
    "processors": _processors,
}
