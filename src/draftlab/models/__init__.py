"""Language models and tokenizers, loaded from a folder or a GGUF file.

``load_model`` picks one of two classes: our own ``llama.Llama``, which is faster for the small models that the project trains, or
``hf.HubModel`` for any other model of ``transformers``. Nothing here imports torch before a model is loaded.

    model = load_model("drafts/before", dtype="float32", device="cpu")
    model.answer_logits(prompts, answers)      # differentiable: training, recording, replay
    cache, tokens = model.decoder().prefill(prompts, room=128)
    logits = cache.extend(tokens[:, None])     # decoding
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from draftlab.core.settings import Dtype
from draftlab.errors import UserError
from draftlab.files.weights import check_sizes, is_gguf
from draftlab.models.config import is_dflash, is_head, is_llama, read_config
from draftlab.models.tokenizer import Tokenizer, check_same_tokenizer, load_tokenizer
from draftlab.models.vocabulary_rows import rows_of

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float, Int
    from torch import Tensor

__all__ = [
    "Cache",
    "Decodable",
    "Decoder",
    "Dtype",
    "LanguageModel",
    "TokenIds",
    "Tokenizer",
    "check_same_tokenizer",
    "load_model",
    "load_pair",
    "load_tokenizer",
    "shared_tokenizer",
]


TokenIds = Sequence[Sequence[int]]
"""The token ids of several texts."""


class Cache(Protocol):
    """Keys and values of a batch of sequences; row ``b`` holds ``lengths[b]`` tokens."""

    @property
    def lengths(self) -> list[int]: ...

    def extend(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch new vocab"]:
        """Append ``new`` tokens to every row; return the logits after each of them."""
        ...

    def crop(self, lengths: Sequence[int]) -> None:
        """Keep the first ``lengths[b]`` tokens of row ``b``."""
        ...

    def take(self, rows: Sequence[int], since: Sequence[int] | None = None) -> None:
        """Make row ``i`` a copy of row ``rows[i]``; the caller knows that both agree before token ``since[i]``."""
        ...


class Decoder(Protocol):
    """Decodes with the weights that the model had when the decoder was made; make a new decoder after an update."""

    def prefill(self, prompts: TokenIds, room: int) -> tuple[Cache, Int[Tensor, " batch"]]:
        """A cache of the prompts that has room for ``room`` more tokens, and the next token that each row must read."""
        ...


class Decodable(Protocol):
    """A model for plain decoding and recording."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    def decoder(self) -> Decoder:
        """A decoder, valid until the weights change."""
        ...


class LanguageModel(Decodable, Protocol):
    """A model for decoding, recording, replay and training."""

    @property
    def device(self) -> torch.device: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]: ...

    def answer_logits(
        self, prompts: TokenIds, answers: TokenIds, where: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "positions vocab"]:
        """Logits that predict each answer token, request after request, at all positions or at those in ``where``."""
        ...

    def save(self, folder: Path | str) -> None:
        """Write the model in the Hugging Face layout, whole or not at all."""
        ...


def set_up_gpu() -> None:
    """Let torch compute float32 products in TF32 on a GPU (ten bits of mantissa, several times as fast), and attention without cuDNN.

    cuDNN makes a new plan for every length of a cache, which takes tens of milliseconds per token.

    **Raises:** ``UserError`` if there is no GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise UserError("no GPU for device cuda", remedy="use device cpu, or a machine with a GPU")
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)


def load_model(folder: Path | str, dtype: Dtype = "float32", device: str = "cpu") -> LanguageModel:
    """Read a model from a folder in the Hugging Face layout (safetensors only), or from a GGUF file.

    **Raises:** ``UserError`` for a missing folder, pickled weights, a damaged file, an architecture that is not a language model, or a device
    that does not exist.
    """
    import torch

    from draftlab.models import dflash, eagle3, gguf_import, hf, llama
    from draftlab.models.products import number_type

    if device.startswith("cuda"):
        set_up_gpu()
    dtype = number_type(dtype, device)
    if is_gguf(folder):
        return gguf_import.read_model(folder).to(device, getattr(torch, dtype))
    config = read_config(folder)
    of_head = dflash.load if is_dflash(config) else eagle3.load
    loader = of_head if is_head(config) else llama.load if is_llama(config) else hf.load
    return loader(folder, getattr(torch, dtype), device)


def load_pair(
    target: Path, draft: Path, dtype: Dtype = "float32", device: str = "cpu"
) -> tuple[LanguageModel, LanguageModel, Tokenizer]:
    """Load target, draft and the tokenizer that they share; a draft larger than its target is a ``UserError``."""
    tokenizer = shared_tokenizer(target, draft)
    check_sizes(target, draft)
    return load_model(target, dtype, device), load_model(draft, dtype, device), tokenizer


def shared_tokenizer(target: Path, draft: Path) -> Tokenizer:
    """The tokenizer of two models; a ``UserError`` if each has its own, or if one pads its vocabulary further than the other."""
    tokenizer = load_tokenizer(target)
    check_same_tokenizer(tokenizer, load_tokenizer(draft))
    rows = [rows_of(model) for model in (target, draft)]
    if all(rows) and rows[0] != rows[1]:
        what = f"target and draft share {tokenizer.vocab_size} tokens, but padded to {rows[0]} and {rows[1]}"
        remedy = f"copy it with the target's rows: draftlab pretrain draft --model {draft} --tokenizer {target}"
        raise UserError(what, file=draft, remedy=remedy)
    return tokenizer
