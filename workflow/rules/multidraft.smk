"""Several drafted tokens: exact acceptance on toy laws and on recorded probability pairs. And closed forms.

Required: results/{run}/models/{target,draft}/, results/{run}/data/{dataset}/eval.jsonl
Outputs: results/{run}/pairs/{dataset}.safetensors, results/{run}/cells/{experiment}/{cell}/{rows.csv,run.json}
"""


rule pairs:
    """Sample the target's answers, and record target and draft logits at each of their positions."""
    input:
        prompts="results/{run}/data/{dataset}/eval.jsonl",
        target="results/{run}/models/target/config.json",
        draft="results/{run}/models/draft/config.json",
    output:
        pairs="results/{run}/pairs/{dataset}.safetensors",
    log:
        "results/{run}/logs/pairs/{dataset}.log",
    conda:
        "../../envs/cpu.yaml"
    params:
        settings=experiments.flags(RUN.settings.answers),
        positions=DATA.pairs,
        seed=DATA.seed,
        target=subpath(input.target, parent=True),
        draft=subpath(input.draft, parent=True),
        code=code("multidraft", "answers"),
    shell:
        r"""
        draftlab mdss pairs {params.settings:q} \
            --prompts {input.prompts:q} \
            --positions {params.positions:q} \
            --seed {params.seed:q} \
            --target {params.target:q} \
            --draft {params.draft:q} \
            --out {output.pairs:q} \
            >{log:q} 2>&1
        """


rule acceptance:
    """Exact acceptance of every scheme on the recorded pairs of one dataset."""
    input:
        pairs=lambda wildcards: f"results/{wildcards.run}/pairs/{cell_setting('dataset')(wildcards)}.safetensors",
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    wildcard_constraints:
        experiment=stage("acceptance"),
    conda:
        "../../envs/cpu.yaml"
    params:
        flags=cell_flags,
        out=subpath(output.rows, parent=True),
        code=code("multidraft"),
    shell:
        r"""
        draftlab mdss acceptance {params.flags:q} --pairs {input.pairs:q} --out {params.out:q} >{log:q} 2>&1
        """


rule region:
    """Acceptance over the toy simplex, exactly: no model, no data."""
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    wildcard_constraints:
        experiment=stage("region"),
    conda:
        "../../envs/cpu.yaml"
    params:
        flags=cell_flags,
        out=subpath(output.rows, parent=True),
        code=code("multidraft"),
    shell:
        r"""
        draftlab mdss region {params.flags:q} --out {params.out:q} >{log:q} 2>&1
        """


rule speedup_theory:
    """Tabulate the closed form of the speed-up."""
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    wildcard_constraints:
        experiment=stage("speedup_theory"),
    conda:
        "../../envs/cpu.yaml"
    params:
        flags=cell_flags,
        out=subpath(output.rows, parent=True),
        code=code("theory"),
    shell:
        r"""
        draftlab speedup-theory {params.flags:q} --out {params.out:q} >{log:q} 2>&1
        """
