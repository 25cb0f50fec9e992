"""Verifiers of K drafted tokens at one position: a pure decision, from which the exact distribution, the sampler and the acceptance follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Generator, Tensor

from draftlab.core.sampling import DISTINCT, Drafting, Table, Tables, Tokens, check_drafted, check_drafting, draw
from draftlab.core.verify.joint import joint_distribution, tuples_exist
from draftlab.core.verify.survivors import Order, Position, Survivors, transitions
from draftlab.errors import UserError, fault_in

ROUNDING = 1e-9
"""By how much a decision may exceed the bounds of probabilities."""
Rows = Int64[Tensor, " rows"] | slice
"""Rows of a batch; ``slice(None)`` stands for all of them and copies nothing."""


@dataclass(frozen=True)
class Decision:
    """What a verifier does with the drafted tokens of each row: emit draft k with probability ``accept[k]``, else draw a new token.

    ``residual(rows)`` returns the weights of the new token, which need not sum to 1. It is called only for rows whose drafts were all
    rejected, so that a cheap verifier never touches the vocabulary of the other rows.
    """

    accept: Float64[Tensor, "batch drafts"]
    residual: Callable[[Rows], Float64[Tensor, "rows vocab"]]


@dataclass(frozen=True)
class Acceptance:
    """``proc``: probability of acceptance before the residual draw; ``member``: that the emitted token is one of the drafts. NaN: not known."""

    proc: Float64[Tensor, "*batch"]
    member: Float64[Tensor, "*batch"]


Decide = Callable[[Table, Tables, Tokens], Decision]
ClosedForm = Callable[[Table, Tables], Acceptance]


@dataclass(frozen=True)
class TokenVerifier:
    """A way to choose among K drafted tokens at one position; lossless unless ``is_lossless`` is False.

    ``drafting`` is the way in which it needs the tokens drafted. ``closed_form`` is the acceptance over all drafts, and ``survivors`` the
    number of drafts that equal the emitted token; what a verifier lacks is computed by enumeration.
    """

    name: str
    drafting: Drafting
    decide: Decide
    closed_form: ClosedForm | None = None
    is_lossless: bool = True
    survivors: Survivors | None = None

    def __post_init__(self) -> None:
        check_drafting(self.drafting, f"verifier {self.name}: ")

    def distribution(
        self,
        target_probs: Float64[Tensor, "*batch vocab"],
        draft_probs: Float64[Tensor, "*batch drafts vocab"],
        tokens: Int64[Tensor, "*batch drafts"],
    ) -> Float64[Tensor, "*batch vocab"]:
        """The exact distribution of the emitted token y, given the drafts: ``sum_k accept_k [y = x_k] + (1 - sum_k accept_k) residual(y)``.

        A verifier is lossless if the mean of this distribution over the drafts is ``target_probs``.

        **Arguments:**
        - `target_probs`: the target's distribution, shape `(*batch, vocab)`.
        - `draft_probs`: the distributions from which the drafts were drawn, shape `(*batch, drafts, vocab)`.
        - `tokens`: the drafted ids, shape `(*batch, drafts)`.

        **Returns:** probabilities of the emitted token, shape `(*batch, vocab)`, float64.

        **Raises:** `UserError` if a table is not a distribution, or if the tokens cannot have been drawn from it.

        >>> from draftlab.core.verify import single
        >>> target, draft = torch.tensor([0.5, 0.5]).double(), torch.tensor([[0.8, 0.2]]).double()
        >>> single.distribution(target, draft, torch.tensor([0]))
        tensor([0.6250, 0.3750], dtype=torch.float64)
        """
        target, draft = check_drafted(target_probs, draft_probs, tokens, self.drafting)
        return self._distribution(*_flat(target, draft, tokens))[0].view(target.shape)

    def _distribution(self, target: Tensor, draft: Tensor, tokens: Tensor) -> tuple[Table, Float64[Tensor, " batch"]]:
        """The distribution of each row, and its probability of acceptance before the residual draw."""
        decision = self._decided(target, draft, tokens)
        accepted = decision.accept.sum(-1)
        if not bool(((decision.accept >= -ROUNDING).all(-1) & (accepted <= 1 + ROUNDING)).all()):  # nor if one is NaN
            what = f"{self.name}: accept has {_extremes(decision.accept, accepted)}"
            raise fault_in(self.decide, what, "give each row probabilities that sum to at most 1")
        residual = drawable(decision.residual(slice(None)), target)
        distribution = (1 - accepted).clamp_min(0)[:, None] * residual / residual.sum(-1, keepdim=True)
        return distribution.scatter_add(-1, tokens, decision.accept), accepted

    def _decided(self, target: Table, draft: Tables, tokens: Tokens) -> Decision:
        """What ``decide`` returns; ``UserError`` if it is no decision, or its tensors have another shape or dtype."""
        decision = self.decide(target, draft, tokens)
        if not isinstance(decision, Decision):
            raise fault_in(self.decide, f"{self.name}: decide returned {name_of(decision)}", "return a Decision")
        check_table(self.decide, f"{self.name}: accept", decision.accept, tokens.shape, target.dtype)

        def residual(rows: Rows) -> Tensor:
            weights = decision.residual(rows)
            check_table(self.decide, f"{self.name}: residual", weights, target[rows].shape, target.dtype)
            return weights

        return Decision(decision.accept, residual)

    def sample(
        self,
        target_probs: Float64[Tensor, "*batch vocab"],
        draft_probs: Float64[Tensor, "*batch drafts vocab"],
        tokens: Int64[Tensor, "*batch drafts"],
        generator: Generator,
        *,
        check: bool = True,
    ) -> tuple[Int64[Tensor, "*batch"], Bool[Tensor, "*batch"]]:
        """Draw the emitted token of each row, and whether it was accepted before the residual draw.

        **Arguments:**
        - `target_probs`, `draft_probs`, `tokens`: as for `distribution`.
        - `generator`: draws the tokens.
        - `check`: if False, the tables (from `to_probs`) and tokens (from `draft_tokens`) are not checked, which saves a pass over them; they
          then have one batch axis.

        **Returns:** token ids and flags, shape `(*batch,)` each.

        >>> from draftlab.core.verify import single
        >>> same = torch.tensor([[0.5, 0.5]]).double()
        >>> single.sample(same, same[:, None], torch.tensor([[1]]), torch.Generator().manual_seed(0))
        (tensor([1]), tensor([True]))
        """
        batch = tokens.shape[:-1]
        if check:
            checked = check_drafted(target_probs, draft_probs, tokens, self.drafting)
            target_probs, draft_probs, tokens = _flat(*checked, tokens)
        decision = self._decided(target_probs, draft_probs, tokens)
        uniform = torch.rand(len(tokens), 1, dtype=torch.float64, device=tokens.device, generator=generator)
        choice = torch.searchsorted(decision.accept.cumsum(-1), uniform, right=True)
        accepted = choice[:, 0] < tokens.shape[1]
        token = tokens.gather(-1, choice.clamp_max(tokens.shape[1] - 1))[:, 0]
        rejected = accepted.logical_not().nonzero()[:, 0]
        if len(rejected):
            rows = slice(None) if len(rejected) == len(tokens) else rejected
            token[rows] = draw(drawable(decision.residual(rows), target_probs[rows]), 1, generator)[:, 0]
        return token.view(batch), accepted.view(batch)

    def acceptance_given(
        self,
        target_probs: Float64[Tensor, "*batch vocab"],
        draft_probs: Float64[Tensor, "*batch drafts vocab"],
        tokens: Int64[Tensor, "*batch drafts"],
    ) -> Acceptance:
        """The exact acceptance, given the drafted tokens; its mean over drawn drafts estimates ``acceptance``.

        **Arguments:**
        - `target_probs`, `draft_probs`, `tokens`: as for `distribution`.

        **Returns:** `proc` and `member`, shape `(*batch,)` each.
        """
        target, draft = check_drafted(target_probs, draft_probs, tokens, self.drafting)
        batch = target.shape[:-1]
        _, given = self.outcome(*_flat(target, draft, tokens))
        return Acceptance(given.proc.view(batch), given.member.view(batch))

    def outcome(self, target: Table, draft: Tables, tokens: Tokens) -> tuple[Table, Acceptance]:
        """The distribution of each row, and its acceptance; the tables are not checked."""
        distribution, proc = self._distribution(target, draft, tokens)
        drafted = torch.zeros_like(distribution).scatter_(-1, tokens, 1.0)
        return distribution, Acceptance(proc, (distribution * drafted).sum(-1))

    def acceptance(
        self, target_probs: Float64[Tensor, "*batch vocab"], draft_probs: Float64[Tensor, "*batch drafts vocab"]
    ) -> Acceptance:
        """The exact acceptance over all drafts: in closed form, or by enumeration. NaN if there are more than a million tuples of drafts.

        **Arguments:**
        - `target_probs`, `draft_probs`: as for `distribution`.

        **Returns:** `proc` and `member`, shape `(*batch,)` each.

        **Raises:** `UserError` if the enumeration shows that the verifier is not lossless: what it accepts can then exceed the optimum.

        >>> from draftlab.core.verify import optimal
        >>> target, draft = torch.tensor([0.5, 0.5]).double(), torch.tensor([[0.9, 0.1]]).double().expand(2, -1)
        >>> optimal.acceptance(target, draft).proc
        tensor(0.6900, dtype=torch.float64)
        """
        target, draft = check_drafted(target_probs, draft_probs, drafting=self.drafting)
        batch, vocab, drafts = target.shape[:-1], target.shape[-1], draft.shape[-2]
        target, draft = target.reshape(-1, vocab), draft.reshape(-1, drafts, vocab)
        unknown = torch.full_like(target[:, 0], torch.nan)
        exact = self.closed_form(target, draft) if self.closed_form else Acceptance(unknown, unknown)
        if bool(exact.member.isnan().any()) and tuples_exist(vocab, drafts):
            rows = [self._enumerated(*row) for row in zip(target, draft, strict=True)]
            exact = Acceptance(torch.stack([row.proc for row in rows]), torch.stack([row.member for row in rows]))
        return Acceptance(exact.proc.view(batch), exact.member.view(batch))

    def transitions(self, position: Position, order: Order) -> Tensor:
        """The exact probability of each number of survivors at each position of a text (module ``survivors``).

        Uses the verifier's own formula, else enumeration (more than a million tuples are a ``UserError``). At most one of distinct drafts survives.
        """
        if not self.is_lossless:
            raise UserError(f"{self.name} is not lossless", remedy="its texts are not the target's: decode live")
        return transitions(self.survivors or self.enumerated_survivors, position, order)

    def enumerated_survivors(self, position: Position, order: Order) -> Tensor:
        """The table of survivors, from the distribution of the emitted token given each tuple of drafts."""
        groups = range(len(position.groups))
        most = [1] if self.is_distinct else [order.count(group) for group in groups]
        table = position.target.new_zeros(len(position.token), *(count + 1 for count in most))
        for row, token in enumerate(position.token.tolist()):
            draft = torch.stack([position.groups[group][row] for group in order])
            count = min(len(order), int((draft[0] > 0).sum())) if self.is_distinct else len(order)
            for tokens, probs in joint_distribution(draft[:count], self.drafting).parts():
                target, drafts = position.target[row].expand(len(probs), -1), draft[:count].expand(len(probs), -1, -1)
                emitted = self.distribution(target, drafts, tokens)
                equal = (tokens == token).long()
                numbers = tuple(equal[:, [k for k in range(count) if order[k] == group]].sum(-1) for group in groups)
                table[row].index_put_(numbers, probs * emitted[:, token], accumulate=True)
        self.refuse_loss(table.flatten(1).sum(-1, keepdim=True), position.at(position.target)[:, None])
        return table

    def refuse_loss(self, emitted: Float64[Tensor, "rows some"], target: Float64[Tensor, "rows some"]) -> None:
        """Refuse a verifier that claims to be lossless, but emits tokens with other probabilities over all drafts than the target."""
        wrong = ~((emitted - target).abs() <= ROUNDING)
        if self.is_lossless and bool(wrong.any()):
            what = f"{self.name} is not lossless: over all drafts it emits a token with probability {float(emitted[wrong][0]):.6g}"
            remedy = "see `draftlab verify-lossless`; repair it, or give it is_lossless=False"
            raise fault_in(self.decide, f"{what}, the target with {float(target[wrong][0]):.6g}", remedy)

    @property
    def is_distinct(self) -> bool:
        """Whether the drafts of a position are distinct tokens."""
        return self.drafting in DISTINCT

    def _enumerated(self, target: Float64[Tensor, " vocab"], draft: Float64[Tensor, "drafts vocab"]) -> Acceptance:
        proc, member = torch.zeros(2, dtype=torch.float64, device=draft.device)
        emitted = torch.zeros_like(target)
        for tokens, probs in joint_distribution(draft, self.drafting).parts():
            rows = target.expand(len(probs), -1), draft.expand(len(probs), -1, -1), tokens
            distribution, given = self.outcome(*rows)
            proc, member = proc + given.proc @ probs, member + given.member @ probs
            emitted += probs @ distribution
        self.refuse_loss(emitted[None], target[None])
        return Acceptance(proc, member)


def check_table(function: object, what: str, value: object, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Refuse what a ``function`` of a verifier returned as ``what`` unless it is a tensor of this shape and dtype."""
    if not isinstance(value, Tensor) or value.shape != tuple(shape) or value.dtype != dtype:
        remedy = f"give {name_of(torch.empty(tuple(shape), dtype=dtype, device='meta'))}"
        raise fault_in(function, f"{what} is {name_of(value)}", remedy)


def name_of(value: object) -> str:
    """A value by its type and shape."""
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _extremes(accept: Tensor, accepted: Tensor) -> str:
    """The smallest of these probabilities and the largest sum of a row, or that some are NaN."""
    if bool(accept.isnan().any()):
        return "NaN"
    return f"a smallest value of {float(accept.min()):.6g} and a largest sum of {float(accepted.max()):.6g}"


def _flat(target: Tensor, draft: Tensor, tokens: Tensor) -> tuple[Table, Tables, Tokens]:
    """The three tables with one batch axis."""
    vocab, drafts = draft.shape[-1], draft.shape[-2]
    return target.reshape(-1, vocab), draft.reshape(-1, drafts, vocab), tokens.reshape(-1, drafts)


def drawable(weights: Table, target: Table) -> Table:
    """The weights of a residual, or the target where they are all 0: then target and draft agree, and only rounding leads here."""
    return torch.where(weights.sum(-1, keepdim=True) > 0, weights, target)
