"""Models of ``transformers`` as a ``LanguageModel``: decoder-only models, and encoder-decoders like T5.

A cache of ``transformers`` grows at the right end of all rows at once. Rows of different lengths are therefore aligned on the right, and the
places before a shorter row are masked. Rotary and learned positions are given for each row; T5's are distances. Models that count positions on
their own are refused where rows differ in length.
``transformers`` is imported only when a model is loaded.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor, nn

from draftlab.errors import UserError, first_line, naming
from draftlab.files.atomic import atomic_dir
from draftlab.files.seals import seal
from draftlab.files.weights import weight_files
from draftlab.models import TokenIds
from draftlab.models.batching import check_lengths, pad_requests, pad_rows

RELATIVE = ("t5", "mt5", "umt5", "longt5", "switch_transformers", "bloom", "mpt")
"""Types of models that take no ``position_ids`` because only distances between tokens count."""


class HubModel:
    """A model of ``transformers``; ``LanguageModel`` documents its methods."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self.vocab_size = int(network.get_output_embeddings().weight.shape[0])
        self.is_encoder_decoder = bool(network.config.is_encoder_decoder)
        self.wants_positions = "position_ids" in inspect.signature(network.forward).parameters
        if self.is_encoder_decoder and network.device.type == "cpu":
            network.set_attn_implementation("eager")  # T5 then trains in 0.7 of the time

    @property
    def context_length(self) -> int:
        """Longest sequence; ``sys.maxsize`` for T5, whose positions are relative.

        Beyond its first context, a model with ``longrope`` (Phi-3) turns every position, those in the cache too. It is used up to there.
        """
        config = self.network.config
        names = ["max_position_embeddings"]
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":
            names.insert(0, "original_max_position_embeddings")
        known = (rope.get(name) or getattr(config, name, None) for name in names)
        return int(next(filter(None, known), sys.maxsize))

    @property
    def device(self) -> torch.device:
        return self.network.device  # type: ignore[no-any-return]

    @property
    def embed(self) -> Float[Tensor, "vocab width"]:
        """The embeddings of the tokens."""
        return self.network.get_input_embeddings().weight  # type: ignore[no-any-return]

    @property
    def vocab_weight(self) -> Float[Tensor, "vocab width"]:
        """The projection of states on the vocabulary."""
        return self.network.get_output_embeddings().weight  # type: ignore[no-any-return]

    @property
    def num_layers(self) -> int:
        """The layers of a decoder; 0 for an encoder-decoder."""
        return len(self._blocks())

    def parameters(self) -> Iterator[nn.Parameter]:
        yield from self.network.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.network.named_parameters()

    def answer_logits(
        self, prompts: TokenIds, answers: TokenIds, where: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "positions vocab"]:
        if self.is_encoder_decoder:
            check_lengths(prompts, answers, self.context_length)
            start = self.network.config.decoder_start_token_id
            tokens, positions = pad_requests([[start]] * len(prompts), answers, self.context_length, where)
            inputs = self._encoder_inputs(prompts) | {"decoder_input_ids": tokens.to(self.device)}
        else:
            tokens, positions = pad_requests(prompts, answers, self.context_length, where)
            inputs = {"input_ids": tokens.to(self.device)}
        with self._projecting_only(positions.to(self.device)):
            logits: Tensor = self.network(**inputs, use_cache=False).logits[0]
        return logits

    def states_before(
        self, tokens: Int[Tensor, "batch len"], layers: Sequence[int]
    ) -> Float[Tensor, "batch len states"]:
        """The residual stream before each of these ``layers``, which ascend, side by side; the number of layers: that after the last one."""
        blocks, found = self._blocks(), dict[int, Tensor]()

        def see(number: int, stream: Any) -> None:
            found[number] = stream[0] if isinstance(stream, tuple) else stream

        hooks = [
            block.register_forward_pre_hook(
                lambda _, given, named, number=number: see(number, given or named["hidden_states"]), with_kwargs=True
            )
            for number, block in enumerate(blocks)
            if number in layers
        ]
        hooks.append(blocks[-1].register_forward_hook(lambda *seen: see(len(blocks), seen[-1])))
        try:
            self.network.get_decoder()(input_ids=tokens.to(self.device), use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.cat([found[number] for number in layers], -1)

    def _blocks(self) -> Sequence[nn.Module]:
        """The layers of a decoder, in order; none of an encoder-decoder."""
        if self.is_encoder_decoder:
            return ()
        layers = self.network.config.get_text_config().num_hidden_layers
        lists = (each for each in self.network.get_decoder().children() if isinstance(each, nn.ModuleList))
        return next(([*each] for each in lists if len(each) == layers), ())

    def decoder(self) -> HubModel:
        return self

    def prefill(self, prompts: TokenIds, room: int) -> tuple[HubCache, Int[Tensor, " batch"]]:
        from transformers import DynamicCache, EncoderDecoderCache
        from transformers.modeling_outputs import BaseModelOutput

        check_lengths(prompts, [[]] * len(prompts), self.context_length)
        if self.is_encoder_decoder:
            inputs = self._encoder_inputs(prompts)
            encoded = self.network.get_encoder()(**inputs).last_hidden_state
            cache = HubCache(self, EncoderDecoderCache(DynamicCache(), DynamicCache()), len(prompts))
            cache.encoded = BaseModelOutput(last_hidden_state=encoded)
            cache.encoder_mask = inputs["attention_mask"]
            return cache, torch.full((len(prompts),), self.network.config.decoder_start_token_id, device=self.device)
        cache = HubCache(self, DynamicCache(), len(prompts))
        tokens = pad_rows([prompt[:-1] for prompt in prompts])
        if tokens.shape[1]:
            with self._projecting_only(torch.zeros(1, dtype=torch.long, device=self.device)):
                cache.extend(tokens.to(self.device))
            cache.crop([len(prompt) - 1 for prompt in prompts])
        return cache, torch.tensor([prompt[-1] for prompt in prompts], device=self.device)

    def save(self, folder: Path | str) -> None:
        _hide_progress_bars()
        with atomic_dir(folder, sum(weight.nbytes for weight in self.network.parameters())) as temporary:
            self.network.save_pretrained(temporary)
            seal(temporary)

    def _encoder_inputs(self, prompts: TokenIds) -> dict[str, Tensor]:
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        tokens = pad_rows(prompts)
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        return {"input_ids": tokens.to(self.device), "attention_mask": mask.long().to(self.device)}

    @contextmanager
    def _projecting_only(self, positions: Int[Tensor, " chosen"]) -> Iterator[None]:
        """Compute logits only at these flat positions: with a vocabulary of 150,000, all of them would not fit in memory."""

        def choose(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
            return (inputs[0].flatten(0, 1)[positions][None],)

        hook = self.network.get_output_embeddings().register_forward_pre_hook(choose)
        try:
            yield
        finally:
            hook.remove()


class HubCache:
    """A ``DynamicCache`` whose rows differ in length: row ``b`` fills the last ``lengths[b]`` places."""

    def __init__(self, model: HubModel, store: Any, batch: int) -> None:
        self.model, self.store = model, store
        self.lengths = [0] * batch
        self.encoded: Any = None
        self.encoder_mask: Tensor | None = None

    def extend(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch new vocab"]:
        new, width = tokens.shape[1], max(self.lengths)
        lengths = torch.tensor(self.lengths, device=tokens.device)
        mask = None
        if min(self.lengths) < width:
            mask = (torch.arange(width + new, device=tokens.device) >= width - lengths[:, None]).long()
        inputs: dict[str, Any] = {"past_key_values": self.store, "use_cache": True}
        if self.encoded is not None:
            inputs |= {"encoder_outputs": self.encoded, "attention_mask": self.encoder_mask}
            inputs |= {"decoder_input_ids": tokens, "decoder_attention_mask": mask}
        else:
            inputs |= {"input_ids": tokens, "attention_mask": mask}
        if self.model.wants_positions:
            at = lengths[:, None] + torch.arange(new, device=tokens.device)
            inputs["position_ids"] = at.clamp(max=self.model.context_length - 1)
        elif mask is not None and self.model.network.config.model_type not in RELATIVE:
            kind = self.model.network.config.model_type
            what = f"{kind} counts positions from the longest request of a batch, so shorter ones would be read wrongly"
            raise UserError(what, remedy="use a model with rotary or relative positions, such as Llama or T5")
        logits: Tensor = self.model.network(**inputs).logits
        self.lengths = [length + new for length in self.lengths]
        if {layer.keys.shape[-2] for layer in self._layers()} != {width + new}:
            kind = self.model.network.config.model_type
            raise UserError(f"{kind} keeps a state that cannot be cropped", remedy="use a model with full attention")
        return logits

    def crop(self, lengths: Sequence[int]) -> None:
        width, kept = max(self.lengths), max(lengths)
        cuts = [old - new for old, new in zip(self.lengths, lengths, strict=True)]
        self.lengths = list(lengths)
        if not any(cuts):
            return
        for layer in self._layers():
            if min(cuts) == max(cuts):
                stays = slice(width - cuts[0] - kept, width - cuts[0])
                layer.keys, layer.values = layer.keys[..., stays, :], layer.values[..., stays, :]
            else:
                device = layer.keys.device
                ends = width - torch.tensor(cuts, device=device)
                at = (ends[:, None] + torch.arange(-kept, 0, device=device)).clamp(min=0)
                rows = torch.arange(len(cuts), device=device)[:, None]
                layer.keys = layer.keys.transpose(1, 2)[rows, at].transpose(1, 2)
                layer.values = layer.values.transpose(1, 2)[rows, at].transpose(1, 2)

    def take(self, rows: Sequence[int], since: Sequence[int] | None = None) -> None:
        width = max(self.lengths)
        chosen = torch.tensor(rows, device=self.model.device)
        self.lengths = [self.lengths[row] for row in rows]
        surplus = width - max(self.lengths, default=0)
        for layer in self._layers():
            layer.keys, layer.values = layer.keys[chosen, :, surplus:], layer.values[chosen, :, surplus:]
        if self.encoder_mask is not None:
            self.encoder_mask = self.encoder_mask[chosen]
            self.encoded.last_hidden_state = self.encoded.last_hidden_state[chosen]
            for layer in self.store.cross_attention_cache.layers:
                layer.keys, layer.values = layer.keys[chosen], layer.values[chosen]

    def _layers(self) -> list[Any]:
        """The layers of the decoder's self-attention."""
        layers: list[Any] = (self.store if self.encoded is None else self.store.self_attention_cache).layers
        return layers


def new_t5(vocab_size: int, hidden: int, ffn: int, layers: int, heads: int, generator: torch.Generator) -> HubModel:
    """An untrained T5 (version 1.1: the output layer is the embeddings, unscaled) with ``layers`` in the encoder and in the decoder.

    Matrices have standard deviation 1 / sqrt(inputs). Queries have a smaller one, since T5 does not scale attention. Embeddings are small, so
    that AdamW's steps move them. The matrices that add to the residual stream are smaller still: the encoder must preserve the order of the
    tokens, or the decoder never learns to copy. With T5's own standard deviations, training takes twice as long (measured).
    """
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=vocab_size,
        d_model=hidden,
        d_ff=ffn,
        d_kv=hidden // heads,
        num_layers=layers,
        num_heads=heads,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=2,
    )
    config.decoder_start_token_id = 0  # padding begins every answer, as in every T5
    config.scale_decoder_outputs = False
    network: Any = T5ForConditionalGeneration(config)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.ndim == 2:
                std = 0.05 if name == "shared.weight" else weight.shape[1] ** -0.5
                if name.endswith(".q.weight"):
                    std *= config.d_kv**-0.5
                elif name.endswith((".o.weight", ".wo.weight")):
                    std *= 0.1
                weight.normal_(0, std, generator=generator)
    return HubModel(network.train(False))


def load(folder: Path | str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> HubModel:
    """Read any language model that ``transformers`` knows. Code in the folder is never run.

    **Raises:** ``UserError`` for a model that it cannot read, damaged or missing weights, and a model that fails to read two tokens.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    weight_files(Path(folder))
    _hide_progress_bars()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        network, report = kind.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except SafetensorError as error:
        raise UserError(f"damaged weights: {error}", file=folder, remedy="fetch or make the model again") from None
    except Exception as error:  # a config of another family may hold anything, and the errors share no base
        what = f"cannot read this model: {first_line(error)}"
        raise UserError(what, file=folder, remedy="use another model") from None
    if unusable := [*report["missing_keys"], *report["mismatched_keys"]]:
        raise UserError(f"no usable weight {unusable[0]!r}", file=folder, remedy="fetch or make the model again")
    model = HubModel(network.to(device).eval())
    with naming(folder):
        try:
            with torch.inference_mode():
                model.answer_logits([[0, 0]], [[0]])
                model.prefill([[0, 0]], 1)
                first, other = (model.answer_logits([[0]], [[token, 0]])[0] for token in (0, model.vocab_size - 1))
                if not torch.allclose(first, other, rtol=1e-3, atol=1e-3, equal_nan=True):
                    what = f"{config.model_type} with this config sees the tokens after a position, too"
                    raise UserError(what, remedy="use a model with causal attention")
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a config may ask for anything
            what = f"the model fails to read two tokens, at once or with a cache: {first_line(error)}"
            raise UserError(what, remedy="use another model") from None
    return model


def _hide_progress_bars() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
