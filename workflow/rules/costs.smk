"""Closed forms: the speed-up, the load of a trace against hardware, the bytes that a request moves.

Required: for memory_traffic results/{run}/models/{target,draft}/ and results/{run}/osd_online.csv
Outputs: results/{run}/cells/{experiment}/{cell}/{rows.csv,run.json}
"""


rule closed_form:
    """Tabulate a closed form: the speed-up, the load of a trace against hardware."""
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    wildcard_constraints:
        experiment=stage("speedup_theory", "utilisation"),
    conda:
        "../../envs/cpu.yaml"
    threads: needs("closed_form").threads
    resources:
        **resources_of("closed_form"),
    params:
        flags=cell_flags,
        out=subpath(output.rows, parent=True),
        verb=stage_verb,
        code=code("stages.costs"),
    message:
        "Compute: {wildcards.experiment} {wildcards.cell}"
    shell:
        r"""
        draftlab {params.verb:q} {params.flags:q} --out {params.out:q} >{log:q} 2>&1
        """


rule memory_traffic:
    """Tabulate the bytes that a request moves: as printed, and for this run's pair at its measured block lengths."""
    input:
        target="results/{run}/models/target/config.json",
        draft="results/{run}/models/draft/config.json",
        online="results/{run}/osd_online.csv",
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    wildcard_constraints:
        experiment=stage("memory_traffic"),
    conda:
        "../../envs/cpu.yaml"
    threads: needs("memory_traffic").threads
    resources:
        **resources_of("memory_traffic"),
    params:
        flags=cell_flags,
        target=subpath(input.target, parent=True),
        draft=subpath(input.draft, parent=True),
        out=subpath(output.rows, parent=True),
        code=code("stages.costs"),
    message:
        "Compute: {wildcards.experiment} {wildcards.cell}"
    shell:
        r"""
        draftlab memory-traffic {params.flags:q} \
            --target {params.target:q} \
            --draft {params.draft:q} \
            --online {input.online:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """
