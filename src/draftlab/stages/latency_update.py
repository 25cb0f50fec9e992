"""What an update of the draft costs, compared with the requests between two updates (OSD, Table 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.errors import UserError
from draftlab.latency.settings import Engine
from draftlab.progress import progress
from draftlab.stages._inputs import TargetAndDraft
from draftlab.stages._stage import Bench, Facts, column, stage_of, timing

if TYPE_CHECKING:
    import pandas as pd

    from draftlab.latency.torch_backend import TorchBackend


class Settings(Engine):
    role: str = Field("draft", description="the draft that is updated: folder below models/")
    prompt: int = Field(gt=0, default=64, description="tokens of each prompt")
    generated: int = Field(gt=0, default=128, description="tokens of each answer")
    update_interval: int = Field(gt=0, default=8, description="requests between two updates, and in each update")
    blocks: int = Field(gt=0, description="number of measurements")


class Row:
    """One request and one update, one after the other."""

    block: int = column("the block of interleaved work, from 0")
    target_request_seconds: float = timing("the target's answer to one request, without reading its prompt")
    update_seconds: float = timing("an update of the draft")
    update_forward_seconds: float = timing("its forward pass and the loss")
    update_backward_seconds: float = timing("its backward pass")
    update_interval: int = column("requests between two updates, and in each update", "requests")
    draft: str = column("the draft that is updated: its folder below models/")


class Derived:
    interval_seconds: float = timing(
        "the target's answers to all requests between two updates, without reading their prompts"
    )


MEASURES = {
    "interval_over_update": Measure(
        "interval_seconds", "update_seconds", "seconds of the target between two updates over those of an update"
    ),
    "update_seconds": Measure("update_seconds", None, "seconds of an update", "s"),
    "target_request_seconds": Measure("target_request_seconds", None, "seconds of the target for a request", "s"),
    "interval_seconds": Measure("interval_seconds", None, "seconds of the target between two updates", "s"),
}


def run(settings: Settings, inputs: TargetAndDraft, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """``measure`` a pair in torch."""
    from draftlab.latency.pair import describe, open_pair
    from draftlab.latency.torch_backend import TorchBackend

    if settings.backend != "torch":
        raise UserError("llama.cpp does not train", remedy="set backend to torch")
    context = settings.prompt + settings.generated
    with open_pair(inputs.target, inputs.draft, settings=settings, context_length=context) as (target, draft):
        assert isinstance(target, TorchBackend)
        assert isinstance(draft, TorchBackend)
        return measure(target, draft, settings), describe(target, draft)


def measure(target: TorchBackend, draft: TorchBackend, settings: Settings) -> pd.DataFrame:
    """One row per block: seconds of one request on the target, and of one update of the draft on ``update_interval`` requests.

    An update is a forward pass, cross-entropy against the target's tokens at all answer positions, a backward pass, and a step of AdamW.
    """
    import numpy as np
    import pandas as pd
    import torch
    from torch.nn.functional import cross_entropy

    from draftlab.latency.loop import decode

    rng = np.random.default_rng(settings.seed)
    # AdamW's epsilon is 0 in f16, so a draft trains in f32, whatever it serves in.
    for weight in draft.model.parameters():
        weight.data = weight.data.float()
    optimizer = torch.optim.AdamW(draft.model.parameters(), lr=1e-5)
    tokens = min(target.vocab_size, draft.model.vocab_size)  # one of them may be padded further
    clock, rows = draft.clock(), []
    for block in progress(range(-1, settings.blocks), "updates"):
        shape = (settings.update_interval, settings.prompt + settings.generated)
        texts = rng.integers(0, tokens, shape).tolist()
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
            "draft": settings.role,
        }
        if block >= 0:  # the first pass warms up
            rows.append(row)
    return pd.DataFrame(rows)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of the target for all requests between two updates."""
    return rows.assign(interval_seconds=rows["target_request_seconds"] * rows["update_interval"])


STAGE = stage_of(__name__, inputs=TargetAndDraft, exclusive=True, needs_gpu_build=True)
