"""Speed beside other implementations, ``draftlab bench ...``: contenders take turns in one process, their texts are compared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from draftlab.plan import Template
from draftlab.plan.scales import Count, Settings


class Turns(Settings):
    """How often every contender runs, after a turn that warms up: an interval needs two or more."""

    repeats: int = Field(default=4, ge=2)


class DecodeBench(Turns):
    """``bench decode``: a few requests at a fixed draft length."""

    template: Template = "vicuna_v1.1"
    requests: Count = 16
    draft_len: Count = 5
    max_new_tokens: Count = 64
    batch: Count = 8


class LlamaCppBench(Turns):
    """``bench llama-cpp``: a few requests at several draft lengths; the target is inflated (``draftlab.latency.inflate``)."""

    template: Template = "vicuna_short"
    requests: Count = 3
    draft_len: list[Count] = Field(default=[3, 5, 8], min_length=1)
    max_new_tokens: Count = 96
    inflated_layers: int = Field(default=6, ge=0)
    inflated_ffn: int = Field(default=8192, ge=0)
    inflated_widths: Literal[1, 4, 16, 64] = 4


class OnlineBench(Turns):
    """``bench online``: the first requests of a recorded stream, an update after every ``update_interval``."""

    requests: Count = 48
    update_interval: Count = 8
    learning_rate: float = Field(default=2e-3, gt=0)
    draft_len: Count = 5
    max_new_tokens: Count = 96
