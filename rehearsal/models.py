"""The papers' models with random weights: their architectures in every dimension but width, depth and vocabulary, in their repositories' own layouts.

What each repository holds, by its name: pickles or safetensors, in how many files, SentencePiece or GPT-2's BPE, with a tokenizer.json or without.
"""

from __future__ import annotations

import io
import json
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer
from torch import Tensor

from draftlab.data import generators
from draftlab.data.cleaners import CLEANERS
from draftlab.data.generators import chat
from draftlab.latency.sizes import Model, Sizes

HEAD_DIM = 4
"""Of every model: width alone is cut, heads are as many as in the paper's model."""
LAYERS = 12
"""One for so many of the paper's model."""
VOCABULARY = 5000
"""More than a recorded distribution keeps whole."""
TOPICS = (
    "Adult", "Business_Corporate", "Computers and Technology", "E-Commerce", "Education", "Food", "Forums", "Games", "Health and Fitness",
    "Law and Government", "News", "Photography", "Social Networking and Messaging", "Sports", "Streaming Services", "Travel",
)  # fmt: skip  # of alimazhar-110/website_classification


@dataclass(frozen=True)
class Layout:
    """How a repository keeps its weights and its tokenizer."""

    shards: int = 1
    pickled: bool = False
    tokenizer_json: bool = False
    renamed: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda weights: weights


def _with_frequencies(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Checkpoints of early versions hold the frequencies of the rotary positions too."""
    layers = {name.split("self_attn")[0] for name in weights if "self_attn" in name}
    return weights | {f"{layer}self_attn.rotary_emb.inv_freq": torch.ones(HEAD_DIM // 2) for layer in sorted(layers)}


def _without_prefix(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """OPT-13B's names begin with ``decoder``, and its tied head is left out; those of OPT-125M do not, and it is not."""
    return {name.removeprefix("model."): own for name, own in weights.items() if name != "lm_head.weight"}


LAYOUTS = {
    "lmsys/vicuna-7b-v1.3": Layout(shards=2, pickled=True, renamed=_with_frequencies),
    "lmsys/vicuna-33b-v1.3": Layout(shards=7, pickled=True, renamed=_with_frequencies),
    "JackFram/llama-160m": Layout(tokenizer_json=True),
    "JackFram/llama-68m": Layout(tokenizer_json=True),
    "eqhylxx/spider-llama160m": Layout(pickled=True),
    "eqhylxx/gsm8k-llama160m": Layout(pickled=True),
    "eqhylxx/code-llama160m": Layout(pickled=True),
    "eqhylxx/finance-llama160m": Layout(pickled=True),
    "eqhylxx/vicuna-160m": Layout(pickled=True),
    "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T": Layout(tokenizer_json=True),
    "facebook/opt-13b": Layout(shards=3, pickled=True, renamed=_without_prefix),
    "facebook/opt-125m": Layout(pickled=True),
    "google/flan-t5-xl": Layout(shards=2, tokenizer_json=True),
    "google/t5-efficient-small": Layout(pickled=True, tokenizer_json=True),
    "google/t5-efficient-base": Layout(pickled=True, tokenizer_json=True),
    "google/t5-efficient-large": Layout(pickled=True),
}


def texts(count: int = 400) -> Iterator[str]:
    """What the tokenizers learn: requests, answers, and words without a meaning, so that there are enough different ones."""
    for name in generators.GENERATORS:
        rows = generators.rows(name, "train", seed=0)
        for _ in range(count):
            said = CLEANERS[name](next(rows))
            yield said.text
            yield said.reference or ""
    draw = Random(0)
    for _ in range(2 * count):
        yield " ".join("".join(draw.choices("aeiounrstlm", k=draw.randrange(4, 9))) for _ in range(8))


def files_of(name: str, model: Model, words: dict[str, dict[str, bytes]]) -> dict[str, bytes]:
    """The files of a model's repository; ``words``: those of the tokenizers, by family."""
    layout, sizes, stored = LAYOUTS[name], model.sizes, {2: torch.float16, 4: torch.float32}[model.stored]
    own = words[sizes.kind]
    kept = {file: data for file, data in own.items() if file != "tokenizer.json" or layout.tokenizer_json}
    torch.manual_seed(zlib.crc32(name.encode()))
    config, network = _network(sizes, own)
    weights = {key: value.to(stored) for key, value in network.state_dict().items()}
    stated = {
        "torch_dtype": str(stored).removeprefix("torch."),
        "transformers_version": "4.28.1",
        "_name_or_path": name,
    }
    said = {key: value for key, value in config.to_dict().items() if key != "dtype"} | stated
    files = {"config.json": _json(said | {"architectures": [type(network).__name__]}), "README.md": b"---\n---\n"}
    if sizes.kind != "opt":
        ends = {key: said[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if said.get(key) is not None}
        files["generation_config.json"] = _json({"_from_model_config": True, **ends})
    return files | kept | _weights(layout, layout.renamed(weights))


def _network(sizes: Sizes, words: dict[str, bytes]) -> tuple[Any, Any]:
    import transformers

    hidden = sizes.heads * HEAD_DIM
    layers, ffn = -(-sizes.layers // LAYERS), hidden * sizes.ffn // sizes.hidden
    if sizes.kind == "llama":
        config: Any = transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            intermediate_size=ffn,
            num_hidden_layers=layers,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.kv_heads,
            max_position_embeddings=sizes.context,
            tie_word_embeddings=sizes.tied,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
        network: Any = transformers.LlamaForCausalLM(config)
    elif sizes.kind == "opt":
        config = transformers.OPTConfig(
            vocab_size=-(-len(json.loads(words["vocab.json"])) // 8) * 8,
            hidden_size=hidden,
            word_embed_proj_dim=hidden,
            ffn_dim=ffn,
            num_hidden_layers=layers,
            num_attention_heads=sizes.heads,
            max_position_embeddings=sizes.context,
            bos_token_id=2,
            eos_token_id=2,
            pad_token_id=1,
        )
        network = transformers.OPTForCausalLM(config)
    else:
        kind: Any = transformers.T5Config
        config = kind(
            vocab_size=-(-(VOCABULARY + 100) // 128) * 128,
            d_model=hidden,
            d_kv=HEAD_DIM,
            d_ff=ffn,
            num_layers=layers,
            num_heads=sizes.heads,
            n_positions=sizes.context,
            feed_forward_proj="relu" if sizes.tied else "gated-gelu",
            tie_word_embeddings=sizes.tied,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=1,
        )
        network = transformers.T5ForConditionalGeneration(config)
    with torch.no_grad():
        _lean(network)
    return config, network


def _lean(network: Any) -> None:
    """Make every network prefer the same tokens a little, so that a draft of random weights is accepted now and then."""
    inner, head = network.get_input_embeddings().weight, network.get_output_embeddings().weight
    liked = torch.randn(len(head), generator=torch.Generator().manual_seed(1))
    if head.data_ptr() != inner.data_ptr():
        inner[:, 0] = inner.std() * 8
        head[:] = head / head.std() * 0.5
        head[:, 0] = liked * 0.5
    for name, own in network.named_parameters():  # of OPT, whose one table would have it repeat its last token
        if name.endswith("embed_positions.weight"):
            own.normal_(0, 0.6)
            head[:] = head / head.std() * 0.15
            head[:, 0] = liked * 0.5
        elif name.endswith("decoder.final_layer_norm.bias"):
            own[0] = 4.0


def _weights(layout: Layout, weights: dict[str, Tensor]) -> dict[str, bytes]:
    if not layout.pickled:  # which refuses two names for one memory
        first = {own.data_ptr(): name for name, own in reversed(weights.items())}
        weights = {name: weights[name].contiguous() for name in first.values()}
    stem, suffix = ("pytorch_model", "bin") if layout.pickled else ("model", "safetensors")
    names = sorted(weights)
    parts = [names[n :: layout.shards] for n in range(layout.shards)]
    files: dict[str, bytes] = {}
    index: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = f"{stem}.{suffix}" if layout.shards == 1 else f"{stem}-{number:05}-of-{layout.shards:05}.{suffix}"
        own = {name: weights[name] for name in part}
        index |= dict.fromkeys(part, file)
        if layout.pickled:
            torch.save(own, out := io.BytesIO())
            files[file] = out.getvalue()
        else:
            files[file] = save(own, {"format": "pt"})
    if layout.shards > 1:
        total = sum(own.nbytes for own in weights.values())
        files[f"{stem}.{suffix}.index.json"] = _json({"metadata": {"total_size": total}, "weight_map": index})
    return files


def tokenizers() -> dict[str, dict[str, bytes]]:
    """The files of the three tokenizers, by the family of models that has them."""
    corpus = [text.replace("\n", " ") for text in texts()]
    return {"llama": _llama_words(corpus), "opt": _opt_words(corpus), "t5": _t5_words(corpus)}


def _sentencepiece(corpus: list[str], **options: Any) -> bytes:
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_writer=(out := io.BytesIO()),
        minloglevel=2,
        vocab_size=VOCABULARY,
        **options,
    )
    return out.getvalue()


def _llama_words(corpus: list[str]) -> dict[str, bytes]:
    model = _sentencepiece(
        corpus,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        pad_id=-1,
        unk_id=0,
        bos_id=1,
        eos_id=2,
    )
    token = {"__type": "AddedToken", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    named = {
        f"{name}_token": token | {"content": own} for name, own in (("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>"))
    }
    config = {
        "add_bos_token": True,
        "add_eos_token": False,
        **named,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "pad_token": None,
        "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizer",
    }
    specials = {name: {key: value for key, value in own.items() if key != "__type"} for name, own in named.items()}
    return _with_tokenizer_json(
        {
            "tokenizer.model": model,
            "tokenizer_config.json": _json(config),
            "special_tokens_map.json": _json(specials | {"pad_token": "<unk>"}),
        }
    )


def _t5_words(corpus: list[str]) -> dict[str, bytes]:
    model = _sentencepiece(corpus, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    extra = [f"<extra_id_{n}>" for n in range(100)]
    named = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    config = {
        **named,
        "extra_ids": 100,
        "additional_special_tokens": extra,
        "sp_model_kwargs": {},
        "tokenizer_class": "T5Tokenizer",
    }
    return _with_tokenizer_json(
        {
            "spiece.model": model,
            "tokenizer_config.json": _json(config),
            "special_tokens_map.json": _json({**named, "additional_special_tokens": extra}),
        }
    )


def _opt_words(corpus: list[str]) -> dict[str, bytes]:
    words = ByteLevelBPETokenizer()
    words.train_from_iterator(corpus, VOCABULARY, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False)
    with tempfile.TemporaryDirectory() as folder:
        files = {Path(file).name: Path(file).read_bytes() for file in words.save_model(folder)}
    named = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>"}
    config = {
        "errors": "replace",
        **named,
        "add_prefix_space": False,
        "add_bos_token": True,
        "tokenizer_class": "GPT2Tokenizer",
    }
    return files | {"tokenizer_config.json": _json(config), "special_tokens_map.json": _json(named)}


def _with_tokenizer_json(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same and the tokenizer.json that ``transformers`` makes of it, as newer repositories hold."""
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        kind = json.loads(files["tokenizer_config.json"])["tokenizer_class"]
        Path(folder, "config.json").write_text(
            json.dumps({"model_type": "llama" if kind == "LlamaTokenizer" else "t5"})
        )
        made = Path(folder, "made")
        AutoTokenizer.from_pretrained(folder, local_files_only=True).save_pretrained(made)
        return files | {"tokenizer.json": (made / "tokenizer.json").read_bytes()}


def classifier(steps: int = 60) -> dict[str, bytes]:
    """A DistilBERT that names topics, trained for seconds on the generator's requests."""
    import transformers

    draw = Random(0)
    rows = [
        (own["conversation_a"][0]["content"], own.get("topic"))
        for own in (chat.arena(draw, "service") for _ in range(2000))
    ]
    known = [(text, TOPICS.index(topic)) for text, topic in rows if topic]
    words = BertWordPieceTokenizer(lowercase=True)
    words.train_from_iterator([text for text, _ in rows], vocab_size=1500, show_progress=False)
    words.enable_truncation(64)
    words.enable_padding(length=64)
    config = transformers.DistilBertConfig(
        vocab_size=words.get_vocab_size(),
        dim=48,
        hidden_dim=96,
        n_layers=1,
        n_heads=4,
        id2label=dict(enumerate(TOPICS)),
        label2id={topic: number for number, topic in enumerate(TOPICS)},
    )
    torch.manual_seed(0)
    network: Any = transformers.DistilBertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    for step in range(steps):
        batch = [known[(step * 64 + n) % len(known)] for n in range(64)]
        read = words.encode_batch([text for text, _ in batch])
        ids, mask = torch.tensor([own.ids for own in read]), torch.tensor([own.attention_mask for own in read])
        network(input_ids=ids, attention_mask=mask, labels=torch.tensor([label for _, label in batch])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    words.no_padding()
    words.no_truncation()
    vocabulary = sorted(words.get_vocab().items(), key=lambda item: item[1])
    stated = {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": True, "model_max_length": 512}
    return {
        "config.json": _json(config.to_dict() | {"architectures": [type(network).__name__]}),
        "tokenizer_config.json": _json(stated),
        "vocab.txt": "".join(f"{word}\n" for word, _ in vocabulary).encode(),
        **_weights(Layout(pickled=True), network.state_dict()),
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
