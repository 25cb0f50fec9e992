"""Raw rows -> prompts.

Required: nothing (generator), a folder of raw files (--config raw=DIR), or a network (hub)
Steps: fetch - clean - label
Outputs: results/{run}/data/{dataset}/{prompts,eval,rejected}.jsonl, summary.json

For cluster nodes without a network, `snakemake prefetch` downloads rows, models and the topic classifier beforehand.
"""


rule label:
    """Classify requests by language or topic if their rows do not state it."""
    input:
        prompts="results/{run}/data/{dataset}/{split_file}.jsonl",
    output:
        prompts="results/{run}/data/{dataset}/{label}/{split_file}.jsonl",
        report="results/{run}/data/{dataset}/{label}/{split_file}.json",
    log:
        "results/{run}/logs/label/{dataset}.{label}.{split_file}.log",
    wildcard_constraints:
        label="language|topic",
        split_file="prompts|eval",
    conda:
        "../../envs/cpu.yaml"
    threads: threads_of("label")
    resources:
        **resources_of("label"),
    params:
        method=lambda wildcards: DATA.label[wildcards.label],
        model=DATA.classifier,
        device=PAIRS["main"].answers.device,
        gpus=on_gpus,
        content=plan.content_of_model(DATA.classifier),
        code=code("data.classify"),
    message:
        "Find the classes ({wildcards.label}) of {wildcards.dataset}"
    shell:
        r"""
        {params.gpus:q} draftlab data classify \
            --prompts {input.prompts:q} \
            --label {wildcards.label:q} \
            --method {params.method:q} \
            --model {params.model:q} \
            --device {params.device:q} \
            --out {output.prompts:q} \
            --report {output.report:q} \
            >{log:q} 2>&1
        """


rule fetch:
    """Fetch the raw rows of one split, and record where they come from."""
    output:
        rows="results/{run}/data/{dataset}/raw/{split}.jsonl",
        provenance="results/{run}/data/{dataset}/raw/{split}.provenance.json",
    log:
        "results/{run}/logs/fetch/{dataset}.{split}.log",
    localrule: True
    conda:
        "../../envs/cpu.yaml"
    params:
        source=DATA.source,
        raw=["--raw", RUN.raw_folder] if RUN.raw_folder else [],
        rows=lambda wildcards: DATA.rows_of(wildcards.dataset),
        seed=DATA.seed,
        content=lambda wildcards: RUN.content_of(wildcards.dataset, wildcards.split),
        code=code("data.sources"),
    message:
        "Get {wildcards.split} rows of {wildcards.dataset}"
    shell:
        r"""
        draftlab data fetch \
            --dataset {wildcards.dataset:q} \
            --split {wildcards.split:q} \
            --source {params.source:q} \
            {params.raw:q} \
            --rows {params.rows:q} \
            --seed {params.seed:q} \
            --content={params.content:q} \
            --out {output.rows:q} \
            >{log:q} 2>&1
        """


rule prefetch:
    """Download everything that needs a network: raw rows, models, and the topic classifier."""
    input:
        rows=lambda wildcards: [
            f"results/{RUN.name}/data/{dataset}/raw/{split}.jsonl"
            for dataset in RUN.settings.every_dataset
            for split in ("train", "eval")
        ],
        models=named_models,
    log:
        f"results/{RUN.name}/logs/prefetch.log",
    localrule: True
    conda:
        "../../envs/cpu.yaml"
    params:
        classifier=(
            "from draftlab.cli import exit_on_error; from draftlab.data.classify import hub_classifier; "
            f"exit_on_error(lambda: hub_classifier({DATA.classifier!r}))"
            if DATA.asks_classifier
            else "pass"
        ),
    shell:
        r"""
        python -c {params.classifier:q} 2>&1 | tee {log:q}
        """


rule clean:
    """Turn the rows of both splits into prompts. Rejected rows are kept with their reasons."""
    input:
        train="results/{run}/data/{dataset}/raw/train.jsonl",
        held_out="results/{run}/data/{dataset}/raw/eval.jsonl",
    output:
        prompts="results/{run}/data/{dataset}/prompts.jsonl",
        held_out="results/{run}/data/{dataset}/eval.jsonl",
        rejected="results/{run}/data/{dataset}/rejected.jsonl",
        summary="results/{run}/data/{dataset}/summary.json",
    log:
        "results/{run}/logs/clean/{dataset}.log",
    conda:
        "../../envs/cpu.yaml"
    threads: threads_of("clean")
    resources:
        **resources_of("clean"),
    params:
        raw=subpath(input.train, parent=True),
        eval=DATA.eval,
        seed=DATA.seed,
        profile=DATA.profile,
        on_bad_row=DATA.on_bad_row,
        template_options=json.dumps(DATA.template_options),
        cleaner=lambda wildcards: (
            ["--cleaner", DATA.cleaners[wildcards.dataset]]
            if wildcards.dataset in DATA.cleaners
            else []
        ),
        own=lambda wildcards: own_code(DATA.cleaners.get(wildcards.dataset)),
        out=subpath(output.prompts, parent=True),
        code=code("data.splits"),
    message:
        "Clean {wildcards.dataset}"
    shell:
        r"""
        draftlab data make \
            --dataset {wildcards.dataset:q} \
            --source fetched \
            --raw {params.raw:q} \
            --eval {params.eval:q} \
            --seed {params.seed:q} \
            --profile {params.profile:q} \
            --on-bad-row {params.on_bad_row:q} \
            --template-options {params.template_options:q} \
            {params.cleaner:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """
