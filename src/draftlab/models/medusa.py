"""Medusa-1: heads on a frozen target that predict the tokens after the next one (Cai et al. 2024).

The target is its own draft. From the last layer's state of a token, the target's projection predicts the next token, and head d predicts
the d-th token after that. For the training of drafts, the heads are a model that makes one prediction per head at each position.
"""

from __future__ import annotations

import copy
from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftlab.core.tree import Tree
from draftlab.errors import UserError
from draftlab.models import LanguageModel, TokenIds
from draftlab.models.batching import pad_requests
from draftlab.models.llama import Llama
from draftlab.models.on_target import OnTarget, as_llama


class Medusa(OnTarget[Llama]):
    """Head d: ``logits = V_d (x + SiLU(W_d x + b_d))``, where x is the target's normed state.

    W and b start at 0, V at the target's projection. ``tree`` sets how many tokens of each head a block tries.
    """

    def __init__(self, model: LanguageModel, tree: Tree) -> None:
        target = as_llama(model)
        super().__init__(target)
        heads, (vocab, width) = tree.depth, target.vocab_weight.shape
        self.tree = tree
        with torch.device(target.device):
            self.mix = nn.Parameter(torch.zeros(heads, width, width))
            self.bias = nn.Parameter(torch.zeros(heads, 1, width))
            self.project = nn.Parameter(target.vocab_weight.detach().float().expand(heads, vocab, width).clone())

    def on(self, target: LanguageModel) -> Self:
        """The same heads on another target, whose states must mean the same."""
        other = copy.copy(self)
        other.shared = (as_llama(target),)
        return other

    def forward(self, states: Float[Tensor, "heads rows width"]) -> Float[Tensor, "heads rows vocab"]:
        """Logits of head d from ``states[d]``."""
        mixed = torch.baddbmm(self.bias, states, self.mix.transpose(1, 2))
        logits: Tensor = torch.bmm(states + F.silu(mixed), self.project.transpose(1, 2))
        return logits

    def guess(self, states: Float[Tensor, "rows width"]) -> Float[Tensor, "rows heads vocab"]:
        """Logits of all heads at the same states: head d predicts the d-th token after the next one."""
        return self.forward(states.float().expand(len(self.mix), *states.shape)).transpose(0, 1)

    def answer_logits(
        self, prompts: TokenIds, answers: TokenIds, where: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "heads positions vocab"]:
        """Logits of each head for each answer token; head d reads a state d tokens before the one that the target's projection reads."""
        heads = len(self.mix)
        if (short := min(map(len, prompts), default=heads + 1)) <= heads:
            what = f"a prompt has {short} tokens, but {heads} heads look further back"
            raise UserError(what, remedy="use longer prompts")
        tokens, positions = pad_requests(prompts, answers, self.context_length, where)
        back = positions - torch.arange(1, heads + 1)[:, None]
        with torch.no_grad():
            states = self.target.states(tokens.to(self.device), back.flatten().to(self.device)).float()
        return self.forward(states.view(heads, len(positions), -1))
