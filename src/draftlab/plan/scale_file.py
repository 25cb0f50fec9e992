"""Reads and checks a scale's file, ``workflow/scales/<scale>.yaml``."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from draftlab.errors import UserError
from draftlab.files.validated import validated
from draftlab.files.yaml_files import Place, read_yaml
from draftlab.plan.scale import ScaleSettings
from draftlab.stages import STAGES


def read_scale(path: Path, sizes: str | None) -> ScaleSettings:
    """The settings in a scale's file, with the keys of the file ``sizes`` in place of its own."""
    values = _values(path)
    if sizes:
        path = Path(sizes)
        values = _merged(values, read_yaml(path))
    return validated(ScaleSettings, values, Place(path))


def says_only_how_jobs_run(sizes: Path, decode: Collection[str]) -> bool:
    """Whether a file of sizes only says how jobs run, and not what they compute: what they request, and how many requests they read at once.

    ``decode``: the experiments whose ``batch`` is of requests that are decoded, not of those that an update learns from.
    """
    values = read_yaml(sizes) or {}
    pairs, experiments = (values.get(key) or {} for key in ("pairs", "experiments"))
    return (
        values.keys() <= {"needs", "limits", "compute", "pairs", "experiments"}
        and all(
            pair.keys() <= {"answers"} and pair.get("answers", {}).keys() <= {"batch", "batch_tokens", "device"}
            for pair in pairs.values()
        )
        and all(
            size.keys() <= {"fixed"}
            and size.get("fixed", {}).keys() <= {"micro_batch", "sample_batch", *(["batch"] if name in decode else [])}
            for name, size in experiments.items()
        )
    )


def _values(path: Path, above: tuple[Path, ...] = ()) -> Any:
    """A scale's values merged over those of the scale that it ``extends``."""
    values = read_yaml(path)
    if not isinstance(values, dict) or "extends" not in values:
        return values
    base = path.with_name(f"{values.pop('extends')}.yaml")
    if not base.is_file():
        scales = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml")))
        raise Place(path).error(f"extends: no scale named {base.stem!r}", ["extends"], remedy=f"allowed: {scales}")
    if base in (path, *above):
        raise UserError(f"extends: {base.stem} extends itself", file=path, remedy="name another scale")
    return _merged(_values(base, (path, *above)), values)


def _merged(base: Any, values: Any) -> Any:
    """Merge mappings by key, at every depth; null removes a key."""
    if not isinstance(base, dict) or not isinstance(values, dict):
        return values
    merged = base | {key: _merged(base.get(key), value) for key, value in values.items()}
    return {key: value for key, value in merged.items() if value is not None}


def check_needs(settings: ScaleSettings, workflow: Path, where: Place) -> None:
    """Check that resources are given only to rules that request some."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(workflow.rglob("*.smk"))]
    rules = {name for text in texts for name in re.findall(r'resources_of\("(\w+)"', text)} | set(STAGES) | {"latency"}
    for name in settings.needs:
        rule, _, pair = name.partition(".")
        if rule not in rules or (pair and pair not in settings.pairs):
            what, remedy = f"needs: no rule asks for {name!r}", f"allowed: {', '.join(sorted(rules))}"
            raise where.error(what, ["needs", name], remedy=remedy)


def check_sizes(settings: ScaleSettings, path: Path) -> None:
    """Check that the models that are made here can be made: a draft would fail only after its target was trained."""
    for name, pair in settings.pairs.items() if not settings.by_architecture else ():
        new, context = pair.answers.max_new_tokens, pair.target.context
        if new >= context and pair.target.family == "llama" and not pair.target.model:
            what = f"target of pair {name}: an answer of {new} tokens leaves no room for a prompt in a context of {context}"
            remedy = "lower answers.max_new_tokens, or raise target.context"
            raise Place(path).error(what, ["pairs", name, "answers", "max_new_tokens"], remedy=remedy)
        for role, recipe in pair.models.items():
            keys = ["pairs", name, *(["drafts"] if role in pair.drafts else []), role]
            head, most = recipe.hidden // recipe.heads, {"pruned": "layers", "pca": "hidden"}.get(recipe.design, "")
            if recipe.model:
                continue
            if recipe.family == "llama" and recipe.design != "pruned" and (head == 0 or head % 2):
                what = f"{role} of pair {name}: {recipe.heads} heads of a model that is {recipe.hidden} wide"
                raise Place(path).error(what, [*keys, "heads"], remedy="give each head an even width")
            if most and not pair.target.model and getattr(recipe, most) > getattr(pair.target, most):
                sizes = f"{most} is {getattr(recipe, most)}, but the target has {getattr(pair.target, most)}"
                remedy = f"a {recipe.design} draft has no more than its target"
                raise Place(path).error(f"{role} of pair {name}: {sizes}", [*keys, most], remedy=remedy)
