"""The page of a verdict: its figures, and the commands to run next."""

from __future__ import annotations

import io
import shlex
from collections.abc import Sequence
from pathlib import Path

from draftlab import __version__
from draftlab.core.stats import ENOUGH
from draftlab.files.json_files import read_object
from draftlab.files.packages import package_of
from draftlab.files.weights import is_gguf
from draftlab.models.config import drafts_in_parallel, head_in
from draftlab.models.gguf_import import ORIGINAL
from draftlab.models.vocabulary_rows import ROWS_BEFORE, rows_of
from draftlab.report import card
from draftlab.report.page import data_uri, templates
from draftlab.report.verdict_run import replayed
from draftlab.serving import engines_without_draft
from draftlab.serving.engines import Deployment
from draftlab.serving.verdict_format import NAMES, Option, Range, Verdict, per_second
from draftlab.serving.verdict_under_load import LOADS

LLAMA_CPP_PADDING = 128
"""By how many rows two vocabularies may differ in llama.cpp's own speculative decoding."""
NO_DRAFT = Range(estimate=1, low=1, high=1)
FIGURES = {
    "length": "Speed-up over no draft by draft length, one request at a time, with each option's better way to propose. Below 1, the draft makes requests slower.",
    "load": "Speed-up of a whole request, including waiting, by load, at the best draft length for each; 1 if no length pays off.",
    "time": "Acceptance along the log; for a draft distilled on the log, along the held-out requests.",
    "learning": "Acceptance on the held-out requests by the number of requests that the draft was distilled on (dotted lines); beyond them, a forecast.",
}
LABELS = {
    "length": ("tokens drafted at once", "speed-up over no draft"),
    "load": ("requests a second", "speed-up of a request"),
    "time": ("share of the log", "acceptance"),
    "learning": ("requests distilled on", "acceptance"),
}
"""What the axes of each figure show: across, and up."""


def page(judged: Verdict) -> str:
    """Render a verdict as one self-contained HTML page."""
    has = {"load": bool(judged.load), "learning": any(option.learning for option in judged.options)}
    figures = [
        (data_uri("svg+xml", draw(judged, part)), caption) for part, caption in FIGURES.items() if has.get(part, True)
    ]
    template = templates().get_template("verdict.html.j2")
    return template.render(
        v=judged,
        names=NAMES,
        enough=ENOUGH,
        loads=LOADS,
        figures=figures,
        version=__version__,
        per_second=per_second,
    )


def commands(judged: Verdict, folder: Path, draft: str, results: Path) -> list[str]:
    """What to run after the verdict on a ``draft``, from the run in ``results``: write the engine's settings, then monitor whether production reaches the predicted speed-up.

    Engines need the draft of the best option, with its whole vocabulary.
    """
    promise = judged.monitor
    if promise is None:
        return [shlex.join(["draftlab", "data", "check", judged.log])]
    target = _to_serve(judged.target, results / "main/models/target")
    folder_of_target = str(results / "main/models/target") if is_gguf(target) else target
    looks_up = promise.option.startswith("lookup_first")
    option = next(option for option in judged.options if option.name == promise.option)
    lengths = {promise.draft_len, *option.by_batch.values()}
    # Lengths by batch are those of a profile's machine; llama.cpp has one for all batches.
    by_batch = len(lengths) > 1 and not (judged.costs_vary or is_gguf(target) or looks_up)
    length = ["--load", str(folder / "verdict.json")] if by_batch else ["--draft-len", str(promise.draft_len)]
    emit = ["draftlab", "emit", *(["llama-cpp", "--lookup"] if looks_up else []), *length]
    confidence = ["--confidence", f"{promise.threshold:g}"] if promise.threshold else []
    out = ["--out", str(folder / "engines")]
    if promise.option == "lookup":  # has no draft model
        pair = Deployment(target, "", promise.draft_len, lookup=True)
        serve = (engines_without_draft.llama_cpp if is_gguf(target) else engines_without_draft.vllm_lookup)(pair)
        return _joined([[*emit, "--lookup", "--target", target, *out], shlex.split(serve.command)], target, folder)
    if promise.option.startswith("suffix"):  # llama.cpp has none, and vLLM reads the folder that a file became
        pair = Deployment(folder_of_target, "", promise.draft_len, suffix=True, confidence=promise.threshold)
        write = [*emit, "--suffix", "--target", folder_of_target, *confidence, *out]
        serve = engines_without_draft.vllm_suffix(pair)
        return _joined([write, shlex.split(serve.command)], folder_of_target, folder)
    steps: list[list[str]] = []
    if looks_up and not is_gguf(target):  # llama.cpp alone can look up first, and reads nothing else
        source = str(results / "main/models/target") if card.is_hub_id(target) else target  # it reads folders alone
        target = str(folder / "target.gguf")
        steps.append(["python", "convert_hf_to_gguf.py", source, "--outfile", target])  # llama.cpp's own tool
    if promise.option == "as_it_comes":
        served = _to_serve(draft, results / "main/models/draft", target)
    else:
        kept = "kept_learning" if promise.option == "kept_learning" else "draft"
        served = str(replayed(results, judged.temperature) / kept)
    if head_in(served) or drafts_in_parallel(served):  # nor does llama.cpp's server run one
        target = folder_of_target
    config = Path(served) / "config.json"
    if config.is_file() and read_object(config).get("head_tokens"):
        steps.append(["draftlab", "widen", "--model", served, "--out", str(folder / "draft")])
        served = str(folder / "draft")
    if is_gguf(target) and not is_gguf(served):
        export = ["draftlab", "gguf", "export", "--model", served, "--vocabulary-of", target]
        served = str(folder / "draft.gguf")
        steps.append([*export, "--out", served])
    emit += ["--target", target, "--draft", served, *out, *confidence]
    emit += ["--greedy"] if judged.temperature and option.proposal == "greedy" else []
    return _joined([*steps, emit], target, folder)


def _to_serve(model: str, copy: Path, target: str = "") -> str:
    """A model as engines find it: the run's ``copy`` of one that only draftlab finds by its name (none, a package, or a revision on the hub).

    Of a draft, also a copy with other rows of embeddings than it had: those of its ``target``, without which vLLM refuses it.
    """
    if package_of(model):
        return str(copy / ORIGINAL)
    if target and (copy / "config.json").is_file():
        before, rows = read_object(copy / "config.json").get(ROWS_BEFORE), rows_of(copy)
        if before and not (is_gguf(model) and is_gguf(target) and abs(rows - before) <= LLAMA_CPP_PADDING):
            return str(copy)
    return str(copy) if not model or (card.is_hub_id(model) and "@" in model) else model


def _joined(steps: Sequence[Sequence[str]], target: str, folder: Path) -> list[str]:
    """The commands, and the one that monitors the engine which serves this target."""
    port = 8080 if is_gguf(target) else 8000  # of llama-server, and of vLLM
    monitor = ["draftlab", "monitor", f"http://localhost:{port}/metrics", "--verdict", str(folder / "verdict.json")]
    return [shlex.join(step) for step in (*steps, monitor)]


def draw(judged: Verdict, part: str) -> bytes:
    """Draw one of ``FIGURES`` as SVG, narrow enough for a phone; bands are 95 % intervals."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(6, 3.6), layout="constrained")
    axes = drawn.subplots()
    for number, option in enumerate(judged.options):
        if part == "learning":
            for n in option.learning.alpha if option.learning else []:
                axes.axvline(n, color="0.4", lw=0.8, ls=":")
        if points := _points(judged, option, part):
            x = [value for value, _ in points]
            axes.plot(x, [at.estimate for _, at in points], f"C{number}o-", ms=3, label=NAMES[option.name])
            band = [at.low for _, at in points], [at.high for _, at in points]
            axes.fill_between(x, *band, color=f"C{number}", alpha=0.18, lw=0)
    across, up = LABELS[part]
    axes.set(xlabel=across, ylabel=up)
    axes.set_ylim(bottom=0)
    if part in ("length", "load"):
        axes.axhline(1, color="0.4", lw=0.8)
    drawn.legend(loc="outside lower center", ncols=2, fontsize=8)
    out = io.BytesIO()
    drawn.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _points(judged: Verdict, option: Option, part: str) -> list[tuple[float, Range]]:
    """The line of an option in one of ``FIGURES``; no point if it has none there."""
    if part == "length":
        best = (option.proposal, option.threshold)
        lengths = {at.draft_len: at.speedup for at in option.by_length if (at.proposal, at.threshold) == best}
        return [(0.0, NO_DRAFT), *sorted(lengths.items())]
    if part == "time":
        return [((i + 0.5) / len(option.over_time), at) for i, at in enumerate(option.over_time)]
    if part == "learning":
        return [(float(n), at) for n, at in option.learning.points.items()] if option.learning else []
    return [(at.rate, at.speedup) for at in judged.load.get(option.name, [])]
