"""How a model is made, and how the target of a pair answers. Free of torch: the Snakefile imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from draftlab.core.settings import Count, Device, Dtype, NonNegativeInt, Seed, Settings, Template
from draftlab.files.registries import choice, names

DESIGN = ("target", "recipe", "generator")
"""The arguments of a design that is made from the target."""

if TYPE_CHECKING:
    from draftlab.core.sampling_numpy import Sampling

    Design = str
else:
    Design = choice(["scratch", *names("train.designs", "DESIGNS")], DESIGN)


class Recipe(Settings):
    """A model: one that exists, or one that is trained on the spot.

    ``design`` is what a draft starts from: random weights (``scratch``); the target's embedding, first ``layers`` layers, norm and head
    (``pruned``); the target's embedding projected on its first ``hidden`` principal components, below new layers (``pca``); or what a function
    of the user's own makes, ``FILE.py:OBJECT``.
    """

    model: str | None = Field(
        None,
        description="a model that exists: a folder, a GGUF file, package:NAME, or owner/name[@revision] on the hub",
    )
    family: Literal["llama", "t5"] = Field("llama", description="architecture of a model that is trained on the spot")
    design: Design = Field(
        "scratch",
        description="what a draft starts from. scratch: random weights; pruned: the target's embedding, first layers and head; pca: the target's embedding, projected; FILE.py:OBJECT: what your own function of target, recipe and generator returns",
    )
    head: NonNegativeInt = Field(
        0, description="tokens that the draft can propose, those most frequent in the recorded answers; 0: all"
    )
    fill: bool = Field(
        False,
        description="if the answers have fewer tokens than head, add the first ones of the vocabulary, which are common ones if it was made by merging pairs",
    )
    hidden: Count = Field(64, description="width of the layers")
    layers: Count = Field(1, description="number of layers; in a T5, of the encoder and of the decoder")
    heads: Count = Field(2, description="attention heads of a layer")
    ffn: Count = Field(172, description="width of the feed-forward parts")
    context: Count = Field(512, description="context length, in tokens")
    vocabulary: Count = Field(1024, description="tokens of a tokenizer that is trained")
    steps: NonNegativeInt = Field(300, description="updates of the training")
    batch: Count = Field(16, description="texts per update")
    learning_rate: float = Field(default=3e-3, gt=0, description="highest learning rate of AdamW's schedule")
    documents: NonNegativeInt = Field(8000, description="public texts that a draft is trained on")
    learns: Literal["documents", "answers"] = Field(
        "documents",
        description="what a draft is trained on. documents: public texts; answers: the reference answers that a target learns",
    )
    seed: Seed = Field(0, description="seed of the weights, the public texts and their order")

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


class Answering(Settings):
    """How the target answers, whatever the distribution that its tokens are drawn from."""

    engine: Literal["transformers", "llama_cpp", "openai"] = Field(
        "transformers",
        description="transformers: torch reads the model folder; llama_cpp reads a GGUF file (the one from which the folder was made, else an export in dtype); openai: the server at url runs the target (docs/own.md)",
    )
    url: str = Field("", description="address of an OpenAI-compatible server, such as http://host:8000/v1")
    served: str = Field("", description="the target's name on that server, if it serves several models")
    max_new_tokens: int = Field(gt=0, description="most tokens of an answer")
    template: Template = Field(
        "vicuna_short",
        description="how a prompt is written as text. vicuna_v1.1: as Vicuna reads it; vicuna_short: that without the system text; plain: as it is; own: in the target's chat template; rendered: prompts are in it already",
    )
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
    device: Device = Field("cpu", description="where the models run")

    @model_validator(mode="after")
    def _check(self) -> Answering:
        if (self.engine == "openai") != bool(self.url):
            raise ValueError("url is the address of the server for engine openai: give both or neither")
        parts = urlsplit(self.url)
        if self.url and (
            parts.scheme not in ("http", "https") or not parts.hostname or parts.query or "@" in parts.netloc
        ):
            raise ValueError(f"url is not a plain http(s) address; a key goes into the environment variable {API_KEY}")
        return self


class Filters(Settings):
    """Which tokens are left out above temperature 0."""

    top_k: NonNegativeInt = Field(
        0, description="above temperature 0: tokens are drawn from so many of the most probable ones; 0: from all"
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="above temperature 0: tokens are drawn from the most probable ones of this mass"
    )
    min_p: float = Field(
        0.0,
        ge=0,
        le=1,
        description="above temperature 0: no token less than so many times as probable as the most probable one",
    )

    def sampling(self, temperature: float) -> Sampling:
        """How tokens are drawn at a temperature; at 0 nothing is left out."""
        from draftlab.core.sampling_numpy import GREEDY, Sampling

        return Sampling(temperature, self.top_k or None, self.top_p, self.min_p) if temperature else GREEDY


class Answers(Answering, Filters):
    """How the target answers, for the recorded pass that every variant shares."""
