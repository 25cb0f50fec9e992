"""Verifiers of one drafted path: how many of its tokens are accepted, and the token after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Generator, Tensor

from draftlab.core.sampling import Table, check_drafted, check_probs, draw
from draftlab.core.verify.single import accept_probs
from draftlab.core.verify.token import check_table, drawable, name_of
from draftlab.errors import UserError, fault_in

TargetPath = Float64[Tensor, "batch positions vocab"]
"""The target's distribution at the L + 1 positions of a path; the last one gives the bonus token."""
DraftPath = Float64[Tensor, "batch path vocab"]
"""The draft's distribution at the L drafted positions."""
PathTokens = Int64[Tensor, "batch path"]
"""The L drafted tokens."""


@dataclass(frozen=True)
class PathDecision:
    """``stop[i]`` is the probability that exactly i drafted tokens are accepted; the next token then follows ``(weight[i] q - p)_+`` there."""

    stop: Float64[Tensor, "batch positions"]
    weight: Float64[Tensor, "batch positions"]


PathDecide = Callable[[TargetPath, DraftPath, PathTokens], PathDecision]


@dataclass(frozen=True)
class PathVerifier:
    """A way to verify one path of L drafted tokens; lossless unless ``is_lossless`` is False."""

    name: str
    decide: PathDecide
    is_lossless: bool = True

    def distribution(
        self,
        target_probs: Float64[Tensor, "positions vocab"],
        draft_probs: Float64[Tensor, "path vocab"],
        tokens: Int64[Tensor, " path"],
    ) -> Float64[Tensor, "positions vocab"]:
        """The exact distribution of the outcome, given the path: entry ``[i, y]`` is the probability that i tokens are accepted and y follows.

        **Arguments:**
        - `target_probs`: the target's distribution at each of the L + 1 positions, shape `(positions, vocab)`.
        - `draft_probs`: the draft's distribution at the L drafted positions, shape `(path, vocab)`.
        - `tokens`: the drafted ids, shape `(path,)`.

        **Returns:** probabilities, shape `(positions, vocab)`; all of them together sum to 1.

        **Raises:** `UserError` if a table is not a distribution, or if the path cannot have been drawn from it.

        >>> target, draft = torch.tensor([[0.5, 0.5]] * 2).double(), torch.tensor([[0.8, 0.2]]).double()
        >>> single_path.distribution(target, draft, torch.tensor([0]))
        tensor([[0.0000, 0.3750],
                [0.3125, 0.3125]], dtype=torch.float64)
        """
        target = check_probs(target_probs, "target_probs")
        draft = _check_path(target, draft_probs, tokens, batched=False)
        decision = self._decided(target[None], draft[None], tokens[None])
        size = len(target)
        lengths = torch.arange(size, device=target.device)
        residual = _residual(target.expand(size, -1, -1), draft.expand(size, -1, -1), decision.weight[0], lengths)
        return decision.stop[0][:, None] * residual / residual.sum(-1, keepdim=True)

    def _decided(self, target: TargetPath, draft: DraftPath, tokens: PathTokens) -> PathDecision:
        """What ``decide`` returns; ``UserError`` if it is no decision, or its tensors have another shape or dtype."""
        decision = self.decide(target, draft, tokens)
        if not isinstance(decision, PathDecision):
            what = f"{self.name}: decide returned {name_of(decision)}"
            raise fault_in(self.decide, what, "return a PathDecision")
        for part in ("stop", "weight"):
            table = getattr(decision, part)
            check_table(self.decide, f"{self.name}: {part}", table, target.shape[:2], target.dtype)
        return decision

    def sample(
        self,
        target_probs: TargetPath,
        draft_probs: DraftPath,
        tokens: PathTokens,
        generator: Generator,
        *,
        check: bool = True,
    ) -> tuple[Int64[Tensor, " batch"], Int64[Tensor, " batch"]]:
        """Draw the outcome of each row: how many drafted tokens are accepted, and the token after them.

        **Arguments:**
        - `target_probs`, `draft_probs`, `tokens`: as for `distribution`, with a batch axis in front.
        - `generator`: draws the outcome.
        - `check`: if False, tables and tokens are not checked, which saves a pass over them.

        **Returns:** numbers of accepted tokens and token ids, shape `(batch,)` each.
        """
        if check:
            target_probs = check_probs(target_probs, "target_probs")
            draft_probs = _check_path(target_probs, draft_probs, tokens, batched=True)
        decision = self._decided(target_probs, draft_probs, tokens)
        length = draw(decision.stop, 1, generator)
        weight = decision.weight.gather(-1, length)[:, 0]
        return length[:, 0], draw(_residual(target_probs, draft_probs, weight, length[:, 0]), 1, generator)[:, 0]


def _residual(
    target: TargetPath, draft: DraftPath, weight: Float64[Tensor, " batch"], length: Int64[Tensor, " batch"]
) -> Table:
    """Weights of the token after ``length`` accepted ones: ``(weight q - p)_+``, or ``q`` after a path that is accepted whole."""
    rows = torch.arange(len(target), device=target.device)
    path = draft.shape[1]
    at = target[rows, length]
    whole = (length == path)[:, None]
    drafted = draft[rows, length.clamp_max(path - 1)] * ~whole
    return drawable((weight[:, None] * at - drafted).clamp_min(0), at)


def _check_path(target: Tensor, draft_probs: Tensor, tokens: Tensor, *, batched: bool) -> Tensor:
    """The draft's table in float64; L tokens need L draft distributions and L + 1 target distributions."""
    if [target.dim(), draft_probs.dim(), tokens.dim()] != [2 + batched, 2 + batched, 1 + batched]:
        axes = "one batch axis" if batched else "no batch axis"
        what = f"shapes do not fit: {[tuple(table.shape) for table in (target, draft_probs, tokens)]}"
        raise UserError(what, remedy=f"pass [positions, vocab], [path, vocab] and [path], with {axes}")
    if draft_probs.shape[-2] != target.shape[-2] - 1 or draft_probs.shape[-2] == 0:
        raise UserError(
            f"{target.shape[-2]} target distributions for a path of {draft_probs.shape[-2]} tokens",
            remedy="draft at least 1 token and pass one target distribution more than drafted tokens: the last gives the bonus token",
        )
    each = target[..., :-1, :].reshape(-1, target.shape[-1]), draft_probs.reshape(-1, 1, draft_probs.shape[-1])
    return check_drafted(*each, tokens.reshape(-1, 1))[1].view(draft_probs.shape)


def _token_by_token(target_probs: TargetPath, draft_probs: DraftPath, tokens: PathTokens) -> PathDecision:
    at_target, at_draft = (probs.gather(-1, tokens[..., None]) for probs in (target_probs[:, :-1], draft_probs))
    accept = accept_probs(at_target, at_draft)[..., 0]
    ones = accept.new_ones(len(accept), 1)
    reached = torch.cat([ones, accept], -1).cumprod(-1)
    return PathDecision(reached * torch.cat([1 - accept, ones], -1), ones.expand(-1, accept.shape[1] + 1))


single_path = PathVerifier("single", _token_by_token)
"""Token by token: each is accepted with ``min(1, q/p)``, and the path ends at the first rejection (Leviathan et al. 2023, Alg. 1)."""
