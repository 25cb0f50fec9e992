"""The user's own data and models, by ``--config``, in place of a scale's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from draftlab.core.settings import Dataset
from draftlab.data import registry
from draftlab.engine.settings import Answers
from draftlab.errors import UserError
from draftlab.files.json_files import read_json
from draftlab.files.packages import PACKAGES, package_of
from draftlab.files.validated import validated
from draftlab.files.weights import is_gguf
from draftlab.files.yaml_files import Place
from draftlab.models.config import LLAMAS, is_llama, read_config, unsupported_settings
from draftlab.plan.config import RunConfig, check_architectures, check_models, check_requests
from draftlab.plan.scale import MAIN, Pair, ScaleSettings


def check_own(settings: ScaleSettings, config: RunConfig, scale: Path) -> None:
    """Check that the user's files exist, or the architectures of a scale whose models have random weights; such a scale reads no requests."""
    if not settings.by_architecture:
        check_requests(config.raw, config.dataset)
        check_models(config.everywhere | config.models, "--config")
        return
    unread = {"raw": config.raw, "dataset": config.dataset, "template": config.template, "answers": config.answers}
    unread |= {"template_options": config.template_options}
    if key := next(filter(unread.get, unread), None):
        what = f"{key}: scale {config.scale} reads no requests, because its models have random weights"
        raise UserError(what, file="--config", remedy="leave it out, or choose another scale")
    check_architectures(config.everywhere | config.models, "--config")
    check_architectures(settings.named_architectures, scale)


def with_own(settings: ScaleSettings, config: RunConfig) -> ScaleSettings:
    """The scale with the user's data, models, template and engine in place of its own."""
    settings = _with_data(settings, config)
    return settings.model_copy(update={"pairs": _with_models(settings.pairs, config)})


def _with_data(settings: ScaleSettings, config: RunConfig) -> ScaleSettings:
    """The scale with the user's raw files or prompts in place of its datasets."""
    data, pairs = settings.data, settings.pairs
    data = data.model_copy(update={"template_options": data.template_options | config.template_options})
    if config.raw:
        folder = Path(config.raw)

        def held(datasets: list[Dataset]) -> list[Dataset]:
            return [name for name in datasets if name in PACKAGES or registry.find(name).files_in(folder, "train")]

        data = data.model_copy(update={"source": "raw", "extra": held(data.extra)})
        # Where the folder has no dataset of a pair, reading them raises the error.
        pairs = {
            name: pair.model_copy(update={"datasets": held(pair.datasets) or pair.datasets})
            for name, pair in pairs.items()
        }
    if config.dataset:
        data = data.model_copy(update={"source": "raw", "datasets": ["prompts"], "extra": []})
        pairs = {
            name: pair if name == MAIN else pair.model_copy(update={"datasets": ["prompts"]})
            for name, pair in pairs.items()
        }
    return settings.model_copy(update={"data": data, "pairs": pairs})


def _with_models(scale_pairs: Mapping[str, Pair], config: RunConfig) -> dict[str, Pair]:
    """The pairs with the user's models, template and engine; encoder-decoders keep their template."""
    pairs = dict(scale_pairs)
    given = _given_models(pairs, config)
    for name, pair in pairs.items():
        answers = pair.answers
        if pair.target.family == "llama":
            target = given[name].get("target", "")
            # One of the hub is asked for its own: a base model has none, which the first job says before any weights are fetched.
            is_named = target == config.target or name == MAIN
            is_of_hub = is_named and bool(target) and not os.path.exists(target) and package_of(target) is None
            brings_its_own = bool(target) and (is_of_hub or _has_template(target))
            template = config.template or ("own" if brings_its_own else answers.template)
            answers = answers.model_copy(update={"template": template})
        pairs[name] = pair.with_models(given[name]).model_copy(update={"answers": answers})
    if config.answers:
        answers = validated(Answers, pairs[MAIN].answers.model_dump() | config.answers, Place("--config: answers"))
        pairs[MAIN] = pairs[MAIN].model_copy(update={"answers": answers})
    _check_templates(pairs, given[MAIN].get("target", ""))
    _check_draft(pairs[MAIN], given[MAIN].get("target", ""))
    if config.template_options and (template := pairs[MAIN].answers.template) != "own":
        what = f"template_options: the template {template} has none"
        raise UserError(what, file="--config", remedy="leave them out, or give template=own")
    return pairs


def _check_templates(pairs: Mapping[str, Pair], target: str) -> None:
    """Check that the user's ``target``, and every target that is trained here, has the chat template that is asked of it."""
    remedy = "name one: template=plain, vicuna_short or vicuna_v1.1 (draftlab verdict: --template)"
    if target and os.path.exists(target) and pairs[MAIN].answers.template == "own" and not _has_template(target):
        raise UserError("the target has no chat template", file=target, remedy=remedy)
    for name, pair in pairs.items():
        if pair.answers.template == "own" and not pair.target.model:
            raise UserError(f"the target of pair {name} is trained here and has no chat template", remedy=remedy)


def _check_draft(pair: Pair, target: str) -> None:
    """Check that the draft can be made of the user's ``target``, if it is to be: the target's answers are recorded first, which may take hours."""
    draft = pair.drafts.get("draft")
    if draft is None or draft.model or draft.design == "scratch" or is_gguf(target) or not os.path.isdir(target):
        return
    if not is_llama(config := read_config(target)):
        kind = config.get("model_type") or "model"
        reasons = ", ".join(unsupported_settings(config)) if kind in LLAMAS else ""
        what = f"no draft can be made of the layers of this {kind}" + (f" ({reasons})" if reasons else "")
        raise UserError(what, file=target, remedy="give a draft: draft=MODEL (draftlab verdict: --draft MODEL)")


def _given_models(pairs: Mapping[str, Pair], config: RunConfig) -> dict[str, dict[str, str]]:
    """The user's models by pair and role; encoder-decoders keep theirs where none is named for them."""
    given = {name: dict(config.everywhere) if pair.target.family == "llama" else {} for name, pair in pairs.items()}
    for key, model in config.models.items():
        name, dot, role = key.rpartition(".")
        name = name if dot else MAIN
        if name not in pairs or role not in pairs[name].models:
            allowed = ", ".join(f"{name}.{role}" for name, pair in pairs.items() for role in pair.models)
            raise UserError(f"models: no model named {key!r}", file="--config", remedy=f"allowed: {allowed}")
        given[name][role] = model
    return given


def _has_template(target: str) -> bool:
    """Whether a target, a package, a file or a folder, has a chat template; False for one on the hub, which is not known yet."""
    if package_of(target) is not None:
        return True
    if is_gguf(target):
        from draftlab.files.gguf_header import read_header

        return "tokenizer.chat_template" in read_header(target).metadata
    config = Path(target, "tokenizer_config.json")
    return Path(target, "chat_template.jinja").exists() or (
        config.is_file() and bool(read_json(config).get("chat_template"))
    )
