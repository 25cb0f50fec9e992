"""Exact acceptance of every scheme at recorded positions (MDSS Table 2): no model runs, nothing is sampled."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from draftlab.core.sampling import Sampling, restrict, to_probs
from draftlab.core.verify.schemes import token_verifier
from draftlab.core.verify.specinfer import remaining_probs
from draftlab.core.verify.token import Acceptance as Exact
from draftlab.core.verify.token import TokenVerifier
from draftlab.engine import replay
from draftlab.errors import UserError
from draftlab.multidraft.pairs import Pairs
from draftlab.stages._inputs import OnPairs

if TYPE_CHECKING:
    from draftlab.stages.acceptance import Settings as Acceptance

PATHS: dict[str, replay.SingleVerifier] = {"single_path": "single", "block": "block"}
"""Verifiers of a path, on one footing: tokens accepted among the tokens visited, in blocks along a text."""

MOST_TUPLES = 5040
"""Ordered tuples without replacement that are tried at a position (7 tokens drafted in every order)."""
ROWS_AT_ONCE = 100_000


def acceptance(pairs: Mapping[str, Pairs], settings: Acceptance) -> pd.DataFrame:
    """Acceptance of each scheme on the pairs of each dataset, summed per request.

    Columns ``dataset, draft_temperature, num_drafts, scheme, request, acceptance_sum`` (accepted before the residual draw),
    ``member_sum`` (the emitted token is among the drafts; empty where it has no closed form) and ``positions``. Verifiers of a path
    count accepted and visited tokens of blocks along the recorded text, which the synthetic family has none of.
    """
    frames = []
    for (dataset, used), temperature in itertools.product(pairs.items(), settings.draft_temperature):
        target = to_probs(used.target_logits, filtered(settings, settings.target_temperature))
        draft = to_probs(used.draft_logits, filtered(settings, temperature))
        target, draft = on_support(target, draft)
        for name, drafts in itertools.product(settings.schemes, settings.num_drafts):
            if name in PATHS:
                if not used.is_text:
                    continue
                rows = along_text(used, settings, temperature, PATHS[name])
            else:
                exact = by_position(token_verifier(name), target, draft, 1 if name == "single" else drafts)
                rows = pd.DataFrame({"acceptance_sum": exact.proc, "member_sum": exact.member, "positions": 1})
                rows = rows.groupby(used.request.numpy()).sum(min_count=1).rename_axis("request").reset_index()
            frames.append(rows.assign(dataset=dataset, draft_temperature=temperature, num_drafts=drafts, scheme=name))
    return pd.concat(frames, ignore_index=True)


def filtered(settings: OnPairs, temperature: float) -> Sampling:
    """The filter of an experiment on pairs, at a temperature."""
    return Sampling(temperature, settings.top_k or None, settings.top_p)


def on_support(
    target: Float64[Tensor, "positions vocab"], draft: Float64[Tensor, "positions vocab"]
) -> tuple[Float64[Tensor, "positions support"], Float64[Tensor, "positions support"]]:
    """Both distributions on the tokens that either can produce."""
    target, drafts, _, _ = restrict(target, draft[:, None], torch.zeros(len(target), 1, dtype=torch.int64))
    return target, drafts[:, 0]


def by_position(
    verifier: TokenVerifier,
    target: Float64[Tensor, "positions support"],
    draft: Float64[Tensor, "positions support"],
    num_drafts: int,
) -> Exact:
    """Both acceptances at each position for drafts of one distribution: in closed form where there is one, else by enumeration.

    Without replacement there are never more drafts than tokens that can be drafted: K is shortened to those. Too many
    tuples for an enumeration are a ``UserError``.
    """
    if verifier.closed_form:
        return verifier.closed_form(target, draft[:, None].expand(-1, num_drafts, -1))
    if verifier.drafting == "without_replacement":
        return _without_replacement(verifier, target, draft, num_drafts)
    found = verifier.acceptance(target, draft[:, None].expand(-1, num_drafts, -1))
    if bool(found.proc.isnan().any()):
        raise _too_many(verifier, num_drafts, draft.shape[-1])
    return found


def _without_replacement(verifier: TokenVerifier, target: Tensor, draft: Tensor, num_drafts: int) -> Exact:
    """Every ordered tuple of distinct tokens, positions of one support size at once."""
    proc, member = torch.empty(2, len(target), dtype=torch.float64)
    supports = (draft > 0).sum(-1)
    for support in sorted(set(supports.tolist())):
        length = min(num_drafts, support)
        count = int(np.prod(np.arange(support, support - length, -1)))
        if count > MOST_TUPLES:
            raise _too_many(verifier, num_drafts, support)
        tuples = torch.tensor(list(itertools.permutations(range(support), length)))
        rows = (supports == support).nonzero()[:, 0]
        for part in rows.split(max(1, ROWS_AT_ONCE // count)):
            tokens = draft[part].topk(support, -1).indices[:, tuples].flatten(0, 1)
            at = part.repeat_interleave(count)
            distributions = draft[at][:, None].expand(-1, length, -1)
            chance = remaining_probs(distributions, tokens).gather(-1, tokens[..., None])[..., 0].prod(-1)
            given = verifier.acceptance_given(target[at], distributions, tokens)
            proc[part] = (given.proc * chance).view(len(part), count).sum(-1)
            member[part] = (given.member * chance).view(len(part), count).sum(-1)
    return Exact(proc, member)


def _too_many(verifier: TokenVerifier, num_drafts: int, support: int) -> UserError:
    return UserError(
        f"{verifier.name} has no exact acceptance at {num_drafts} drafts on {support} tokens",
        remedy="lower num_drafts or top_k, or leave the scheme out",
    )


def along_text(
    pairs: Pairs, settings: Acceptance, draft_temperature: float, verifier: replay.SingleVerifier
) -> pd.DataFrame:
    """Accepted and visited tokens of a verifier of one path, in blocks of ``path_len`` along each request's text, in expectation."""
    sampling = filtered(settings, settings.target_temperature)
    agree = replay.agreement(
        pairs.draft_logits,
        pairs.target_logits,
        pairs.token,
        torch.bincount(pairs.request).tolist(),
        sampling,
        filtered(settings, draft_temperature),
    )
    walked = replay.walk(agree, settings.path_len, verifier)
    counts = {"acceptance_sum": walked.accepted, "positions": walked.visited, "request": range(len(walked.accepted))}
    return pd.DataFrame(counts)
