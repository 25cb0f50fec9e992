"""Distillation of drafts, offline and online, and what it does to acceptance.

Required: results/{run}/answers/{dataset}.{train,eval}/, results/{run}/models/draft/
Outputs: results/{run}/cells/{experiment}/{cell}/{rows.csv,run.json}; offline also draft/, the distilled model
"""


rule offline:
    """Distil a draft on recorded answers, then measure it on the held-out requests."""
    input:
        train=answers_of_cell("train"),
        held_out=answers_of_cell("eval"),
        draft="results/{run}/models/draft/config.json",
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
        flags=cell_flags,
        train=subpath(input.train, parent=True),
        held_out=subpath(input.held_out, parent=True),
        draft=subpath(input.draft, parent=True),
        out=subpath(output.rows, parent=True),
        code=code("distill"),
    shell:
        r"""
        draftlab offline {params.flags:q} \
            --train {params.train:q} \
            --held-out {params.held_out:q} \
            --draft {params.draft:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """


rule online:
    """Serve the stream with a draft that learns from it, or with one that stays as it is."""
    input:
        train=answers_of_cell("train"),
        held_out=answers_of_cell("eval"),
        draft="results/{run}/models/draft/config.json",
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
        train=subpath(input.train, parent=True),
        held_out=subpath(input.held_out, parent=True),
        draft=subpath(input.draft, parent=True),
        out=subpath(output.rows, parent=True),
        code=code("distill"),
    shell:
        r"""
        draftlab online {params.flags:q} \
            --train {params.train:q} \
            --held-out {params.held_out:q} \
            --draft {params.draft:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """
