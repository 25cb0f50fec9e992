"""Tables of the distillation experiments as their YAML files plan them, with numbers that no run made: to test what reads tables."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftlab import plan

FOLDER = Path(__file__).resolve().parents[1] / "workflow" / "experiments"
REQUESTS, RECORDS = 20, 120
CLASSES = {
    "dataset": (),
    "language": ("English", "Spanish", "Chinese"),
    "length": ("length 1", "length 2", "length 3"),
    "topic": ("Games", "Education", "Business_Corporate"),
}


def counts(rng: np.random.Generator, alpha: np.ndarray, draft_len: int = 3) -> pd.DataFrame:
    """One row per entry of ``alpha``, as a speculative loop would count."""
    blocks = rng.integers(6, 20, len(alpha))
    visited = blocks * draft_len
    accepted = rng.binomial(visited, np.clip(alpha, 0.02, 0.98))
    values = {"accepted": accepted, "visited": visited, "overlap": accepted, "overlap_repo": 0.9 * accepted}
    return pd.DataFrame(values | {"blocks": blocks, "emitted": accepted + blocks})


def offline(rng: np.random.Generator, settings: Any) -> pd.DataFrame:
    points = (
        np.linspace(0, settings.epochs, settings.probes * settings.epochs + 1) if settings.probes else [settings.epochs]
    )
    frames = []
    for epoch in points if settings.sample_source != "none" else [0]:
        for length in [settings.draft_len, *settings.draft_lens]:
            for measured in ("replay", "live") if settings.live else ("replay",):
                alpha = 0.3 + 0.2 * epoch + rng.normal(0, 0.05, REQUESTS)
                rows = counts(rng, alpha, length).assign(request_id=range(REQUESTS), epoch=epoch, draft_len=length)
                frames.append(rows.assign(measured=measured) if settings.live else rows)
    fixed = {"sample_source": settings.sample_source, "loss": settings.loss, "seed": settings.seed}
    size = {"draft_small": 50_000, "draft_large": 320_000}.get(settings.draft, 115_000)
    return pd.concat(frames).assign(**fixed, parameters=size, tokens=70 * (settings.requests or 1200) * settings.epochs)


def online(rng: np.random.Generator, settings: Any) -> pd.DataFrame:
    rows = _served(rng, settings)
    return rows if settings.bin == 1 else rows.assign(requests=1)


def _served(rng: np.random.Generator, settings: Any) -> pd.DataFrame:
    held_out = {
        "stream_index": range(REQUESTS), "request_id": range(REQUESTS), "split": "eval", "seed": settings.seed
    }  # fmt: skip
    if settings.measured_on == "held_out":
        rows = counts(rng, np.full(REQUESTS, 0.7)).assign(**held_out)
        return rows.assign(group=np.resize(settings.of, REQUESTS), segment=0) if settings.stream else rows
    alpha = np.linspace(0.3, 0.7 if settings.learns else 0.3, RECORDS)
    rows = counts(rng, alpha).assign(stream_index=range(RECORDS), split="train", seed=settings.seed)
    rows = rows.assign(request_id=np.roll(rows["stream_index"], settings.seed))  # each seed has its own order
    if settings.timed:
        rows = rows.assign(cpu_seconds=2.5, peak_mb=400.0)
    if not settings.stream:
        return rows
    stream = settings.stream
    groups = list(stream.groups or CLASSES[stream.group_by] or settings.of)
    place = (
        np.arange(RECORDS) * len(groups) // RECORDS
        if stream.kind == "concatenated"
        else np.arange(RECORDS) % len(groups)
    )
    rows = rows.assign(group=[groups[p] for p in place], segment=place if stream.kind == "concatenated" else 0)
    if not settings.probes:
        return rows
    probes = [
        counts(rng, np.full(REQUESTS, 0.4)).assign(
            **held_out, group=group, segment=0, after=RECORDS * (part + 1) // settings.probes,
        )
        for group in groups for part in range(settings.probes)
    ]  # fmt: skip
    return pd.concat([rows.assign(after=0), *probes])


def tokens(rng: np.random.Generator, settings: Any) -> pd.DataFrame:
    frames = []
    for method, share in (("original", 0.3), ("distilled", 0.7)):
        generated = np.sort(rng.integers(5, 400, 150))[::-1]
        proposed = (generated * 0.8).astype(int) + 1
        frames.append(
            pd.DataFrame({
                "request_id": rng.integers(0, REQUESTS, 150), "token": range(150), "proposed": proposed,
                "accepted": rng.binomial(proposed, share), "generated": generated, "method": method,
                "seed": settings.seed, "text": [f"t{i}" for i in range(150)],
            })
        )  # fmt: skip
    return pd.concat(frames)


def shares(rng: np.random.Generator, settings: Any) -> pd.DataFrame:
    groups = CLASSES[settings.group_by]
    return pd.DataFrame(
        {"slice": s, "group": group, "count": 10 + place, "total": 10 * len(groups) + 3, "group_by": settings.group_by}
        for s in range(settings.slices) for place, group in enumerate(groups)
    )  # fmt: skip


MAKERS = {"offline": offline, "online": online, "tokens": tokens, "shares": shares}


def table(name: str) -> pd.DataFrame:
    """The table of one experiment at scale ``smoke``, as it is read back from its file."""
    experiment = plan.load_experiment(FOLDER / f"{name}.yaml")
    rng = np.random.default_rng(0)
    frames = []
    for cell in experiment.cells("smoke", name).values():
        for own in cell:
            rows = MAKERS[experiment.stage](rng, own.settings)
            split = experiment.of_stage.split
            frames.append((rows.assign(split=split) if split else rows).assign(**own.labels))
    return pd.read_csv(io.StringIO(pd.concat(frames).to_csv(index=False)))


def _planned() -> dict[str, functools.partial[pd.DataFrame]]:
    """Every experiment of these stages but the two that have tables of their own in ``synthetic``."""
    own = {"osd_offline", "osd_online"}
    return {
        path.stem: functools.partial(table, path.stem)
        for path in sorted(FOLDER.glob("*.yaml"))
        if path.stem not in own and plan.load_experiment(path).stage in MAKERS
    }


TABLES = _planned()
