"""Blocks of several drafted sequences along texts of the target: exactly, without a sampled draft.

``replay`` knows one draft; here the state of a block is how many drafts of each group agree with the text so far. At each position of a block
the verifier says how many of them survive (``core.verify.survivors``), and a dynamic programme over depth and survivors gives the
probability that the first i drafted tokens of a block that starts there stand. The rest is ``replay``'s: the distribution of block starts. All counts
are conditional expectations given the text, so their only noise is that of the texts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from draftlab.core.sampling import Sampling, restrict, to_probs
from draftlab.core.verify.path import PathVerifier
from draftlab.core.verify.survivors import Order, Position
from draftlab.core.verify.token import TokenVerifier
from draftlab.engine.replay import SingleVerifier, ahead, places_in, stands_of, starts_of
from draftlab.errors import UserError

AT_ONCE = 2**20
"""The most entries of a table of distributions that are held at once."""

State = tuple[int, ...]
"""How many drafts of each group still agree with the text."""


@dataclass(frozen=True)
class Texts:
    """Positions of the target's texts, one text after the other: the distributions that it wrote them by, the draft's logits, and the tokens."""

    target_probs: Float64[Tensor, "positions vocab"]
    draft_logits: Float[Tensor, "positions vocab"]
    token: Int64[Tensor, " positions"]
    lengths: list[int]


@dataclass(frozen=True)
class Survival:
    """Of each position and state, the probability of each state after it; ``ratio`` = draft / target at the written token, by group."""

    states: list[State]
    tables: Float64[np.ndarray, "positions states states"]
    ratio: Float64[np.ndarray, "groups positions"]


@dataclass(frozen=True)
class Blocks:
    """The blocks of each request by the number of drafted tokens that they keep, as expected counts given its text.

    ``stopped[r, i]``: blocks that keep exactly i; ``emitted[r, i]``: the tokens they emit; ``judged[r, i]``: blocks whose drafted token at
    depth i was judged; ``accepted[r, i]``: of these it stands. Block efficiency is ``emitted / stopped``, sums over sums.
    """

    stopped: Float64[np.ndarray, "requests lengths"]
    emitted: Float64[np.ndarray, "requests lengths"]
    judged: Float64[np.ndarray, "requests lengths"]
    accepted: Float64[np.ndarray, "requests lengths"]


def states_of(groups: Sequence[int], verifier: TokenVerifier) -> list[State]:
    """Every number of survivors that drafts of these groups may come to, nobody first; of distinct drafts one survives at most."""
    if verifier.is_distinct:
        (count,) = groups
        return [(0,), (1,), (count,)] if count > 1 else [(0,), (1,)]
    return list(itertools.product(*(range(count + 1) for count in groups)))


def survival(
    verifiers: Sequence[TokenVerifier], texts: Texts, drafts: Sequence[Sampling], groups: Sequence[int]
) -> list[Survival]:
    """Let each verifier say how many drafts survive at each position.

    **Arguments:**
    - `drafts`: how each group of drafts is sampled, `groups`: how many drafts it has; the verifier sees the groups in this order.

    The distributions are worked out once for all verifiers, a part of the positions at a time, those with few possible tokens first: all of a
    part are padded to the most that one of them has.
    """
    probs = torch.stack([to_probs(texts.draft_logits, own) for own in drafts], 1)
    token = texts.token[:, None]
    written = texts.target_probs.gather(-1, token)
    drafted = probs.gather(-1, token[:, None].expand(-1, len(drafts), -1))[..., 0]
    support = ((texts.target_probs > 0) | (probs > 0).any(1)).sum(-1)
    every = [states_of(groups, verifier) for verifier in verifiers]
    tables = [np.zeros((len(token), len(states), len(states))) for states in every]
    for rows in _parts(support):
        # The text's own token may be in neither distribution (float32 on two ways): it is then written nowhere, and the block ends.
        kept, own, columns, ids = restrict(texts.target_probs[rows], probs[rows], token[rows].repeat(1, len(drafts)))
        column = columns[:, 0].clamp_max(ids.shape[1] - 1)
        missing = (ids.gather(-1, column[:, None])[:, 0] != token[rows, 0]).cpu().numpy()
        position = Position(kept, list(own.unbind(1)), column)
        for verifier, states, table in zip(verifiers, every, tables, strict=True):
            found = _tables(verifier, position, states)
            found[missing] = np.eye(len(states))[0]
            table[rows.cpu().numpy()] = found
    ratio = torch.where(written > 0, drafted / written, 0.0).T.cpu().numpy()
    return [Survival(states, table, ratio) for states, table in zip(every, tables, strict=True)]


def _parts(support: Int64[Tensor, " positions"]) -> Iterator[Int64[Tensor, " rows"]]:
    """Positions in parts of about ``AT_ONCE`` entries and of like support."""
    sizes, order = support.sort()
    begin = 0
    while begin < len(order):
        end = begin + int(
            (sizes[begin:] * torch.arange(1, len(order) - begin + 1, device=sizes.device) <= AT_ONCE).sum()
        )
        end = min(max(end, begin + 1), int((sizes <= 1.5 * sizes[begin] + 8).sum()))
        yield order[begin:end]
        begin = end


def _tables(
    verifier: TokenVerifier, position: Position, states: list[State]
) -> Float64[np.ndarray, "positions states states"]:
    place = {state: number for number, state in enumerate(states)}
    table = np.zeros((len(position.token), len(states), len(states)))
    table[:, 0, 0] = 1.0
    for state, number in place.items():
        if not any(state):
            continue
        order: Order = tuple(group for group, count in enumerate(state) for _ in range(count))
        found = verifier.transitions(position, order).cpu().numpy()
        survivors = itertools.product(*(range(size) for size in found.shape[1:]))
        table[:, number, [place[after] for after in survivors]] = found.reshape(len(found), -1)
    return table


def blocks(
    found: Survival, lengths: Sequence[int], groups: Sequence[int], draft_len: int, tail: PathVerifier | None = None
) -> Blocks:
    """Cut the texts into blocks of sequences of ``draft_len`` tokens; ``groups`` says how many sequences each group starts with.

    ``tail`` verifies what is left of a sequence once it is the only one. An answer ends where its text ends: nothing is drafted past it.
    """
    if draft_len < 1:
        raise UserError(f"draft_len is {draft_len}", remedy="draft at least 1 token")
    length = np.asarray(lengths, dtype=np.int64)
    request, left = places_in(length)
    start = found.states.index(tuple(groups))
    alone = [(found.states.index(tuple(row)), g) for g, row in enumerate(np.eye(len(groups), dtype=int).tolist())]
    kind: SingleVerifier = "block" if tail is not None and tail.name == "block" else "single"
    stands = np.zeros((len(request), draft_len + 1))
    stands[:, 0] = 1.0
    here = np.zeros((len(request), len(found.states)))
    here[:, start] = 1.0
    for depth in range(draft_len):
        if tail is not None:
            for state, group in alone:
                rest = stands_of(found.ratio[group], left, draft_len - depth, kind)
                moved = here[:, state].copy()
                here[:, state] = 0.0
                for more in range(1, draft_len - depth + 1):
                    stands[:, depth + more] += moved * ahead(rest[:, more], depth)
        step = np.concatenate([found.tables[depth:], np.zeros_like(found.tables[:depth])])
        here = np.einsum("ts,tsr->tr", here, step)
        here[:, 0] = 0.0
        stands[:, depth + 1] += here.sum(-1)
    for depth in range(draft_len):
        stands[left <= depth, depth + 1] = 0.0
    return _count(stands, length, request, left)


def _count(
    stands: Float64[np.ndarray, "positions lengths"],
    lengths: Int64[np.ndarray, " requests"],
    request: Int64[np.ndarray, " positions"],
    left: Int64[np.ndarray, " positions"],
) -> Blocks:
    weighted = starts_of(stands, lengths)[:, None] * stands
    kept = np.arange(stands.shape[1])
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
