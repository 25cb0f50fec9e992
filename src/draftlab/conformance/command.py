"""``draftlab verify-lossless``: load the verifier or the samples, run the tests, and print the result of each."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from draftlab.conformance import Budget, Conformance, check_distribution, check_sampler, check_samples, check_verifier
from draftlab.conformance.formulas import TOLERANCE
from draftlab.conformance.sequential import samples_needed
from draftlab.core.sampling import Drafting
from draftlab.core.verify import VERIFIERS
from draftlab.core.verify.path import PathVerifier
from draftlab.core.verify.token import TokenVerifier
from draftlab.core.verify.tree import TreeVerifier
from draftlab.errors import UserError, first_line
from draftlab.files.registries import check_call, is_own, load

Form = Literal["distribution", "sampler", "samples"]
SIGNATURES: dict[Form, tuple[str, ...]] = {
    "distribution": ("target_probs", "draft_probs", "tokens"),
    "sampler": ("target_probs", "draft_probs", "tokens", "generator"),
    "samples": (),
}
"""The arguments of a function of each form."""

COARSEST = 0.25
"""Of a deviation: a test that misses one of this size is refused."""
SINGLE_PRECISION = 1e-6
"""The errors of a lossless verifier that computes in float32 are smaller."""


def run(
    spec: str, form: Form, drafting: Drafting, num_drafts: int, budget: Budget, *, if_claimed: bool = False
) -> None:
    """Test a verifier by its name, or an object of the user's own; a verifier that is not lossless is a ``UserError``."""
    if num_drafts < 1:
        raise UserError(f"num_drafts is {num_drafts}", remedy="draft at least 1 token")
    tested = _load(spec)
    is_built_in = spec in VERIFIERS
    if isinstance(tested, TokenVerifier | PathVerifier | TreeVerifier):
        tested = replace(tested, name=spec)
        if if_claimed and not tested.is_lossless:
            return print(f"{spec}: not tested, because it says is_lossless=False")
        with contextlib.nullcontext() if is_built_in else _blaming(spec):
            result = check_verifier(tested, num_drafts, budget)
        return _report(spec, result)
    called = f"it was called as {form}({', '.join(SIGNATURES[form])}); use --form to change that"
    check_call(tested, spec, called, SIGNATURES[form])
    with _blaming(spec):
        if form == "distribution":
            result = Conformance({form: check_distribution(tested, drafting, num_drafts)}, {})
        elif form == "sampler":
            result = Conformance({}, {form: check_sampler(tested, drafting, num_drafts, budget)})
        else:
            pairs = ((torch.as_tensor(distribution), index(token)) for distribution, token in tested())
            result = Conformance({}, {form: check_samples(pairs, budget)})
    _report(spec, result)


@contextlib.contextmanager
def _blaming(spec: str) -> Iterator[None]:
    """Turn an error into a ``UserError``: with its line if it comes from the module of ``spec``, else what ``spec`` returned is to blame."""
    try:
        yield
    except (Exception, SystemExit) as error:
        file = sys.modules[spec.rpartition(":")[0]].__file__
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        if isinstance(error, UserError):
            if error.file is not None:
                raise
            line = lines[-1] if lines else None
            raise UserError(f"{spec}: {error.what}", file=file, line=line, remedy=error.remedy) from None
        fault = f"{type(error).__name__}: {first_line(error)}"
        if not lines:
            remedy = "see draftlab verify-lossless --help for what it must return"
            raise UserError(f"{spec} returned something unusable: {fault}", file=file, remedy=remedy) from error
        raise UserError(f"{spec} raised {fault}", file=file, line=lines[-1], remedy="repair the function") from None


def run_on_file(samples: Path, budget: Budget) -> None:
    """Test recorded samples: one JSON object per line, ``{"target_probs": [...], "token": n}``."""
    _report(str(samples), Conformance({}, {"samples": check_samples(_read(samples), budget)}))


def _load(spec: str) -> TokenVerifier | PathVerifier | TreeVerifier | Callable[..., Any]:
    if spec in VERIFIERS:
        return VERIFIERS[spec]
    module, _, attribute = spec.rpartition(":")
    if not attribute or not module or (module.startswith(".") and not is_own(spec)):
        remedy = f"give FILE.py:OBJECT, MODULE:OBJECT, or one of {', '.join(VERIFIERS)}"
        raise UserError(f"no verifier named {spec!r}", remedy=remedy)
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the working directory, as with python -m
    loaded = load(spec)
    if not callable(loaded) and not isinstance(loaded, TokenVerifier | PathVerifier | TreeVerifier):
        raise UserError(f"{spec} is a {type(loaded).__name__}", remedy="give a function or a verifier")
    return loaded  # type: ignore[no-any-return]


def _read(samples: Path) -> Iterator[tuple[Tensor, int]]:
    if not samples.is_file():
        raise UserError("no such file", file=samples, remedy="check the path")
    with samples.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                probs, token = torch.tensor(row["target_probs"], dtype=torch.float64), index(row["token"])
                if probs.dim() != 1:
                    raise ValueError("target_probs is not a flat list of numbers")
                yield probs, token
            except (ValueError, TypeError, KeyError, RecursionError, OverflowError, RuntimeError) as error:
                raise UserError(
                    f"not a sample: {type(error).__name__} {error}",
                    file=samples,
                    line=number,
                    remedy='write {"target_probs": [...], "token": n} on each line',
                ) from None


def _report(name: str, result: Conformance) -> None:
    for test, exact in result.exact.items():
        print(f"{test:21} exact    {exact.cases:9,} drafts   largest error {exact.error:.1e} ({exact.case})")
    for test, exact in result.formulas.items():
        print(f"{test:21} exact    {exact.cases:9,} tables   largest error {exact.error:.1e} ({exact.case})")
    for test, sampled in result.sampled.items():
        rate = f"at most {sampled.false_alarm:.2%} of lossless verifiers reach it"
        alarm = f"alarm at {1 / sampled.false_alarm:,.0f}: {rate}"
        print(f"{test:21} sampled  {sampled.samples:9,} tokens   e-value {sampled.e_value:.3g} ({alarm})")
        power = f"detects deviations of {sampled.visible:.2g} or more (in one token's probability, at every position)"
        print(f"{'':21} power    {'detects no deviation' if math.isinf(sampled.visible) else power}")
    failed = [test for test, each in (result.exact | result.sampled).items() if not each.lossless]
    if failed:
        remedy = "verify with the probabilities that the drafts were sampled from, and renormalise every residual"
        if all(test in result.exact and result.exact[test].error < SINGLE_PRECISION for test in failed):
            remedy = "compute in float64: its errors are those of float32"
        if any(math.isinf(result.exact[test].error) for test in failed if test in result.exact):
            remedy = "it returned NaN: look for a division by 0, such as by the mass of an empty residual"
        raise UserError(f"{name} is not lossless: {', '.join(failed)} failed", remedy=remedy)
    for test, sampled in result.sampled.items():
        if sampled.visible > COARSEST:
            needed = samples_needed(COARSEST, sampled.false_alarm)
            raise UserError(
                f"{name}: not enough samples: detecting a deviation of {COARSEST:g} needs {needed:,}, but {test} has "
                f"{sampled.samples // sampled.streams:,}",
                remedy="record more tokens, or raise --max-samples",
            )
    for test, exact in result.formulas.items():
        if exact.error > TOLERANCE:
            what = (
                f"{name} is lossless, but its {test} is {exact.error:.2g} from what its decisions give ({exact.case})"
            )
            raise UserError(what, remedy="repair the formula, or leave it out: what a verifier lacks is enumerated")
    print(f"{name}: lossless")


def verify_lossless(
    *,
    verifier: str | None = None,
    samples: Path | None = None,
    form: Form = "distribution",
    drafting: Drafting = "iid",
    num_drafts: int = 2,
    max_samples: int = 20_000,
    false_alarm: float = 1e-3,
    seed: int = 0,
    if_claimed: bool = False,
) -> None:
    """Test whether a verifier preserves the target's distribution: its own distribution exactly, its samples sequentially.

    Your own verifier is FILE.py:OBJECT, or MODULE:OBJECT: a TokenVerifier, PathVerifier or TreeVerifier of draftlab.core.verify, or a function of one of three forms:

    distribution(target_probs[vocab], draft_probs[drafts, vocab], tokens[drafts]) gives the probability of each emitted token;

    sampler(target_probs[batch, vocab], draft_probs[batch, drafts, vocab], tokens[batch, drafts], generator) gives tokens[batch];

    samples() yields pairs (target_probs[vocab], token).

    **Arguments:**
    - `verifier`: FILE.py:OBJECT, MODULE:OBJECT, or one of single, specinfer, k_seq, rrs, importance, importance_truncated, hybrid, optimal, greedy, sampled, ranked,
      gls, block, traversal, greedy_block, optimal_block, transport
    - `samples`: test a file instead, of lines {"target_probs": [...], "token": n} from any engine; cut each text at a length fixed in advance
    - `form`: the form of the function FILE.py:OBJECT
    - `drafting`: how the drafts of a function are made. iid: independent draws from one distribution; independent: each from its own;
      without_replacement: distinct tokens; greedy: the most probable tokens, and a last one drawn from the rest; ranked: the most probable tokens
    - `num_drafts`: drafted tokens of a position
    - `max_samples`: most tokens that a test samples from each table of distributions
    - `false_alarm`: the share of lossless verifiers that fail by chance, at most
    - `seed`: seed of the distributions and samples
    - `if_claimed`: pass a verifier that says is_lossless=False without a test
    """
    budget = Budget(max_samples, false_alarm, seed)
    if (verifier is None) == (samples is None):
        raise UserError("nothing to test, or two things", remedy="give either --verifier or --samples, not both")
    if verifier is not None:
        run(verifier, form, drafting, num_drafts, budget, if_claimed=if_claimed)
    elif samples is not None:
        run_on_file(samples, budget)
