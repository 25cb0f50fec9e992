"""Tokenizer, target, draft, and the target's recorded answers.

Required: results/{run}/data/{dataset}/{prompts,eval}.jsonl
Steps: tokenizer - target, draft - answer (one pass of the target per dataset, shared by every variant).
Outputs: results/{run}/models/{tokenizer,target,draft}/, results/{run}/answers/{dataset}.{split}/
"""

PROMPTS = [
    f"results/{RUN.name}/data/{dataset}/prompts.jsonl" for dataset in RUN.datasets
]


rule tokenizer:
    """Make the tokenizer that target and draft share."""
    input:
        prompts=PROMPTS,
    output:
        tokenizer="results/{run}/models/tokenizer/tokenizer.json",
    log:
        "results/{run}/logs/models/tokenizer.log",
    conda:
        "../../envs/cpu.yaml"
    threads: needs("tokenizer").threads
    resources:
        **resources_of("tokenizer"),
    params:
        recipe=plan.flags(RUN.settings.target),
        out=subpath(output.tokenizer, parent=True),
        code=code("models.tokenizer", "models.hub", "data.generators"),
    message:
        "Make the tokenizer"
    shell:
        r"""
        draftlab pretrain tokenizer {params.recipe:q} --prompts {input.prompts:q} --out {params.out:q} >{log:q} 2>&1
        """


rule target:
    """Train the target on reference answers, or fetch the one that the run names."""
    input:
        prompts=PROMPTS,
        tokenizer="results/{run}/models/tokenizer/tokenizer.json",
    output:
        model="results/{run}/models/target/config.json",
    log:
        "results/{run}/logs/models/target.log",
    benchmark:
        "results/{run}/benchmarks/models/target.tsv"
    conda:
        "../../envs/cpu.yaml"
    threads: needs("target").threads
    resources:
        **resources_of("target"),
    params:
        recipe=plan.flags(RUN.settings.target, template=RUN.settings.answers.template),
        tokenizer=subpath(input.tokenizer, parent=True),
        out=subpath(output.model, parent=True),
        code=code("train.pretrain"),
    message:
        "Make the target"
    shell:
        r"""
        draftlab pretrain target {params.recipe:q} \
            --prompts {input.prompts:q} \
            --tokenizer {params.tokenizer:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """


rule draft:
    """Train a draft on public text, or fetch the one that the run names; with prompts it learns their reference answers instead."""
    input:
        prompts=[],
        tokenizer="results/{run}/models/tokenizer/tokenizer.json",
    output:
        model="results/{run}/models/{draft}/config.json",
    log:
        "results/{run}/logs/models/{draft}.log",
    benchmark:
        "results/{run}/benchmarks/models/{draft}.tsv"
    wildcard_constraints:
        draft="|".join(RUN.drafts),
    conda:
        "../../envs/cpu.yaml"
    threads: needs("draft").threads
    resources:
        **resources_of("draft"),
    params:
        recipe=lambda wildcards: plan.flags(
            RUN.drafts[wildcards.draft], template=RUN.settings.answers.template
        ),
        tokenizer=subpath(input.tokenizer, parent=True),
        out=subpath(output.model, parent=True),
        code=code("train.pretrain"),
    message:
        "Make {wildcards.draft}"
    shell:
        r"""
        draftlab pretrain draft {params.recipe:q} \
            --prompts {input.prompts:q} \
            --tokenizer {params.tokenizer:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """


rule answer:
    """Record the target's answers and its distributions: one pass for each dataset, split and temperature, shared by all."""
    input:
        prompts=split_prompts,
        target="results/{run}/models/target/config.json",
    output:
        answers="results/{run}/answers/{dataset}.{split}{temperature}/answers.jsonl",
    log:
        "results/{run}/logs/answers/{dataset}.{split}{temperature}.log",
    benchmark:
        "results/{run}/benchmarks/answers/{dataset}.{split}{temperature}.tsv"
    wildcard_constraints:
        temperature=r"(\.t[0-9.]+)?",
    conda:
        "../../envs/cpu.yaml"
    threads: needs("answer").threads
    resources:
        **resources_of("answer"),
    params:
        settings=plan.flags(RUN.settings.answers),
        requests=lambda wildcards: (
            DATA.eval
            if wildcards.split == "eval"
            else DATA.train_of.get(wildcards.dataset, DATA.train)
        ),
        temperature=lambda wildcards: wildcards.temperature.removeprefix(".t") or "0",
        target=subpath(input.target, parent=True),
        out=subpath(output.answers, parent=True),
        code=code("engine.recording"),
    message:
        "Record the target's answers: {wildcards.dataset} {wildcards.split}"
    shell:
        r"""
        draftlab answer {params.settings:q} \
            --prompts {input.prompts:q} \
            --requests {params.requests:q} \
            --temperature {params.temperature:q} \
            --target {params.target:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """
