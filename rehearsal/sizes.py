"""What a rehearsal says over ``scale=paper``: smaller amounts, and the CPU. Models, pairs, experiments, their axes and rules stay."""

from __future__ import annotations

from typing import Any

from draftlab.plan.run import Run

FACTOR = 0.005
"""Requests of a rehearsal for each of the paper's."""
AMOUNTS = {
    "train": 100,
    "eval": 60,
    "pairs": 40,
    "raw_rows": 100,
    "requests": 8,
    "per_group": 16,
    "aside": 16,
    "warm_requests": 8,
    "live_requests": 4,
}
"""Amounts that are cut by the factor, and the least that is left."""
CAPS = {
    "max_new_tokens": 12,
    "epochs": 1,
    "blocks": 2,
    "rounds": 2,
    "timed_updates": 3,
    "cases": 3,
    "points": 13,
    "positions": 200,
    "batch_tokens": 8192,
}
"""Amounts that are cut to these."""
DEVICE = {"device": "cpu", "gpu_layers": 0}


def cut(key: str, value: Any) -> Any:
    """A setting as it is rehearsed; 0, which stands for all, stays."""
    if isinstance(value, dict):
        of = key.removesuffix("_of") if key.endswith("_of") else ""
        inside = {name: cut(of or name, own) for name, own in value.items()}
        if "gates" in value:
            inside["gates"] = [
                [end * inside["per_group"] // value["per_group"], group] for end, group in value["gates"]
            ]
        return inside
    if key in DEVICE:
        return DEVICE[key]
    if isinstance(value, bool) or not isinstance(value, int) or not value:
        return value
    if key in AMOUNTS:
        return min(value, max(AMOUNTS[key], round(value * FACTOR)))
    return min(value, CAPS[key]) if key in CAPS else value


def sizes(run: Run) -> dict[str, Any]:
    """The settings of the scale and of its experiments that a rehearsal changes."""
    settings = run.settings
    experiments = {}
    for name, experiment in run.experiments.items():
        own, fields = experiment.scales[run.scale], experiment.of_stage.settings.model_fields
        fixed: dict[str, Any] = {
            key: field.default
            for key, field in fields.items()
            if key in CAPS | AMOUNTS and isinstance(field.default, int)
        }
        fixed |= experiment.fixed | own.fixed
        axes = {**experiment.axes, **own.axes}
        experiments[name] = {"fixed": cut("", fixed), "axes": cut("", axes)}
        if isinstance(seeds := fixed.get("inner", {}).get("seed"), list):
            experiments[name]["fixed"]["inner"]["seed"] = seeds[:1]
    return {
        "data": cut(
            "", settings.data.model_dump(include={"train", "train_of", "eval", "pairs", "raw_rows", "raw_rows_of"})
        ),
        "pairs": {
            name: {"answers": cut("", pair.answers.model_dump(include={"max_new_tokens", "device"}))}
            for name, pair in settings.pairs.items()
        },
        "compute": {"device": "cpu"},
        "needs": {rule: {"threads": 1} for rule, asked in settings.needs.items() if asked.threads > 1},
        "experiments": experiments,
    }
