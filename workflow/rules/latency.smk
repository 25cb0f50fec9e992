"""GGUF export, and latency measured in llama.cpp.

Required: results/{run}/models/{target,draft}/config.json
Outputs: results/{run}/cells/{experiment}/{cell}/{rows.csv,run.json}
"""


rule latency_alpha:
    """Measure ms/token at controlled acceptance, baseline and speculative interleaved."""
    input:
        target="results/{run}/models/target/config.json",
        draft="results/{run}/models/draft/config.json",
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    benchmark:
        "results/{run}/benchmarks/{experiment}/{cell}.tsv"
    wildcard_constraints:
        experiment=stage("latency_alpha"),
    conda:
        "../../envs/cpu.yaml"
    # The measurement is of one thread, but it must have the machine to itself.
    threads: 64
    resources:
        exclusive=1,
    params:
        flags=cell_flags,
        code=code("latency.alpha"),
    shell:
        r"""
        OMP_NUM_THREADS=1 draftlab latency alpha {params.flags:q} \
            --target "$(dirname {input.target:q})" \
            --draft "$(dirname {input.draft:q})" \
            --out "$(dirname {output.rows:q})" \
            >{log:q} 2>&1
        """
