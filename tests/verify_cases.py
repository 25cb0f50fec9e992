"""What the tests of verifiers share: random small distributions of several families, and printed values."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

FIGURE_2 = [  # MDSS, two drafts uniform on three tokens: panel, q2, optimal, K-SEQ, SpecInfer
    ("left", 0.05, 0.938889, 0.847036, 0.811111),
    ("left", 0.144444, 1, 0.910714, 0.874074),
    ("left", 0.238889, 1, 0.966534, 0.937037),
    ("left", 1 / 3, 1, 1, 1),
    ("right", 0.05, 0.772222, 0.724849, 0.700000),
    ("right", 0.172222, 0.894444, 0.815428, 0.781481),
    ("right", 0.294444, 1, 0.899904, 0.862963),
    ("right", 0.416667, 1, 0.962475, 0.944444),
]


def random_distribution(vocab: int, generator: Generator) -> Tensor:
    """One distribution of a random family: diffuse, peaked, with zeros and ties, near a point mass, or over fourteen decades."""
    weights = torch.rand(vocab, dtype=torch.float64, generator=generator)
    family = int(torch.randint(7, (1,), generator=generator))
    if family == 1:
        weights = -weights.log()
    elif family == 2:  # zeros
        weights = weights * (torch.rand(vocab, generator=generator) < 0.6)
    elif family == 3:
        weights = weights**30
    elif family == 4:  # near a point mass
        weights = weights * 1e-13
        weights[int(torch.randint(vocab, (1,), generator=generator))] = 1.0
    elif family == 5:  # ties and zeros
        weights = (weights * 4).floor()
    elif family == 6:  # fourteen decades
        weights = 10 ** (-14 * weights)
    if weights.sum() == 0:
        weights[0] = 1.0
    return weights / weights.sum()


def random_pairs(count: int, seed: int, smallest: int = 2, largest: int = 6) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of target and draft distribution over the same small vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        vocab = int(torch.randint(smallest, largest + 1, (1,), generator=generator))
        yield random_distribution(vocab, generator), random_distribution(vocab, generator)


def random_distributions(*shape: int, seed: int) -> Tensor:
    """Distributions along the last axis, moderately peaked."""
    weights = torch.rand(*shape, dtype=torch.float64, generator=Generator().manual_seed(seed)) ** 2
    return weights / weights.sum(-1, keepdim=True)
