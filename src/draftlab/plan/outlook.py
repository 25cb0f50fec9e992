"""What `draftlab plan` prints before anything runs: jobs by rule, memory, hours, disk, downloads, and repositories that ask for access."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from draftlab.data import registry
from draftlab.files.packages import PREFIX
from draftlab.files.yaml_files import Place, read_yaml
from draftlab.latency.sizes import known_models
from draftlab.plan.grids import validated
from draftlab.plan.hours import GPUS, Card, Clock, seconds
from draftlab.plan.needs import has_gpu, jobs, memory_mb
from draftlab.plan.run import Run, run_of
from draftlab.plan.scale import Gpu
from draftlab.stages import STAGES


def lines(run: Run, gpu: str, card: Card, *, prompt: int = 256, gpus: int = 1) -> Iterator[str]:
    """The table by rule, the jobs that do not fit a ``card``, downloads, and repositories that ask for access."""
    every, room, clock = list(jobs(run)), card.memory * 2**30, Clock(card, prompt)
    hours = {job: taken / 3600 for job in every if (taken := seconds(run, job, clock)) is not None}
    yield f"{'rule':<18}{'jobs':>6}{'GPU, GB':>10}{'GPU, h':>9}{'host, GB':>10}{'disk, GB':>10}"
    for rule in dict.fromkeys(job.rule for job in every):
        own = [job for job in every if job.rule == rule]
        peaks = [job.peak for job in own if job.peak]
        asked = max(memory_mb(run, job) for job in own)
        shown = f"{max(peaks) / 1e9:,.1f}" if peaks and has_gpu(run, rule) else "-"
        took = f"{sum(hours[job] for job in own):,.1f}" if all(job in hours for job in own) else "-"
        disk = sum(job.disk for job in own) / 1e9
        yield f"{rule:<18}{len(own):>6}{shown:>10}{took:>9}{asked / 1e3:>10,.1f}{disk:>10,.1f}"
    disk = sum(job.disk for job in every) / 1e9
    yield f"{'in all':<18}{len(every):>6}{'':>10}{sum(hours.values()):>9,.1f}{'':>10}{disk:>10,.1f}"
    yield "GPU, GB: the most that any job takes, with every prompt as long as the context allows; host: what a job requests"
    if hours:
        lacking = sorted({job.rule for job in every if job not in hours and has_gpu(run, job.rule)})
        yield f"GPU, h: on {gpu}, prompts of {prompt} tokens, answers as long as they may be; without {', '.join(lacking) or 'exception'}"
        first, last = (
            max((taken for job, taken in hours.items() if (job.rule in STAGES) == is_cell), default=0.0)
            for is_cell in (False, True)
        )
        whole = max(sum(hours.values()) / gpus, first + last)
        yield f"on {gpus} GPU{'s' * (gpus > 1)}: {whole:,.1f} hours or more, of which the longest answers and the longest cell take {first + last:,.1f}"
    for job, taken in hours.items():
        if taken * 60 > (most := run.settings.asked(job.rule, job.pair).runtime):
            yield f"requests {most} min, may take {taken * 60:,.0f}: {job.rule} {job.pair} {job.name}"
    names = {
        recipe.model.partition("@")[0]
        for pair in run.settings.pairs.values()
        for recipe in pair.models.values()
        if recipe.model
    }
    known = known_models()
    stored = {
        name: known[name].sizes.parameters * known[name].stored
        for name in sorted(names & set(known))
        if not name.startswith(PREFIX)
    }
    for name, size in stored.items():
        yield f"download {size / 1e9:>8,.1f} GB  {name}"
    yield f"download {sum(stored.values()) / 1e9:>8,.1f} GB  in all, without the datasets, whose sizes are not known in advance"
    fetched = run.settings.every_dataset if run.settings.data.source == "hub" else []
    gated = [found.hub_id for name in fetched if (found := registry.find(name)).gated == "yes"]
    yield from (f"requires access: https://huggingface.co/datasets/{name}" for name in gated)
    large = [job for job in every if job.peak and job.peak > room and has_gpu(run, job.rule)]
    for job in large:
        yield f"does not fit {gpu} ({card.memory:g} GB): {job.rule} {job.pair} {job.name}, {(job.peak or 0) / 2**30:,.1f} GB"
    if not large:
        yield f"every job that is modelled fits {gpu} ({card.memory:g} GB)"


def show(
    *, config: tuple[str, ...] = (), gpu: Gpu = "a100-80", card: Path | None = None, gpus: int = 1, prompt: int = 256
) -> None:
    """Print what a run will need, without running it: jobs, memory, hours, disk, downloads, and what does not fit --gpu.

    --config is as for snakemake. CARD is a YAML file with numbers of your own in place of --gpu's: memory (GiB), bandwidth (GB/s), teraflops, and
    launch (milliseconds in which the CPU launches the kernels of one layer). PROMPT is the length of a usual prompt in tokens; GPUS run side by side.
    """
    chosen = GPUS[gpu] if card is None else validated(Card, read_yaml(card), Place(card))
    name = gpu if card is None else card.stem
    print(*lines(run_of(config), name, chosen, prompt=prompt, gpus=gpus), sep="\n")
