"""Matrix products and attention, as fast as possible for the training of small models on a CPU.

MKL does not use AVX-512 on AMD's processors: on one core of a Zen 5, oneDNN computes 230 GFLOP/s in float32 and MKL 105. torch passes a float32
product to oneDNN if it may round to bfloat16. oneDNN rounds only on processors with AMX, where MKL is used instead; elsewhere the product is
exact float32. Attention that stores its weights takes a fifth to two thirds of the time of torch's, which computes them again in the backward
pass.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from draftlab.core.settings import Dtype

mkldnn: Any = torch.backends.mkldnn  # oneDNN, by its former name

LEAST = 3 << 18
"""Multiply-adds from which oneDNN is faster; a smaller product costs more to start than it saves."""


def linear(
    rows: Float[Tensor, "*rows width"],
    weight: Float[Tensor, "out width"],
    bias: Float[Tensor, " out"] | None = None,
) -> Float[Tensor, "*rows out"]:
    """x W^T + b, as ``torch.nn.functional.linear``.

    >>> linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[11.]])
    """
    large = rows.numel() * weight.shape[0] >= LEAST
    if not large or torch.is_autocast_enabled("cpu") or not _gains(rows, weight):
        return F.linear(rows, weight, bias)
    product = cast(Tensor, _Product.apply(rows, weight))  # type: ignore[no-untyped-call]
    return product if bias is None else product + bias


LONGEST = 512
"""Tokens up to which attention stores its weights; with more tokens, torch's saves memory."""


def causal_attention(
    query: Float[Tensor, "batch heads len dim"],
    key: Float[Tensor, "batch kv len dim"],
    value: Float[Tensor, "batch kv len dim"],
) -> Float[Tensor, "batch heads len dim"]:
    """softmax(q k^T / sqrt(dim)) v, where each token sees itself and the tokens before it (Vaswani et al., 2017, Eq. 1).

    Several heads may share a key and a value.

    >>> one = torch.ones(1, 1, 2, 2)
    >>> causal_attention(one, one, one).flatten()
    tensor([1., 1., 1., 1.])
    """
    learns = torch.is_grad_enabled() and query.device.type == "cpu" and query.shape == key.shape
    if learns and query.shape[-2] <= LONGEST:
        return cast(Tensor, _Attention.apply(query, key, value))  # type: ignore[no-untyped-call]
    shared = query.shape != key.shape
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=shared)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scale, length = query.shape[-1] ** -0.5, query.shape[-2]
        future = torch.full((length, length), -torch.inf, dtype=query.dtype).triu_(1)
        with torch.autocast("cpu", enabled=False), by_onednn(query):
            weights = (query * scale @ key.transpose(-1, -2)).add_(future).softmax(-1)
            seen: Tensor = weights @ value
        context.save_for_backward(query, key, value, weights)
        return seen

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, weights = context.saved_tensors
        (gradient,) = gradients
        with by_onednn(query):
            of_weights = gradient @ value.transpose(-1, -2)
            of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            of_scores *= query.shape[-1] ** -0.5
            return of_scores @ key, of_scores.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ gradient


@functools.cache
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies float32 matrices faster than MKL, and in float32: AVX-512 without AMX."""
    has = torch.cpu.get_capabilities()
    return bool(mkldnn.is_available() and has.get("avx512_f") and not has.get("amx_tile"))


@functools.cache
def has_fast_bfloat16(device: str) -> bool:
    """Whether products in bfloat16 are faster than in float32: on a GPU, and on a CPU with instructions for them."""
    return device != "cpu" or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def number_type(dtype: Dtype, device: str) -> Dtype:
    """The type that ``dtype`` stands for on this device: ``fast`` is bfloat16 where products in it are fast, elsewhere float32."""
    if dtype != "fast":
        return dtype
    return "bfloat16" if has_fast_bfloat16(device) else "float32"


def _gains(*tensors: Tensor) -> bool:
    """Whether oneDNN is faster than MKL for these tensors."""
    on_cpu = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
    return on_cpu and onednn_is_faster()


class _Product(torch.autograd.Function):
    """x W^T, with the gradients g W and g^T x."""

    @staticmethod
    def forward(context: Any, rows: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(rows, weight)
        with by_onednn(rows):
            return (rows.reshape(-1, rows.shape[-1]) @ weight.t()).view(*rows.shape[:-1], -1)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, weight = context.saved_tensors
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1])
        to_rows = to_weight = None
        with by_onednn(rows):
            if context.needs_input_grad[0]:
                to_rows = (gradient @ weight).view(rows.shape)
            if context.needs_input_grad[1]:
                to_weight = gradient.t() @ rows.reshape(-1, rows.shape[-1])
        return to_rows, to_weight


@contextmanager
def by_onednn(like: Tensor) -> Iterator[None]:
    """Let oneDNN compute the products inside, if it is faster for tensors ``like`` this one. torch's attention becomes slower inside."""
    if not _gains(like):
        yield
        return
    before = mkldnn.matmul.fp32_precision
    mkldnn.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        mkldnn.matmul.fp32_precision = before
