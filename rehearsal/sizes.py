"""The settings that a rehearsal changes in ``scale=paper``: smaller amounts, and the device. Models, pairs, experiments, axes and rules stay."""

from __future__ import annotations

from typing import Any

from draftlab.core.settings import Device
from draftlab.plan.run import Run

FACTOR = 0.005
"""A rehearsal has so many requests for each of the paper's."""
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
"""Amounts that are multiplied by the factor, and their minimum."""
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
"""Maxima of other amounts."""
DEVICES: dict[Device, dict[str, Any]] = {"cpu": {"device": "cpu", "gpu_layers": 0}, "cuda": {}}
"""The settings that a rehearsal changes on a device: ``scale=paper`` is written for GPUs."""


def cut(key: str, value: Any, device: Device) -> Any:
    """A setting in the rehearsal; 0 stands for all, and stays."""
    if isinstance(value, dict):
        of = key.removesuffix("_of") if key.endswith("_of") else ""
        smaller = {name: cut(of or name, inner, device) for name, inner in value.items()}
        if "gates" in value:
            before, after = value["per_group"], smaller["per_group"]
            smaller["gates"] = [[end * after // before, group] for end, group in value["gates"]]
        return smaller
    if key in DEVICES[device]:
        return DEVICES[device][key]
    if isinstance(value, bool) or not isinstance(value, int) or not value:
        return value
    if key in AMOUNTS:
        return min(value, max(AMOUNTS[key], round(value * FACTOR)))
    return min(value, CAPS[key]) if key in CAPS else value


def sizes(run: Run, device: Device) -> dict[str, Any]:
    """The settings of the scale and of its experiments that a rehearsal changes."""
    settings = run.settings
    experiments = {}
    for name, experiment in run.experiments.items():
        scale, fields = experiment.scales[run.scale], experiment.stage_kind.settings.model_fields
        defaults = {key: fields[key].default for key in fields if key in CAPS | AMOUNTS}
        fixed: dict[str, Any] = {key: value for key, value in defaults.items() if isinstance(value, int)}
        fixed |= experiment.fixed | scale.fixed
        axes = {**experiment.axes, **scale.axes}
        experiments[name] = {"fixed": cut("", fixed, device), "axes": cut("", axes, device)}
        if isinstance(seeds := fixed.get("inner", {}).get("seed"), list):
            experiments[name]["fixed"]["inner"]["seed"] = seeds[:1]
    data = settings.data.model_dump(include={"train", "train_of", "eval", "pairs", "raw_rows", "raw_rows_of"})
    return {
        "data": cut("", data, device),
        "pairs": {
            name: {"answers": cut("", pair.answers.model_dump(include={"max_new_tokens", "device"}), device)}
            for name, pair in settings.pairs.items()
        },
        "compute": {"device": device},
        "needs": {rule: {"threads": 1} for rule, asked in settings.needs.items() if asked.threads > 1},
        "experiments": experiments,
    }
