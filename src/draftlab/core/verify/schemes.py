"""The verifiers that settings name: of one position, of a tree, and of the rest of a path."""

from __future__ import annotations

from draftlab.core.verify import PATH_VERIFIERS, VERIFIERS
from draftlab.core.verify.path import PathVerifier
from draftlab.core.verify.token import TokenVerifier
from draftlab.core.verify.tree import TreeVerifier
from draftlab.core.verify.truncated import Truncation, truncated
from draftlab.core.verify.truncated_program import DIRECT_LIMIT, Solver
from draftlab.errors import UserError


def token_verifier(name: str, lp_threshold: int = 5, alphabet: int = 0) -> TokenVerifier:
    """The token verifier of this name. ``importance_truncated`` solves a program over ``lp_threshold`` tokens and ranks ``alphabet`` (0: all)."""
    if name == "importance_truncated":
        solver: Solver = "direct" if lp_threshold <= DIRECT_LIMIT else "highs"
        return truncated(Truncation(lp_threshold, alphabet or None, solver))
    verifier = VERIFIERS.get(name)
    if not isinstance(verifier, TokenVerifier):
        tokens = sorted(key for key, value in VERIFIERS.items() if isinstance(value, TokenVerifier))
        raise UserError(f"no token verifier named {name!r}", remedy=f"allowed: {', '.join(tokens)}")
    return verifier


def any_verifier(name: str, lp_threshold: int = 5, alphabet: int = 0) -> TokenVerifier | TreeVerifier:
    """The verifier of this name, of one position or of a tree."""
    verifier = VERIFIERS.get(name)
    return verifier if isinstance(verifier, TreeVerifier) else token_verifier(name, lp_threshold, alphabet)


def tail_of(name: str) -> PathVerifier | None:
    """The verifier of the rest of a path once only one sequence is left; None for an empty name: token by token."""
    if not name:
        return None
    if name not in PATH_VERIFIERS:
        raise UserError(f"no path verifier named {name!r}", remedy=f"allowed: {', '.join(PATH_VERIFIERS)}")
    return PATH_VERIFIERS[name]
