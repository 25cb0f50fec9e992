"""Sampling without torch: the distributions of ``core.sampling``, and tokens drawn from them."""

import numpy as np
import pytest
import torch

from draftlab.core import sampling
from draftlab.core.sampling_numpy import FIRST_SORT, Sampling, draw, to_probs
from draftlab.errors import UserError

FILTERS = [
    Sampling(0.7),
    Sampling(1.0, top_k=1),
    Sampling(1.0, top_k=5),
    Sampling(1.0, top_k=10**6),
    Sampling(1.3, top_p=0.5),
    Sampling(1.0, top_p=0.999),
    Sampling(1.0, min_p=0.2),
    Sampling(0.9, top_k=40, top_p=0.8, min_p=0.05),
]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("shape", [(7,), (3, 50), (2, 5 * FIRST_SORT), (2, 20 * FIRST_SORT)])
def test_it_gives_the_distributions_of_torch(filters: Sampling, shape: tuple[int, ...]) -> None:
    logits = np.random.default_rng(0).normal(scale=2, size=shape).astype(np.float32)
    expected = sampling.to_probs(torch.from_numpy(logits), filters).numpy()
    found = to_probs(logits, filters)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=0)


@pytest.mark.parametrize("temperature", [1e-308, 5e-324])
def test_a_tiny_temperature_leaves_the_most_probable_token(temperature: float) -> None:
    logits = np.array([30.0, -np.inf, 3.0], np.float32)
    np.testing.assert_array_equal(to_probs(logits, Sampling(temperature)), [1.0, 0, 0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_logits_are_refused(value: float) -> None:
    with pytest.raises(UserError, match="logits hold NaN"):
        to_probs(np.array([0, value], np.float32), Sampling(1.0))


def test_a_token_of_weight_0_is_never_drawn() -> None:
    class Fixed:
        def __init__(self, value: float) -> None:
            self.value = value

        def random(self) -> float:
            return self.value

    assert [draw(np.array([0.0, 0.2, 0.8, 0.0]), Fixed(value)) for value in (0.0, 1.0)] == [1, 2]  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    drawn = np.bincount([draw(np.array([0.0, 1.0, 3.0]), rng) for _ in range(4000)], minlength=3) / 4000
    np.testing.assert_allclose(drawn, [0, 0.25, 0.75], atol=0.03)
