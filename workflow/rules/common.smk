"""Functions that several rules share: resources, priorities, digests of code, and input functions. No rules.

Required: RUN (plan.Run) and its PAIRS.
"""

from hashlib import sha256

from draftlab.files.packages import package_of
from draftlab.files.registries import own_code
from draftlab.stages._stage import NoInputs


def needs_of(rule, wildcards):
    """What the scale requests for a rule, or for the rule and the pair of this job."""
    is_cell = hasattr(wildcards, "cell") and hasattr(wildcards, "experiment")
    pair = (
        RUN.pair_of(wildcards.experiment, wildcards.cell)
        if is_cell
        else getattr(wildcards, "pair", "main")
    )
    return RUN.settings.asked(rule, pair)


def resources_of(rule):
    """The ``resources`` of a rule. A second attempt asks for twice the memory and time, because the first may have run out of them."""
    return {
        "mem_mb": lambda wildcards, attempt: RUN.settings.within(
            "mem_mb", needs.requested_mb(RUN, rule, dict(wildcards.items())) * attempt
        ),
        "runtime": lambda wildcards, attempt: RUN.settings.within(
            "runtime", needs_of(rule, wildcards).runtime * attempt
        ),
        "gpu": lambda wildcards: needs_of(rule, wildcards).gpu,
    }


def on_gpus(wildcards, resources):
    """Words before a command that give the job its own GPUs, if it asks for any."""
    return (
        ["python", "-m", "draftlab.files.gpus", resources.gpu] if resources.gpu else []
    )


def launch_of(stage):
    """The command of a stage: as several processes, if it can run so and the scale asks for it."""
    processes = RUN.settings.compute.processes
    if stage.launch and processes > 1:
        # Not accelerate launch: the user's own settings of it may say one process, and two jobs on a machine would ask for one port.
        return f"torchrun --standalone --nproc-per-node {processes} -m draftlab".split()
    return ["draftlab"]


def threads_of(rule):
    """Threads that the scale requests for a rule, or for the rule and a pair."""
    return lambda wildcards: needs_of(rule, wildcards).threads


def all_cores():
    """All cores, so that a measurement runs alone; 1 under a cluster scheduler, which does not set a number of cores."""
    try:
        return workflow.cores
    except WorkflowError:
        return 1


TIMES = times.remembered(RUN.scale, RUN.name, LOGS)
"""Wall seconds of earlier jobs, by the name of their log."""


def timed_job(job):
    """The job as the progress line knows it: the name of its log, its rule, and whether it runs alone."""
    made_by = job.rule.name
    name = (
        os.path.relpath(job.log[0], LOGS).removesuffix(".log") if job.log else made_by
    )
    return times.TimedJob(
        name, made_by, made_by in STAGES and STAGES[made_by].exclusive
    )


def longest_first(pattern, base=0):
    """Priority ``base``, and among jobs of equal base the one that took longest before starts first. Other rules have base 0."""

    def priority(wildcards):
        return base + TIMES.get(pattern.format(wildcards=wildcards), 0) / 1e6

    return priority


def shuffled(wildcards):
    """Priority of time measurements: last, in random order, so that a drift of the machine affects all experiments alike."""
    name = f"{wildcards.experiment}/{wildcards.cell}"
    return random.Random(name).random() - 3


def urgency(stage):
    """Priority of a stage's cells: those without a model first (a figure within a minute), then other cells, then time measurements."""
    if stage.exclusive:
        return shuffled
    if stage.inputs is NoInputs:
        return 1
    return longest_first("{wildcards.experiment}/{wildcards.cell}", -1)


def code(*modules):
    """Digest of these modules and everything they import. An edit of code reruns the jobs that use it; an edit of a comment does not."""
    return plan.code_digest(*(f"draftlab.{module}" for module in modules))


def flags_of_answers(pair, **others):
    """Command-line flags of how a pair's target answers; not where a server is, and how many requests it gets at once."""
    answers = PAIRS[pair].answers
    elsewhere = {"url": None, "batch": None} if answers.url else {}
    return plan.flags(answers, **elsewhere, **others)


def server(wildcards, input):
    """The other settings. Snakemake does not compare parameters that ask for ``input``, so a server may move without a job that runs again."""
    answers = PAIRS[wildcards.pair].answers
    return ["--url", answers.url, "--batch", answers.batch] if answers.url else []


def recorded_draft(wildcards):
    """The draft whose logits are recorded: the pair's, or the one that osd_offline distilled on this dataset."""
    if wildcards.distilled:
        return RUN.places.other_cell("osd_offline", wildcards.dataset) / "draft"
    return RUN.places.model("draft", wildcards.pair)


def every(pattern):
    """The pattern filled in for each experiment of this run."""
    return [pattern.format(experiment=name) for name in RUN.experiments]


def digest_of(*parts):
    """Digest of what a page shows besides its tables, because Snakemake stores the parameters once for each file."""
    return sha256(repr(parts).encode()).hexdigest()


PRINTED = [
    seals.content_digest(path)
    for path in sorted((plan.WORKFLOW / "published").glob("*.csv"))
]


def printed_parts(name):
    """What shapes an experiment's table and figure besides its rows: parts of its YAML file, its measures, and printed numbers. A change redraws them."""
    return digest_of(*RUN.at_scale[name].shown, PRINTED)


def drawn_by(name):
    """The module of draftlab.report.figures that draws an experiment, if it has one."""
    return plan.module_of(
        name, RUN.at_scale[name].figure if name in RUN.at_scale else None
    )


def named_models(wildcards):
    """Input function: the models of this scale that are not trained here but come from the hub or a folder."""
    return [
        f"results/{RUN.name}/{name}/models/{role}/config.json"
        for name, pair in PAIRS.items()
        for role, made in pair.models.items()
        if made.model and not RUN.settings.by_architecture
    ]


def prompts_of(pair, *splits):
    """The prompts of these splits of every dataset of a pair; those for training have the reference answers that small models learn."""
    return [
        RUN.places.prompts(dataset, split)
        for dataset in RUN.settings.datasets_of(pair)
        for split in splits
    ]


def recipe_of(wildcards):
    """The recipe of the model that a job makes: of a draft, else of the target."""
    return PAIRS[wildcards.pair].models[getattr(wildcards, "draft", "target")]


def released(wildcards):
    """Input function: the package that contains the model, if it comes from one."""
    name = package_of(recipe_of(wildcards).model)
    return [f"results/{wildcards.run}/packages/{name}.json"] if name else []


def made_from(wildcards):
    """Input function: what a draft is made from: prompts to train on, the target if it reuses parts of it, answers that select the tokens of a trimmed head."""
    draft, pair = recipe_of(wildcards), f"results/{wildcards.run}/{wildcards.pair}"
    parts = not draft.model and draft.design != "scratch"
    answers = (
        RUN.settings.datasets_of(wildcards.pair)
        if draft.head and not draft.model
        else []
    )
    return {
        "prompts": (
            prompts_of(wildcards.pair, "train") if draft.learns == "answers" else []
        ),
        "target": [f"{pair}/models/target/config.json"] if parts else [],
        "answers": [f"{pair}/answers/{name}.train/answers.jsonl" for name in answers],
    }


def recipe(wildcards):
    """Command-line flags of the recipe of a model."""
    return plan.flags(
        recipe_of(wildcards), template=PAIRS[wildcards.pair].answers.template
    )


def content(wildcards):
    """Digest of the folder or file that a model comes from. If its content changes, the model is made again."""
    return plan.content_of_model(recipe_of(wildcards).model)


def named_contents():
    """Digests of the folders and files that stand for architectures; none at other scales, where a rule makes each model."""
    named = sorted(set(RUN.settings.named_architectures.values()))
    found = {name: plan.content_of_model(name) for name in named}
    return {"models": found} if any(found.values()) else {}


def shown_cell():
    """The first cell of osd_offline, and its settings: the token view shows its distilled draft."""
    cell, variants = next(iter(RUN.cells("osd_offline").items()))
    return cell, variants[0].settings


def shown_drafts(wildcards):
    """Input function: the draft of ``shown_cell`` before and after distillation, and the answers to the held-out requests."""
    cell, settings = shown_cell()
    pair = f"results/{wildcards.run}/{settings.pair}"
    return {
        "before": f"{pair}/models/{settings.draft}/config.json",
        "after": f"results/{wildcards.run}/cells/osd_offline/{cell}/rows.csv",
        "answers": f"{pair}/answers/{settings.dataset}.eval/answers.jsonl",
    }
