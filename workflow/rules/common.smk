"""What several rules need: what a job asks for, and the digest of the code behind it.

Required: RUN (plan.Run) and its PAIRS. No rules.
"""

from draftlab.files.packages import package_of
from draftlab.stages._stage import NoInputs


def resources_of(rule):
    """Keywords of ``resources``; a second attempt asks for twice the memory and time, whose lack may have ended the first."""

    def asked(wildcards):
        is_cell = hasattr(wildcards, "cell") and hasattr(wildcards, "experiment")
        own = (
            RUN.pair_of(wildcards.experiment, wildcards.cell)
            if is_cell
            else getattr(wildcards, "pair", "main")
        )
        return RUN.settings.asked(rule, own)

    return {
        "mem_mb": lambda wildcards, attempt: needs.requested_mb(
            RUN, rule, dict(wildcards.items())
        )
        * attempt,
        "runtime": lambda wildcards, attempt: asked(wildcards).runtime * attempt,
        "gpu": lambda wildcards: asked(wildcards).gpu,
    }


def on_gpus(wildcards, resources):
    """Words before a command: it runs on GPUs of its own, where the job asks for some and the machine has more."""
    return f"python -m draftlab.files.gpus {resources.gpu}" if resources.gpu else ""


def threads_of(rule):
    """Threads that a job of a rule asks for."""
    return RUN.settings.asked(rule).threads


def all_cores():
    """Every core of one's own machine, for a measurement; one where nobody counts them, as under a scheduler that profiles let decide."""
    try:
        return workflow.cores
    except WorkflowError:
        return 1


TIMES = times.read_times(
    [Path("paper_figures", RUN.name, "data", times.FILE), LOGS / times.FILE]
)
"""Seconds that jobs took, by the names of their logs: as published, then in this folder."""


def timed_job(job):
    """What is remembered of a job."""
    does = job.rule.name
    name = os.path.relpath(job.log[0], LOGS).removesuffix(".log") if job.log else does
    return times.Job(name, does, does in STAGES and STAGES[does].exclusive)


def longest_first(pattern, base=0):
    """A priority: of the jobs that wait the one that took longest begins; ``base`` is above or below that of all others, 0."""

    def priority(wildcards):
        return base + TIMES.get(pattern.format(wildcards=wildcards), 0) / 1e6

    return priority


def shuffled(wildcards):
    """A priority: measurements of time come last, in random order. So a drift of the machine falls on all experiments alike."""
    name = f"{wildcards.experiment}/{wildcards.cell}"
    return random.Random(name).random() - 3


def urgency(stage):
    """What needs no model comes first: its figure is there within a minute. Then what cells wait for, cells, and measurements, alone."""
    if stage.exclusive:
        return shuffled
    if stage.inputs is NoInputs:
        return 1
    return longest_first("{wildcards.experiment}/{wildcards.cell}", -1)


def code(*modules):
    """Digest of these modules and all that they import: an edit of the code reruns what uses it, a comment nothing."""
    return plan.code_digest(*(f"draftlab.{module}" for module in modules))


def split_prompts(wildcards):
    """The prompts of one split."""
    file = {"train": "prompts", "eval": "eval"}[wildcards.split]
    return f"results/{wildcards.run}/data/{wildcards.dataset}/{file}.jsonl"


def every(pattern):
    """One path for each experiment of this run."""
    return [pattern.format(experiment=name) for name in RUN.experiments]


def printed_parts(name):
    """What an experiment's file says of its printed table and its figure: a change redraws them."""
    said = RUN.known[name]
    return str((said.finding, said.layout, said.figure))


def drawn_by(name):
    """The module of draftlab.report.figures that draws an experiment, if it has one."""
    return plan.module_of(name, RUN.known[name].figure if name in RUN.known else None)


def named_models(wildcards):
    """Input function: the models of this scale that exist already, on the hub or in a folder."""
    return [
        f"results/{RUN.name}/{name}/models/{role}/config.json"
        for name, pair in PAIRS.items()
        for role, made in pair.models.items()
        if made.model and not RUN.settings.by_architecture
    ]


def learnt_prompts(wildcards):
    """Input function: the requests whose reference answers a small model learns."""
    return [
        f"results/{wildcards.run}/data/{dataset}/prompts.jsonl"
        for dataset in RUN.settings.datasets_of(wildcards.pair)
    ]


def asked_prompts(wildcards):
    """Input function: the requests that the target of a pair answers."""
    return [
        f"results/{wildcards.run}/data/{dataset}/{file}.jsonl"
        for dataset in RUN.settings.datasets_of(wildcards.pair)
        for file in ("prompts", "eval")
    ]


def released(role):
    """Input function: the package that holds a model of a pair, where one does."""

    def wanted(wildcards):
        made = PAIRS[wildcards.pair].models[getattr(wildcards, "draft", role)]
        name = package_of(made.model)
        return [f"results/{wildcards.run}/packages/{name}.json"] if name else []

    return wanted


def made_from(wildcards):
    """Input function: what a draft is made from: requests to learn, the target that it takes parts of, answers that name the tokens of its head."""
    recipe, pair = (
        PAIRS[wildcards.pair].drafts[wildcards.draft],
        f"results/{wildcards.run}/{wildcards.pair}",
    )
    parts = not recipe.model and recipe.design != "scratch"
    answers = (
        RUN.settings.datasets_of(wildcards.pair)
        if recipe.head and not recipe.model
        else []
    )
    return {
        "prompts": learnt_prompts(wildcards) if recipe.learns == "answers" else [],
        "target": [f"{pair}/models/target/config.json"] if parts else [],
        "answers": [f"{pair}/answers/{name}.train/answers.jsonl" for name in answers],
    }


def recipe(role):
    """Words of a command line: how a model of a pair is made."""
    return lambda wildcards: plan.flags(
        PAIRS[wildcards.pair].models[getattr(wildcards, "draft", role)],
        template=PAIRS[wildcards.pair].answers.template,
    )


def content(role, weights=True):
    """Digest of the folder or file that a model of a pair is: other content makes the model anew."""
    return lambda wildcards: plan.content_of_model(
        PAIRS[wildcards.pair].models[getattr(wildcards, "draft", role)].model, weights
    )


def shown_cell():
    """The cell of osd_offline whose distilled draft the token view shows, and its settings: the first."""
    cell, variants = next(iter(RUN.cells("osd_offline").items()))
    return cell, variants[0].settings


def shown_drafts(wildcards):
    """Input function: that draft undistilled and distilled, and the recorded answers to the held-out requests."""
    cell, settings = shown_cell()
    pair = f"results/{wildcards.run}/{settings.pair}"
    return {
        "before": f"{pair}/models/{settings.draft}/config.json",
        "after": f"results/{wildcards.run}/cells/osd_offline/{cell}/rows.csv",
        "answers": f"{pair}/answers/{settings.dataset}.eval/answers.jsonl",
    }
