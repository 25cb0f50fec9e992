"""Settings of a measurement on an inference engine. Free of torch: the Snakefile imports it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from draftlab.core.settings import Device, InflatedFfn, InflatedLayers, PairName, Seed, Settings


class Engine(Settings):
    """How a pair runs on an inference engine. The ``inflated`` settings pad a small target to the cost of a large one; its answers stay the same
    (``latency.inflate``).
    """

    pair: PairName = "main"
    backend: Literal["llama_cpp", "torch"] = Field("llama_cpp", description="the inference engine")
    device: Device = Field("cpu", description="where torch computes; llama_cpp has gpu_layers instead")
    inflated_layers: InflatedLayers = 0
    inflated_ffn: InflatedFfn = 0
    inflated_widths: Literal[1, 4, 16, 64] = Field(
        1, description="how many times as many channels the padded target has"
    )
    weights: Literal["own", "f32", "f16", "bf16", "q8_0", "q4_0"] = Field(
        "own",
        description="type of the weights; own: as in the GGUF file that a model was made from (q8_0 for a draft beside it that has no such file), else f32",
    )
    threads: int = Field(gt=0, default=1, description="CPU threads of the engine")
    gpu_layers: int = Field(0, ge=-1, description="layers that llama.cpp runs on the GPU; -1: all")
    seed: Seed = Field(0, description="seed of random texts, orders and draws")

    @model_validator(mode="after")
    def _runs_where_it_says(self) -> Engine:
        if self.device != "cpu" and self.backend != "torch":
            raise ValueError("device is for backend torch: llama.cpp takes gpu_layers")
        if self.gpu_layers and self.backend == "torch":
            raise ValueError("gpu_layers is for backend llama_cpp: torch takes a device")
        return self
