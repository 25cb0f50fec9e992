"""What several rules need: a cell's command line, and the digest of the code behind a stage.

Required: RUN (experiments.Run). No rules.
"""


def stage(*names):
    """Wildcard constraint: the experiments of these stages."""
    return "|".join(RUN.of_stage(*names)) or "no_experiment_of_this_stage"


def cell_flags(wildcards):
    """The settings of one cell as words of a command line; a changed value reruns this cell alone."""
    return experiments.flags(RUN.cells(wildcards.experiment)[wildcards.cell])


def cell_setting(name):
    """Input function helper: one setting of the cell that the wildcards name."""
    return lambda wildcards: getattr(
        RUN.cells(wildcards.experiment)[wildcards.cell], name
    )


def code(*modules):
    """Digest of these modules and all that they import: an edit of the code reruns what uses it, a comment nothing."""
    return experiments.code_digest(*(f"draftlab.{module}" for module in modules))


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
