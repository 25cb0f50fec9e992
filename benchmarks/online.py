"""Cost of online distillation beside the way OSD's repository does it: contenders take turns in one process, on one thread, in CPU seconds.

    python -m benchmarks.online --results results/laptop --dataset spider --draft draft_large

``repository`` is the loop of OSD's repository, rewritten on ``transformers``: one request at a time at temperature 0.01, both caches cut after
every block, and before each update a second forward of the target over all served texts. It shares nothing with the loop of
``draftlab.engine``. ``live`` decodes beside the target as ``draftlab online --live`` does. ``replay`` reads recorded answers; the recording is
not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from benchmarks import Turns, run, show, take_turns
from draftlab.core.losses import forward_kl
from draftlab.core.settings import Count, Flat
from draftlab.engine.answers import recorded_name
from draftlab.engine.recording import load_pass
from draftlab.latency.comparison import compare
from draftlab.models import hf, load_model, load_tokenizer
from draftlab.train import online, traffic, training
from draftlab.train.live import live_server
from draftlab.train.settings import Serving

TEMPERATURE = 0.01


class OnlineBench(Turns):
    """The first requests of a recorded stream, an update after every ``update_interval``."""

    requests: Count = 48
    update_interval: Count = 8
    learning_rate: float = Field(default=2e-3, gt=0)
    draft_len: Count = 5
    max_new_tokens: Count = 96


def bench(
    results: Path,
    dataset: str = "spider",
    draft: str = "draft",
    settings: OnlineBench = OnlineBench(),  # noqa: B008 (frozen)
) -> pd.DataFrame:
    """Serve the first requests of a run's recorded stream with each contender, in turns; one row per contender.

    Columns: ``contender, requests_per_cpu_second, milliseconds`` (per request; median), ``alpha_accepted, speedup, low, high``: CPU
    seconds of ``repository`` over the contender's, paired by turn, with the 99 % interval.
    """
    torch.set_num_threads(1)
    recorded = load_pass(results / "answers" / recorded_name(dataset, "train"))
    served = traffic.whole(recorded, dataset).take(range(min(settings.requests, len(recorded.answers))))
    folders = [results / "models" / name for name in ("target", draft)]
    eos_ids = load_tokenizer(folders[0]).eos_ids
    options = settings.model_dump(include={"update_interval", "draft_len", "learning_rate"})
    job = Serving.model_validate(options | {"dataset": dataset, "batch": settings.update_interval})
    online.check_interval(served, job)
    prompts = [answer.prompt_ids for answer in served.answers.answers]

    def ours(server: online.Server) -> float:
        rows, _ = online.serve(load_model(folders[1]), served, job, server=server)
        return float(rows["accepted"].sum() / rows["visited"].sum())

    contenders: dict[str, Callable[[], float]] = {
        "repository": lambda: serve_as_the_repository(folders, prompts, eos_ids, job, settings.max_new_tokens),
        "live": lambda: ours(live_server(load_model(folders[0]), settings.max_new_tokens, eos_ids)),
        "replay": lambda: ours(online.replay_server),
    }
    seconds, alphas = take_turns(contenders, settings.repeats)
    rows = []
    for name, times in seconds.items():
        each = float(np.median(times)) / len(prompts)
        against = compare(seconds["repository"], times)
        row = {"contender": name, "requests_per_cpu_second": 1 / each, "milliseconds": 1e3 * each}
        row |= {"alpha_accepted": alphas[name], "speedup": against.ratio, "low": against.low, "high": against.high}
        rows.append(row)
    return pd.DataFrame(rows)


def serve_as_the_repository(
    folders: Sequence[Path],
    prompts: Sequence[Sequence[int]],
    eos_ids: Collection[int],
    settings: Serving,
    max_new_tokens: int,
) -> float:
    """Serve and learn as OSD's repository does, the loss at the ends of blocks; returns accepted / visited tokens."""
    target, draft = (hf.load(folder).network for folder in folders)
    optimizer = training.adamw(draft, settings.learning_rate)
    generator = torch.Generator().manual_seed(settings.seed)
    accepted = visited = 0
    buffer: list[tuple[list[int], list[int]]] = []
    for prompt in prompts:
        text, ends, counts = decode_as_the_repository(
            target, draft, prompt, eos_ids, settings.draft_len, max_new_tokens, generator
        )
        accepted, visited = accepted + counts[0], visited + counts[1]
        buffer.append((text, ends))
        if len(buffer) == settings.update_interval:
            width = max(len(ids) for ids, _ in buffer)
            batch = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in buffer])
            chosen = torch.zeros_like(batch, dtype=torch.bool)
            for row, (_, places) in enumerate(buffer):
                chosen[row, places] = True
            with torch.no_grad():
                target_logits = target(batch, use_cache=False).logits[chosen]
            loss = forward_kl(draft(batch, use_cache=False).logits[chosen], target_logits).mean()
            training.update(optimizer, [loss], settings.clip)
            buffer = []
    return accepted / visited


@torch.inference_mode()
def decode_as_the_repository(
    target: Any,
    draft: Any,
    prompt: Sequence[int],
    eos_ids: Collection[int],
    draft_len: int,
    max_new_tokens: int,
    generator: torch.Generator,
) -> tuple[list[int], list[int], tuple[int, int]]:
    """One answer: the text with its prompt, the positions of the loss (before the last token of each block), accepted and visited."""
    from transformers import DynamicCache

    caches = [DynamicCache(), DynamicCache()]
    distribution = _distribution(target(torch.tensor([prompt]), past_key_values=caches[0]).logits[0, -1])
    text = [*prompt, _draw(distribution, generator)]
    ends: list[int] = []
    accepted = visited = 0
    while len(text) - len(prompt) < max_new_tokens and not {*text[len(prompt) :]} & {*eos_ids}:
        drafted: list[int] = []
        draft_distributions: list[Tensor] = []
        new = text[caches[1].get_seq_length() :]
        while len(drafted) < draft_len and not {*drafted} & {*eos_ids}:
            draft_distributions.append(
                _distribution(draft(torch.tensor([new]), past_key_values=caches[1]).logits[0, -1])
            )
            drafted.append(_draw(draft_distributions[-1], generator))
            new = drafted[-1:]
        distributions = _distribution(target(torch.tensor([[text[-1], *drafted]]), past_key_values=caches[0]).logits[0])
        count = 0
        for distribution, draft_distribution, token in zip(distributions, draft_distributions, drafted, strict=False):
            visited += 1
            if float(torch.rand((), generator=generator)) >= float(distribution[token] / draft_distribution[token]):
                break
            count += 1
        last = distributions[count]
        if count < len(drafted):
            rest = (last - draft_distributions[count]).clamp(min=0)
            last = rest if float(rest.sum()) else last
        before = len(text)
        text += [*drafted[:count], _draw(last, generator)]
        ends.append(len(text) - 2)
        accepted += count
        for cache, length in zip(caches, (before + count, before), strict=True):
            if (over := cache.get_seq_length() - length) > 0:
                cache.crop(-over)
    return text, ends, (accepted, visited)


def _distribution(logits: Float[Tensor, "*positions vocab"]) -> Float[Tensor, "*positions vocab"]:
    return torch.softmax(logits.float() / TEMPERATURE, -1)


def _draw(distribution: Float[Tensor, " vocab"], generator: torch.Generator) -> int:
    return int(torch.multinomial(distribution, 1, generator=generator))


def table(frame: pd.DataFrame) -> str:
    """The figures for a person: one line per contender."""
    lines = [
        f"{'contender':12}{'requests/CPU s':>15}{'ms/request':>12}{'alpha':>8}{'x repository':>14}   99 % interval"
    ]
    for row in frame.to_dict("records"):
        lines.append(
            f"{row['contender']:12}{row['requests_per_cpu_second']:15.1f}{row['milliseconds']:12.2f}"
            f"{row['alpha_accepted']:8.3f}{row['speedup']:14.1f}   {row['low']:.1f} to {row['high']:.1f}"
        )
    return "\n".join(lines)


def main(
    settings: Flat[OnlineBench],
    *,
    results: Path,
    dataset: str = "spider",
    draft: str = "draft",
    out: Path | None = None,
) -> None:
    """Time online distillation, live and by replay, beside the loop of OSD's repository, in turns, in CPU seconds on one thread."""
    frame = bench(results, dataset, draft, settings)
    show(frame, table(frame), out)


if __name__ == "__main__":
    run(main)
