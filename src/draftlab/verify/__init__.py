"""Verifiers: lossless ways to choose among drafted tokens, by name."""

from __future__ import annotations

from draftlab.verify.block import block
from draftlab.verify.greedy import greedy
from draftlab.verify.hybrid import hybrid
from draftlab.verify.importance import importance
from draftlab.verify.k_seq import k_seq
from draftlab.verify.optimal import optimal
from draftlab.verify.path import PathVerifier, single_path
from draftlab.verify.single import single
from draftlab.verify.specinfer import rrs, specinfer
from draftlab.verify.token import TokenVerifier
from draftlab.verify.truncated import importance_truncated

VERIFIERS: dict[str, TokenVerifier | PathVerifier] = {
    "single": single,
    "specinfer": specinfer,
    "k_seq": k_seq,
    "rrs": rrs,
    "importance": importance,
    "importance_truncated": importance_truncated,
    "hybrid": hybrid,
    "optimal": optimal,
    "greedy": greedy,
    "block": block,
}

PATH_VERIFIERS: dict[str, PathVerifier] = {"single": single_path, "block": block}
"""Verifiers of one drafted path: the loop with one draft uses them, all positions at once."""
