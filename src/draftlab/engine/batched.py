"""The loop's four verbs on batches of requests in torch: one target, and one or several drafts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Generator, Tensor

from draftlab.core.confident_tree import ConfidentTree
from draftlab.core.sampling import (
    DISTINCT,
    RANKED,
    Drafting,
    Sampling,
    draft_tokens,
    most_probable,
    ranked_tokens,
    to_probs,
)
from draftlab.core.tree import Tree
from draftlab.engine.confidence import grow, grown_tree
from draftlab.engine.loop import Verification, agreed
from draftlab.engine.policy import Policy, Proposal, verify_block
from draftlab.errors import UserError
from draftlab.models import Decoder, TokenIds
from draftlab.models.batching import pad_rows
from draftlab.models.llama_decoder import LlamaDecoder


class ModelRows:
    """The cache of one model, and the tokens of each request that it has not read yet.

    Each request has ``num_drafts`` rows, which are equal except for the current block.
    """

    def __init__(self, decoder: Decoder, prompts: TokenIds, num_drafts: int, room: int) -> None:
        self.cache, following = decoder.prefill(prompts, room)
        self.num_drafts, self.device = num_drafts, following.device
        if num_drafts > 1:
            self.cache.take([place for place in range(len(prompts)) for _ in range(num_drafts)])
        self.unread = [[token] for token in following.tolist()]
        self.begin = self.cache.lengths

    def read(self, tokens: Int64[Tensor, "batch drafts new"]) -> Float[Tensor, "batch drafts new+1 vocab"]:
        """Read the one unread token and the drafted tokens; return the logits after each."""
        self.begin = self.cache.lengths
        last = torch.tensor(self.unread, device=self.device)[:, None].expand(-1, self.num_drafts, -1)
        logits = self.cache.extend(torch.cat([last, tokens], -1).flatten(0, 1))
        return logits.view(*tokens.shape[:2], -1, logits.shape[-1])

    def catch_up(self) -> Float[Tensor, "rows vocab"]:
        """Read the unread tokens, one or more per request; return the logits after the last of them."""
        self.begin = self.cache.lengths
        counts = [len(tokens) for tokens in self.unread for _ in range(self.num_drafts)]
        tokens = pad_rows(self.unread).to(self.device)
        logits = self.cache.extend(tokens.repeat_interleave(self.num_drafts, 0) if self.num_drafts > 1 else tokens)
        width = tokens.shape[1]
        if min(counts) == width:
            return logits[:, -1]
        self.cache.crop([length - width + count for length, count in zip(self.cache.lengths, counts, strict=True)])
        last = torch.tensor(counts, device=self.device) - 1
        return logits[torch.arange(len(counts), device=self.device), last]

    def settle(self, verification: Verification, read: TokenIds | None = None) -> None:
        """Keep the accepted part of the block in all rows of a request. What this model has not read of it, and the new token, stay unread.

        ``read``: the tokens of the block that this model has read for each request, if they may differ from the accepted sequence.
        """
        if self.num_drafts > 1:
            winners = [
                p * self.num_drafts + path for p, path in enumerate(verification.path) for _ in range(self.num_drafts)
            ]
            self.cache.take(winners, since=self.begin)
        known = [self.begin[place * self.num_drafts] + len(tokens) for place, tokens in enumerate(self.unread)]
        lengths = []
        for place, accepted in enumerate(verification.accepted):
            same = accepted if read is None else agreed(read[place], verification.drafted[place][:accepted])
            length = min(known[place] + same, self.cache.lengths[place * self.num_drafts])
            unread = known[place] + accepted - length
            self.unread[place] = [*verification.drafted[place][accepted - unread : accepted], verification.token[place]]
            lengths += [length] * self.num_drafts
        self.cache.crop(lengths)

    def take(self, places: Sequence[int]) -> None:
        """Keep the requests at ``places``, in this order."""
        self.unread = [self.unread[place] for place in places]
        self.cache.take([place * self.num_drafts + draft for place in places for draft in range(self.num_drafts)])


class TreeReader:
    """A target that reads a tree of sequences in one row per request, each token of the tree once."""

    def __init__(self, decoder: LlamaDecoder, prompts: TokenIds, room: int) -> None:
        self.cache, self.unread = decoder.prefill(prompts, room)

    def read(self, tokens: Int64[Tensor, "batch drafts new"], tree: Tree) -> Float[Tensor, "batch drafts new+1 vocab"]:
        """Read the unread token and the ``tree`` below it, one for all requests or one for each; return the logits along each sequence."""
        batch = len(tokens)
        self.begin, self.paths = self.cache.lengths, tree.paths.expand(batch, -1, -1)
        nodes = tokens.flatten(1).gather(1, tree.token_index.expand(batch, -1))
        nodes = torch.cat([self.unread[:, None], nodes], -1)
        states = self.cache.states(nodes, tree)
        logits = self.cache.decoder.project(states).view(*nodes.shape, -1)
        self.states = states.view(*nodes.shape, -1)
        return logits[torch.arange(batch, device=nodes.device)[:, None, None], self.paths]

    def settle(self, verification: Verification) -> Float[Tensor, "batch width"]:
        """Keep the accepted path of the tree; the new token stays unread. Return the state from which the target chose it."""
        device = self.unread.device
        rows = torch.arange(len(verification.path), device=device)
        nodes = self.paths[rows, torch.tensor(verification.path, device=device)]
        self.cache.keep(self.begin, nodes, verification.accepted)
        self.unread = torch.tensor(verification.token, device=device)
        return self.states[rows, nodes[rows, torch.tensor(verification.accepted, device=device)]]

    def take(self, places: Sequence[int]) -> None:
        """Keep the requests at ``places``, in this order."""
        self.cache.take(places)
        self.unread = self.unread[list(places)]


class BatchedPair:
    """A target and one or several draft models (``writers``). The target reads all sequences at once, as a tree if it is our own Llama."""

    def __init__(
        self,
        decoder: Decoder,
        draft_decoders: Sequence[Decoder],
        prompts: TokenIds,
        draft_len: int,
        max_new_tokens: int,
        policy: Policy,
    ) -> None:
        self.draft_len, self.policy = draft_len, policy
        num_drafts, room = len(policy.draft_samplings), max_new_tokens + draft_len
        is_grown = isinstance(policy.tree, ConfidentTree)
        self.share = 1 if is_grown else num_drafts // len(draft_decoders)
        # Without a tree, all sequences, and those of one draft, branch at once.
        once = [1] * (draft_len - 1)
        self.apart, self.of_writer = Tree.of_widths([num_drafts, *once]), Tree.of_widths([self.share, *once])
        self.reader: TreeReader | ModelRows
        if (num_drafts > 1 or is_grown) and isinstance(decoder, LlamaDecoder):
            most = policy.tree.nodes if policy.tree else num_drafts * draft_len
            self.reader = TreeReader(decoder, prompts, room + 1 + most)
        elif is_grown:
            raise UserError(
                "this target cannot read a tree that differs from block to block", remedy="give a tree of one shape"
            )
        else:
            self.reader = ModelRows(decoder, prompts, num_drafts, room)
        # A draft that did not write the accepted sequence in its cache reads up to a whole block of it at once.
        room += draft_len
        self.writers = [ModelRows(draft_decoder, prompts, self.share, room) for draft_decoder in draft_decoders]

    def propose(self, left: Sequence[int]) -> Proposal:
        length, tree = min(self.draft_len, max(left)), self.policy.tree
        if isinstance(tree, ConfidentTree):
            return _grow(self.writers[0], length, self.policy, tree)
        proposals = [
            _propose(writer, self.policy.of_draft(number, self.share), length, self.policy, tree or self.of_writer)
            for number, writer in enumerate(self.writers)
        ]
        self.proposed = torch.cat([proposal.tokens for proposal in proposals], 1)
        probs = [proposal.distributions for proposal in proposals if proposal.distributions is not None]
        return Proposal(self.proposed, torch.cat(probs, 1) if probs else None, tree)

    def read(self, proposal: Proposal) -> Float[Tensor, "batch drafts positions vocab"]:
        if isinstance(self.reader, TreeReader):
            tree = proposal.tree or self.apart
            return self.reader.read(proposal.tokens, tree.merged(proposal.tokens))
        return self.reader.read(proposal.tokens)

    def verify(self, proposal: Proposal, reading: Float[Tensor, "batch drafts positions vocab"]) -> Verification:
        return verify_block(proposal, reading, self.policy)

    def settle(self, verification: Verification, kept: Sequence[int]) -> None:
        self.reader.settle(verification)
        for number, writer in enumerate(self.writers):
            writer.settle(verification, None if len(self.writers) == 1 else self.proposed[:, number].tolist())
        if 0 < len(kept) < len(verification.token):
            for model in (self.reader, *self.writers):
                model.take(kept)


def _grow(writer: ModelRows, length: int, policy: Policy, tree: ConfidentTree) -> Proposal:
    """The trees that one model is most confident of. Its cache keeps nothing of them, because its rows hold other texts at each depth."""
    logits = writer.catch_up()
    lengths = writer.cache.lengths
    sampling = RANKED if policy.is_greedy else policy.draft_samplings[0]
    levels = list(grow(writer.cache, logits, sampling, length, tree.width))
    beams = len(writer.cache.lengths) // len(lengths)
    writer.cache.take(range(0, beams * len(lengths), beams))
    writer.cache.crop(lengths)
    shape, tokens, distributions = grown_tree(levels, tree.nodes)
    return Proposal(tokens, None if policy.is_greedy else distributions, shape)


def _propose(writer: ModelRows, samplings: Sequence[Sampling], length: int, policy: Policy, tree: Tree) -> Proposal:
    """Draft ``length`` tokens for each sequence with one model; the sequences are those of the tree."""
    drafts, is_greedy = writer.num_drafts, policy.is_greedy
    logits = writer.catch_up()
    tokens: list[Tensor] = []
    distributions: list[Tensor] = []
    for depth in range(length):
        if depth:
            logits = writer.cache.extend(tokens[-1].view(-1, 1))[:, 0]
        if is_greedy and drafts == 1:
            tokens.append(most_probable(logits)[:, None])
            continue
        by_draft = logits.view(-1, drafts, logits.shape[-1])
        if is_greedy:
            probs = to_probs(by_draft, RANKED)
        elif len(set(samplings)) == 1:
            probs = to_probs(by_draft, samplings[0])
        else:
            probs = torch.stack([to_probs(by_draft[:, k], s) for k, s in enumerate(samplings)], 1)
        tokens.append(_draw(probs, tree, depth, policy.drafting, policy.generator))
        if not is_greedy:
            distributions.append(probs)
    drafted = torch.stack(tokens, -1)
    if policy.drafting in DISTINCT:
        drafted = _align_repeats(drafted, tree)
    return Proposal(drafted, torch.stack(distributions, 2) if distributions else None)


def _draw(
    probs: Float64[Tensor, "batch drafts vocab"],
    tree: Tree,
    depth: int,
    drafting: Drafting,
    generator: Generator | None,
) -> Int64[Tensor, "batch drafts"]:
    """Draw a token for each sequence. Children of one node are drawn jointly, as the verifier requires; different nodes independently."""
    if drafting == "ranked":
        return ranked_tokens(probs, tree.child_number[:, depth].to(probs.device))
    assert generator is not None
    parents = tree.drawn_by[:, depth - 1] if depth else torch.zeros_like(tree.drawn_by[:, 0])
    drawn = torch.zeros(probs.shape[:2], dtype=torch.int64, device=probs.device)
    families = [
        ((parents == parent) & tree.is_drawn[:, depth]).nonzero()[:, 0].tolist()
        for parent in sorted(set(parents.tolist()))
    ]
    only_children = [rows[0] for rows in families if len(rows) == 1]
    for rows in [only_children, *(rows for rows in families if len(rows) > 1)]:
        if rows:
            selected = probs if len(rows) == probs.shape[1] else probs[:, rows]
            how = "independent" if rows is only_children else drafting
            drawn[:, rows] = draft_tokens(selected, how, generator)
    return drawn[:, tree.drawn_by[:, depth].to(probs.device)]


def _align_repeats(tokens: Int64[Tensor, "batch drafts length"], tree: Tree) -> Int64[Tensor, "batch drafts length"]:
    """Let a child that repeats another child's token repeat its whole sequence; this occurs where fewer tokens than children are possible."""
    numbers = torch.arange(tokens.shape[1], device=tokens.device)
    for depth in range(tokens.shape[-1]):
        alike = (tokens[:, :, None, : depth + 1] == tokens[:, None, :, : depth + 1]).all(-1)
        earlier = alike.int().argmax(-1)
        leader = tree.drawn_by[:, depth].to(tokens.device)  # the sequence that drew the token for all that share it
        again = (earlier < numbers)[:, leader] & tree.exists[:, depth].to(tokens.device)
        tokens = tokens.gather(1, earlier[:, leader].where(again, numbers)[..., None].expand_as(tokens))
    return tokens
