"""The papers' models with random weights, in the layouts of their repositories. Only width, depth and vocabulary are smaller.

A layout is pickles or safetensors, in one file or several, with SentencePiece or GPT-2's BPE, and with a tokenizer.json or without.
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
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from torch import Tensor

from draftlab.data import generators
from draftlab.data.cleaners import CLEANERS
from draftlab.data.generators import chat
from draftlab.latency.sizes import Model, Sizes

HEAD_DIM = 4
"""Channels per head of every model, which has as many heads as the paper's."""
LAYERS = 12
"""One layer stands for so many of the paper's model."""
VOCABULARY = 5000
"""More tokens than a recorded distribution keeps."""
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
    """Checkpoints of early versions also hold the frequencies of the rotary positions."""
    layers = {name.split("self_attn")[0] for name in weights if "self_attn" in name}
    return weights | {f"{layer}self_attn.rotary_emb.inv_freq": torch.ones(HEAD_DIM // 2) for layer in sorted(layers)}


def _without_prefix(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of OPT-13B begin with ``decoder``, and its tied head is left out, unlike in OPT-125M."""
    return {name.removeprefix("model."): weight for name, weight in weights.items() if name != "lm_head.weight"}


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
    """The training texts of the tokenizers: requests, answers, and meaningless words, so that there are enough different ones."""
    for name in generators.GENERATORS:
        rows = generators.rows(name, "train", seed=0)
        for _ in range(count):
            cleaned = CLEANERS[name](next(rows))
            yield cleaned.text
            yield cleaned.reference or ""
    draw = Random(0)
    for _ in range(2 * count):
        yield " ".join("".join(draw.choices("aeiounrstlm", k=draw.randrange(4, 9))) for _ in range(8))


def files_of(name: str, model: Model, tokenizers: dict[str, dict[str, bytes]]) -> dict[str, bytes]:
    """The files of a model's repository; ``tokenizers``: the files of each family's tokenizer."""
    layout, sizes, stored = LAYOUTS[name], model.sizes, {2: torch.float16, 4: torch.float32}[model.stored]
    tokenizer = tokenizers[sizes.kind]
    kept = {file: data for file, data in tokenizer.items() if file != "tokenizer.json" or layout.tokenizer_json}
    torch.manual_seed(zlib.crc32(name.encode()))
    config, network = _network(sizes, tokenizer)
    weights = {key: value.to(stored) for key, value in network.state_dict().items()}
    values = {key: value for key, value in config.to_dict().items() if key != "dtype"}
    values |= {"torch_dtype": str(stored).removeprefix("torch."), "transformers_version": "4.28.1"}
    values |= {"_name_or_path": name, "architectures": [type(network).__name__]}
    files = {"config.json": _json(values), "README.md": b"---\n---\n"}
    if sizes.kind != "opt":
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        ends = {key: values[key] for key in names if values.get(key) is not None}
        files["generation_config.json"] = _json({"_from_model_config": True, **ends})
    return files | kept | _weights(layout, layout.renamed(weights))


def _network(sizes: Sizes, tokenizer: dict[str, bytes]) -> tuple[Any, Any]:
    """A model of a repository's family with random weights, and its configuration."""
    import transformers

    hidden = sizes.heads * HEAD_DIM
    layers, ffn = -(-sizes.layers // LAYERS), hidden * sizes.ffn // sizes.hidden
    shape: dict[str, Any] = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": sizes.heads}
    shape["max_position_embeddings"] = sizes.context
    config: Any
    network: Any
    if sizes.kind == "llama":
        ids: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        shape |= {"intermediate_size": ffn, "num_key_value_heads": sizes.kv_heads, "tie_word_embeddings": sizes.tied}
        config = transformers.LlamaConfig(vocab_size=VOCABULARY, **shape, **ids)
        network = transformers.LlamaForCausalLM(config)
    elif sizes.kind == "opt":
        ids = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
        shape |= {"ffn_dim": ffn, "word_embed_proj_dim": hidden}
        config = transformers.OPTConfig(
            vocab_size=_rounded_up(len(json.loads(tokenizer["vocab.json"])), 8), **shape, **ids
        )
        network = transformers.OPTForCausalLM(config)
    else:
        ids = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
        shape = {"d_model": hidden, "d_kv": HEAD_DIM, "d_ff": ffn, "num_layers": layers, "num_heads": sizes.heads}
        shape |= {"n_positions": sizes.context, "tie_word_embeddings": sizes.tied}
        shape["feed_forward_proj"] = "relu" if sizes.tied else "gated-gelu"
        make_config: Any = transformers.T5Config
        config = make_config(vocab_size=_rounded_up(VOCABULARY + 100, 128), **shape, **ids)
        network = transformers.T5ForConditionalGeneration(config)
    with torch.no_grad():
        _bias(network)
    return config, network


def _rounded_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _bias(network: Any) -> None:
    """Make every network slightly prefer the same tokens, so that a draft of random weights is sometimes accepted."""
    inner, head = network.get_input_embeddings().weight, network.get_output_embeddings().weight
    bias = torch.randn(len(head), generator=torch.Generator().manual_seed(1)) * 0.5
    if head.data_ptr() != inner.data_ptr():
        inner[:, 0] = inner.std() * 8
        head[:] = head / head.std() * 0.5
        head[:, 0] = bias
    for name, weight in network.named_parameters():  # OPT has one table for both, and would repeat its last token
        if name.endswith("embed_positions.weight"):
            weight.normal_(0, 0.6)
            head[:] = head / head.std() * 0.15
            head[:, 0] = bias
        elif name.endswith("decoder.final_layer_norm.bias"):
            weight[0] = 4.0


def _weights(layout: Layout, weights: dict[str, Tensor]) -> dict[str, bytes]:
    if not layout.pickled:  # safetensors refuses two names for one memory
        first = {weight.data_ptr(): name for name, weight in reversed(weights.items())}
        weights = {name: weights[name].contiguous() for name in first.values()}
    stem, suffix = ("pytorch_model", "bin") if layout.pickled else ("model", "safetensors")
    names = sorted(weights)
    parts = [names[n :: layout.shards] for n in range(layout.shards)]
    files: dict[str, bytes] = {}
    index: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = f"{stem}.{suffix}" if layout.shards == 1 else f"{stem}-{number:05}-of-{layout.shards:05}.{suffix}"
        shard = {name: weights[name] for name in part}
        index |= dict.fromkeys(part, file)
        if layout.pickled:
            torch.save(shard, out := io.BytesIO())
            files[file] = out.getvalue()
        else:
            files[file] = save(shard, {"format": "pt"})
    if layout.shards > 1:
        total = sum(weight.nbytes for weight in weights.values())
        files[f"{stem}.{suffix}.index.json"] = _json({"metadata": {"total_size": total}, "weight_map": index})
    return files


def tokenizers() -> dict[str, dict[str, bytes]]:
    """The files of the three tokenizers, by the family of models that has them."""
    corpus = [text.replace("\n", " ") for text in texts()]
    return {"llama": _llama_tokenizer(corpus), "opt": _opt_tokenizer(corpus), "t5": _t5_tokenizer(corpus)}


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


def _llama_tokenizer(corpus: list[str]) -> dict[str, bytes]:
    options = {"model_type": "bpe", "byte_fallback": True, "split_digits": True, "remove_extra_whitespaces": False}
    ids = {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2}
    model = _sentencepiece(corpus, normalization_rule_name="identity", **options, **ids)
    token = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    specials = {name: token | {"content": content} for name, content in names.items()}
    config = {
        "add_bos_token": True,
        "add_eos_token": False,
        **{name: {"__type": "AddedToken", **special} for name, special in specials.items()},
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "pad_token": None,
        "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizer",
    }
    special_tokens = _json(specials | {"pad_token": "<unk>"})
    return _with_tokenizer_json("tokenizer.model", model, config, special_tokens)


def _t5_tokenizer(corpus: list[str]) -> dict[str, bytes]:
    model = _sentencepiece(corpus, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    extra = [f"<extra_id_{n}>" for n in range(100)]
    names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    config = {**names, "extra_ids": 100, "additional_special_tokens": extra, "sp_model_kwargs": {}}
    special_tokens = _json({**names, "additional_special_tokens": extra})
    return _with_tokenizer_json("spiece.model", model, config | {"tokenizer_class": "T5Tokenizer"}, special_tokens)


def _opt_tokenizer(corpus: list[str]) -> dict[str, bytes]:
    tokenizer = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(corpus, VOCABULARY, special_tokens=specials, show_progress=False)
    with tempfile.TemporaryDirectory() as folder:
        files = {Path(file).name: Path(file).read_bytes() for file in tokenizer.save_model(folder)}
    names = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>"}
    config = {"errors": "replace", **names, "add_prefix_space": False, "add_bos_token": True}
    config["tokenizer_class"] = "GPT2Tokenizer"
    return files | {"tokenizer_config.json": _json(config), "special_tokens_map.json": _json(names)}


def _with_tokenizer_json(name: str, model: bytes, config: dict[str, Any], special_tokens: bytes) -> dict[str, bytes]:
    """The files of a SentencePiece tokenizer, with the tokenizer.json of newer repositories, which ``transformers`` makes of them."""
    from transformers import AutoTokenizer

    files = {name: model, "tokenizer_config.json": _json(config), "special_tokens_map.json": special_tokens}
    with tempfile.TemporaryDirectory() as folder:
        for file, data in files.items():
            Path(folder, file).write_bytes(data)
        model_type = "llama" if config["tokenizer_class"] == "LlamaTokenizer" else "t5"
        Path(folder, "config.json").write_text(json.dumps({"model_type": model_type}))
        converted = Path(folder, "converted")
        AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False).save_pretrained(converted)
        return files | {"tokenizer.json": (converted / "tokenizer.json").read_bytes()}


def classifier(steps: int = 60) -> dict[str, bytes]:
    """A DistilBERT that names topics, trained for seconds on the generator's requests."""
    import transformers

    draw = Random(0)
    rows = [chat.arena(draw, "service") for _ in range(2000)]
    known = [(row["conversation_a"][0]["content"], TOPICS.index(row["topic"])) for row in rows if row.get("topic")]
    requests = "\n".join(row["conversation_a"][0]["content"] for row in rows)
    words = {word for word, _ in BertPreTokenizer().pre_tokenize_str(BertNormalizer().normalize_str(requests))}
    # Every word is one piece: training a WordPiece tokenizer gives another vocabulary each time.
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(words)]
    tokenizer = BertWordPieceTokenizer({word: number for number, word in enumerate(vocabulary)})
    tokenizer.enable_truncation(64)
    tokenizer.enable_padding(length=64)
    topics = dict(enumerate(TOPICS))
    labels = {"id2label": topics, "label2id": {topic: number for number, topic in topics.items()}}
    shape = {"dim": 48, "hidden_dim": 96, "n_layers": 1, "n_heads": 4, "vocab_size": tokenizer.get_vocab_size()}
    make_config: Any = transformers.DistilBertConfig
    config = make_config(**shape, **labels)
    torch.manual_seed(0)
    network: Any = transformers.DistilBertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    for step in range(steps):
        batch = [known[(step * 64 + n) % len(known)] for n in range(64)]
        encoded = tokenizer.encode_batch([text for text, _ in batch])
        ids, mask = torch.tensor([e.ids for e in encoded]), torch.tensor([e.attention_mask for e in encoded])
        network(input_ids=ids, attention_mask=mask, labels=torch.tensor([label for _, label in batch])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tokenizer.no_padding()
    tokenizer.no_truncation()
    settings = {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": True, "model_max_length": 512}
    return {
        "config.json": _json(config.to_dict() | {"architectures": [type(network).__name__]}),
        "tokenizer_config.json": _json(settings),
        "vocab.txt": "".join(f"{word}\n" for word in vocabulary).encode(),
        **_weights(Layout(pickled=True), network.state_dict()),
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
