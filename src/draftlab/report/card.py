"""The model card of a draft that a verdict trained: README.md in the format of Hugging Face. It holds counts and a digest of the log, no prompt."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from draftlab import __version__
from draftlab.core.stats import ENOUGH
from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.models.config import CONVERT_HEAD, IN_BLOCKS, Head, drafts_in_parallel, head_in
from draftlab.serving import engines
from draftlab.serving.verdict_format import NAMES, Option, Verdict

NAME = "README.md"
KEPT = {
    "draft": ("distilled", "distilled_confident", "lookup_first", "lookup_first_confident"),
    "kept_learning": ("kept_learning",),
}
"""The folders of the drafts that a cell keeps, each with the options that serve it."""
ENGINES = {"vLLM": "vllm", "SGLang": "sglang", "llama.cpp": "llama-cpp"}

WIDEN = (
    "If `config.json` has `head_tokens` above 0, widen the draft first: `draftlab widen --model DRAFT --out FOLDER`."
)
EXPORT = " For llama.cpp, export it: `draftlab gguf export --model DRAFT --vocabulary-of TARGET.gguf --out DRAFT.gguf`."
CONVERT = f"For llama.cpp, convert it with llama.cpp's own tool: `{CONVERT_HEAD.replace('HEAD', 'DRAFT')}`."


def write(judged: Verdict, draft: str, cell: Path) -> None:
    """Write a card into the folder of each draft that the cell keeps; ``draft``: what it was before it learnt, '' for the target's first layers."""
    for folder, names in KEPT.items():
        options = [option for option in judged.options if option.name in names]
        if options and (cell / folder).is_dir():
            head, parallel = head_in(cell / folder), drafts_in_parallel(cell / folder)
            write_text(cell / folder / NAME, text(judged, draft, options, head=head, parallel=parallel))


def text(judged: Verdict, draft: str, options: Sequence[Option], *, head: Head = "", parallel: bool = False) -> str:
    """The card of the draft that these options serve: a ``head`` on the target's states, or one that proposes a block in one pass (``parallel``), or neither.

    Folders and files are named without their path.
    """
    target, origin = _name(judged.target), draft or judged.target
    metadata: dict[str, object] = {"base_model": origin.partition("@")[0]} if is_hub_id(origin) else {}
    metadata |= {"library_name": "transformers", "pipeline_tag": "text-generation"}
    metadata |= {"tags": ["speculative-decoding", "draft-model", "draftlab"]}
    made = f"`{_name(draft)}`" if draft else "the target's first layers"
    learnt = max(next(option.learning.alpha for option in judged.options if option.learning))
    how = "that learnt while it served" if options[0].name == "kept_learning" else "distilled on"
    best = max(options, key=lambda option: option.speedup.estimate)
    costs = judged.costs.replace("this machine", "the machine that wrote this card")  # or those of a profile
    rows = [
        f"| {NAMES[option.name]} | {_length(option)} | {option.alpha.show()} | "
        f"{option.speedup.show() if option.requests >= ENOUGH else 'not yet known'} |"
        for option in options
    ]
    lines = [
        "---",
        yaml.safe_dump(metadata, sort_keys=False).strip(),
        "---",
        "",
        f"# A draft for {target}",
        "",
        f"A draft model for speculative decoding with `{target}`, made of {made}, {how} {learnt} requests of one log. The target checks "
        "every drafted token, so the answers stay its own.",
        "",
        f"* Verdict: {best.verdict} ({NAMES[best.name]}: {best.reason}).",
        f"* Traffic: learnt from {learnt} requests, measured on {judged.measured_on}, at {judged.sampled}. "
        f"SHA-256 of the log: `{judged.log_sha256}`.",
        f"* Speed-ups are for one request at a time, over no draft; intervals are 95 %. Costs: {costs}.",
        "",
        "| served as | tokens drafted at once | acceptance | expected speed-up |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
        "## How to serve it",
    ]
    if not head:
        lines += ["", WIDEN if parallel else WIDEN + EXPORT]
    elif head in IN_BLOCKS or not parallel:
        lines += ["", CONVERT]
    for engine, name in ENGINES.items():
        able = [option for option in options if engine == "llama.cpp" or option.name in ("distilled", "kept_learning")]
        served = max(able, key=lambda option: option.speedup.estimate)
        pair = replace(_pair(judged, served, engine), head=head, parallel=parallel)
        try:
            settings = engines.settings_for(name, pair)
        except UserError:  # it cannot serve such a draft
            continue
        lines += ["", f"{engine} ({NAMES[served.name]}; {settings.version}):", "", "```", settings.command, "```"]
    return "\n".join([*lines, "", f"Written by draftlab {__version__}.", ""])


def _pair(judged: Verdict, option: Option, engine: str) -> engines.Deployment:
    suffix = ".gguf" if engine == "llama.cpp" else ""
    return engines.Deployment(
        f"TARGET{suffix}",
        f"DRAFT{suffix}",
        option.draft_len,
        sampled=not (judged.temperature and option.proposal == "greedy"),
        confidence=option.threshold,
        lookup=option.name.startswith("lookup_first"),
    )


def _length(option: Option) -> str:
    return f"{option.draft_len}" + (f" at most, confidence {option.threshold:g}" if option.threshold else "")


def is_hub_id(model: str) -> bool:
    """Whether a model's name is that of a repository on the hub, perhaps with a revision."""
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w.-]+)?", model)) and not os.path.exists(model)


def _name(model: str) -> str:
    return model if is_hub_id(model) else Path(model).name
