"""Token by token: what a draft proposes, what of it the target accepts, and what the target writes (OSD, Fig. 7 and Table 6)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from draftlab.models import LanguageModel
from draftlab.replay import Agreement, TargetPass, walk


@torch.inference_mode()
def token_counts(draft: LanguageModel, answers: TargetPass, draft_len: int, batch_size: int = 16) -> pd.DataFrame:
    """Rows ``request, token, proposed, accepted, generated``, those that are not all zero, for greedy drafting.

    ``proposed``: drafted at a visited position; ``accepted`` of those; ``generated``: written in the answer, whoever wrote it. Precision
    is accepted / proposed, recall accepted / generated, summed over requests.
    """
    frames = []
    for start in range(0, len(answers.answers), batch_size):
        records = answers.answers[start : start + batch_size]
        logits = draft.answer_logits([r.prompt_ids for r in records], [r.answer_ids for r in records])
        drafted = logits.argmax(-1).cpu().numpy()
        written = np.array([token for record in records for token in record.answer_ids])
        lengths = [len(record.answer_ids) for record in records]
        flags = (drafted == written).astype(float)
        visited = walk(Agreement(lengths, flags, flags, flags), draft_len).reached > 0.5
        request = np.repeat(np.arange(start, start + len(records)), lengths)
        parts = {
            "proposed": (drafted, visited),
            "accepted": (drafted, visited & (flags > 0.5)),
            "generated": (written, flags >= 0),
        }
        frames += [
            pd.DataFrame({"request": request[chosen], "token": token[chosen], "what": name})
            for name, (token, chosen) in parts.items()
        ]
    counted = pd.concat(frames).groupby(["request", "token"])["what"].value_counts().unstack(fill_value=0)
    return counted.reindex(columns=["proposed", "accepted", "generated"], fill_value=0).reset_index()
