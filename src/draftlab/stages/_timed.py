"""Settings of stages that time learning beside decoding."""

from __future__ import annotations

from pydantic import Field

from draftlab.train.settings import Serving


class Timed(Serving):
    """Learning that is timed beside decoding; ``inflated_layers`` and ``inflated_ffn`` as for an ``Engine``."""

    requests: int = Field(gt=0)
    inflated_layers: int = Field(0, ge=0)
    inflated_ffn: int = Field(0, ge=0)
    temperature: float = Field(0.0, ge=0, le=0)
