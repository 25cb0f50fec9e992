"""What an update of the draft costs against the requests between two updates (OSD, Table 9)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import cross_entropy

from draftlab.errors import UserError
from draftlab.latency.loop import decode
from draftlab.latency.pair import describe, open_pair
from draftlab.latency.torch_backend import TorchBackend

if TYPE_CHECKING:
    from draftlab.stages.latency_update import Settings as LatencyUpdate


def latency_update(settings: LatencyUpdate, target: Path, draft: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows of ``measure_update`` for a pair in torch, and the run's description."""
    if settings.backend != "torch":
        raise UserError("llama.cpp does not train", remedy="set backend to torch")
    context = settings.prompt + settings.generated
    with open_pair(target, draft, settings=settings, context_length=context) as (big, small):
        assert isinstance(big, TorchBackend)
        assert isinstance(small, TorchBackend)
        return measure_update(big, small, settings), describe(big, small)


def measure_update(target: TorchBackend, draft: TorchBackend, settings: LatencyUpdate) -> pd.DataFrame:
    """One row per block: seconds of one request on the target, and of one update of the draft on ``update_interval`` of
    them: forward, backward and AdamW on all answer positions, cross-entropy against the target's token; ``draft`` names it."""
    rng = np.random.default_rng(settings.seed)
    for weight in draft.model.parameters():  # AdamW's epsilon is 0 in f16: a draft trains in f32, whatever it serves in
        weight.data = weight.data.float()
    optimizer = torch.optim.AdamW(draft.model.parameters(), lr=1e-5)
    clock, rows = draft.clock(), []
    for block in range(-1, settings.blocks):
        shape = (settings.update_interval, settings.prompt + settings.generated)
        texts = rng.integers(0, target.vocab_size, shape).tolist()
        target.trim(0)
        answered = decode(target, texts[0][: settings.prompt], settings.generated)
        started = clock()
        logits = draft.model.answer_logits(
            [text[: settings.prompt] for text in texts], [text[settings.prompt :] for text in texts]
        )
        labels = torch.tensor([token for text in texts for token in text[settings.prompt :]], device=logits.device)
        loss = cross_entropy(logits.float(), labels)
        loss.item()  # waits for the GPU
        forwarded = clock()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        first = next(draft.model.parameters())
        assert first.grad is not None
        first.grad.flatten()[0].item()
        returned = clock()
        optimizer.step()
        first.flatten()[0].item()
        row = {
            "block": block,
            "target_request_seconds": answered.seconds,
            "update_seconds": clock() - started,
            "update_forward_seconds": forwarded - started,
            "update_backward_seconds": returned - forwarded,
            "update_interval": settings.update_interval,
            "draft": settings.draft_model,
        }
        if block >= 0:  # the first pass warms up
            rows.append(row)
    return pd.DataFrame(rows)
