"""Offline distillation: epochs over the answers of a sample source, measured on held-out requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from draftlab.engine.recording import TargetPass
from draftlab.engine.replay import Walk, agree_along, walk
from draftlab.engine.speculate import BlockTrace, speculate
from draftlab.files.atomic import atomic_path, is_first_process
from draftlab.train.learning import Effort, train
from draftlab.train.settings import Offline
from draftlab.train.sources import Scene


def distil(scene: Scene, held_out: TargetPass, settings: Offline, *, checkpoint: Path) -> tuple[pd.DataFrame, Effort]:
    """Distil ``scene.draft``, and measure it on ``held_out``: before each of ``probes`` parts of every epoch, and at the end.

    Rows: ``epoch, request``, the counts of ``counts``, and the tokens and CPU seconds of training so far. Measurements are kept beside the
    checkpoint, for a run that is killed. Of several processes only the first measures along the way.
    """
    if settings.sample_source == "none":
        return _at(0.0, measure(scene, held_out, settings), Effort(), settings), Effort()
    requests = range(len(scene.recorded.answers))[: settings.requests or None]
    per_epoch = math.ceil(len(requests) / settings.batch)
    probes = range(settings.probes * settings.epochs)
    due = {round(probe * per_epoch / settings.probes) for probe in probes}
    measured, effort = checkpoint.with_suffix(".csv"), Effort()

    def watch(step: int) -> None:
        if step in due and is_first_process():
            earlier = pd.read_csv(measured) if step and measured.exists() else pd.DataFrame()
            earlier = earlier[earlier["epoch"] < step / per_epoch] if len(earlier) else earlier
            rows = _at(step / per_epoch, measure(scene, held_out, settings), effort, settings)
            with atomic_path(measured) as temporary:
                pd.concat([earlier, rows]).to_csv(temporary, index=False)

    train(
        scene,
        requests,
        settings.epochs * per_epoch,
        settings,
        settings.sample_source,
        sample_batch=settings.sample_batch,
        checkpoint=checkpoint,
        watch=watch,
        effort=effort,
    )
    rows = _at(float(settings.epochs), measure(scene, held_out, settings), effort, settings)
    if due and is_first_process():
        rows = pd.concat([pd.read_csv(measured), rows], ignore_index=True)
        measured.unlink()
    return rows, effort


def _at(epoch: float, rows: pd.DataFrame, effort: Effort, settings: Offline) -> pd.DataFrame:
    """Add the columns of training progress."""
    rows = rows.assign(epoch=epoch, tokens=effort.tokens)
    return rows.assign(learning_seconds=effort.milliseconds / 1e3) if settings.timed else rows


def measure(scene: Scene, held_out: TargetPass, settings: Offline) -> pd.DataFrame:
    """Acceptance of the draft along recorded answers, one row per request and draft length; with ``live``, also by decoding."""
    agree = agree_along(scene.draft, held_out)
    lengths = dict.fromkeys([settings.draft_len, *settings.draft_lens])
    rows = pd.concat([counts(walk(agree, length)).assign(draft_len=length) for length in lengths], ignore_index=True)
    if not settings.live:
        return rows
    assert scene.target is not None
    decoded = speculate(
        scene.target,
        scene.draft,
        [record.prompt_ids for record in held_out.answers],
        draft_len=settings.draft_len,
        max_new_tokens=scene.max_new_tokens,
        eos_ids=scene.eos_ids,
        sampling=held_out.sampling,
        generator=torch.Generator(scene.target.device).manual_seed(settings.seed),
        batch=scene.at_once,
    )
    live = trace_counts(decoded.traces).assign(draft_len=settings.draft_len)
    return pd.concat([rows.assign(measured="replay"), live.assign(measured="live")], ignore_index=True)


def trace_counts(traces: Sequence[BlockTrace]) -> pd.DataFrame:
    """The counts of decoded requests, in the columns of ``counts``."""
    names = ("accepted", "visited", "overlap", "overlap_repo")
    rows = pd.DataFrame({name: [sum(getattr(trace, name)) for trace in traces] for name in names})
    blocks, emitted = ([of(trace.emitted) for trace in traces] for of in (len, sum))
    return rows.assign(request_id=range(len(traces)), blocks=blocks, emitted=emitted)


def counts(walked: Walk) -> pd.DataFrame:
    """Numerators and denominators, one row per request."""
    names = ("accepted", "visited", "overlap", "overlap_repo", "blocks", "emitted")
    return pd.DataFrame({"request_id": range(len(walked.emitted))} | {name: getattr(walked, name) for name in names})
