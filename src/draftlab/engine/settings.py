"""How a model is made, and how the target of a pair answers. Free of torch: the Snakefile imports it."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from draftlab.core.settings import Count, Device, Dtype, NonNegativeInt, Settings, Template


class Recipe(Settings):
    """A model: one that exists, or one that is trained on the spot.

    ``model`` names an existing model: a folder, a GGUF file, ``package:NAME`` (``files.packages``), or ``owner/name[@revision]`` on the hub.
    A T5 has ``layers`` in its encoder and as many in its decoder. ``learns``: what a small draft is trained on, public text
    (``documents``), or the reference answers that a small target also learns. ``design``: what a draft starts from, random weights
    (``scratch``); the target's embedding, first ``layers`` layers, norm and head (``pruned``); or the target's embedding projected on its first
    ``hidden`` principal components, below new layers (``pca``). ``head`` is the number of tokens that the draft can propose: the most frequent
    tokens in the recorded answers to the stream's requests (0: all). If there are too few of them, ``fill`` adds the first tokens of the
    vocabulary, which are common in a tokenizer that was trained by merging pairs.
    """

    model: str | None = None
    family: Literal["llama", "t5"] = "llama"
    design: Literal["scratch", "pruned", "pca"] = "scratch"
    head: NonNegativeInt = 0
    fill: bool = False
    hidden: Count = 64
    layers: Count = 1
    heads: Count = 2
    ffn: Count = 172
    context: Count = 512
    vocabulary: Count = 1024
    steps: NonNegativeInt = 300
    batch: Count = 16
    learning_rate: float = Field(default=3e-3, gt=0)
    documents: NonNegativeInt = 8000
    learns: Literal["documents", "answers"] = "documents"
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        if self.family == "t5" and (self.design != "scratch" or self.head):
            raise ValueError("a t5 can only be made from scratch, with its whole head")
        return self


WHOLE_VOCAB = 4096
"""Vocabularies up to this size are recorded whole."""
BRANCHED = 2**15
"""The most tokens in the cache of a search for trees along a text, which has a row for each position and each text that is extended there."""

API_KEY = "DRAFTLAB_API_KEY"
"""The environment variable with the key of a server."""


class Answers(Settings):
    """How the target answers, for the recorded pass that every variant shares.

    ``engine``: ``transformers`` reads the model folder with torch; ``llama_cpp`` reads a GGUF file (the one from which the folder was made,
    else an export in ``dtype``); ``openai`` asks the server at ``url``, which runs the target itself (``docs/own.md``).
    """

    engine: Literal["transformers", "llama_cpp", "openai"] = "transformers"
    url: str = Field("", description="address of an OpenAI-compatible server, such as http://host:8000/v1")
    served: str = Field("", description="the target's name on that server, if it serves several models")
    max_new_tokens: int = Field(gt=0)
    template: Template = "vicuna_short"
    batch: int = Field(gt=0, default=64, description="most requests to answer at once")
    batch_tokens: int = Field(
        gt=0, default=65536, description="most tokens in such a batch: prompts, answers and padding together"
    )
    keep: int = Field(
        gt=0,
        default=64,
        description="number of most probable tokens to record of each distribution over a large vocabulary",
    )
    dtype: Dtype = Field(
        "float32",
        description="number type of the target; fast: bfloat16 on a GPU, or on a CPU with instructions for it, else float32",
    )
    device: Device = "cpu"

    @model_validator(mode="after")
    def _check(self) -> Answers:
        if (self.engine == "openai") != bool(self.url):
            raise ValueError("url is the address of the server for engine openai: give both or neither")
        parts = urlsplit(self.url)
        if self.url and (
            parts.scheme not in ("http", "https") or not parts.hostname or parts.query or "@" in parts.netloc
        ):
            raise ValueError(f"url is not a plain http(s) address; a key goes into the environment variable {API_KEY}")
        return self
