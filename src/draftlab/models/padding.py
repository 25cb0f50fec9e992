"""Rows of embeddings beyond the tokens of a vocabulary: how many a model has, and a draft with as many as its target.

Models of one family pad their vocabularies to different sizes: Qwen2.5 has 151,665 tokens, 151,936 rows at 0.5B and 152,064 at 7B. No text has
these tokens, but a verifier compares two distributions row by row, and vLLM refuses a draft with other rows than its target.
"""

from __future__ import annotations

from pathlib import Path

from draftlab.files.json_files import read_object, write_json
from draftlab.files.weights import is_gguf, weight_files
from draftlab.models.config import read_sizes


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
    if had in (0, rows):
        return
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    for file in weight_files(folder):
        with safe_open(file, "pt") as stored:
            shapes = {name: stored.get_slice(name).get_shape() for name in stored.keys()}  # noqa: SIM118 (not a dict)
        of_tokens = [name for name, shape in shapes.items() if shape[:1] == [had] and not _is_in_layer(name)]
        if not of_tokens:
            continue
        tensors = load_file(file)
        for name in of_tokens:
            last = tensors[name][-1:]
            more = last.expand(max(rows - had, 0), *last.shape[1:])
            tensors[name] = torch.cat([tensors[name][:rows], more])
        file.unlink()
        save_file(tensors, file, metadata={"format": "pt"})
    config = read_object(folder / "config.json")
    (config if "vocab_size" in config else config["text_config"])["vocab_size"] = rows
    write_json(folder / "config.json", config)


def _is_in_layer(name: str) -> bool:
    """Whether a tensor belongs to one of the layers, which have numbers: there a size may be the vocabulary's by chance."""
    return any(part.isdigit() for part in name.split("."))
