"""Rotary positions stretched to a longer context as in Llama 3.1 (rope type ``llama3``): in config.json by four numbers, in a GGUF file by divisors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What all released models of this kind share: Llama 3.1 and 3.3 have a ``factor`` of 8, Llama 3.2 one of 32."""


@dataclass(frozen=True)
class RopeScaling:
    """The fields of ``rope_scaling`` in a Hugging Face config.

    A frequency that turns more than ``high_freq_factor`` times within the original context stays as it is. One that turns less than
    ``low_freq_factor`` times is divided by ``factor``. Those between are interpolated.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def divisors(self, theta: float, dim: int) -> Float64[np.ndarray, " half"]:
        """By what the frequencies theta^(-2j/dim) of a head of ``dim`` channels are divided.

        >>> RopeScaling(8.0, 1.0, 4.0, 8192).divisors(500_000.0, 8).round(2).tolist()
        [1.0, 1.0, 2.69, 8.0]
        """
        turns = self.original_max_position_embeddings / math.tau * theta ** (-np.arange(0, dim, 2) / dim)
        low, high = self.low_freq_factor, self.high_freq_factor
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return np.asarray(1 / (kept + (1 - kept) / self.factor))


def scaling_of(divisors: Sequence[float], theta: float) -> RopeScaling | None:
    """The scaling that gives these divisors; None for another kind than Llama 3's.

    >>> scaling_of([1.0, 1.0, 2.6945, 8.0], 500_000.0).factor
    8.0
    """
    if not (min(divisors) >= 1 and math.isfinite(max(divisors))):
        return None
    scaling = RopeScaling(factor=max(divisors), **LLAMA_3)  # type: ignore[arg-type]
    is_the_same = np.allclose(scaling.divisors(theta, 2 * len(divisors)), divisors, rtol=1e-4)
    return scaling if is_the_same else None
