"""The weights of a model folder as files: their names (safetensors, one or several), their digest, and the number of weights."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from draftlab.errors import UserError
from draftlab.files.digests import sha256
from draftlab.files.json_files import read_object
from draftlab.files.seals import sealed_digest, verify

HEAD, EMBEDDING, EXPERT, FUSION = "lm_head.weight", "embed_tokens.weight", ".experts.", "fc.weight"
"""The names of a head, the end of an embedding's, a part of an expert's, and that of the first product of a released head (EAGLE-3, DFlash)."""
LOOKED_UP = (EMBEDDING, "markov_w1.weight", "confidence_head.proj.weight")
"""The ends of the names of weights of which a token reads one row, or none: the second is DSpark's."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Under which names config.json has the number of experts in a layer."""
POINTER = b"version https://git-lfs"
"""How a pointer of Git LFS begins."""
IN_16_BITS = "use this model in 16 bits, or as a GGUF file"
"""What to do with weights that mean nothing without their scales."""


def is_gguf(name: Path | str) -> bool:
    """Whether a model is a GGUF file rather than a folder, by its name."""
    return Path(name).suffix == ".gguf" and not Path(name).is_dir()


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder; raises ``UserError`` if there are none, or only pickled weights.

    Beside a single file, an index is left over from other weights: transformers reads the single file, too.
    """
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    files = [single] if single.is_file() else parts_of(index) if index.is_file() else []
    if not files:
        check_kind(folder)
        pickled = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
        what = f"only pickled weights ({pickled[0].name}), which can run code" if pickled else "no model.safetensors"
        if others := sorted(folder.glob("*.safetensors")):
            what = f"no model.safetensors and no index of its parts, only {others[0].name}"
        raise UserError(what, file=folder, remedy="use a model folder with safetensors")
    for file in files:
        check_no_pointer(file)
    return list(map(verify, files))


def check_kind(model: Path) -> None:
    """Raise ``UserError`` for a file that is no GGUF file by its name, and for a folder that has only an adapter, or only GGUF files."""
    if model.is_file() and not is_gguf(model):
        remedy = "name the folder of a model, or rename a GGUF file so that it ends in .gguf"
        raise UserError("a file, but not called .gguf", file=model, remedy=remedy)
    if any(model.glob("model*.safetensors*")) or any(model.glob("pytorch_model*")):
        return
    if any(model.glob("adapter_*")):
        remedy = "merge it into its base model: merge_and_unload() and save_pretrained() of peft"
        raise UserError("an adapter (LoRA), not a whole model", file=model, remedy=remedy)
    if files := sorted(model.glob("*.gguf")):
        raise UserError("a folder of GGUF files", file=model, remedy=f"name the file: {files[0]}")


def weights_digest(folder: Path) -> str:
    """The SHA-256 of the weights of a model folder, of several files that of their digests; a file with a seal is not read."""
    digests = [sealed_digest(file) or sha256(file) for file in weight_files(folder)]
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def parameter_count(folder: Path) -> int:
    """The number of weights of a model folder or a GGUF file, counted without reading them.

    A head that ``config.json`` calls the embedding counts once, even if the folder has a copy of it, as Qwen3's have. A T5's counts: it may differ.
    """
    return sum(_sizes(folder).values())


def active_parameter_count(folder: Path, tokens: int = 1) -> int:
    """The number of weights that a token reads: of the experts in a mixture, the share that it uses, and no embedding that is not the head.

    Several ``tokens`` read those that at least one of them uses: on average so many, if each uses any expert as often as another.
    A released head without weights of its own for the vocabulary, such as DFlash's, reads those of its target.
    """
    config, sizes = _config(folder), _sizes(folder)
    config = config.get("text_config") or config.get("transformer_layer_config") or config
    used, experts = config.get("num_experts_per_tok"), next(filter(None, map(config.get, EXPERTS)), None)
    share = 1 - (1 - used / experts) ** tokens if used and experts else 1.0
    if FUSION in sizes and HEAD not in sizes:
        sizes[HEAD] = config["vocab_size"] * config["hidden_size"]
    looked_up = LOOKED_UP if HEAD in sizes else ()
    read = (size * (share if EXPERT in name else 1) for name, size in sizes.items() if not name.endswith(looked_up))
    return round(sum(read))


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    return read_object(file) if file.is_file() else {}


def _sizes(folder: Path) -> dict[str, int]:
    """The number of weights of each tensor; those of a GGUF file are one."""
    if is_gguf(folder):
        from draftlab.files.gguf_header import read_header

        return {folder.name: read_header(folder).parameters}
    sizes: dict[str, int] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, "pt") as weights:
                for name in weights.keys():  # noqa: SIM118 (not a dict)
                    sizes[name] = math.prod(weights.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise UserError(f"damaged weights: {error}", file=path, remedy="fetch or make the model again") from None
    config = _config(folder)
    is_tied = config.get("tie_word_embeddings") is True and config.get("model_type") != "t5"
    if is_tied and FUSION not in sizes:  # a released head may say so too, but has none of its own
        sizes.pop(HEAD, None)
    return sizes


def check_no_pointer(file: Path) -> None:
    """Raise ``UserError`` if a file is what Git leaves in its place when the repository is cloned without LFS."""
    with file.open("rb") as opened:
        if opened.read(len(POINTER)) == POINTER:
            raise UserError("a pointer of Git LFS, not the weights", file=file, remedy="in its folder: git lfs pull")


def check_sizes(target: Path, draft: Path) -> None:
    """Raise ``UserError`` if a draft is larger than its target."""
    draft_size, target_size = parameter_count(draft), parameter_count(target)
    if draft_size > target_size:
        what = f"the draft has {draft_size:,} parameters, the target {target_size:,}"
        remedy = "use a draft smaller than the target: a larger one makes decoding slower"
        raise UserError(what, file=draft, remedy=remedy)


def parts_of(index: Path) -> list[Path]:
    """The files that an index of weights names, ``X.index.json`` files of X's kind; they must be in the folder of the index."""
    names, kind = read_object(index).get("weight_map"), Path(index.name.removesuffix(".index.json")).suffix
    if not isinstance(names, dict) or not all(
        isinstance(name, str) and Path(name).name == name and name.endswith(kind) for name in names.values()
    ):
        what = "not an index of weights in its folder"
        raise UserError(what, file=index, remedy="fetch the whole model folder again")
    files = sorted({index.with_name(name) for name in names.values()})
    if missing := [file for file in files if not file.is_file()]:
        raise UserError("a part of the weights is missing", file=missing[0], remedy="fetch the whole model folder")
    return files
