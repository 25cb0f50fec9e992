"""Settings as words of a command line, so that a changed value reruns the jobs that have it and no others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from draftlab.data import streams
from draftlab.plan.grids import variants
from draftlab.plan.scales import Dataset, Settings
from draftlab.plan.stages import Online, Training


def flags(settings: Settings, **paths: Any) -> list[str]:
    """``--name value`` words of every setting of a stage."""
    return words({**settings.model_dump(), **paths})


def words(values: Mapping[str, Any]) -> list[str]:
    """``--name value`` words of plain values; a list becomes several words, ``None`` and empty text are left out."""
    found: list[str] = []
    for key, value in values.items():
        name = f"--{key.replace('_', '-')}"
        if value is None or value == "":
            continue
        if isinstance(value, bool):
            found.append(name if value else f"--no-{key.replace('_', '-')}")
        elif isinstance(value, (list, tuple)):
            found += [
                name,
                *(str(item) for entry in value for item in (entry if isinstance(entry, (list, tuple)) else [entry])),
            ]
        else:
            found += [name, str(value)]
    return found


def models_of(job: Training) -> list[str]:
    """The models that the variants of a job open, as folders below ``models/``: the target first."""
    found = [variant for _, variant in variants(job)]
    return ["target", *sorted({name for own in found for name in (own.draft, getattr(own, "larger", own.draft))})]


def passes_of(job: Training) -> list[str]:
    """The recorded answers that the variants of a job read, as folders below ``answers/``."""
    found = [variant for _, variant in variants(job)]
    every = [(own, dataset, split) for own in found for dataset in own.datasets for split in ("train", "eval")]
    return sorted({pass_name(dataset, split, own.temperature) for own, dataset, split in every})


def pass_name(dataset: Dataset, split: str, temperature: float = 0.0) -> str:
    """The folder of a recorded pass below ``answers/``: one per dataset, split and temperature."""
    return f"{dataset}.{split}" + (f".t{temperature:g}" if temperature else "")


def stream_parts(job: Online) -> list[str]:
    """The files that a job with a stream of its own reads: the order of requests, what is aside, what is held out."""
    found = [variant for _, variant in variants(job)]
    parts = {
        "stream": any(variant.drafts != "by_route" for variant in found),
        "routed": any(variant.drafts == "by_route" for variant in found),
        "aside": any(variant.warm_on == "aside" for variant in found),
        "held_out": any(variant.probes or variant.measured_on == "held_out" for variant in found),
    }
    return [part for part, is_read in parts.items() if is_read and job.stream]


def stream_flags(job: Online, part: str) -> list[str]:
    """The words of ``draftlab data stream`` for one part: the stream itself, the rows after it, or the held-out requests by group."""
    stream = job.arrangement
    if part != "stream":
        kind: streams.Kind = "shuffled" if part == "aside" else "concatenated"
        skip, count = (stream.skip + stream.per_group, job.aside) if part == "aside" else (0, 0)
        stream = dataclasses.replace(stream, kind=kind, skip=skip, per_group=count, knots=(), weights=(), gates=())
    return words(dataclasses.asdict(stream))
