"""Counts and a view token by token: drafted, accepted, and written by the target (OSD, Fig. 7 and Table 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Int

from draftlab.core.sampling import most_probable
from draftlab.engine.answers import Answer
from draftlab.engine.recording import TargetPass, load_pass
from draftlab.engine.replay import Agreement, walk
from draftlab.files.json_files import write_json
from draftlab.models import LanguageModel, Tokenizer, load_model, load_tokenizer
from draftlab.models.released_heads import ReleasedHead

PART = "\ufffd"
"""What a tokenizer writes for the first bytes of a character."""
AT_ONCE = 16
"""Requests in one forward pass."""


@dataclass(frozen=True)
class Proposals:
    """Greedy drafting along some answers, one after the other: drafted and written tokens, and whether a position was judged."""

    drafted: Int[np.ndarray, " positions"]
    written: Int[np.ndarray, " positions"]
    visited: Bool[np.ndarray, " positions"]
    lengths: list[int]

    @property
    def accepted(self) -> Bool[np.ndarray, " positions"]:
        """Whether the drafted token was accepted."""
        return np.asarray(self.visited & (self.drafted == self.written))


@torch.inference_mode()
def propose(draft: LanguageModel, records: Sequence[Answer], draft_len: int) -> Proposals:
    """Draft greedily at every position of recorded answers; blocks of ``draft_len`` visit some of them."""
    logits = draft.answer_logits([r.prompt_ids for r in records], [r.answer_ids for r in records])
    drafted = most_probable(logits).cpu().numpy()
    written = np.array([token for record in records for token in record.answer_ids])
    lengths = [len(record.answer_ids) for record in records]
    flags = (drafted == written).astype(float)
    visited = walk(Agreement(lengths, flags, flags, flags), draft_len).reached > 0.5
    return Proposals(drafted, written, visited, lengths)


def token_counts(draft: LanguageModel, answers: TargetPass, draft_len: int) -> pd.DataFrame:
    """How often each token of a request's text was ``proposed``, ``accepted`` and ``generated``, with greedy drafting.

    ``proposed``: drafted at a visited position; ``accepted``: proposed and accepted; ``generated``: in the answer, drafted or not. Precision
    is accepted / proposed, recall accepted / generated, summed over requests.
    """
    frames = []
    for start in range(0, len(answers.answers), AT_ONCE):
        records = answers.answers[start : start + AT_ONCE]
        proposals = propose(draft, records, draft_len)
        request = np.repeat(np.arange(start, start + len(records)), proposals.lengths)
        parts = {
            "proposed": (proposals.drafted, proposals.visited),
            "accepted": (proposals.drafted, proposals.accepted),
            "generated": (proposals.written, np.ones_like(proposals.visited)),
        }
        frames += [
            pd.DataFrame({"request_id": request[chosen], "token": token[chosen], "what": name})
            for name, (token, chosen) in parts.items()
        ]
    counted = pd.concat(frames).groupby(["request_id", "token"])["what"].value_counts().unstack(fill_value=0)
    return counted.reindex(columns=["proposed", "accepted", "generated"], fill_value=0).reset_index()


def token_view(
    before: LanguageModel, after: LanguageModel, answers: TargetPass, tokenizer: Tokenizer, draft_len: int
) -> dict[str, Any]:
    """One request of greedy ``answers``, token by token, with two drafts: the request with the median gain in accepted tokens.

    Each side is a list of ``token`` and ``kind``: drafted and ``accepted``, drafted and ``rejected``, or written by the ``target``.
    """
    drafts = {"before": before, "after": after}
    proposals = {
        name: [propose(draft, [record], draft_len) for record in answers.answers] for name, draft in drafts.items()
    }
    accepted = {name: [int(p.accepted.sum()) for p in by_request] for name, by_request in proposals.items()}
    gain = np.subtract(accepted["after"], accepted["before"])
    chosen = int(np.argsort(gain, kind="stable")[len(gain) // 2])
    record = answers.answers[chosen]
    sides = {name: _kinds(by_request[chosen], tokenizer) for name, by_request in proposals.items()}
    return {"request_id": record.id, "prompt": tokenizer.decode(record.prompt_ids), "draft_len": draft_len, **sides}


def _kinds(proposals: Proposals, tokenizer: Tokenizer) -> list[dict[str, str]]:
    """The tokens of one answer in reading order; a rejected token comes before the token that the target wrote instead.

    A character of several tokens is shown with its last one.
    """
    rows, begin = [], 0
    positions = zip(proposals.drafted, proposals.written, proposals.visited, strict=True)
    for place, (drafted, written, visited) in enumerate(positions):
        kinds = [("accepted", drafted)] if drafted == written else [("rejected", drafted), ("target", written)]
        before = proposals.written[:place].tolist()
        for kind, token in kinds if visited else [("target", written)]:
            # Decoded alone, a token loses the space before it in some tokenizers.
            text = tokenizer.decode([*before, int(token)])
            if kind != "rejected" and place + 1 < len(proposals.written):
                text = text.rstrip(PART)
            rows.append({"token": text[begin:], "kind": kind})
        begin = len(text)
    return rows


def write_view(*, before: Path, after: Path, answers: Path, dataset: str, draft_len: int, out: Path) -> None:
    """Write the accepted and rejected tokens of one request with two drafts, for the report; null for released heads, which need the target.

    **Arguments:**
    - `before`: the folder of the draft before distillation
    - `after`: the folder of the draft after it
    - `answers`: the folder of the target's recorded answers, to requests of one dataset
    - `dataset`: the name of that dataset, for the report
    - `draft_len`: tokens drafted per call of the target
    - `out`: the JSON file to write
    """
    drafts = load_model(before), load_model(after)
    if any(isinstance(draft, ReleasedHead) for draft in drafts):
        write_json(out, None)
        return
    view = token_view(*drafts, load_pass(answers), load_tokenizer(after), draft_len)
    write_json(out, {"dataset": dataset, **view})
