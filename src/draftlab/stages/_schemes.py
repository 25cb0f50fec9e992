"""The names of verifiers that an experiment may use, read from the registries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from draftlab.files.registries import choice, names, own_parts

TOKENS, PATHS, TREES = (names("core.verify", f"{kind}_VERIFIERS") for kind in ("TOKEN", "PATH", "TREE"))
"""Verifiers of one position, of one path and of a tree."""

TAILS = tuple(name for name in PATHS if name not in TOKENS)
# A tail verifies drawn tokens, and ranked ones are not drawn.
WITH_TAIL = tuple(f"{name}+{tail}" for name in TOKENS if name != "ranked" for tail in TAILS)
LIVE = ("plain", *TOKENS, *TAILS, *TREES, *WITH_TAIL)
"""What the stages ``live`` and ``blocks`` know."""

if TYPE_CHECKING:
    Verifier = str
    Scheme = str
    LiveScheme = str
else:
    Verifier = choice(TOKENS + TREES, kinds=["TokenVerifier", "TreeVerifier"])
    Scheme = choice(TOKENS + names("stages.acceptance", "PATHS"), kinds=["TokenVerifier"])
    LiveScheme = choice(LIVE, kinds=["TokenVerifier", "PathVerifier", "TreeVerifier"], tails=TAILS)


REPLAYED_PATHS, REPLAYED_TREES = {"single", "block"}, {"greedy_block", "optimal_block"}


def is_counted(scheme: str) -> bool:
    """Whether the stage ``blocks`` counts this scheme along texts of the target; it decodes with every other one.

    By name, because the plan imports no torch; ``blocks.is_counted`` asks the verifier itself, and a test compares both.
    """
    name, _, tail = scheme.partition("+")
    return name in {*TOKENS, *REPLAYED_PATHS, *REPLAYED_TREES} and (not tail or tail in REPLAYED_PATHS)


def own_verifiers(settings: Any) -> list[str]:
    """The user's own verifiers, ``FILE.py:OBJECT``, that some settings compare."""
    return [name for scheme in getattr(settings, "schemes", []) for name in own_parts(scheme)]
