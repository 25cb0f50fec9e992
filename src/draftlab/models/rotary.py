"""Rotary positions: a rotation of neighbouring pairs as one complex product, and the order of rows that makes pairs neighbours."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from jaxtyping import Complex, Float
from torch import Tensor

if TYPE_CHECKING:
    from draftlab.files.rope_scaling import RopeScaling
    from draftlab.models.llama import LlamaConfig


def rotation_table(config: LlamaConfig, device: torch.device) -> Complex[Tensor, "context half"]:
    """exp(i position theta^(-2j/dim)), in float64 until the end. A target and the drafts made of it share one: Llama 3.1's takes 67 MB."""
    return _table(config.rope_theta, config.rope_scaling, config.head_dim, config.max_position_embeddings, device)


@functools.cache
@torch.inference_mode(False)
def _table(
    theta: float, scaling: RopeScaling | None, dim: int, context: int, device: torch.device
) -> Complex[Tensor, "context half"]:
    """The table outlives the call: no inference tensor, training needs it."""
    frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if scaling is not None:
        frequencies /= torch.tensor(scaling.divisors(theta, dim), dtype=torch.float64)
    angles = torch.outer(torch.arange(context, dtype=torch.float64), frequencies)
    return torch.polar(torch.ones_like(angles), angles).to(device, torch.complex64)


def rotate(pairs: Float[Tensor, "*rows dim"], rotations: Complex[Tensor, "*rows half"]) -> Float[Tensor, "*rows dim"]:
    """Rotate each pair of neighbours: the product of two complex numbers, in float32."""
    turned = torch.view_as_complex(pairs.float().view(*pairs.shape[:-1], -1, 2)) * rotations
    return torch.view_as_real(turned).flatten(-2).to(pairs.dtype)


def rotate_in_place(pairs: Float[Tensor, "*rows dim"], rotations: Complex[Tensor, "*rows half"]) -> None:
    """``rotate``, without a second tensor where the type allows it."""
    if pairs.dtype == torch.float32:
        torch.view_as_complex(pairs.view(*pairs.shape[:-1], -1, 2)).mul_(rotations)
    else:
        pairs.copy_(rotate(pairs, rotations))


def together(weight: Float[Tensor, "rows ..."], dim: int) -> Float[Tensor, "rows ..."]:
    """Reorder the rows of each head so that the two halves that a rotation mixes lie side by side."""
    return weight.view(-1, 2, dim // 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def apart(weight: Float[Tensor, "rows ..."], dim: int) -> Float[Tensor, "rows ..."]:
    """The inverse of ``together``: the order of Hugging Face's checkpoints."""
    return weight.view(-1, dim // 2, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
