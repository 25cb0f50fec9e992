"""Products for decoding with weights in oneDNN's layout, where that is faster."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

PACKED = {torch.float32: range(1 << 15, 1 << 22), torch.bfloat16: range(1 << 15, 1 << 25)}
"""Sizes of a weight that is copied into oneDNN's layout for decoding."""
PACKED_PRODUCT = {torch.float32: 5 << 17, torch.bfloat16: 0}
"""Rows times size of a weight from which the copy is the faster."""


class PackedLinear:
    """x -> x W^T, where rows and weight are large enough by oneDNN, on a copy of the weight in oneDNN's layout.

    torch hands float32 products to MKL, which leaves AVX-512 unused on AMD: 192 x 1024 takes 40 us against 20 at 6 rows, 174 us
    against 82 at 48. It hands bfloat16 to oneDNN, which copies the weight at every call: 576 x 3072 takes 110 us against 60 at one
    row, 205 against 142 at 16. Weights so large that the copy would matter stay as they are.
    """

    def __init__(self, weight: Float[Tensor, "out width"], bias: Float[Tensor, " out"] | None = None) -> None:
        self.weight, self.transposed, self.bias = weight, weight.t(), bias
        self.packed: Tensor | None = None
        size = weight.numel()
        fits = weight.device.type == "cpu" and size in PACKED.get(weight.dtype, ())
        fits = fits and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        # Without AVX-512 or AVX-NE-CONVERT, oneDNN has no layout for bfloat16.
        if fits and (weight.dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        self.min_rows = PACKED_PRODUCT.get(weight.dtype, 0) / size

    def __call__(self, rows: Float[Tensor, "rows width"]) -> Float[Tensor, "rows out"]:
        if self.packed is None or rows.shape[0] < self.min_rows:
            return F.linear(rows, self.weight, self.bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return product

    def added_to(
        self, others: Float[Tensor, "rows out"], rows: Float[Tensor, "rows width"]
    ) -> Float[Tensor, "rows out"]:
        """others + rows W^T."""
        if self.packed is None or rows.shape[0] < self.min_rows:
            return torch.addmm(others, rows, self.transposed)
        return self(rows).add_(others)
