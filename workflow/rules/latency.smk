"""Latency, measured in llama.cpp (GGUF files are exported on the way).

Required: results/{run}/models/{target,draft}/ (at shapes nothing: the models are built where they are measured), and for osd_latency_dataset the drafts that osd_offline distilled
Outputs: results/{run}/cells/{experiment}/{cell}/{rows.csv,run.json}

Measurements are of one thread, but they must have the machine to themselves, so they ask for every core.
"""


rule latency:
    """Measure one pair: controlled acceptance, answer lengths, cost model, cost of an update, interference; or its target alone."""
    input:
        unpack(made_models),
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    benchmark:
        "results/{run}/benchmarks/{experiment}/{cell}.tsv"
    wildcard_constraints:
        experiment=stage(
            "latency_alpha",
            "latency_length",
            "latency_cost",
            "latency_update",
            "latency_interference",
            "latency_null",
            "latency_branches",
        ),
    conda:
        llama_env("latency")
    threads: all_cores()
    resources:
        **resources_of("latency"),
        exclusive=1,
    params:
        verb=lambda wildcards: RUN.known[wildcards.experiment].stage.removeprefix(
            "latency_"
        ),
        flags=cell_flags,
        target=measured_model("target"),
        draft=lambda wildcards: (
            []
            if wildcards.experiment in RUN.of_stage("latency_null", "latency_branches")
            else ["--draft", measured_model(drafts_role(wildcards))]
        ),
        out=subpath(output.rows, parent=True),
        code=lambda wildcards: code(
            RUN.known[wildcards.experiment]
            .stage.replace("latency_", "latency.")
            .replace("null", "noise")
        ),
    message:
        "Measure: {wildcards.experiment} {wildcards.cell}"
    shell:
        r"""
        OMP_NUM_THREADS=1 draftlab latency {params.verb:q} {params.flags:q} \
            --target {params.target:q} \
            {params.draft:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """


rule latency_requests:
    """Decode one dataset's requests without speculation, with the draft as it was, and with the distilled draft."""
    input:
        target="results/{run}/models/target/config.json",
        before="results/{run}/models/draft/config.json",
        distilled=lambda wildcards: f"results/{wildcards.run}/cells/osd_offline/{cell_setting('dataset')(wildcards)}/draft/config.json",
        answers=answers_of_cell("eval"),
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    benchmark:
        "results/{run}/benchmarks/{experiment}/{cell}.tsv"
    wildcard_constraints:
        experiment=stage("latency_requests"),
    conda:
        llama_env("latency_requests")
    threads: all_cores()
    resources:
        **resources_of("latency_requests"),
        exclusive=1,
    params:
        flags=cell_flags,
        target=subpath(input.target, parent=True),
        before=subpath(input.before, parent=True),
        distilled=subpath(input.distilled, parent=True),
        out=subpath(output.rows, parent=True),
        code=code("latency.requests"),
    message:
        "Measure: {wildcards.experiment} {wildcards.cell}"
    shell:
        r"""
        OMP_NUM_THREADS=1 draftlab latency requests {params.flags:q} \
            --target {params.target:q} \
            --drafts before {params.before:q} distilled {params.distilled:q} \
            --answers {input.answers:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """
