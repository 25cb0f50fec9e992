"""What `draftlab plan` prints before anything runs: jobs by rule, memory, hours, disk, downloads, and repositories that ask for access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from draftlab.data import registry
from draftlab.errors import UserError
from draftlab.files.packages import PREFIX
from draftlab.files.validated import validated
from draftlab.files.yaml_files import Place, read_yaml
from draftlab.latency.sizes import known_models
from draftlab.plan.hours import GPUS, Card, seconds
from draftlab.plan.needs import Job, has_gpu, jobs, memory_mb
from draftlab.plan.preflight import check_raw, needed
from draftlab.plan.run import Run, run_of
from draftlab.plan.scale import Gpu
from draftlab.stages import STAGES

HELD = 1.15
"""A job fits a card of so many times its peak: torch's allocator held up to 1.12 times the peak that was computed (docs/paper.md), and CUDA
itself takes more."""
LOWER = {
    "answer": "pairs.{pair}.answers.batch_tokens",
    "pairs": "pairs.{pair}.answers.batch_tokens",
    "offline": "micro_batch, sample_batch",
    "online": "micro_batch",
    "tokens": "micro_batch",
    "medusa": "micro_batch",
    "blocks": "batch",
    "live": "batch",
    "trees": "batch",
}
"""What makes a job of a rule smaller: a key of the scale, or settings of its experiment."""


def lines(run: Run, gpu: str, card: Card, *, prompt: int = 256, gpus: int = 1) -> Iterator[str]:
    """The table by rule, the jobs that do not fit a ``card``, downloads, and repositories that ask for access."""
    every = list(jobs(run))
    hours = {job: taken / 3600 for job in every if (taken := seconds(run, job, card, prompt)) is not None}
    gpu_hours = {job: taken * run.settings.asked(job.rule, job.pair).gpu for job, taken in hours.items()}
    yield from _by_rule(run, every, gpu_hours)
    if hours:
        unknown = sorted({job.rule for job in every if job not in hours and has_gpu(run, job.rule, job.pair)})
        yield f"GPU, h: on {gpu}, prompts of {prompt} tokens, answers as long as they may be; without {', '.join(unknown) or 'exception'}"
        longest = max((taken for job, taken in hours.items() if job.rule not in STAGES), default=0.0)
        longest += max((taken for job, taken in hours.items() if job.rule in STAGES), default=0.0)
        total = max(sum(gpu_hours.values()) / gpus, longest)
        yield f"on {gpus} GPU{'s' * (gpus > 1)}: {total:,.1f} hours or more, of which the longest answers and the longest cell take {longest:,.1f}"
    if (most := max(run.settings.asked(job.rule, job.pair).gpu for job in every)) > gpus:
        yield f"a job asks for {most} GPUs, more than there are (--gpus {gpus})"
    for job, taken in hours.items():
        if taken * 60 > (limit := run.settings.within("runtime", run.settings.asked(job.rule, job.pair).runtime)):
            yield f"requests {limit} min, may take {taken * 60:,.0f}: {job.rule} {job.pair} {job.name}"
    yield from _downloads(run, every)
    room = card.memory * 2**30 / HELD
    large = [job for job in every if job.peak and job.peak > room and has_gpu(run, job.rule, job.pair)]
    for job in large:
        lower = f"; lower {LOWER[job.rule].format(pair=job.pair)}" if job.rule in LOWER else ""
        yield f"does not fit {gpu} ({card.memory:g} GiB): {job.rule} {job.pair} {job.name}, {(job.peak or 0) * HELD / 2**30:,.1f} GiB{lower}"
    if not large:
        yield f"every job that is modelled fits {gpu} ({card.memory:g} GiB)"


def _by_rule(run: Run, every: Sequence[Job], gpu_hours: Mapping[Job, float]) -> Iterator[str]:
    """A line per rule, and one for all."""
    yield f"{'rule':<18}{'jobs':>6}{'GPU, GB':>10}{'GPU, h':>9}{'host, GB':>10}{'disk, GB':>10}"
    for rule in dict.fromkeys(job.rule for job in every):
        of_rule = [job for job in every if job.rule == rule]
        peaks = [job.peak for job in of_rule if job.peak]
        peak = f"{max(peaks) / 1e9:,.1f}" if peaks and any(has_gpu(run, job.rule, job.pair) for job in of_rule) else "-"
        taken = f"{sum(gpu_hours[job] for job in of_rule):,.1f}" if all(job in gpu_hours for job in of_rule) else "-"
        host, disk = max(memory_mb(run, job) for job in of_rule) / 1e3, sum(job.disk for job in of_rule) / 1e9
        yield f"{rule:<18}{len(of_rule):>6}{peak:>10}{taken:>9}{host:>10,.1f}{disk:>10,.1f}"
    disk = sum(job.disk for job in every) / 1e9
    yield f"{'in all':<18}{len(every):>6}{'':>10}{sum(gpu_hours.values()):>9,.1f}{'':>10}{disk:>10,.1f}"
    yield "GPU, GB: the most that any job takes, with every prompt as long as the context allows; host: what a job requests"


def _downloads(run: Run, every: Sequence[Job]) -> Iterator[str]:
    """A line per model to download, and per dataset that asks for access."""
    settings, known = run.settings, known_models()
    pairs, datasets = needed(run)
    recipes = [settings.pairs[pair].target for pair in pairs if not settings.by_architecture]
    recipes += [settings.pairs[job.pair].models[job.name] for job in every if job.rule == "draft"]
    named = {recipe.model for recipe in recipes if recipe.model}
    models = {name.partition("@")[0] for name in named if not name.endswith(".gguf") and not Path(name).exists()}
    sizes = {
        name: known[name].sizes.parameters * known[name].stored
        for name in sorted(models & set(known))
        if not name.startswith(PREFIX)
    }
    for name, size in sizes.items():
        yield f"download {size / 1e9:>8,.1f} GB  {name}"
    unknown = sorted(models - set(sizes))
    if any(job.rule == "label" for job in every) and settings.data.asks_classifier:
        unknown.append(f"the classifier {settings.data.classifier.partition('@')[0]}")
    if fetched := sorted(datasets) if settings.data.source == "hub" else []:
        unknown.append("the datasets")
    more = f"; of unknown size: {', '.join(unknown)}" if unknown else ""
    yield f"download {sum(sizes.values()) / 1e9:>8,.1f} GB  in all{more}"
    for dataset in map(registry.find, fetched):
        if dataset.gated == "yes":
            yield f"requires access: https://huggingface.co/datasets/{dataset.hub_id}"


def show(
    *, config: tuple[str, ...] = (), gpu: Gpu = "a100-80", card: Path | None = None, gpus: int = 1, prompt: int = 256
) -> None:
    """Print what a run will need, without running it: jobs, memory, hours, disk, downloads, and what does not fit the GPU.

    **Arguments:**
    - `config`: settings of the run, each KEY=VALUE, as for snakemake
    - `gpu`: the GPU whose memory and speed are assumed
    - `card`: a YAML file whose numbers replace those of --gpu: memory (GiB), bandwidth (GB/s), teraflops, and launch (milliseconds in which
      the CPU launches the kernels of one layer)
    - `gpus`: number of GPUs, which run jobs side by side
    - `prompt`: length of a usual prompt, in tokens
    """
    for what, number in (("--gpus", gpus), ("--prompt", prompt)):
        if number < 1:
            raise UserError(f"{what} is {number}", remedy="give 1 or more")
    chosen = GPUS[gpu] if card is None else validated(Card, read_yaml(card), Place(card))
    name = gpu if card is None else card.stem
    run = run_of(config)
    check_raw(run, needed(run)[1])
    print(*lines(run, name, chosen, prompt=prompt, gpus=gpus), sep="\n")
