"""Rotary positions stretched to a longer context as in Llama 3.1 (rope type ``llama3``): in config.json by four numbers, in a GGUF file by divisors.

Free of numpy, because the plan of a run imports it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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

    def divisors(self, theta: float, dim: int) -> list[float]:
        """By what the frequencies theta^(-2j/dim) of a head of ``dim`` channels are divided.

        >>> [round(divisor, 2) for divisor in RopeScaling(8.0, 1.0, 4.0, 8192).divisors(500_000.0, 8)]
        [1.0, 1.0, 2.69, 8.0]
        """
        low, high = self.low_freq_factor, self.high_freq_factor
        turns = (self.original_max_position_embeddings / math.tau * theta ** (-j / dim) for j in range(0, dim, 2))
        kept = [min(max((turn - low) / (high - low), 0.0), 1.0) for turn in turns]
        return [1 / (share + (1 - share) / self.factor) for share in kept]


def scaling_of(divisors: Sequence[float], theta: float) -> RopeScaling | None:
    """The scaling that gives these divisors; None for another kind than Llama 3's.

    >>> scaling_of([1.0, 1.0, 2.6945, 8.0], 500_000.0).factor
    8.0
    """
    if not (min(divisors) >= 1 and math.isfinite(max(divisors))):
        return None
    scaling = RopeScaling(factor=max(divisors), **LLAMA_3)  # type: ignore[arg-type]
    pairs = zip(scaling.divisors(theta, 2 * len(divisors)), divisors, strict=True)
    is_the_same = all(math.isclose(ours, theirs, rel_tol=1e-4) for ours, theirs in pairs)
    return scaling if is_the_same else None
