"""Distillation of drafts, offline and online, and what it does to acceptance.

Required: results/{run}/answers/{dataset}.{train,eval}/, results/{run}/models/{target,draft}/, results/{run}/data/{dataset}/
Steps: stream, route (the order of requests, where an experiment mixes datasets or classes) - offline, online, tokens - token_view.
Outputs: results/{run}/cells/{experiment}/{cell}/{rows.csv,run.json}; offline also draft/, the first variant's model;
results/{run}/tokens.json
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
    threads: needs("stream").threads
    resources:
        **resources_of("stream"),
    params:
        flags=lambda wildcards: plan.stream_flags(job(wildcards), wildcards.part),
        code=code("data.streams"),
    message:
        "Order requests: {wildcards.experiment} {wildcards.cell} ({wildcards.part})"
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
    threads: needs("route").threads
    resources:
        **resources_of("route"),
    params:
        method=lambda wildcards: DATA.router[job(wildcards).arrangement.group_by],
        model=DATA.classifier,
        device=RUN.settings.answers.device,
        code=code("data.routing"),
    message:
        "Route requests: {wildcards.experiment} {wildcards.cell}"
    shell:
        r"""
        draftlab route \
            --stream {input.stream:q} \
            --train {input.train:q} \
            --method {params.method:q} \
            --model {params.model:q} \
            --device {params.device:q} \
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
    threads: needs("offline").threads
    resources:
        **resources_of("offline"),
    params:
        launch=LAUNCH,
        flags=cell_flags,
        home=home,
        max_new_tokens=max_new_tokens,
        out=subpath(output.rows, parent=True),
        code=code("train.jobs"),
    message:
        "Distil offline: {wildcards.experiment} {wildcards.cell}"
    shell:
        r"""
        {params.launch} offline {params.flags:q} \
            --answers {params.home:q}/answers \
            --models {params.home:q}/models \
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
    threads: needs("online").threads
    resources:
        **resources_of("online"),
    params:
        flags=cell_flags,
        home=home,
        streams=lambda wildcards, input: (
            ["--streams", str(Path(input.streams[0]).parent)] if input.streams else []
        ),
        max_new_tokens=max_new_tokens,
        out=subpath(output.rows, parent=True),
        code=code("train.jobs"),
    message:
        "Serve and learn: {wildcards.experiment} {wildcards.cell}"
    shell:
        r"""
        draftlab online {params.flags:q} \
            --answers {params.home:q}/answers \
            --models {params.home:q}/models \
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
    threads: needs("tokens").threads
    resources:
        **resources_of("tokens"),
    params:
        flags=cell_flags,
        home=home,
        max_new_tokens=max_new_tokens,
        out=subpath(output.rows, parent=True),
        code=code("train.jobs"),
    message:
        "Count tokens: {wildcards.experiment} {wildcards.cell}"
    shell:
        r"""
        draftlab tokens {params.flags:q} \
            --answers {params.home:q}/answers \
            --models {params.home:q}/models \
            --max-new-tokens {params.max_new_tokens:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """


rule token_view:
    """Show one request's accepted and rejected tokens with the draft as it was and with the one distilled offline."""
    input:
        unpack(shown_drafts),
    output:
        view="results/{run}/tokens.json",
    log:
        "results/{run}/logs/token_view.log",
    conda:
        "../../envs/cpu.yaml"
    threads: needs("token_view").threads
    resources:
        **resources_of("token_view"),
    params:
        before=subpath(input.before, parent=True),
        after=subpath(input.after, parent=True),
        answers=subpath(input.answers, parent=True),
        dataset=lambda wildcards: shown_cell()[1].dataset,
        draft_len=lambda wildcards: shown_cell()[1].draft_len,
        code=code("train.tokens"),
    message:
        "Show one request's tokens"
    shell:
        r"""
        draftlab token-view \
            --before {params.before:q} \
            --after {params.after:q} \
            --answers {params.answers:q} \
            --dataset {params.dataset:q} \
            --draft-len {params.draft_len:q} \
            --out {output.view:q} \
            >{log:q} 2>&1
        """


rule medusa:
    """Learn and measure in turns: heads on the target against a draft; or what updates cost against what they save."""
    input:
        answers=passes_of_job,
        models=models_of_job,
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    benchmark:
        "results/{run}/benchmarks/{experiment}/{cell}.tsv"
    wildcard_constraints:
        experiment=stage("medusa", "break_even"),
    conda:
        "../../envs/cpu.yaml"
    threads: all_cores()
    resources:
        **resources_of("medusa"),
        exclusive=1,
    params:
        flags=cell_flags,
        home=home,
        max_new_tokens=max_new_tokens,
        out=subpath(output.rows, parent=True),
        verb=stage_verb,
        code=lambda wildcards: code(f"distill.{RUN.known[wildcards.experiment].stage}"),
    message:
        "Learn and measure: {wildcards.experiment} {wildcards.cell}"
    shell:
        r"""
        OMP_NUM_THREADS=1 draftlab {params.verb:q} {params.flags:q} \
            --answers {params.home:q}/answers \
            --models {params.home:q}/models \
            --max-new-tokens {params.max_new_tokens:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """
