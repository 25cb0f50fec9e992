"""How long a block should be: drafts from every position of recorded greedy answers, and the blocks that any rule for the length gives.

At temperature 0 everything is known in advance: what the draft would propose after each start of an answer, how sure it would be of each token,
and how many of them would be accepted. A rule gives a length for every position, and the blocks follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64, Int64

from draftlab.engine.recording import TargetPass
from draftlab.errors import UserError
from draftlab.models import LanguageModel


@dataclass(frozen=True)
class Drafted:
    """At each answer position, one request after the other: how many tokens of a block that begins there are accepted, and how sure the draft is of each.

    The confidence is the probability of the draft's most probable token. Nothing is accepted beyond the end of the answer.
    """

    lengths: list[int]
    stands: Int64[np.ndarray, " positions"]
    confidence: Float64[np.ndarray, "positions depth"]

    @property
    def depth(self) -> int:
        """The longest block."""
        return int(self.confidence.shape[1])

    def upto(self, depth: int) -> Drafted:
        """The same where no block is longer than ``depth``."""
        return replace(self, confidence=self.confidence[:, :depth])

    def fixed(self, draft_len: int) -> Int64[np.ndarray, " positions"]:
        """The same length everywhere."""
        return np.full(len(self.stands), draft_len)

    def confident(self, least: float) -> Int64[np.ndarray, " positions"]:
        """As many tokens in a row as the draft gives a probability of at least ``least``."""
        return np.asarray((self.confidence >= least).cumprod(1).sum(1))

    def oracle(self) -> Int64[np.ndarray, " positions"]:
        """As many tokens as are accepted: what a rule that knew the answer would draft."""
        return self.stands


@dataclass(frozen=True)
class Blocks:
    """The blocks that a rule gives for some answers, by request: target calls by the number of tokens drafted for them (0, 1, ...), tokens
    accepted and judged, steps of the draft's model, tokens emitted, blocks of full length whose tokens are all accepted, and calls for which
    another number of tokens was drafted than for the call before."""

    calls: Int64[np.ndarray, "requests lengths"]
    accepted: Int64[np.ndarray, " requests"]
    judged: Int64[np.ndarray, " requests"]
    steps: Int64[np.ndarray, " requests"]
    emitted: Int64[np.ndarray, " requests"]
    whole: Int64[np.ndarray, " requests"]
    changes: Int64[np.ndarray, " requests"]

    @property
    def blocks(self) -> Int64[np.ndarray, " requests"]:
        """Target calls."""
        return np.asarray(self.calls.sum(1))

    @property
    def drafted(self) -> Int64[np.ndarray, " requests"]:
        """Drafted tokens."""
        return np.asarray(self.calls @ np.arange(self.calls.shape[1]))


@torch.inference_mode()
def draft_everywhere(draft: LanguageModel, recorded: TargetPass, depth: int) -> Drafted:
    """Draft ``depth`` tokens greedily after every start of every recorded answer; ``UserError`` for answers that were sampled."""
    if recorded.sampling.temperature:
        raise UserError("sampled answers have no fixed blocks", remedy="use answers that were decoded at temperature 0")
    decoder, stands, sure = draft.decoder(), list[np.ndarray](), list[np.ndarray]()
    for record in recorded.answers:
        prompt, answer = record.prompt_ids, record.answer_ids
        count, text = len(answer), [*prompt, *answer]
        cache, _ = decoder.prefill([text], depth)
        cache.take([0] * count)
        cache.crop([len(prompt) + place - 1 for place in range(count)])
        token = torch.tensor(text[len(prompt) - 1 : -1], device=draft.device)
        proposed, confidence = list[torch.Tensor](), list[torch.Tensor]()
        for _ in range(depth):
            logits = cache.extend(token[:, None])[:, 0].float()
            highest, token = logits.max(-1)
            known = (logits > -torch.inf).sum(-1) == 1  # prompt lookup has found it; a model is never quite as sure
            confidence.append((highest - logits.logsumexp(-1)).exp().clamp(max=1 - 1e-7).masked_fill(known, 1.0))
            proposed.append(token)
        # Beyond the end of the answer nothing agrees.
        expected = np.lib.stride_tricks.sliding_window_view(np.array([*answer, *[-1] * depth]), depth)[:count]
        agrees = torch.stack(proposed, 1).cpu().numpy() == expected
        stands.append(agrees.cumprod(1).sum(1))
        sure.append(torch.stack(confidence, 1).cpu().numpy().astype(np.float64))
    return Drafted(recorded.lengths, np.concatenate(stands), np.concatenate(sure))


def cut(drafted: Drafted, lengths: Int64[np.ndarray, " positions"], asks: bool = False) -> Blocks:
    """Cut the answers into blocks; each is as long as ``lengths`` says at the position where it begins.

    A step of the model is one token drafted with a confidence below 1 (prompt lookup takes none), and one more where the rule ``asks`` for
    a token that it then does not draft.
    """
    steps = (drafted.confidence < 1).cumsum(1)
    requests = len(drafted.lengths)
    calls = np.zeros((requests, drafted.depth + 1), dtype=np.int64)
    kept, judged, asked, whole, changes = np.zeros((5, requests), dtype=np.int64)
    begin = 0
    for request, length in enumerate(drafted.lengths):
        place, before = 0, None
        while place < length:
            at = begin + place
            wanted = int(lengths[at])
            accepted = min(wanted, int(drafted.stands[at]))
            looked = min(wanted + asks, drafted.depth)
            calls[request, wanted] += 1
            kept[request] += accepted
            judged[request] += min(accepted + 1, wanted)
            asked[request] += steps[at, looked - 1] if looked else 0
            whole[request] += accepted == drafted.depth
            changes[request] += before not in (None, wanted)
            before = wanted
            place += accepted + 1
        begin += length
    return Blocks(calls, kept, judged, asked, np.array(drafted.lengths, dtype=np.int64), whole, changes)
