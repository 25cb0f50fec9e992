"""The base class of all settings in files and on command lines, and the types of their fields."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import tyro
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Count = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
SEEDS = 1 << 32
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]
"""Numpy takes no seed below 0, torch none of more than 64 bits, and some seeds are multiplied first."""
Share = Annotated[float, Field(ge=0, le=1)]
ShareBelow1 = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]
TopP = Annotated[
    float, Field(gt=0, le=1, description="probability mass of the most probable tokens that are kept; 1: all of it")
]
InflatedLayers = Annotated[
    int, Field(ge=0, description="least layers of the target: a smaller one is padded, to cost as much as a large one")
]
InflatedFfn = Annotated[
    int, Field(ge=0, description="least width of its feed-forward parts, which are padded likewise")
]
Dataset = str
PairName = Annotated[str, Field(description="the pair from which an experiment takes its target and drafts")]
Device = Literal["cpu", "cuda"]
TorchDevice = Annotated[Device, Field(description="where torch computes; in a run, the scale sets it")]
Dtype = Literal["float32", "bfloat16", "float16", "fast"]
"""``fast``: bfloat16 on a GPU and on a CPU with instructions for it, else float32."""
Template = Literal["vicuna_v1.1", "vicuna_short", "plain", "own", "rendered"]
"""``rendered``: prompts are in the target's chat template already, so that their special tokens are no text."""
T = TypeVar("T")
Distinct = Annotated[list[T], AfterValidator(lambda values: [*dict.fromkeys(values)])]
"""Values to compare: one that is named twice is measured, and counted, once."""
Flat = Annotated[T, tyro.conf.arg(name="")]
"""Settings whose fields each become a flag."""


class Settings(BaseModel):
    """Base of every model of settings: frozen; an unknown key and a number that is not finite are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
