"""The polyhedral check of the optimum: all inequalities under which drafts can always be accepted, by double description."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import cdd
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Cone:
    """The cone of (target, masses of drafted sets) with acceptance 1: its facets, and how many are of the two expected kinds or of any other.

    A facet is a row with ``row @ (target, masses) >= 0``, up to the equality of both sums. ``sets`` are the sets of drafts.
    """

    dimension: int
    rays: int
    nonnegative: int
    subsets: int
    other: int
    sets: list[set[int]]
    facets: list[tuple[float, ...]]

    @property
    def inequalities(self) -> list[str]:
        """The facets as text, between target probabilities q and masses m of drafted sets."""
        names = [f"q{token + 1}" for token in range(self.dimension - len(self.sets))]
        names += ["m" + "".join(str(token + 1) for token in sorted(members)) for members in self.sets]
        lines = []
        for facet in self.facets:
            sides = [" + ".join(name for name, x in zip(names, facet, strict=True) if x * sign > 0) for sign in (1, -1)]
            lines.append(f"{sides[0]} >= {sides[1] or 0}")
        return sorted(lines, key=lambda line: (len(line), line))


def acceptance_cone(num_tokens: int, num_drafts: int) -> Cone:
    """The cone spanned by ``e_q(y) + e_m(S)`` for y in S, where S are the sets of at most K tokens (Khisti et al. 2025, App. D).

    The expected facets are ``m_S >= 0`` and ``q(H) >= sum of m_S over S inside H`` for every proper non-empty H: Theorem 2 for any K.
    """
    tokens = range(num_tokens)
    sets = [set(s) for size in range(1, min(num_tokens, num_drafts) + 1) for s in combinations(tokens, size)]
    dimension = num_tokens + len(sets)
    identity = np.eye(dimension)
    rays = [identity[y] + identity[num_tokens + i] for i, members in enumerate(sets) for y in sorted(members)]
    generators = cdd.matrix_from_array([[0.0, *ray] for ray in rays], rep_type=cdd.RepType.GENERATOR)
    inequalities = cdd.copy_inequalities(cdd.polyhedron_from_matrix(generators))
    facets = [np.array(row[1:]) for i, row in enumerate(inequalities.array) if i not in inequalities.lin_set]
    nonnegative = {tuple(identity[num_tokens + i]) for i in range(len(sets))}
    subsets = set()
    for size in range(1, num_tokens):
        for inside in combinations(tokens, size):
            row = np.zeros(dimension)
            row[list(inside)] = 1
            row[num_tokens:] = [-float(members <= set(inside)) for members in sets]
            subsets.add(tuple(row))
    kinds = [_canonical(facet, num_tokens) for facet in facets]
    return Cone(
        dimension=dimension,
        rays=len(rays),
        nonnegative=sum(kind in nonnegative for kind in kinds),
        subsets=sum(kind in subsets for kind in kinds),
        other=sum(kind not in nonnegative | subsets for kind in kinds),
        sets=sets,
        facets=kinds,
    )


def _canonical(facet: NDArray[np.float64], num_tokens: int) -> tuple[float, ...]:
    """The facet without its multiple of the equality ``sum q = sum m``, scaled: the smallest coefficient of q is 0, the largest of all is 1."""
    shift = facet[:num_tokens].min()
    moved = facet - shift * np.r_[np.ones(num_tokens), -np.ones(len(facet) - num_tokens)]
    return tuple(np.round(moved / np.abs(moved).max(), 9) + 0.0)
