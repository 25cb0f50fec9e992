"""The rows of a model's embeddings and head, one for each token and some for padding; a draft gets as many as its target has.

Models of one family pad their vocabularies to different sizes: Qwen2.5 has 151,665 tokens, 151,936 rows at 0.5B and 152,064 at 7B. No text has
these tokens, but a verifier compares two distributions row by row, and vLLM refuses a draft with other rows than its target.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from draftlab.errors import UserError
from draftlab.files.json_files import read_object, write_json
from draftlab.files.weights import HEAD, is_gguf, weight_files
from draftlab.models.config import read_sizes

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

ROWS_BEFORE = "draftlab_rows_before"
"""In the config of a draft that was given the rows of its target: how many it had."""

HEADS = ("lm_head.", "embed_out.")
"""How the names of a head's tensors begin."""


def rows_of(model: Path) -> int:
    """The rows of a model's embeddings, one for each logit; 0 if a folder does not tell."""
    if not is_gguf(model) and not (model / "config.json").is_file():
        return 0
    config = read_sizes(model)
    return int(config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size") or 0)


def fit_rows(folder: Path, rows: int) -> None:
    """Give the model of a folder, which has no seal yet, this many rows of embeddings and of its head.

    Rows that are too many are cut. Missing ones are copies of the last row: it is padding too, or a rare token, so the draft hardly ever
    proposes them. Rows of zeros would be likely in a model whose logits are all negative.

    **Arguments:**
    - `folder`: the folder of the model; its files are replaced, not those that they link to
    - `rows`: the rows of its target (``rows_of``); 0: unknown, the model stays as it is
    """
    had = rows_of(folder) if rows else 0
    if had not in (0, rows):
        kept = [(min(row, had - 1),) for row in range(rows)]
        make_rows(folder, kept, kept)
        write_json(folder / "config.json", read_object(folder / "config.json") | {ROWS_BEFORE: had})


def make_rows(folder: Path, embeddings: Sequence[Sequence[int]], head: Sequence[Sequence[int]]) -> None:
    """Make row ``i`` of a model's embeddings the mean of its rows ``embeddings[i]``, and row ``i`` of its head that of the rows ``head[i]``.

    A head that is the embedding becomes one of its own if the two differ. Files without such rows stay as they are.

    **Raises:** ``UserError`` if the model has no embeddings with as many rows as its config says.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    had, found = rows_of(folder), dict[str, Path]()
    for file in weight_files(folder):
        with safe_open(file, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118 (not a dict)
                if stored.get_slice(name).get_shape()[:1] == [had] and not _is_in_layer(name):
                    found[name] = file
    inputs = [name for name in found if not name.startswith(HEADS)]
    if not inputs:
        what = f"no embeddings with {had} rows"
        raise UserError(what, file=folder, remedy="use a model with plain embeddings, such as a Llama")
    differ, has_head = embeddings != head, len(found) > len(inputs)
    for file in sorted(set(found.values())):
        tensors = load_file(file)
        for name in [name for name, place in found.items() if place == file]:
            whole = tensors[name]
            tensors[name] = _means(whole, head if name.startswith(HEADS) else embeddings)
            if differ and not has_head and name == inputs[0]:
                tensors[HEAD] = _means(whole, head)
                _add_to_index(folder, HEAD, file.name)
        file.unlink()
        save_file(tensors, file, metadata={"format": "pt"})
    config = read_object(folder / "config.json")
    sizes = config if "vocab_size" in config else config["text_config"]
    sizes["vocab_size"] = len(embeddings)
    if differ:
        config["tie_word_embeddings"] = sizes["tie_word_embeddings"] = False
    write_json(folder / "config.json", config)


def _means(rows: Float[Tensor, "before ..."], chosen: Sequence[Sequence[int]]) -> Float[Tensor, "after ..."]:
    """The mean of the chosen rows, for each new row; a single one stays exactly as it is."""
    import torch
    from torch.nn.functional import embedding_bag

    flat = torch.tensor([row for each in chosen for row in each])
    starts = torch.tensor([0, *itertools.accumulate(map(len, chosen[:-1]))])
    means = embedding_bag(flat, rows.reshape(len(rows), -1).float(), starts, mode="mean")
    return means.to(rows.dtype).reshape(len(chosen), *rows.shape[1:])


def _add_to_index(folder: Path, name: str, file: str) -> None:
    """Say in the index of weights, where the folder has one, that a file has this tensor too."""
    path = folder / "model.safetensors.index.json"
    if path.is_file():
        index = read_object(path)
        index["weight_map"][name] = file
        write_json(path, index)


def _is_in_layer(name: str) -> bool:
    """Whether a tensor belongs to one of the layers, which have numbers: there a size may be the vocabulary's by chance."""
    return any(part.isdigit() for part in name.split("."))
