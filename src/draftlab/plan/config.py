"""What ``snakemake --config`` may contain, and checks of the files and models that it names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from draftlab.core.settings import Settings, Template
from draftlab.errors import UserError
from draftlab.files.checkout import WORKFLOW
from draftlab.files.packages import PACKAGES, package_of
from draftlab.files.seals import content_digest
from draftlab.files.weights import check_kind, is_gguf
from draftlab.latency.sizes import architecture_of
from draftlab.models.config import context_of
from draftlab.models.hub import WEIGHTS
from draftlab.models.pickled import PICKLED
from draftlab.plan.command_line import QUOTES, check_text, typed
from draftlab.plan.scale import MAIN, SCALES, Pair, Scale

HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+(@[\w./-]+)?")
CHANGES = ("sizes", "raw", "dataset", "target", "draft", "models", "template", "template_options", "answers")
"""The keys that change what a scale runs."""
DIGESTS = Path("results/.digests.json")
"""Digests of files outside the results, by path, inode, size and times."""


class RunConfig(Settings):
    """What ``snakemake --config key=value`` may say."""

    scale: Scale = "laptop"
    sizes: str | None = Field(None, description="a YAML file whose keys override the scale's file")
    raw: str | None = Field(None, description="folder with the real datasets' raw files")
    dataset: str | None = Field(None, description="a file with your own prompts")
    target: str | None = Field(
        None, description="folder or GGUF file of the target, or OWNER/NAME[@REVISION] on the hub"
    )
    draft: str | None = Field(None, description="folder or GGUF file of the draft, or OWNER/NAME[@REVISION] on the hub")
    models: dict[str, str] = Field(
        {}, description="models for single roles: {pair.role: MODEL}, such as {multidraft.target: FILE.gguf}"
    )
    answers: dict[str, Any] = Field(
        {},
        description="how the main pair's target answers, overriding the scale: {engine: openai, url: 'http://HOST:PORT/v1'}",
    )
    template: Template | None = Field(
        None, description="chat template for the prompts; own: the tokenizer's; rendered: they are in one already"
    )
    template_options: dict[str, Any] = Field(
        {},
        description="variables for the target's chat template, such as {enable_thinking: false}; a request's own prevail",
    )
    experiments: str | None = Field(
        None,
        description="reproduction (default), all, or names and your own FILE.yaml, separated by commas; with your own prompts, osd_offline and osd_latency_dataset",
    )
    name: str | None = Field(None, pattern=r"^\w[\w.+-]*$", description="folder under results/")
    tracker: Literal["tensorboard"] | None = Field(None, description="where to write the curves as well")
    show_tokens: bool = Field(True, description="whether the report shows one request's text as tokens")

    @field_validator("raw", "dataset", "target", "draft")
    @classmethod
    def _is_no_flag(cls, value: str | None) -> str | None:
        """Prefix a file whose name begins with a dash, so that it is not read as a flag."""
        return _no_flag(value) if value else value

    @field_validator("template_options", mode="before")
    @classmethod
    def _are_values(cls, value: Any) -> Any:
        """A template takes the text ``false`` for true, and Snakemake ``{word}`` in a text for a wildcard."""
        if not isinstance(value, Mapping):
            return value
        if braces := re.search(r"\{\w[^{}]*\}", json.dumps(value, default=str)):
            raise ValueError(f"braces are wildcards in a workflow: {braces[0]}")
        return typed(value)

    @field_validator("name")
    @classmethod
    def _fits_a_folder(cls, value: str | None) -> str | None:
        if value and len(value.encode()) > 255:
            raise ValueError(f"{len(value.encode())} bytes, but no folder's name has more than 255")
        return value

    @model_validator(mode="after")
    def _names_no_other_scale(self) -> RunConfig:
        """Refuse the folder of another scale: its files, and what is published from it, would be taken for results at that scale."""
        if self.name in SCALES and self.name != self.scale:
            raise ValueError(f"name: {self.name} is another scale, to whose results this folder belongs")
        return self

    @model_validator(mode="after")
    def _does_not_contradict_itself(self) -> RunConfig:
        """Refuse two values for the same thing, of which one would silently count."""
        if self.raw and self.dataset:
            raise ValueError("raw and dataset: the requests come from one of them; leave the other out")
        both = next((key for key in self.models if f"{MAIN}.{key}" in self.models), None)
        if both:
            raise ValueError(f"models: {both} and {MAIN}.{both} are the same model; leave one out")
        for key in self.models:
            if (role := key.removeprefix(f"{MAIN}.")) in self.everywhere:
                raise ValueError(f"{role} and models.{key} are the same model of pair {MAIN}; leave one out")
        if empty := next((key for key, model in self.models.items() if not model), None):
            raise ValueError(f"models: {empty} has no value")
        if self.template and self.answers.get("template", self.template) != self.template:
            raise ValueError(
                f"template is {self.template}, but answers.template {self.answers['template']}; leave one out"
            )
        return self

    def sizes_file(self, workflow: Path) -> Path:
        """The file whose sizes prevail, and which is blamed for a wrong one."""
        return Path(self.sizes or workflow / "scales" / f"{self.scale}.yaml")

    @property
    def asks_only_about_adaptation(self) -> bool:
        """Whether the run only asks whether adaptation helps on the user's prompts."""
        return bool(self.dataset) and self.experiments is None

    @property
    def named_experiments(self) -> list[str]:
        """The experiments in ``experiments``: names, and files of the user's own."""
        return [_no_flag(name.strip()) for name in (self.experiments or "").split(",")]

    @property
    def own_experiments(self) -> dict[str, str]:
        """The files of the user's own experiments, by name."""
        files = [name for name in self.named_experiments if name.endswith(".yaml")]
        return {Path(name).stem: name for name in files if not _is_in(name, WORKFLOW / "experiments")}

    @property
    def everywhere(self) -> dict[str, str]:
        """The models, by role, that replace those of every pair."""
        return {role: name for role in ("target", "draft") if (name := getattr(self, role))}

    @property
    def default_name(self) -> str:
        """The scale and the keys that change it: the folder of the results, if ``name`` gives no other."""
        return "-".join([self.scale, *(key for key in CHANGES if getattr(self, key))])


def _is_in(file: str, folder: Path) -> bool:
    """Whether a file lies in a folder, whatever its path says."""
    return Path(file).resolve().parent == folder.resolve()


def _no_flag(name: str) -> str:
    return f"./{name}" if name.startswith("-") else name


def check_names(words: Iterable[str]) -> None:
    """Check the names of files in ``KEY=VALUE`` arguments before YAML cuts them."""
    for word in words:
        key, _, text = re.sub("^(--config=|-C)", "", word).partition("=")
        if key in ("sizes", "raw", "dataset", "target", "draft", "experiments") and (name := text.strip(QUOTES)):
            check_text(key, name if text[0] in QUOTES else text)


def check_requests(raw: str | None, dataset: str | None) -> None:
    """Check that the user's folder of raw files, or file of prompts, exists."""
    for key, path in (("raw", raw), ("dataset", dataset)):
        if not path:
            continue
        check_name(key, path, "--config")
        if key == "raw" and os.path.isfile(path):
            remedy = "name the folder of the datasets' files; for prompts of your own: dataset=FILE"
            raise UserError(f"raw: a file, not a folder: {path}", file="--config", remedy=remedy)
        if not os.path.exists(path):
            raise UserError(f"{key}: no such file or folder: {path}", file="--config", remedy="check the path")


def check_models(models: Mapping[str, str], source: Path | str) -> None:
    """Check that models, by the key that names them in ``source``, exist; a model ``owner/name`` that does not is left to the hub."""
    for key, name in models.items():
        check_name(key, name, source)
        if (package := package_of(name)) in PACKAGES:
            continue
        if package and not os.path.exists(name):
            remedy = "the packaged model is package:smollm2-135m-instruct"
            raise UserError(f"{key}: no such package: {package}", file=source, remedy=remedy)
        if os.path.exists(name):
            _check_model(key, name, source)
        else:
            _check_hub_id(key, name, source)


def check_name(key: str, name: str, source: Path | str) -> None:
    """Refuse a name that Snakemake would read as another one."""
    if set("{}") & set(name):
        what = f"{key}: braces are wildcards in a workflow: {name}"
        raise UserError(what, file=source, remedy="rename the file or folder")
    check_text(key, name)


def _check_hub_id(key: str, name: str, source: Path | str) -> None:
    """``UserError`` if what is no file or folder here is no model on the hub either."""
    owner = name.split("/")[0]
    if "@" not in name and os.path.isdir(owner):
        what = f"{key}: no such folder: {name}, though {owner}/ exists"
        remedy = "check the path; if you mean a model on the hub, give its revision: OWNER/NAME@main"
        raise UserError(what, file=source, remedy=remedy)
    if not HUB_ID.fullmatch(name):
        remedy = "check the path; a hub id is OWNER/NAME or OWNER/NAME@REVISION"
        raise UserError(f"{key}: no such file or folder: {name}", file=source, remedy=remedy)


def check_architectures(models: Mapping[str, str], source: Path | str) -> None:
    """Check that models, by the key that names them in ``source``, are folders, GGUF files, or architectures that may get random weights."""
    for key, value in models.items():
        if os.path.exists(value):
            _check_model(key, value, source)
            continue
        try:
            architecture_of(value)
        except UserError as error:
            raise UserError(f"{key}: {error.what}", file=source, remedy=error.remedy) from None


def _check_model(key: str, value: str, source: Path | str) -> None:
    """Refuse a folder that is no model, and a model that cannot be represented."""
    try:
        check_kind(Path(value))
    except UserError as error:
        raise UserError(f"{key}: {error.what}: {value}", file=source, remedy=error.remedy) from None
    if not is_gguf(value) and (missing := _missing(Path(value))):
        remedy = "name a folder in the Hugging Face layout, or a GGUF file"
        raise UserError(f"{key}: no {missing} in {value}", file=source, remedy=remedy)
    context_of(value)


def _missing(folder: Path) -> str:
    """What a model's folder lacks; '' if it has what every model has."""
    if not (folder / "config.json").is_file():
        return "config.json"
    has_weights = any(any(folder.glob(pattern)) for pattern in (WEIGHTS[0], PICKLED))
    return "" if has_weights else f"weights ({WEIGHTS[0]} or {PICKLED})"


def content_of_model(name: str | None, weights: bool = True) -> str:
    """Digest of a model that is a folder or a file, with or without its weights; '' for a hub id, whose revision names its content."""
    return content_digest(name, weights, DIGESTS) if name else ""


def context_of_drafts(pair: Pair) -> int:
    """The longest request that all drafts of a pair in folders or files can read, as far as they say; 0: any."""
    names = (recipe.model for recipe in pair.drafts.values())
    return min((size for name in names if name and os.path.exists(name) and (size := context_of(name))), default=0)
