"""Distillation of drafts, offline and online, and what it does to acceptance.

Required: results/{run}/answers/{dataset}.{train,eval}/, results/{run}/models/{target,draft}/, results/{run}/data/{dataset}/
Steps: stream, route (the order of requests, where an experiment mixes datasets or classes) - offline, online, tokens.
Outputs: results/{run}/cells/{experiment}/{cell}/{rows.csv,run.json}; offline also draft/, the first variant's model
"""

LAUNCH = (
    "draftlab"
    if RUN.settings.compute.processes == 1
    else f"accelerate launch --num_processes {RUN.settings.compute.processes} -m draftlab"
)


rule stream:
    """Write requests in the order in which they arrive: the stream, what is kept aside of it, or the held-out ones."""
    input:
        prompts=prompts_of_stream,
        answered=answers_of_stream,
    output:
        stream="results/{run}/streams/{experiment}/{cell}/{part}.jsonl",
    log:
        "results/{run}/logs/streams/{experiment}/{cell}.{part}.log",
    wildcard_constraints:
        experiment=stage("online"),
        part="stream|aside|held_out",
    conda:
        "../../envs/cpu.yaml"
    params:
        flags=lambda wildcards: experiments.stream_flags(job(wildcards), wildcards.part),
        code=code("datasets.streams"),
    shell:
        r"""
        draftlab data stream {params.flags:q} \
            --prompts {input.prompts:q} \
            --answered {input.answered:q} \
            --out {output.stream:q} \
            >{log:q} 2>&1
        """


rule route:
    """Let a classifier that learnt from the held-out requests name the class of each request of a stream."""
    input:
        stream="results/{run}/streams/{experiment}/{cell}/stream.jsonl",
        train="results/{run}/streams/{experiment}/{cell}/held_out.jsonl",
    output:
        stream="results/{run}/streams/{experiment}/{cell}/routed.jsonl",
        report="results/{run}/streams/{experiment}/{cell}/routing.json",
    log:
        "results/{run}/logs/streams/{experiment}/{cell}.routed.log",
    conda:
        "../../envs/cpu.yaml"
    params:
        method=lambda wildcards: DATA.router[job(wildcards).arrangement.group_by],
        code=code("routing"),
    shell:
        r"""
        draftlab route \
            --stream {input.stream:q} \
            --train {input.train:q} \
            --method {params.method:q} \
            --out {output.stream:q} \
            --report {output.report:q} \
            >{log:q} 2>&1
        """


rule offline:
    """Distil drafts on recorded answers or on text of their own, then measure them on the held-out requests."""
    input:
        answers=passes_of_job,
        models=models_of_job,
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
        draft="results/{run}/cells/{experiment}/{cell}/draft/config.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    benchmark:
        "results/{run}/benchmarks/{experiment}/{cell}.tsv"
    wildcard_constraints:
        experiment=stage("offline"),
    conda:
        "../../envs/cpu.yaml"
    params:
        launch=LAUNCH,
        flags=cell_flags,
        results=f"results/{RUN.name}",
        max_new_tokens=RUN.settings.answers.max_new_tokens,
        out=subpath(output.rows, parent=True),
        code=code("distill.jobs"),
    shell:
        r"""
        {params.launch} offline {params.flags:q} \
            --answers {params.results:q}/answers \
            --models {params.results:q}/models \
            --max-new-tokens {params.max_new_tokens:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """


rule online:
    """Serve the stream with drafts that learn from it, and with drafts that stay as they are."""
    input:
        answers=passes_of_job,
        models=models_of_job,
        streams=streams_of_job,
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    benchmark:
        "results/{run}/benchmarks/{experiment}/{cell}.tsv"
    wildcard_constraints:
        experiment=stage("online"),
    conda:
        "../../envs/cpu.yaml"
    params:
        flags=cell_flags,
        results=f"results/{RUN.name}",
        streams=lambda wildcards, input: (
            ["--streams", str(Path(input.streams[0]).parent)] if input.streams else []
        ),
        max_new_tokens=RUN.settings.answers.max_new_tokens,
        out=subpath(output.rows, parent=True),
        code=code("distill.jobs"),
    shell:
        r"""
        draftlab online {params.flags:q} \
            --answers {params.results:q}/answers \
            --models {params.results:q}/models \
            --max-new-tokens {params.max_new_tokens:q} \
            {params.streams:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """


rule tokens:
    """Count by token what a draft proposes, has accepted and lacks, before and after distillation."""
    input:
        answers=passes_of_job,
        models=models_of_job,
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    wildcard_constraints:
        experiment=stage("tokens"),
    conda:
        "../../envs/cpu.yaml"
    params:
        flags=cell_flags,
        results=f"results/{RUN.name}",
        max_new_tokens=RUN.settings.answers.max_new_tokens,
        out=subpath(output.rows, parent=True),
        code=code("distill.jobs"),
    shell:
        r"""
        draftlab tokens {params.flags:q} \
            --answers {params.results:q}/answers \
            --models {params.results:q}/models \
            --max-new-tokens {params.max_new_tokens:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """
