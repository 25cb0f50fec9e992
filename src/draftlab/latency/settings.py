"""Settings of a measurement on an inference engine. Free of torch: the Snakefile imports it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from draftlab.core.settings import Device, NonNegativeInt, Settings


class Engine(Settings):
    """How a pair runs: in llama.cpp with ``weights``, ``threads`` and ``gpu_layers`` on a GPU (-1: all), or in torch on ``device``.

    ``inflated_layers`` > 0 makes a small target cost as much as a large one (``latency.inflate``), with feed-forward parts
    ``inflated_ffn`` wide on ``inflated_widths`` times as many channels.
    """

    pair: str = Field("main", description="the pair whose target and drafts are used")
    backend: Literal["llama_cpp", "torch"] = "llama_cpp"
    device: Device = "cpu"
    inflated_layers: int = Field(0, ge=0)
    inflated_ffn: int = Field(0, ge=0)
    inflated_widths: Literal[1, 4, 16, 64] = 1
    weights: Literal["own", "f32", "f16", "bf16", "q8_0", "q4_0"] = Field(
        "own",
        description="own: as in the GGUF file that a model was made from (q8_0 for a draft beside it that has no such file), else f32",
    )
    threads: int = Field(gt=0, default=1)
    gpu_layers: int = Field(0, ge=-1)
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _runs_where_it_says(self) -> Engine:
        if self.device != "cpu" and self.backend != "torch":
            raise ValueError("device is for backend torch: llama.cpp takes gpu_layers")
        if self.gpu_layers and self.backend == "torch":
            raise ValueError("gpu_layers is for backend llama_cpp: torch takes a device")
        return self
