"""``draftlab emit``: settings for serving engines, with draft lengths by batch from a simulation or a single one."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import tyro
from pydantic import BaseModel, Field, ValidationError

from draftlab.core.settings import Count
from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir, check_replaceable
from draftlab.files.json_files import read_object
from draftlab.models.config import IN_BLOCKS, Head, drafts_in_parallel, head_in
from draftlab.serving import records
from draftlab.serving.acceptance import from_alpha
from draftlab.serving.engines import EMITTERS, Deployment, EngineFile, merged, settings_for
from draftlab.serving.engines_without_draft import METHODS, settings_without_draft
from draftlab.serving.profiles import MOST
from draftlab.serving.verdict_format import NAMES


class BestLength(BaseModel):
    """The best draft length at a batch and a context."""

    batch: Count
    context: Annotated[int, Field(gt=0, le=MOST)]
    best_draft_len: Annotated[int, Field(ge=0)]


class LoadSummary(BaseModel):
    """What ``emit`` reads in OUT.json of ``draftlab load``."""

    known: bool = False
    draft_ratio: float | None = None
    best_by_batch_and_context: Annotated[list[BestLength], Field(min_length=1)]


class OptionLengths(BaseModel):
    """The best draft lengths of an option of a verdict by batch; none if it has one length alone."""

    name: str
    by_batch: dict[Count, Annotated[int, Field(ge=0)]] = {}


class Recommended(BaseModel):
    """The option that a verdict recommends, and its draft length for one request at a time."""

    option: str
    draft_len: Count


class VerdictSummary(BaseModel):
    """What ``emit`` reads in verdict.json of ``draftlab verdict``."""

    monitor: Recommended | None
    options: list[OptionLengths]


def ranges_of(best: Sequence[BestLength], context: int) -> list[tuple[int, int, int]]:
    """Ranges of batches from the best lengths of ``draftlab load`` (``best_by_batch_and_context``) at a simulated ``context``.

    A batch between two simulated ones takes the length of the larger. A batch that does not fit the cache at this context takes the length
    at the largest context at which it fits.
    """
    known = sorted((row.context, row.batch, row.best_draft_len) for row in best if row.context <= context)
    return _ranges({batch: length for _, batch, length in known})


def _ranges(by_batch: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Ranges of batches from the lengths at some of them."""
    rows = sorted(by_batch.items())
    starts = [1, *(batch + 1 for batch, _ in rows[:-1])]
    return merged([(start, batch, length) for start, (batch, length) in zip(starts, rows, strict=True)])


def nearest_context(best: Sequence[BestLength], context: int) -> int:
    """The simulated context whose ratio to ``context`` is nearest to 1; of two as near, the larger."""
    if context < 1:
        raise UserError(f"a context of {context} tokens", remedy="give 1 or more")
    return min((row.context for row in best), key=lambda c: (max(c / context, context / c), -c))


Summary = TypeVar("Summary", LoadSummary, VerdictSummary)


def _checked(kind: type[Summary], given: Mapping[str, object], file: Path) -> Summary:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        what = f"not a file of draftlab load, nor of a verdict: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UserError(what, file=file, remedy="give OUT.json of draftlab load, or verdict.json") from None


def from_load(file: Path, context: int, has_draft: bool = True) -> tuple[list[tuple[int, int, int]], int]:
    """The draft lengths by batch in the summary of ``draftlab load``, and the longest; without a draft, its steps must have cost nothing.

    From a verdict.json they are those of the option that it recommends (no ranges if it has one length for all batches).
    """
    given = read_object(file)
    if "monitor" in given:
        return _from_verdict(_checked(VerdictSummary, given, file), file, has_draft)
    summary = _checked(LoadSummary, given, file)
    if not summary.known:
        raise UserError("the simulation gave no answer", file=file, remedy="simulate 30 requests or more")
    if not has_draft and summary.draft_ratio:
        remedy = "run draftlab load without --draft-ratio and --draft-profile"
        raise UserError("the simulation assumed a draft that costs something", file=file, remedy=remedy)
    if has_draft and summary.draft_ratio == 0:
        remedy = "run draftlab load with --draft-ratio or --draft-profile"
        raise UserError("the simulation assumed a draft that costs nothing", file=file, remedy=remedy)
    best = summary.best_by_batch_and_context
    nearest = nearest_context(best, context)
    print(f"draft lengths by batch at {nearest} tokens of context")
    ranges = ranges_of(best, nearest)
    longest = max(length for _, _, length in ranges)
    if not longest:
        raise UserError("no batch gains from a draft", file=file, remedy="serve without one")
    return ranges, longest


def _from_verdict(summary: VerdictSummary, file: Path, has_draft: bool) -> tuple[list[tuple[int, int, int]], int]:
    if (best := summary.monitor) is None:
        raise UserError("the verdict recommends no draft", file=file, remedy="serve without one")
    if has_draft == (best.option in WITHOUT_A_MODEL):
        remedy = "give --draft" if not has_draft else "leave out --draft, and give --lookup or --suffix"
        raise UserError(f"the verdict recommends {NAMES.get(best.option, best.option)}", file=file, remedy=remedy)
    by_batch = next((option.by_batch for option in summary.options if option.name == best.option), {})
    if not by_batch:
        return [], best.draft_len
    print("draft lengths by batch at the context of the verdict's requests")
    ranges = _ranges(by_batch | {1: best.draft_len})  # alone it was replayed, and not simulated
    return ranges, max(length for _, _, length in ranges)


WITHOUT_A_MODEL = ("lookup", "suffix", "suffix_confident")
"""The options of a verdict that draft without a model."""
ENGINES = dict.fromkeys(engine for method in METHODS.values() for engine in method)
"""The engines that can draft without a model, in one way or another."""
README = "README.md"
"""The file that says how to use the others."""
SECTION = re.compile(r"^## (.+)\n\nfor ", re.MULTILINE)
"""How each section of it begins, with the name of a file."""


def write(pair: Deployment, engines: Sequence[str], out: Path) -> list[EngineFile]:
    """Write settings for ``engines`` (if none is named, for all that can use this pair) into the folder OUT.

    **Raises:** ``UserError`` if OUT holds anything but such settings, which would be lost, or if no engine can use the pair.
    """
    readme = out / README
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    # A README.md of others has no such sections, and may stand alone in its folder.
    earlier = SECTION.findall(text) if SECTION.match(text) else []
    check_replaceable(out, ours := lambda names: not names or (bool(earlier) and names <= {README, *earlier}))
    written = []
    settings, known = (settings_for, EMITTERS) if pair.draft else (settings_without_draft, ENGINES)
    for name in engines or known:
        try:
            written.append(settings(name, pair))
        except UserError as error:
            if engines:
                raise
            print(f"no settings for {name}: {error}", file=sys.stderr)
    if not written:
        raise UserError("no engine can use this pair", remedy="see the reasons above, one for each engine")
    sections = [
        f"## {e.file}\n\nfor {e.version}{f': {e.note}' if e.note else ''}\n"
        + (f"\n```\n{e.command}\n```\n" if e.command else "")
        for e in written
    ]
    with atomic_dir(out, ours=ours) as folder:
        for emitted in written:
            (folder / emitted.file).write_text(emitted.text, encoding="utf-8")
        (folder / README).write_text("\n".join(sections), encoding="utf-8")
    return written


def emit(
    engine: tyro.conf.Positional[tuple[str, ...]] = (),
    *,
    load: Path | None = None,
    draft_len: int | None = None,
    target: str,
    draft: str = "",
    context: int = 1024,
    alpha: float | None = None,
    acceptance: Path | None = None,
    greedy: bool = False,
    confidence: float = 0.0,
    lookup: bool = False,
    suffix: bool = False,
    head: Head = "",
    parallel: bool = False,
    out: Path,
) -> None:
    """Write settings for serving engines: draft lengths by batch from a simulation, or a single draft length.

    **Arguments:**
    - `engine`: engines to write settings for: vllm, vllm-synthetic, sglang, sglang-adaptive, llama-cpp, llama-cpp-synthetic,
      tensorrt-llm-lower, tensorrt-llm-upper, transformers, speculation-profile; without --draft: vllm, sglang, llama-cpp, tensorrt-llm,
      transformers; if none is named, every engine that can use the pair
    - `load`: a JSON file of draftlab load, or verdict.json of draftlab verdict, whose best draft lengths by batch are written
    - `draft_len`: instead of --load, one draft length for all batches, in tokens
    - `target`: the target as the engine finds it: a folder, a GGUF file or a hub id
    - `draft`: the draft, likewise; without one, give --lookup or --suffix
    - `context`: tokens of context at which draft lengths are read from a file of draftlab load
    - `alpha`: acceptance of a drafted token, for the engines' simulated acceptance
    - `acceptance`: a file with an engine's records, whose acceptance is used instead of --alpha
    - `greedy`: the draft proposes its most probable token
    - `confidence`: a block ends early where the draft's token has a lower probability than this, or with --suffix all its tokens together; 0: never
    - `lookup`: prompt lookup drafts first, and the draft where it finds nothing; without --draft, prompt lookup alone
    - `suffix`: suffix decoding drafts, without a model
    - `head`: the draft is a released head of this kind; a folder with one is recognized without this
    - `parallel`: the draft proposes a block in one pass, as PARD and P-EAGLE do; a folder is recognized without this
    - `out`: the folder to write
    """
    if (load is None) == (draft_len is None):
        raise UserError("no draft length, or two", remedy="give either --load or --draft-len")
    if not target.strip() or draft.isspace():
        raise UserError("an empty name of a model", remedy="give --target and --draft, each with a name")
    of_a_draft = {
        "--alpha": alpha,
        "--acceptance": acceptance,
        "--head": head,
        "--parallel": parallel,
        "--greedy": greedy,
    }
    if not draft and (given := [flag for flag, value in of_a_draft.items() if value not in (None, False, "")]):
        raise UserError(f"{given[0]} is for a draft model", remedy=f"leave out {given[0]}, or give --draft")
    if alpha is not None and acceptance is not None:
        raise UserError("two acceptances", remedy="give either --alpha or --acceptance")
    measured = records.acceptance(acceptance) if acceptance else None
    shown = measured or (from_alpha(alpha) if alpha is not None else None)
    requests, traffic = (measured.requests, acceptance.stem) if measured and acceptance else (0, "")
    ranges, longest = from_load(load, context, bool(draft)) if load is not None else ([], draft_len or 0)
    if draft and not head:
        head = head_in(draft)
    pair = Deployment(
        target,
        draft,
        longest,
        ranges,
        sampled=not greedy,
        acceptance=shown,
        requests=requests,
        traffic=traffic,
        confidence=confidence,
        lookup=lookup,
        suffix=suffix,
        head=head,
        parallel=parallel or head in IN_BLOCKS or (bool(draft) and drafts_in_parallel(draft)),
    )
    for written in write(pair, engine, out):
        print(f"{written.file}: {written.version}")
    if pair.extrapolated:
        print(pair.extrapolated)
