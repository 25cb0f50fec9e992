"""Verifiers: lossless ways to choose among drafted tokens, by name.

Formulas in this package write q for the target's distribution (``target_probs``) and p for the draft's (``draft_probs``), as MDSS does; OSD writes
them the other way round. The K drafts of a position are ``x_1 .. x_K``; ``(z)_+`` is max(z, 0).

What is verified, the module of its interface, and the verifiers:

* K drafts of one position, ``token``: ``single``, ``specinfer``, ``rrs``, ``k_seq``, ``importance``, ``truncated``
  (``importance_truncated``), ``hybrid``, ``optimal``, ``greedy``, ``sampled`` (also for ``ranked`` drafts), ``gls``, ``sinkhorn``, and
  ``typical``, which is not lossless;
* one path of L tokens, ``path``: ``single_path`` in the same module, ``block``;
* K sequences token by token, ``sequence``: any verifier of one position;
* K sequences as one tree, ``tree``: ``traversal``, ``multipath`` (``greedy_block``, ``optimal_block``), ``transport``.

The best acceptance of any verifier is computed in ``optimum`` and checked in ``polyhedral``. ``joint`` enumerates drafts, ``acceptance`` averages
over them, and ``survivors`` counts the drafts that agree with a text. ``truncated_program`` solves the linear program of ``truncated``.

Sources: Leviathan et al. 2023 (arXiv 2211.17192), ``single``; Miao et al. 2024 (SpecInfer, 2305.09781), ``specinfer``; Sun et al. 2023
(SpecTr, 2310.15141), ``k_seq``; Jeon et al. 2024 (RSD, 2402.14160), ``rrs``; Khisti et al. 2025 (MDSS, 2410.18234), ``importance``,
``importance_truncated``, ``polyhedral``; Hu et al. 2025 (2502.18779), ``optimum``, ``greedy``; Sun et al. 2024 (SpecHub, 2411.05289),
``greedy`` with two drafts; Weng et al. 2025 (2505.12398), ``traversal``; 2602.16961, ``greedy_block``; Rowan et al. 2025 (2506.05632), ``gls``;
Sun et al. 2025 (2403.10444), ``block``, to which HSD (2601.05724) is equivalent; Cai et al. 2024 (Medusa, 2401.10774), ``typical``.
``docs/theory.md``, section 10, lists what is not implemented, and why.
"""

from __future__ import annotations

from dataclasses import replace

from draftlab.core.verify.block import block
from draftlab.core.verify.gls import gls
from draftlab.core.verify.greedy import greedy
from draftlab.core.verify.hybrid import hybrid
from draftlab.core.verify.importance import importance
from draftlab.core.verify.k_seq import k_seq
from draftlab.core.verify.multipath import greedy_block, optimal_block
from draftlab.core.verify.optimal import optimal
from draftlab.core.verify.path import PathVerifier, single_path
from draftlab.core.verify.rrs import rrs
from draftlab.core.verify.sampled import ranked, sampled
from draftlab.core.verify.single import single
from draftlab.core.verify.specinfer import specinfer
from draftlab.core.verify.token import TokenVerifier
from draftlab.core.verify.transport import transport
from draftlab.core.verify.traversal import traversal
from draftlab.core.verify.tree import TreeVerifier
from draftlab.core.verify.truncated import Truncation, importance_truncated, truncated
from draftlab.core.verify.truncated_program import DIRECT_LIMIT, Solver
from draftlab.errors import UserError
from draftlab.files.registries import is_own, own

TOKEN_VERIFIERS: dict[str, TokenVerifier] = {
    "single": single,
    "specinfer": specinfer,
    "k_seq": k_seq,
    "rrs": rrs,
    "importance": importance,
    "importance_truncated": importance_truncated,
    "hybrid": hybrid,
    "optimal": optimal,
    "greedy": greedy,
    "sampled": sampled,
    "ranked": ranked,
    "gls": gls,
}
"""Verifiers of one position."""

TREE_VERIFIERS: dict[str, TreeVerifier] = {
    "traversal": traversal,
    "greedy_block": greedy_block,
    "optimal_block": optimal_block,
    "transport": transport,
}
"""Verifiers of a tree."""

PATH_VERIFIERS: dict[str, PathVerifier] = {"single": single_path, "block": block}
"""Verifiers of one drafted path. The loop with one draft uses them, for all positions at once."""

VERIFIERS: dict[str, TokenVerifier | PathVerifier | TreeVerifier] = PATH_VERIFIERS | TREE_VERIFIERS | TOKEN_VERIFIERS
"""All of them; ``single`` is the verifier of one position."""


def _check_names() -> None:
    """A verifier copied from another one may still have its name, by which stages tell verifiers apart."""
    for registry in (TOKEN_VERIFIERS, TREE_VERIFIERS, PATH_VERIFIERS):
        for name, verifier in registry.items():
            if verifier.name != name:
                what = f"the verifier registered as {name!r} has the name {verifier.name!r}"
                raise UserError(what, file=__file__, remedy="give it one name in both places")


_check_names()


def token_verifier(name: str, lp_threshold: int = 5, alphabet: int = 0) -> TokenVerifier:
    """The token verifier of this name, or the user's own ``FILE.py:OBJECT``.

    ``importance_truncated`` solves a program over ``lp_threshold`` tokens and ranks ``alphabet`` (0: all).
    """
    if name == "importance_truncated":
        solver: Solver = "direct" if lp_threshold <= DIRECT_LIMIT else "highs"
        return truncated(Truncation(lp_threshold, alphabet or None, solver))
    if is_own(name):
        verifier: TokenVerifier = own(name, (), TokenVerifier)
        return replace(verifier, name=name)
    if name not in TOKEN_VERIFIERS:
        raise UserError(f"no token verifier named {name!r}", remedy=f"allowed: {', '.join(sorted(TOKEN_VERIFIERS))}")
    return TOKEN_VERIFIERS[name]


def any_verifier(name: str, lp_threshold: int = 5, alphabet: int = 0) -> TokenVerifier | PathVerifier | TreeVerifier:
    """The verifier of this name, or the user's own ``FILE.py:OBJECT``; ``single`` is the verifier of one position."""
    if is_own(name):
        verifier: TokenVerifier | PathVerifier | TreeVerifier = own(name, (), TokenVerifier, PathVerifier, TreeVerifier)
        return replace(verifier, name=name)
    others = VERIFIERS.keys() - TOKEN_VERIFIERS
    return VERIFIERS[name] if name in others else token_verifier(name, lp_threshold, alphabet)


def tail_of(name: str) -> PathVerifier | None:
    """The verifier of the rest of a path once only one sequence is left, perhaps the user's own; None for an empty name: token by token."""
    if not name:
        return None
    if is_own(name):
        verifier: PathVerifier = own(name, (), PathVerifier)
        return replace(verifier, name=name)
    if name not in PATH_VERIFIERS:
        raise UserError(f"no path verifier named {name!r}", remedy=f"allowed: {', '.join(PATH_VERIFIERS)}")
    return PATH_VERIFIERS[name]
