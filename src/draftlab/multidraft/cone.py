"""The polyhedral check of the best acceptance (MDSS App. D), and the formula against a linear program on random distributions."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pandas as pd
import torch

from draftlab.core.verify.bound import optimum_by_lp, optimum_iid
from draftlab.core.verify.joint import joint_distribution
from draftlab.core.verify.polyhedral import Cone as Facets
from draftlab.core.verify.polyhedral import acceptance_cone

if TYPE_CHECKING:
    from draftlab.stages.cone import Settings as Cone

WRITTEN_OUT = 3
"""Facets are also written as text up to this many tokens."""


def cone(settings: Cone) -> pd.DataFrame:
    """One row per number of tokens and of drafts: the facets found, and how far formula and linear program are apart.

    Columns ``num_tokens, num_drafts, dimension, rays, nonnegative`` (facets m_S >= 0), ``subsets`` (facets q(H) >= m(sets inside H)),
    ``expected_subsets`` (2^n - 2), ``other``, ``cases, largest_difference`` and ``inequalities`` (in words, up to three tokens).
    """
    rows = []
    for tokens, drafts in itertools.product(settings.num_tokens, settings.num_drafts):
        found = acceptance_cone(tokens, drafts)
        counts = {key: getattr(found, key) for key in ("dimension", "rays", "nonnegative", "subsets", "other")}
        rows.append(
            {"num_tokens": tokens, "num_drafts": drafts}
            | counts
            | {
                "expected_subsets": 2**tokens - 2,
                "cases": settings.cases,
                "largest_difference": largest_difference(tokens, drafts, settings.cases, settings.seed),
                "inequalities": "; ".join(in_words(found, tokens)) if tokens <= WRITTEN_OUT else "",
            }
        )
    return pd.DataFrame(rows)


def largest_difference(num_tokens: int, num_drafts: int, cases: int, seed: int) -> float:
    """Largest difference between ``min_H 1 + q(H) - p(H)^K`` (Theorem 3) and the linear program over random distributions."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(cases, 2, num_tokens, dtype=torch.float64, generator=generator) ** 3
    distributions = weights / weights.sum(-1, keepdim=True)
    formula = optimum_iid(distributions[:, 0], distributions[:, 1], num_drafts).tolist()
    programs = (optimum_by_lp(q, joint_distribution(p.expand(num_drafts, -1), "iid")) for q, p in distributions)
    return float(max(abs(one - two) for one, two in zip(formula, programs, strict=True)))


def in_words(found: Facets, num_tokens: int) -> list[str]:
    """The facets as inequalities between target probabilities q and masses m of drafted sets."""
    names = [f"q{token + 1}" for token in range(num_tokens)]
    names += ["m" + "".join(str(token + 1) for token in sorted(members)) for members in found.sets]
    lines = []
    for facet in found.facets:
        sides = [" + ".join(name for name, x in zip(names, facet, strict=True) if x * sign > 0) for sign in (1, -1)]
        lines.append(f"{sides[0]} >= {sides[1] or 0}")
    return sorted(lines, key=lambda line: (len(line), line))
