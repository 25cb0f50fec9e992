"""Products and attention with their gradients, beside torch's own in float64."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from draftlab.models import products
from draftlab.models.products import LEAST, LONGEST, causal_attention, linear


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


def gradients(value: Tensor, of: list[Tensor], along: Tensor) -> list[Tensor]:
    """``value`` and its gradients with respect to ``of``, in float64."""
    parts = torch.autograd.grad(value, of, along.to(value.dtype))
    return [value.detach().double(), *(part.double() for part in parts)]


@pytest.mark.parametrize("rows", [(3, 7), (40, 64)])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_is_the_product_and_keeps_float32(rows: tuple[int, int], biased: bool) -> None:
    """Rounded to bfloat16, a product of numbers near 1 over 96 columns would be off by about 0.05."""
    given = tensors((*rows, 96), (160, 96), *([(160,)] if biased else []))
    along = torch.randn(*rows, 160, generator=torch.Generator().manual_seed(1))
    assert (math.prod(rows) * 96 * 160 >= LEAST) == (rows == (40, 64)), "one size on each side of the border"
    exact = [value.detach().double().requires_grad_() for value in given]
    ours = gradients(linear(*given), given, along)
    for mine, true in zip(ours, gradients(F.linear(*exact), exact, along), strict=True):
        torch.testing.assert_close(mine, true, atol=1e-3, rtol=1e-5)


def test_onednn_is_used_only_inside_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    products.mkldnn.matmul.fp32_precision = "none"
    with contextlib.suppress(KeyError), products.by_onednn(torch.ones(1)):
        assert products.mkldnn.matmul.fp32_precision == "bf16"
        raise KeyError
    assert products.mkldnn.matmul.fp32_precision == "none"


def test_bfloat16_rows_take_torch_s_own_product() -> None:
    rows, weight = (value.detach().bfloat16() for value in tensors((1000, 96), (160, 96)))
    assert torch.equal(linear(rows, weight), F.linear(rows, weight))


@pytest.mark.parametrize("length", [1, 5, LONGEST + 1])
@pytest.mark.parametrize("kv", [2, 4])
def test_attention_is_torch_s_own(length: int, kv: int) -> None:
    given = tensors((2, 4, length, 8), (2, kv, length, 8), (2, kv, length, 8))
    along = torch.randn(2, 4, length, 8, generator=torch.Generator().manual_seed(1))
    exact = [value.detach().double().requires_grad_() for value in given]
    true = F.scaled_dot_product_attention(*exact, is_causal=True, enable_gqa=True)
    ours = gradients(causal_attention(*given), given, along)
    for mine, other in zip(ours, gradients(true, exact, along), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


def test_attention_in_bfloat16_differs_by_rounding() -> None:
    given = tensors((2, 4, 33, 16), (2, 4, 33, 16), (2, 4, 33, 16))
    rounded = [value.detach().bfloat16().requires_grad_() for value in given]
    along = torch.randn(2, 4, 33, 16, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        seen = causal_attention(*rounded)
    assert seen.dtype == torch.bfloat16
    exact = gradients(causal_attention(*given), given, along)
    for mine, true in zip(gradients(seen, rounded, along), exact, strict=True):
        torch.testing.assert_close(mine, true, atol=0.1, rtol=0.1)
