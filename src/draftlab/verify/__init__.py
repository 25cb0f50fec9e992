"""Verifiers: lossless ways to choose among drafted tokens, by name."""

from __future__ import annotations

from draftlab.verify.greedy import greedy
from draftlab.verify.k_seq import k_seq
from draftlab.verify.optimal import optimal
from draftlab.verify.path import PathVerifier, single_path
from draftlab.verify.single import single
from draftlab.verify.specinfer import rrs, specinfer
from draftlab.verify.token import TokenVerifier

VERIFIERS: dict[str, TokenVerifier | PathVerifier] = {
    "single": single,
    "specinfer": specinfer,
    "k_seq": k_seq,
    "rrs": rrs,
    "optimal": optimal,
    "greedy": greedy,
}

PATH_VERIFIERS: dict[str, PathVerifier] = {"single": single_path}
"""Verifiers of one drafted path: the loop with one draft uses them, all positions at once."""
