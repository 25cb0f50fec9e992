"""Experiments on several drafted tokens: exact acceptance on toy laws, and on probability pairs recorded from models."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from draftlab.errors import UserError
from draftlab.experiments import Acceptance
from draftlab.models import LanguageModel
from draftlab.records import Answer, atomic_path
from draftlab.sampling import Sampling, restrict, to_probs
from draftlab.verify import VERIFIERS
from draftlab.verify.token import TokenVerifier

PANELS = {"left": 1 / 3, "right": 1 / 6}


def region(num_drafts: Sequence[int], points: int) -> pd.DataFrame:
    """Acceptance of each scheme over the toy simplex of MDSS Fig. 2: draft uniform on three tokens, target ``(q1, q2, 1-q1-q2)``.

    Columns ``panel, num_drafts, q2, scheme, acceptance`` (the probability that the emitted token is among the drafts).
    """
    rows = []
    for panel, first in PANELS.items():
        second = torch.linspace(0, 1 - first, points, dtype=torch.float64)
        target = torch.stack([torch.full_like(second, first), second, (1 - first - second).clamp_min(0)], -1)
        for drafts in num_drafts:
            draft = torch.full((points, drafts, 3), 1 / 3, dtype=torch.float64)
            for name in ("optimal", "importance", "k_seq", "specinfer", "single"):
                verifier = _token_verifier(name)
                # With one draft per scheme that looks at one draft only, the other drafts do not exist.
                found = verifier.acceptance(target, draft[:, :1] if name == "single" else draft)
                rows += [
                    {"panel": panel, "num_drafts": drafts, "q2": q2, "scheme": name, "acceptance": value}
                    for q2, value in zip(second.tolist(), found.member.tolist(), strict=True)
                ]
    return pd.DataFrame(rows)


def record_pairs(
    target: LanguageModel,
    draft: LanguageModel,
    answers: Sequence[Answer],
    positions: int,
    out: Path,
) -> None:
    """Write the logits of target and draft at the first ``positions`` answer positions.

    The file holds ``target_logits`` and ``draft_logits`` [positions, vocab] (float32) and ``request`` [positions].
    """
    logits: dict[str, list[Tensor]] = {"target_logits": [], "draft_logits": []}
    owners: list[int] = []
    with torch.inference_mode():
        for number, answer in enumerate(answers):
            if len(owners) >= positions:
                break
            kept = answer.answer_ids[: positions - len(owners)]
            owners += [number] * len(kept)
            for name, model in (("target_logits", target), ("draft_logits", draft)):
                logits[name].append(model.answer_logits([answer.prompt_ids], [kept]).float().cpu())
    tensors = {name: torch.cat(parts).contiguous() for name, parts in logits.items()}
    with atomic_path(out) as temporary:
        save_file(tensors | {"request": torch.tensor(owners)}, temporary)


def acceptance(pairs: Path, settings: Acceptance) -> pd.DataFrame:
    """Exact acceptance of each scheme at recorded positions, summed per request.

    Columns ``draft_temperature, num_drafts, scheme, request, acceptance_sum`` (accepted before the residual draw),
    ``member_sum`` (the emitted token is among the drafts; empty where it has no closed form) and ``positions``.
    """
    with safe_open(pairs, "pt") as file:
        target_logits, draft_logits, request = (
            file.get_tensor(name) for name in ("target_logits", "draft_logits", "request")
        )
    target = to_probs(target_logits, Sampling(settings.target_temperature, settings.top_k, settings.top_p))
    frames = []
    for temperature, drafts in itertools.product(settings.draft_temperature, settings.num_drafts):
        draft = to_probs(draft_logits, Sampling(temperature, settings.top_k, settings.top_p))
        for name in settings.schemes:
            proc, member = _acceptance(_token_verifier(name), target, draft, 1 if name == "single" else drafts)
            sums = pd.DataFrame(
                {"request": request.numpy(), "acceptance_sum": proc, "member_sum": member, "positions": 1}
            )
            sums = sums.groupby("request", as_index=False).sum(min_count=1)
            frames.append(sums.assign(draft_temperature=temperature, num_drafts=drafts, scheme=name))
    return pd.concat(frames, ignore_index=True)


def _acceptance(
    verifier: TokenVerifier,
    target: Float[Tensor, "positions vocab"],
    draft: Float[Tensor, "positions vocab"],
    drafts: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Both acceptances at each position, in closed form where there is one; membership may have none (NaN)."""
    nothing = torch.zeros(len(target), 1, dtype=torch.int64)
    target, draft, _, _ = restrict(target, draft[:, None], nothing)
    draft = draft.expand(-1, drafts, -1)
    found = verifier.closed_form(target, draft) if verifier.closed_form else verifier.acceptance(target, draft)
    if bool(found.proc.isnan().any()):
        raise UserError(
            f"{verifier.name} has no exact acceptance at {drafts} drafts on {target.shape[-1]} tokens",
            remedy="lower num_drafts or top_k, or leave the scheme out",
        )
    return found.proc.numpy(), found.member.numpy()


def _token_verifier(name: str) -> TokenVerifier:
    verifier = VERIFIERS.get(name)
    if not isinstance(verifier, TokenVerifier):
        tokens = sorted(key for key, value in VERIFIERS.items() if isinstance(value, TokenVerifier))
        raise UserError(f"no token verifier named {name!r}", remedy=f"allowed: {', '.join(tokens)}")
    return verifier
