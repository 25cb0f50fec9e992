"""What several rules need: a cell's command line, and the digest of the code behind a stage.

Required: RUN (plan.Run). No rules.
"""


def needs(rule):
    """What a rule asks for at this scale (``needs`` of workflow/scales/*.yaml)."""
    return RUN.settings.needs.get(rule, plan.Needs())


def resources_of(rule):
    """Keywords of ``resources``; a second attempt asks for twice the memory and time, whose lack may have ended the first."""
    asked = needs(rule)
    return {
        "mem_mb": lambda wildcards, attempt: asked.mem_mb * attempt,
        "runtime": lambda wildcards, attempt: asked.runtime * attempt,
        "gpu": asked.gpu,
    }


def llama_env(rule):
    """The conda environment of a measurement in llama.cpp: where it asks for a GPU, the one that is built for CUDA."""
    return f"../../envs/{'gpu' if needs(rule).gpu else 'cpu'}.yaml"


def all_cores():
    """Every core of one's own machine, for a measurement; one where nobody counts them, as under a scheduler that profiles let decide."""
    try:
        return workflow.cores
    except WorkflowError:
        return 1


def stage(*names):
    """Wildcard constraint: the experiments of these stages."""
    return "|".join(RUN.of_stage(*names)) or "no_experiment_of_this_stage"


def cell_flags(wildcards):
    """The settings of one cell as words of a command line; a changed value reruns this cell alone."""
    return plan.flags(RUN.cells(wildcards.experiment)[wildcards.cell])


def cell_setting(name):
    """Input function helper: one setting of the cell that the wildcards name."""
    return lambda wildcards: getattr(
        RUN.cells(wildcards.experiment)[wildcards.cell], name
    )


def code(*modules):
    """Digest of these modules and all that they import: an edit of the code reruns what uses it, a comment nothing."""
    return plan.code_digest(*(f"draftlab.{module}" for module in modules))


def split_prompts(wildcards):
    """The prompts of one split."""
    file = {"train": "prompts", "eval": "eval"}[wildcards.split]
    return f"results/{wildcards.run}/data/{wildcards.dataset}/{file}.jsonl"


def answers_of_cell(split):
    """Input function: the recorded answers to the prompts of a cell's dataset."""
    return (
        lambda wildcards: f"results/{wildcards.run}/answers/{cell_setting('dataset')(wildcards)}.{split}/answers.jsonl"
    )


def every(pattern):
    """One path for each experiment of this run."""
    return [pattern.format(experiment=name) for name in RUN.experiments]


def job(wildcards):
    """The settings of the cell that the wildcards name."""
    return RUN.cells(wildcards.experiment)[wildcards.cell]


def home(wildcards):
    """Where the models and the recorded answers of a cell's pair lie."""
    return RUN.home(job(wildcards).pair)


def max_new_tokens(wildcards):
    """How long the answers of a cell's target may be."""
    return RUN.answers(job(wildcards).pair).max_new_tokens


def passes_of_job(wildcards):
    """Input function: every recorded pass that a variant of this cell reads."""
    return [
        f"{home(wildcards)}/answers/{name}/answers.jsonl"
        for name in plan.passes_of(job(wildcards))
    ]


def models_of_job(wildcards):
    """Input function: the drafts of this cell's variants, and the target."""
    return [
        f"{home(wildcards)}/models/{model}/config.json"
        for model in plan.models_of(job(wildcards))
    ]


def streams_of_job(wildcards):
    """Input function: the files that say in which order the requests of this cell arrive; none for a dataset's own order."""
    folder = f"results/{wildcards.run}/streams/{wildcards.experiment}/{wildcards.cell}"
    return [f"{folder}/{part}.jsonl" for part in plan.stream_parts(job(wildcards))]


def prompts_of_stream(wildcards):
    """Input function: the requests that a part of a stream is made of, with their classes."""
    name = "eval" if wildcards.part == "held_out" else "prompts"
    label = job(wildcards).arrangement.group_by
    folder = f"{label}/" if label in DATA.label else ""
    return [
        f"results/{wildcards.run}/data/{dataset}/{folder}{name}.jsonl"
        for dataset in job(wildcards).datasets
    ]


def answers_of_stream(wildcards):
    """Input function: the recorded answers to them; a request without one has no place in a stream."""
    split = "eval" if wildcards.part == "held_out" else "train"
    return [
        f"{home(wildcards)}/answers/{dataset}.{split}/answers.jsonl"
        for dataset in job(wildcards).datasets
    ]


def shown_cell():
    """The cell of osd_offline whose distilled draft the token view shows, and its settings: the first."""
    return next(iter(RUN.cells("osd_offline").items()))


def shown_drafts(wildcards):
    """Input function: that draft as it was and distilled, and the recorded answers to the held-out requests."""
    cell, settings = shown_cell()
    results = f"results/{wildcards.run}"
    return {
        "before": f"{results}/models/{settings.draft}/config.json",
        "after": f"{results}/cells/osd_offline/{cell}/draft/config.json",
        "answers": f"{results}/answers/{settings.dataset}.eval/answers.jsonl",
    }


def drafts_role(wildcards):
    """Which draft a measurement opens: the one that its cell names, if it does."""
    return getattr(job(wildcards), "draft_model", "draft")


def made_models(wildcards):
    """Input function: the models that rules make. There are none where a model is the name of an architecture."""
    roles = () if RUN.config.by_architecture else ("target", drafts_role(wildcards))
    return {
        role: f"results/{wildcards.run}/models/{role}/config.json" for role in roles
    }


def named_models(wildcards):
    """Input function: the models of this scale that exist already, on the hub or in a folder."""
    pairs = {
        "models": {"target": RUN.settings.target} | RUN.drafts,
        "t5/models": {"target": T5.target} | T5_DRAFTS,
        "multidraft": {"target": PAIR.target, "draft": PAIR.draft},
    }
    return [
        f"results/{RUN.name}/{folder}/{role}/config.json"
        for folder, recipes in pairs.items()
        for role, recipe in recipes.items()
        if recipe.model and not RUN.config.by_architecture
    ]


def measured_model(role):
    """What a measurement opens: the folder of a made model, or the name of an architecture."""
    named = {"target": RUN.settings.target, **RUN.drafts}[role].model
    return named if RUN.config.by_architecture else f"results/{RUN.name}/models/{role}"


def held_out_prompts(datasets):
    """Words of a command line: each dataset's name and its held-out prompts."""
    return [
        word
        for dataset in datasets
        for word in (dataset, f"results/{RUN.name}/data/{dataset}/eval.jsonl")
    ]


def stage_verb(wildcards):
    """The verb of a stage: its name with a hyphen."""
    return RUN.known[wildcards.experiment].stage.replace("_", "-")


def multidraft_code(wildcards):
    """Digest of the module that a stage is named after."""
    return code(f"multidraft.{RUN.known[wildcards.experiment].stage}")


def printed_parts(name):
    """What an experiment's file says of its printed table: a change redraws it."""
    return str((RUN.known[name].answer, RUN.known[name].layout))
