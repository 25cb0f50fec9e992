"""Target, draft and tokenizer from a folder, behind one narrow interface.

Two adapters: ``llama.Llama``, our own, for the small models that the project trains; ``hf.HubModel``, around ``transformers``,
for every other decoder-only model and for T5. ``load_model`` picks. Nothing here imports torch before a model is loaded.

    model = load_model("drafts/before", dtype="float32", device="cpu")
    model.answer_logits(prompts, answers)      # differentiable: training, recording, replay
    cache, tokens = model.prefill(prompts, room=128)
    logits = cache.extend(tokens[:, None])     # decoding
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from draftlab.core.settings import Dtype
from draftlab.errors import UserError
from draftlab.files.weights import check_sizes, is_gguf
from draftlab.models.config import read_config
from draftlab.models.tokenizer import Tokenizer, check_same_tokenizer, load_tokenizer

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
    "Tokenizer",
    "check_same_tokenizer",
    "load_model",
    "load_pair",
    "load_tokenizer",
]


class Cache(Protocol):
    """The keys and values of a batch of sequences of different lengths; row ``b`` holds ``lengths[b]`` tokens."""

    @property
    def lengths(self) -> list[int]: ...

    def extend(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch new vocab"]:
        """Append ``new`` tokens to every row; return the logits that follow each of them."""
        ...

    def crop(self, lengths: Sequence[int]) -> None:
        """Forget all but the first ``lengths[b]`` tokens of each row."""
        ...

    def take(self, rows: Sequence[int], since: Sequence[int] | None = None) -> None:
        """Make row ``i`` a copy of row ``rows[i]``; the two are known to agree before token ``since[i]``."""
        ...


class Decoder(Protocol):
    """A model ready to decode, with the weights it had when the decoder was made; make a new one after an update."""

    def prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[Cache, Int[Tensor, " batch"]]:
        """A cache of the prompts with room for ``room`` more tokens, and the token to feed each row next."""
        ...


class Decodable(Protocol):
    """What plain decoding and recording need of a model."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_len(self) -> int: ...

    def decoder(self) -> Decoder:
        """The model, ready to decode; keep it for as long as the weights do not change."""
        ...


class LanguageModel(Decodable, Protocol):
    """What decoding, recording, replay and training need of a model."""

    @property
    def device(self) -> torch.device: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]: ...

    def answer_logits(
        self,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        where: Int[Tensor, " chosen"] | None = None,
    ) -> Float[Tensor, "positions vocab"]:
        """Logits that predict each answer token, request after request; ``where`` selects some of these positions."""
        ...

    def prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[Cache, Int[Tensor, " batch"]]:
        """``decoder().prefill(prompts, room)``, for one batch."""
        ...

    def save(self, folder: Path | str) -> None:
        """Write the model in the Hugging Face layout, whole or not at all."""
        ...


def set_up_gpu() -> None:
    """Set how torch computes on a GPU: float32 products in TF32 if the GPU has it (ten bits of mantissa, several times as fast), and attention
    without cuDNN, which makes a new plan for every length of a cache: tens of milliseconds per token."""
    import torch

    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)


def load_model(folder: Path | str, dtype: Dtype = "float32", device: str = "cpu") -> LanguageModel:
    """Read a model from a folder in the Hugging Face layout (safetensors only), or from a GGUF file.

    Our own Llama reads what it can (it is faster at small sizes), and ``transformers`` reads the rest. ``UserError`` for a missing
    folder, pickled weights, a damaged file, an architecture that is not a language model, or a device that does not exist.
    """
    import torch

    from draftlab.models import gguf_files, hf, llama

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"no GPU for device {device!r}", remedy="use device cpu")
    if device.startswith("cuda"):
        set_up_gpu()
    if dtype == "fast":
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        dtype = "bfloat16" if native or device != "cpu" else "float32"
    if is_gguf(folder):
        return gguf_files.read_model(folder).to(torch.device(device), getattr(torch, dtype))
    config = read_config(folder)
    loader = llama.load if llama.can_read(config) else hf.load
    return loader(folder, getattr(torch, dtype), torch.device(device))


def load_pair(
    target: Path, draft: Path, dtype: Dtype = "float32", device: str = "cpu"
) -> tuple[LanguageModel, LanguageModel, Tokenizer]:
    """Target, draft and the tokenizer that they share; a draft larger than its target is a ``UserError``."""
    tokenizer = load_tokenizer(target)
    check_same_tokenizer(tokenizer, load_tokenizer(draft))
    check_sizes(target, draft)
    return load_model(target, dtype, device), load_model(draft, dtype, device), tokenizer
