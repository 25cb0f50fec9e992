"""Entropic optimal transport instead of the linear program: how much acceptance how many iterations buy, and what they cost."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.core.sampling import to_probs
from draftlab.core.verify.canonical import select_then_verify
from draftlab.core.verify.schemes import token_verifier
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier
from draftlab.multidraft.acceptance import filtered, on_support
from draftlab.multidraft.pairs import Pairs

if TYPE_CHECKING:
    from draftlab.stages.sinkhorn import Settings as Sinkhorn

PEERS = ("optimal", "importance_truncated", "k_seq", "specinfer")


def sinkhorn_verifier(iterations: int, sharpness: float) -> TokenVerifier:
    """Select draft k with probability ``b(x_k) / sum of b over the distinct drafts``, then verify it (Khisti et al. 2025, Theorem 1).

    ``b`` scales the columns of the kernel ``e^(-sharpness [y not drafted])`` between drafted tuples and tokens (Cuturi 2013). The selected
    token's distribution is summed exactly, so the verifier is lossless after any number of iterations; 0 iterations start from ``b = q``.
    """
    selecting = partial(_select, iterations, sharpness)
    return TokenVerifier("sinkhorn", "independent", partial(_decide, selecting), partial(_acceptance, selecting))


def _select(
    iterations: int,
    sharpness: float,
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
) -> tuple[Float64[Tensor, "batch vocab"], Float64[Tensor, "batch vocab"]]:
    """The weights ``b`` and the distribution of the selected token."""
    drafts, vocab = draft_probs.shape[1:]
    tuples = torch.cartesian_prod(*[torch.arange(vocab)] * drafts).view(-1, drafts)
    members = torch.zeros(len(tuples), vocab, dtype=torch.float64).scatter_(-1, tuples, 1.0)
    mass = torch.stack([draft_probs[:, k, tuples[:, k]] for k in range(drafts)]).prod(0)
    outside = torch.tensor(-sharpness, dtype=torch.float64).exp()
    weights = target_probs
    for _ in range(iterations):
        rows = mass / ((1 - outside) * (weights @ members.T) + outside * weights.sum(-1, keepdim=True)).clamp_min(
            1e-300
        )
        columns = (1 - outside) * (rows @ members) + outside * rows.sum(-1, keepdim=True)
        weights = target_probs / columns.clamp_min(1e-300)
        weights = weights / weights.amax(-1, keepdim=True)
    # A token that the target never emits is selected only where nothing else was drafted.
    weights = weights.clamp_min(1e-30)
    return weights, weights * ((mass / (weights @ members.T)) @ members)


def _decide(
    selecting: partial[tuple[Tensor, Tensor]],
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
    tokens: Int64[Tensor, "batch drafts"],
) -> Decision:
    weights, selected = selecting(target_probs, draft_probs)
    at = weights.gather(-1, tokens)
    same = tokens[:, :, None] == tokens[:, None, :]
    share = at / same.sum(-1)
    return select_then_verify(target_probs, selected, share / share.sum(-1, keepdim=True), tokens)


def _acceptance(
    selecting: partial[tuple[Tensor, Tensor]],
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
) -> Acceptance:
    """``proc = sum min(q, r)``; membership has no closed form."""
    _, selected = selecting(target_probs, draft_probs)
    proc = target_probs.minimum(selected).sum(-1)
    return Acceptance(proc, torch.full_like(proc, torch.nan))


def sinkhorn(pairs: Mapping[str, Pairs], settings: Sinkhorn) -> pd.DataFrame:
    """Acceptance and CPU time per position of Sinkhorn at each number of iterations and sharpness, and of the other schemes.

    Columns ``dataset, draft_temperature, num_drafts, scheme, iterations, sharpness, request, acceptance_sum, positions, seconds`` (the
    request's share of the fastest of ``rounds`` computations of the distribution of the selected token, all positions as one batch).
    """
    contenders = [(name, token_verifier(name), 0, 0.0) for name in PEERS]
    contenders += [
        ("sinkhorn", sinkhorn_verifier(count, sharpness), count, sharpness)
        for sharpness, count in itertools.product(settings.sharpness, settings.iterations)
    ]
    frames = []
    for (dataset, found), temperature, drafts in itertools.product(
        pairs.items(), settings.draft_temperature, settings.num_drafts
    ):
        target, draft = on_support(
            to_probs(found.target_logits, filtered(settings, 1.0)),
            to_probs(found.draft_logits, filtered(settings, temperature)),
        )
        distributions = draft[:, None].expand(-1, drafts, -1)
        spent = [float("inf")] * len(contenders)
        values: list[Tensor] = [target.sum(-1)] * len(contenders)
        for _ in range(settings.rounds):
            for place, (_, verifier, _, _) in enumerate(contenders):
                assert verifier.closed_form is not None
                start = time.thread_time()
                values[place] = verifier.closed_form(target, distributions).proc
                spent[place] = min(spent[place], time.thread_time() - start)
        for (name, _, count, sharpness), value, seconds in zip(contenders, values, spent, strict=True):
            rows = pd.DataFrame({"request": found.request, "acceptance_sum": value, "positions": 1})
            rows = rows.groupby("request", as_index=False).sum()
            rows["seconds"] = rows["positions"] * seconds / len(target)
            rows = rows.assign(scheme=name, iterations=count, sharpness=sharpness)
            frames.append(rows.assign(dataset=dataset, draft_temperature=temperature, num_drafts=drafts))
    return pd.concat(frames, ignore_index=True)
