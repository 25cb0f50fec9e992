"""Blocks of several drafted sequences along texts of the target, computed exactly, without sampling a draft.

``replay`` handles one draft. Here the state of a block is how many drafts of each group agree with the text so far. At each position the
verifier gives the distribution of how many survive (``core.verify.survivors``). A dynamic programme over depth and survivors then gives the
probability that the first i drafted tokens of a block are accepted, and blocks start as in ``replay``. All counts are conditional
expectations given the text, so their only noise is that of the texts. A path that is selected first and verified as a block
(``docs/theory.md``, section 7) has the same states; its tokens are accepted by the smallest of its running products of ratios.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from draftlab.core.sampling import RANKED, Sampling, restrict, to_probs
from draftlab.core.verify.path import PathVerifier
from draftlab.core.verify.survivors import Order, Position
from draftlab.core.verify.token import TokenVerifier
from draftlab.core.verify.tree import TreeVerifier
from draftlab.engine.replay import SingleVerifier, ahead, block_starts, places_in, prefix_acceptance
from draftlab.errors import UserError

AT_ONCE = 2**20
"""The most entries of a table of distributions in memory."""

State = tuple[int, ...]
"""How many drafts of each group still agree with the text."""


@dataclass(frozen=True)
class Texts:
    """Texts of the target, one after the other: at each position the target's distribution, the draft's logits, and the written token."""

    target_probs: Float64[Tensor, "positions vocab"]
    draft_logits: Float[Tensor, "positions vocab"]
    token: Int64[Tensor, " positions"]
    lengths: list[int]


@dataclass(frozen=True)
class Survival:
    """The probability of each next state, by position and state; ``ratio`` = draft / target at the written token, by group.

    ``by_path``: a path is selected first and verified as a whole. Entries are then multiplied by the selected token's probability over the
    target's. ``by_count``: it is verified against what it is given the numbers of drafts that shared it.
    """

    states: list[State]
    tables: Float64[np.ndarray, "positions states states"]
    ratio: Float64[np.ndarray, "groups positions"]
    by_path: bool = False
    by_count: bool = True


@dataclass(frozen=True)
class Blocks:
    """Expected counts of the blocks of each request, given its text, by the number of drafted tokens that they keep.

    ``stopped[r, i]``: blocks that keep exactly i tokens; ``emitted[r, i]``: the tokens that they emit; ``judged[r, i]``: blocks whose drafted
    token at depth i was judged; ``accepted[r, i]``: blocks whose drafted token at depth i was accepted. Block efficiency is
    ``emitted / stopped``, sums over sums.
    """

    stopped: Float64[np.ndarray, "requests lengths"]
    emitted: Float64[np.ndarray, "requests lengths"]
    judged: Float64[np.ndarray, "requests lengths"]
    accepted: Float64[np.ndarray, "requests lengths"]


def states_of(groups: Sequence[int], verifier: TokenVerifier | TreeVerifier) -> list[State]:
    """All possible numbers of survivors in these groups, none first; of distinct drafts, at most one survives."""
    if isinstance(verifier, TokenVerifier) and verifier.is_distinct:
        (count,) = groups
        return [(0,), (1,), (count,)] if count > 1 else [(0,), (1,)]
    return list(itertools.product(*(range(count + 1) for count in groups)))


def survival(
    verifiers: Sequence[TokenVerifier | TreeVerifier], texts: Texts, drafts: Sequence[Sampling], groups: Sequence[int]
) -> list[Survival]:
    """For each verifier, the distribution of how many drafts survive at each position.

    Distributions are computed once for all verifiers that share them, on parts of the positions. Positions with similar numbers of possible
    tokens form a part, because all of a part are padded to the longest. Greedy drafts are ranked as in live decoding.

    **Arguments:**
    - `verifiers`: one or more; each sees the groups in the given order.
    - `texts`: texts of the target.
    - `drafts`: how each group of drafts is sampled.
    - `groups`: how many drafts each has.

    **Returns:** one `Survival` for each verifier.

    **Raises:** `UserError` if a verifier needs drafts of one distribution and gets several.
    """
    for verifier in verifiers:
        if len(drafts) > 1 and verifier.drafting != "independent":
            remedy = "leave the scheme out, or give all drafts one temperature (no first_temperature)"
            raise UserError(f"{verifier.name} needs drafts of one distribution", remedy=remedy)
    own = [
        tuple(RANKED if verifier.drafting == "ranked" and draft.temperature == 0 else draft for draft in drafts)
        for verifier in verifiers
    ]
    found = {
        shared: iter(
            _survival([v for v, one in zip(verifiers, own, strict=True) if one == shared], texts, shared, groups)
        )
        for shared in dict.fromkeys(own)
    }
    return [next(found[shared]) for shared in own]


def _survival(
    verifiers: Sequence[TokenVerifier | TreeVerifier], texts: Texts, drafts: Sequence[Sampling], groups: Sequence[int]
) -> list[Survival]:
    """`survival` for verifiers whose drafts are sampled alike."""
    probs = torch.stack([to_probs(texts.draft_logits, sampling) for sampling in drafts], 1)
    token = texts.token[:, None]
    written = texts.target_probs.gather(-1, token)
    drafted = probs.gather(-1, token[:, None].expand(-1, len(drafts), -1))[..., 0]
    support = ((texts.target_probs > 0) | (probs > 0).any(1)).sum(-1)
    states_by_verifier = [states_of(groups, verifier) for verifier in verifiers]
    tables = [np.zeros((len(token), len(states), len(states))) for states in states_by_verifier]
    for rows in _parts(support):
        # Rounding can leave the written token in neither distribution; the block then ends.
        target, draft, columns, ids = restrict(
            texts.target_probs[rows], probs[rows], token[rows].repeat(1, len(drafts))
        )
        column = columns[:, 0].clamp_max(ids.shape[1] - 1)
        missing = (ids.gather(-1, column[:, None])[:, 0] != token[rows, 0]).cpu().numpy()
        position = Position(target, list(draft.unbind(1)), column)
        for verifier, states, table in zip(verifiers, states_by_verifier, tables, strict=True):
            part = _transitions(verifier, position, states)
            part[missing] = np.eye(len(states))[0]
            table[rows.cpu().numpy()] = part
    ratio = torch.where(written > 0, drafted / written, 0.0).T.cpu().numpy()
    return [
        Survival(states, table, ratio, isinstance(verifier, TreeVerifier), getattr(verifier, "by_count", True))
        for verifier, states, table in zip(verifiers, states_by_verifier, tables, strict=True)
    ]


def _parts(support: Int64[Tensor, " positions"]) -> Iterator[Int64[Tensor, " rows"]]:
    """Split the positions into parts of at most ``AT_ONCE`` entries, with similar supports in each."""
    sizes, order = support.sort()
    begin = 0
    while begin < len(order):
        entries = sizes[begin:] * torch.arange(1, len(order) - begin + 1, device=sizes.device)
        end = begin + max(1, int((entries <= AT_ONCE).sum()))
        end = min(end, int((sizes <= 1.5 * sizes[begin] + 8).sum()))
        yield order[begin:end]
        begin = end


def _transitions(
    verifier: TokenVerifier | TreeVerifier, position: Position, states: list[State]
) -> Float64[np.ndarray, "positions states states"]:
    """The probability of each next state, by position and state; the state without drafts leads only to itself."""
    place = {state: number for number, state in enumerate(states)}
    table = np.zeros((len(position.token), len(states), len(states)))
    table[:, 0, 0] = 1.0
    for state, number in place.items():
        if not any(state):
            continue
        order: Order = tuple(group for group, count in enumerate(state) for _ in range(count))
        probs = verifier.transitions(position, order).cpu().numpy()
        survivors = itertools.product(*(range(size) for size in probs.shape[1:]))
        table[:, number, [place[after] for after in survivors]] = probs.reshape(len(probs), -1)
    return table


def blocks(
    survived: Survival,
    lengths: Sequence[int],
    groups: Sequence[int],
    draft_len: int,
    tail: PathVerifier | None = None,
    widths: Sequence[int] | None = None,
) -> Blocks:
    """Cut the texts into blocks of sequences of ``draft_len`` tokens; nothing is drafted beyond the end of a text.

    **Arguments:**
    - `survived`: an element of the result of `survival`.
    - `lengths`: number of positions of each text.
    - `groups`: how many sequences each group starts with.
    - `draft_len`: tokens of a sequence, at least 1.
    - `tail`: verifies the rest of a sequence once it is the only one left; None: token by token.
    - `widths`: into how many branches each sequence of a single group divides at each depth: (K, 1, 1) means K sequences, (1, K, 1) means
      K sequences that share their first token; None: the sequences of `groups`, which share nothing.

    **Returns:** expected counts of each text.
    """
    length = np.asarray(lengths, dtype=np.int64)
    return count_blocks(_prefix_acceptance(survived, length, groups, draft_len, tail, widths), length)


def _prefix_acceptance(
    survived: Survival,
    lengths: Int64[np.ndarray, " requests"],
    groups: Sequence[int],
    draft_len: int,
    tail: PathVerifier | None = None,
    widths: Sequence[int] | None = None,
) -> Float64[np.ndarray, "positions lengths"]:
    """Entry [t, i]: probability that the first i drafted tokens of a block that starts at t are accepted, given the text."""
    if draft_len < 1:
        raise UserError(f"draft_len is {draft_len}", remedy="draft at least 1 token")
    if widths is not None and (len(widths) != draft_len or len(groups) > 1):
        raise UserError(f"widths {list(widths)} for {draft_len} tokens", remedy="give one per token, and one group")
    if widths is not None and tail is not None:
        raise UserError("a tail verifies no sequence that branches", remedy="give either widths or a tail")
    request, left = places_in(lengths)
    accepted = np.zeros((len(request), draft_len + 1))
    accepted[:, 0] = 1.0
    if survived.by_path:
        _add_along_path(survived, accepted, groups[0], draft_len)
    else:
        _add_along_survivors(survived, accepted, left, groups, draft_len, tail, widths)
    return np.where(np.arange(draft_len + 1) <= left[:, None], accepted, 0.0)


def _add_along_survivors(
    survived: Survival,
    accepted: Float64[np.ndarray, "positions lengths"],
    left: Int64[np.ndarray, " positions"],
    groups: Sequence[int],
    draft_len: int,
    tail: PathVerifier | None,
    widths: Sequence[int] | None,
) -> None:
    """Fill ``accepted`` by following the states of a block; a sequence that is left alone goes to the ``tail``, if there is one."""
    alone = [(survived.states.index(tuple(row)), g) for g, row in enumerate(np.eye(len(groups), dtype=int).tolist())]
    here = np.zeros((len(accepted), len(survived.states)))
    here[:, survived.states.index((1,) if widths else tuple(groups))] = 1.0
    for depth in range(draft_len):
        if widths:
            here = _branch(here, survived.states, widths[depth])
        if tail is not None:
            for state, group in alone:
                rest = prefix_acceptance(survived.ratio[group], left, draft_len - depth, tail.name)
                moved = here[:, state].copy()
                here[:, state] = 0.0
                for more in range(1, draft_len - depth + 1):
                    accepted[:, depth + more] += moved * ahead(rest[:, more], depth)
        step = np.concatenate([survived.tables[depth:], np.zeros_like(survived.tables[:depth])])
        here = np.einsum("ts,tsr->tr", here, step)
        here[:, 0] = 0.0
        accepted[:, depth + 1] += here.sum(-1)


def is_replayed(tail: PathVerifier | None) -> bool:
    """Whether replay knows this verifier of the rest of a sequence."""
    return tail is None or tail.name in get_args(SingleVerifier)


def _branch(
    here: Float64[np.ndarray, "positions states"], states: list[State], width: int
) -> Float64[np.ndarray, "positions states"]:
    """Let each sequence that agrees with the text branch into ``width`` sequences."""
    branched = np.zeros_like(here)
    for number, (count,) in enumerate(states):
        if here[:, number].any():
            branched[:, states.index((count * width,))] += here[:, number]
    return branched


def _add_along_path(
    survived: Survival, accepted: Float64[np.ndarray, "positions lengths"], drafts: int, draft_len: int
) -> None:
    """Fill ``accepted`` with ``E min_(j <= i) prod_(l <= j) r(y_l) / q(y_l)``, capped at 1, over the number of drafts that share the path; or, if the
    path is verified without regard to this number, with the minimum of the mean products."""
    if not survived.by_count:
        weights, least = np.zeros(survived.tables.shape[:2]), np.ones(len(accepted))
        weights[:, drafts] = 1.0
        for depth in range(draft_len):
            step = np.concatenate([survived.tables[depth:], np.zeros_like(survived.tables[:depth])])
            weights = np.einsum("tk,tkm->tm", weights[:, 1:], step[:, 1:])
            least = np.minimum(least, weights[:, 1:].sum(-1))
            accepted[:, depth + 1] += least
        return
    ratio = survived.tables[..., 1:].sum(-1)
    share = survived.tables / np.where(ratio > 0, ratio, 1.0)[..., None]

    def descend(depth: int, drafts: int, chance: Float64[np.ndarray, " positions"], path: Any, least: Any) -> None:
        path = path * ahead(ratio[:, drafts], depth)
        least = np.minimum(least, path)
        accepted[:, depth + 1] += chance * least
        for after in range(1, drafts + 1) if depth + 1 < draft_len else ():
            descend(depth + 1, after, chance * ahead(share[:, drafts, after], depth), path, least)

    descend(0, drafts, *np.ones((3, len(accepted))))


LEVELS = np.linspace(0.05, 1, 20)
"""Sizes of token sets whose tangent bounds what K drafts can reach."""


def ceiling(
    survived: Survival,
    best: Float64[np.ndarray, " positions"],
    lengths: Sequence[int],
    num_drafts: int,
    draft_len: int,
) -> Blocks:
    """An upper bound on the tokens that any verifier of K i.i.d. sequences emits, on average at the blocks of ``survived``; and these blocks.

    A prefix x of i tokens is one of K i.i.d. draws with probability at most ``min_H 1 + q(H) - p(H)^K`` over sets of prefixes (``optimum_iid``
    again), and one that does not end the text with at most ``min_H 1 + q(H and no end) - p(H)^K`` over sets that contain all ends. Since
    ``p^K >= K c^(K-1) p - (K-1) c^K`` for any c, ``1 + (K-1) c^K - l + E_q [no end] min(1, l p(x)/q(x))`` with ``l = K c^(K-1)`` is a bound that texts
    of the target estimate without bias. For each depth and each of five classes of ``best``, the best c of ``LEVELS`` (or ``best`` itself, at
    the first depth) is chosen, for each half of the requests on the other half, since a choice on the same texts would make the bound too low.

    **Arguments:**
    - `best`: the best acceptance of K drafts at each position (``optimum_iid``); it bounds the first token of a block.
    """
    length = np.asarray(lengths, dtype=np.int64)
    request, left = places_in(length)
    starts = block_starts(_prefix_acceptance(survived, length, (num_drafts,), draft_len), length)
    classes = np.digitize(best, np.quantile(best, [0.2, 0.4, 0.6, 0.8]))
    half = 2 * classes + request % 2  # class i has the halves 2i and 2i + 1
    slope = num_drafts * LEVELS ** (num_drafts - 1)  # l
    fixed = 1 + (num_drafts - 1) * LEVELS**num_drafts - slope  # 1 + (K-1) c^K - l
    emitted, ratio = np.ones((2, len(left)))  # ratio: p(x)/q(x)
    for depth in range(draft_len):
        ratio = ratio * ahead(survived.ratio[0], depth)
        no_end = left > depth + 1
        bound = fixed + np.minimum(1, slope * ratio[:, None]) * no_end[:, None]
        if depth == 0:
            bound = np.column_stack([bound, best])
        for number in range(10):
            rows, other = half == number, half == number ^ 1
            level = (starts[other] @ bound[other]).argmin() if other.any() else -1
            emitted[rows] += bound[rows, level]
    none = np.zeros((len(length), 1))
    sums = [np.bincount(request, weights, minlength=len(length))[:, None] for weights in (starts, starts * emitted)]
    return Blocks(stopped=sums[0], emitted=sums[1], judged=none, accepted=none)


def count_blocks(accepted: Float64[np.ndarray, "positions lengths"], lengths: Int64[np.ndarray, " requests"]) -> Blocks:
    """Count blocks, given the probability that the first i drafted tokens of a block at each position are accepted."""
    request, left = places_in(lengths)
    kept = np.arange(accepted.shape[1])
    accepted = np.where(kept <= left[:, None], accepted, 0.0)
    weighted = block_starts(accepted, lengths)[:, None] * accepted
    stopped = weighted - np.pad(weighted[:, 1:], ((0, 0), (0, 1)))
    none = np.zeros((len(request), 1))

    def per_request(values: Float64[np.ndarray, "positions lengths"]) -> Float64[np.ndarray, "requests lengths"]:
        columns = [np.bincount(request, column, minlength=len(lengths)) for column in values.T]
        return np.stack(columns, 1)

    return Blocks(
        stopped=per_request(stopped),
        emitted=per_request(stopped * np.minimum(kept + 1, left[:, None])),
        judged=per_request(np.concatenate([weighted[:, :-1] * (left[:, None] > kept[:-1]), none], 1)),
        accepted=per_request(np.concatenate([weighted[:, 1:], none], 1)),
    )
