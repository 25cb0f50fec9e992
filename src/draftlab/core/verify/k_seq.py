"""K-SEQ (SpecTr): every i.i.d. draft is accepted by the same rule, with one factor that is computed from both distributions."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import pad

from draftlab.core.sampling import Table, Tables, Tokens
from draftlab.core.verify.optimum import argsort
from draftlab.core.verify.single import accept_probs
from draftlab.core.verify.survivors import Order, Position, add_draft, add_unseen, scale, sum_tables
from draftlab.core.verify.token import Acceptance, Decision, Rows, TokenVerifier, drawable

TOLERANCE = 1e-15
"""Newton's method stops this close to the root. Every factor on the feasible side is lossless; this one is the best, up to rounding."""


def discount(target_probs: Table, draft_probs: Table, num_drafts: int) -> Float64[Tensor, "batch 1"]:
    """``rho*``, the smallest ``rho`` in [1, K] with ``1 - (1 - beta)^K <= rho beta``, ``beta = sum min(p, q / rho)`` (Sun et al. 2023, Alg. 2).

    Let ``u = 1 / rho``. The sorted ratios ``p/q`` cut [1/K, 1] into pieces on which ``beta = a + b u``. On the piece with the root,
    ``F(u) = beta / u - 1 + (1 - beta)^K`` is convex and falling, so Newton's method from its left end converges and stays feasible.

    **Arguments:**
    - `target_probs`: the target's distribution, shape `(batch, vocab)`, float64.
    - `draft_probs`: the draft's distribution, same shape.
    - `num_drafts`: how many tokens are drafted (K), at least 1.

    **Returns:** the factor rho in [1, K], shape `(batch, 1)`.

    >>> discount(torch.tensor([[0.5, 0.5]]).double(), torch.tensor([[0.5, 0.5]]).double(), num_drafts=2)
    tensor([[1.]], dtype=torch.float64)
    """
    ratio = draft_probs / target_probs
    order = argsort(ratio)
    knots, draft, target = (pad(table.gather(-1, order), (1, 0)) for table in (ratio, draft_probs, target_probs))
    below, covered = draft.cumsum(-1), target.cumsum(-1)
    above = covered[:, -1:] - covered
    beta = below.addcmul(above, knots).clamp_max_(1)
    feasible = _rejections(beta, num_drafts).mul_(knots) <= 1  # never at a knot of x / 0 or 0 / 0
    last = feasible.sum(-1, keepdim=True) - 1  # the root's piece starts at the last feasible knot; knot 0 is feasible
    pieces = torch.cat([table.gather(-1, last) for table in (below, above, knots)], -1)
    roots = _roots(pieces.cpu().numpy(), num_drafts)
    return torch.from_numpy(1 / roots).to(knots.device)[:, None]


def _roots(pieces: Float64[np.ndarray, "batch 3"], num_drafts: int) -> Float64[np.ndarray, " batch"]:
    """The root of ``F`` on the given piece ``(a, b, left end)`` of each row; in numpy, since torch takes five times as long on so few numbers."""
    inside, slope, start = pieces.T
    inverse: Float64[np.ndarray, " batch"] = np.maximum(start, 1 / num_drafts)
    for _ in range(50):
        missed = np.maximum(1 - inside - slope * inverse, 0)
        tail = missed ** (num_drafts - 1)
        gap = inside / inverse + slope - 1 + missed * tail
        if (gap <= TOLERANCE).all():
            break
        with np.errstate(invalid="ignore"):  # 0 / 0 where a row is done
            step = gap / (inside / inverse**2 + num_drafts * slope * tail)
        inverse = np.minimum(inverse + np.where(gap > TOLERANCE, step, 0), 1)
    return inverse


def _rejections(beta: Float64[Tensor, "batch num"], num_drafts: int) -> Float64[Tensor, "batch num"]:
    """``(1 - (1 - beta)^K) / beta`` as the sum ``1 + (1 - beta) + ...``, which needs no division at ``beta = 0``."""
    missed = 1 - beta
    total = torch.ones_like(beta)
    for _ in range(num_drafts - 1):
        total.mul_(missed).add_(1)
    return total


def _decide(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
    return decide_at(discount(target_probs, draft_probs[:, 0], tokens.shape[1]), target_probs, draft_probs, tokens)


def decide_at(factor: Float64[Tensor, "batch 1"], target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
    """The decision with a known factor."""
    num_drafts, draft = tokens.shape[1], draft_probs[:, 0]
    scaled = target_probs / factor
    chance = accept_probs(scaled.gather(-1, tokens), draft.gather(-1, tokens))
    missed = torch.cat([torch.ones_like(chance[:, :1]), (1 - chance[:, :-1]).cumprod(-1)], -1)

    def residual(rows: Rows) -> Float64[Tensor, "rows vocab"]:
        emitted = draft[rows].minimum(scaled[rows])
        return (target_probs[rows] - emitted * _rejections(emitted.sum(-1, keepdim=True), num_drafts)).clamp_min(0)

    return Decision(chance * missed, residual)


def _acceptance(target_probs: Table, draft_probs: Tables) -> Acceptance:
    return acceptance_at(discount(target_probs, draft_probs[:, 0], draft_probs.shape[1]), target_probs, draft_probs)


def acceptance_at(factor: Float64[Tensor, "batch 1"], target_probs: Table, draft_probs: Tables) -> Acceptance:
    """``proc = 1 - (1 - beta)^K``. A residual token y is a rejected draft with ``1 - (1 - (p - q / rho)_+(y) / (1 - beta))^K``."""
    num_drafts, draft = draft_probs.shape[1], draft_probs[:, 0]
    scaled = target_probs / factor
    emitted = draft.minimum(scaled)
    beta = emitted.sum(-1, keepdim=True).clamp_max(1)
    proc = 1 - (1 - beta[:, 0]) ** num_drafts
    residual = (target_probs - emitted * _rejections(beta, num_drafts)).clamp_min(0)
    rejected = (draft - scaled).clamp_min(0)
    total = rejected.sum(-1, keepdim=True)
    drawn = 1 - (1 - rejected / total.where(total > 0, 1.0)) ** num_drafts
    return Acceptance(proc, proc + (residual * drawn).sum(-1))


def factor_along(position: Position, order: Order) -> Float64[Tensor, "positions 1"]:
    """The factor at the positions of a text, computed once for each number of drafts."""
    draft, count = position.groups[order[0]], len(order)
    factor: Tensor = position.cached(("discount", count), lambda: discount(position.target, draft, count))
    return factor


def _survivors(position: Position, order: Order) -> Tensor:
    """SpecInfer's polynomial with equal rounds: ``c = min(p, q/rho)(y)``, ``e = (p - q/rho)_+(y)``, ``n = 1 - beta - e``, then the residual."""
    num_drafts, group = len(order), order[0]
    draft = position.groups[group]
    emitted = draft.minimum(position.target / factor_along(position, order))
    beta = emitted.sum(-1, keepdim=True).clamp_max(1)
    c = position.at(emitted)
    e = position.at(draft) - c
    n = (1 - beta[:, 0] - e).clamp_min(0)
    residual = drawable((position.target - emitted * _rejections(beta, num_drafts)).clamp_min(0), position.target)
    rejected, accepted = position.start(), []
    for j in range(num_drafts):
        accepted.append(add_unseen(position, add_draft(rejected, group, torch.zeros_like(c), c), order[j + 1 :]))
        rejected = add_draft(rejected, group, n, e)
    return sum_tables([*accepted, scale(rejected, position.at(residual) / residual.sum(-1))])


k_seq = TokenVerifier("k_seq", "iid", _decide, _acceptance, survivors=_survivors)
"""Accept each i.i.d. draft with ``min(1, q / (rho p))``, else draw from what is left of the target (SpecTr: Sun et al. 2023, Alg. 2)."""
