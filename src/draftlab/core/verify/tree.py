"""Verifiers of a whole tree of drafted sequences: where verification may stop, with what probability, and the token that follows there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Generator, Tensor

from draftlab.core.sampling import Drafting, check_drafting, draw
from draftlab.core.verify.sequence import DraftAlong, Outcome, Sequences, TargetAlong, check_sequences
from draftlab.core.verify.survivors import Order, Position, Survivors
from draftlab.core.verify.token import check_table, drawable, name_of
from draftlab.errors import UserError, fault_in


@dataclass(frozen=True)
class Stop:
    """With probability ``chance``, the first ``length`` tokens of sequence ``path`` are accepted, and the next token follows ``weights``."""

    chance: float
    path: int
    length: int
    weights: Float64[Tensor, " vocab"]


Stops = Callable[[TargetAlong, DraftAlong, Sequences], list[Stop]]


@dataclass(frozen=True)
class TreeVerifier:
    """A way to verify K sequences as one tree: all stops given the drafted tokens, from which distribution and sampler follow.

    It is lossless unless ``is_lossless`` is False.
    ``selected`` exists if one path is selected and then verified as a block: the joint probability that the path goes on with the written
    token and of how many drafts agree with it. Replay needs it (``docs/theory.md``, section 7). ``by_count``: the block's draft distribution
    depends on how many sequences share the path so far.
    """

    name: str
    drafting: Drafting
    stops: Stops
    selected: Survivors | None = None
    by_count: bool = True
    is_lossless: bool = True

    def __post_init__(self) -> None:
        check_drafting(self.drafting, f"verifier {self.name}: ")

    def transitions(self, position: Position, order: Order) -> Float64[Tensor, "positions drafts+1"]:
        """``P(the path goes on with y, m drafts are y) / q(y)`` at each position of a text; ``UserError`` where no path is selected."""
        if not self.is_lossless:
            raise UserError(f"{self.name} is not lossless", remedy="its texts are not the target's: decode live")
        if self.selected is None:
            raise UserError(f"{self.name} verifies whole trees, which replay does not support", remedy="decode live")
        at_target = position.at(position.target)[:, None]
        return torch.where(at_target > 0, self.selected(position, order) / at_target.where(at_target > 0, 1.0), 0.0)

    def distribution(
        self, target_probs: TargetAlong, draft_probs: DraftAlong, tokens: Sequences
    ) -> dict[tuple[int, ...], float]:
        """The exact distribution of the emitted tokens (the accepted tokens and the one after), given the drafted sequences.

        **Arguments:**
        - `target_probs`: the target's distribution after each prefix of each sequence, shape `(drafts, positions, vocab)`.
        - `draft_probs`: the draft's distribution, shape `(drafts, path, vocab)`.
        - `tokens`: the drafted ids, shape `(drafts, path)`.

        **Returns:** tuple of emitted token ids -> its probability.

        **Raises:** `UserError` if a table holds no distributions, or other ones after the same tokens, or if the tokens cannot have been drawn.
        """
        target_probs, draft_probs = check_sequences(target_probs, draft_probs, tokens, self.drafting)
        distribution: dict[tuple[int, ...], float] = defaultdict(float)
        for stop in self._stopped(target_probs, draft_probs, tokens):
            accepted = tuple(tokens[stop.path, : stop.length].tolist())
            weights = _weights(stop, target_probs)
            for token, chance in enumerate((stop.chance * weights / weights.sum()).tolist()):
                if chance > 0:
                    distribution[*accepted, token] += chance
        return dict(distribution)

    def _stopped(self, target: TargetAlong, draft: DraftAlong, tokens: Sequences) -> list[Stop]:
        """What ``stops`` returns; ``UserError`` if it is no list of stops along the drafted sequences."""
        stops = self.stops(target, draft, tokens)
        if not isinstance(stops, list) or {type(stop) for stop in stops} != {Stop}:
            items = sorted({name_of(stop) for stop in stops}) if isinstance(stops, list) else ()
            what = f"{self.name}: stops returned {name_of(stops)}" + (f" of {', '.join(items)}" if items else "")
            raise fault_in(self.stops, what, "return a list of Stop, with at least one")
        drafts, path_len = tokens.shape
        for stop in stops:
            is_inside = stop.path in range(drafts) and stop.length in range(path_len + 1)
            if not is_inside or not isinstance(stop.chance, float | int):
                what = f"{self.name}: a Stop has chance {stop.chance!r}, path {stop.path!r} and length {stop.length!r}"
                remedy = f"give a number, a path from 0 to {drafts - 1} and a length from 0 to {path_len}"
                raise fault_in(self.stops, what, remedy)
            check_table(self.stops, f"{self.name}: weights", stop.weights, target.shape[-1:], target.dtype)
        return stops

    def sample(
        self,
        target_probs: Float64[Tensor, "batch drafts positions vocab"],
        draft_probs: Float64[Tensor, "batch drafts path vocab"],
        tokens: Int64[Tensor, "batch drafts path"],
        generator: Generator,
        *,
        check: bool = True,
    ) -> Outcome:
        """Draw a stop of each row, and the token after it.

        **Arguments:**
        - `target_probs`, `draft_probs`, `tokens`: as for `distribution`, with a batch axis in front.
        - `generator`: draws the outcome.
        - `check`: if False, tables and tokens are not checked, which saves a pass over them.

        **Returns:** `path`, `length` and `token` of each row.
        """
        if check:
            target_probs, draft_probs = check_sequences(target_probs, draft_probs, tokens, self.drafting)
        drawn = []
        for given in zip(target_probs, draft_probs, tokens, strict=True):
            stops = self._stopped(*given)
            chances = torch.tensor([max(stop.chance, 0.0) for stop in stops], dtype=torch.float64, device=tokens.device)
            stop = stops[int(draw(chances, 1, generator))]
            drawn.append((stop.path, stop.length, int(draw(_weights(stop, given[0]), 1, generator))))
        return Outcome(*(torch.tensor(part, device=tokens.device) for part in zip(*drawn, strict=True)))


def branches(tokens: Sequences, depth: int, members: Sequence[int]) -> dict[int, list[int]]:
    """The next token after ``depth`` tokens that the sequences ``members`` share -> those that go on with it, in the order drafted."""
    found: dict[int, list[int]] = {}
    for member in members:
        found.setdefault(int(tokens[member, depth]), []).append(member)
    return found


def _weights(stop: Stop, target_probs: TargetAlong) -> Float64[Tensor, " vocab"]:
    return drawable(stop.weights[None], target_probs[stop.path, stop.length][None])[0]
