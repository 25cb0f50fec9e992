"""Several drafted tokens: exact on toy distributions and on recorded probability pairs, live on models.

Required: results/{run}/data/{dataset}/{prompts,eval}.jsonl
Steps: a pair of its own (tokenizer, target, draft that learnt the same requests) - pairs - acceptance; the pair - live.
Outputs: results/{run}/multidraft/{tokenizer,target,draft}/, results/{run}/pairs/{dataset}.safetensors,
results/{run}/cells/{experiment}/{cell}/{rows.csv,run.json}
"""

PAIR = RUN.settings.multidraft
PAIR_ANSWERS = RUN.answers("multidraft")
PAIR_PROMPTS = [
    f"results/{RUN.name}/data/{dataset}/prompts.jsonl" for dataset in PAIR.datasets
]


use rule tokenizer as multidraft_tokenizer with:
    input:
        prompts=PAIR_PROMPTS,
    output:
        tokenizer="results/{run}/multidraft/tokenizer/tokenizer.json",
    log:
        "results/{run}/logs/multidraft/tokenizer.log",
    params:
        recipe=plan.flags(PAIR.target),
    message:
        "Make the tokenizer of the multi-draft experiments"


use rule target as multidraft_target with:
    input:
        prompts=PAIR_PROMPTS,
        tokenizer="results/{run}/multidraft/tokenizer/tokenizer.json",
    output:
        model="results/{run}/multidraft/target/config.json",
    log:
        "results/{run}/logs/multidraft/target.log",
    benchmark:
        "results/{run}/benchmarks/multidraft/target.tsv"
    resources:
        **resources_of("multidraft_target"),
    params:
        recipe=plan.flags(PAIR.target, template=PAIR_ANSWERS.template),
    message:
        "Make the target of the multi-draft experiments"


use rule draft as multidraft_draft with:
    input:
        prompts=PAIR_PROMPTS,
        tokenizer="results/{run}/multidraft/tokenizer/tokenizer.json",
    output:
        model="results/{run}/multidraft/draft/config.json",
    log:
        "results/{run}/logs/multidraft/draft.log",
    benchmark:
        "results/{run}/benchmarks/multidraft/draft.tsv"
    params:
        recipe=plan.flags(PAIR.draft, template=PAIR_ANSWERS.template),
    message:
        "Make the draft of the multi-draft experiments"


rule pairs:
    """Sample the target's answers, and record target and draft logits at each of their positions."""
    input:
        prompts=[
            f"results/{RUN.name}/data/{dataset}/eval.jsonl"
            for dataset in PAIR.datasets
        ],
        target="results/{run}/multidraft/target/config.json",
        draft="results/{run}/multidraft/draft/config.json",
    output:
        pairs=[
            f"results/{{run}}/pairs/{dataset}.safetensors" for dataset in PAIR.datasets
        ],
        synthetic="results/{run}/pairs/synthetic.safetensors",
        made_of=[f"results/{{run}}/pairs/{dataset}.json" for dataset in PAIR.datasets],
    log:
        "results/{run}/logs/pairs.log",
    benchmark:
        "results/{run}/benchmarks/multidraft/pairs.tsv"
    conda:
        "../../envs/cpu.yaml"
    threads: needs("pairs").threads
    resources:
        **resources_of("pairs"),
    params:
        settings=plan.flags(PAIR_ANSWERS),
        prompts=held_out_prompts(PAIR.datasets),
        positions=DATA.pairs,
        seed=DATA.seed,
        target=subpath(input.target, parent=True),
        draft=subpath(input.draft, parent=True),
        out=subpath(output.synthetic, parent=True),
        code=code("multidraft.pairs", "engine.recording"),
    message:
        "Record target and draft logits of the multi-draft experiments"
    shell:
        r"""
        draftlab mdss pairs {params.settings:q} \
            --prompts {params.prompts:q} \
            --positions {params.positions:q} \
            --seed {params.seed:q} \
            --target {params.target:q} \
            --draft {params.draft:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """


rule exact:
    """Measure what needs neither a model nor data."""
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    benchmark:
        "results/{run}/benchmarks/{experiment}/{cell}.tsv"
    wildcard_constraints:
        experiment=stage("region", "cone"),
    conda:
        "../../envs/cpu.yaml"
    threads: needs("exact").threads
    resources:
        **resources_of("exact"),
    params:
        verb=stage_verb,
        flags=cell_flags,
        out=subpath(output.rows, parent=True),
        code=multidraft_code,
    message:
        "Compute: {wildcards.experiment} {wildcards.cell}"
    shell:
        r"""
        OMP_NUM_THREADS=1 draftlab mdss {params.verb:q} {params.flags:q} --out {params.out:q} >{log:q} 2>&1
        """


use rule exact as verifier_cost with:
    wildcard_constraints:
        experiment=stage("verifier_cost"),
    threads: all_cores()
    resources:
        **resources_of("verifier_cost"),
        exclusive=1,
    message:
        "Measure: {wildcards.experiment} {wildcards.cell}"


rule on_pairs:
    """Measure schemes on the recorded pairs: no model runs."""
    input:
        pairs=rules.pairs.output.pairs,
        synthetic=rules.pairs.output.synthetic,
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    benchmark:
        "results/{run}/benchmarks/{experiment}/{cell}.tsv"
    wildcard_constraints:
        experiment=stage("acceptance", "regime", "sinkhorn"),
    conda:
        "../../envs/cpu.yaml"
    threads: needs("on_pairs").threads
    resources:
        **resources_of("on_pairs"),
    params:
        verb=stage_verb,
        flags=cell_flags,
        pairs=subpath(input.synthetic, parent=True),
        out=subpath(output.rows, parent=True),
        code=multidraft_code,
    message:
        "Verify on recorded pairs: {wildcards.experiment} {wildcards.cell}"
    shell:
        r"""
        OMP_NUM_THREADS=1 draftlab mdss {params.verb:q} {params.flags:q} --pairs {params.pairs:q} --out {params.out:q} >{log:q} 2>&1
        """


rule live:
    """Decode with several drafted sequences: tokens per target call, tokens per second, where the time goes."""
    input:
        prompts=lambda wildcards: held_out_prompts(
            cell_setting("datasets")(wildcards)
        )[1::2],
        target="results/{run}/multidraft/target/config.json",
        draft="results/{run}/multidraft/draft/config.json",
    output:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
        record="results/{run}/cells/{experiment}/{cell}/run.json",
    log:
        "results/{run}/logs/{experiment}/{cell}.log",
    benchmark:
        "results/{run}/benchmarks/{experiment}/{cell}.tsv"
    wildcard_constraints:
        experiment=stage("live"),
    conda:
        "../../envs/cpu.yaml"
    threads: needs("live").threads
    resources:
        **resources_of("live"),
    params:
        flags=cell_flags,
        prompts=lambda wildcards: held_out_prompts(cell_setting("datasets")(wildcards)),
        target=subpath(input.target, parent=True),
        draft=subpath(input.draft, parent=True),
        template=PAIR_ANSWERS.template,
        dtype=PAIR_ANSWERS.dtype,
        device=PAIR_ANSWERS.device,
        out=subpath(output.rows, parent=True),
        code=code("multidraft.live"),
    message:
        "Decode with several drafts: {wildcards.experiment} {wildcards.cell}"
    shell:
        r"""
        OMP_NUM_THREADS=1 draftlab mdss live {params.flags:q} \
            --prompts {params.prompts:q} \
            --target {params.target:q} \
            --draft {params.draft:q} \
            --template {params.template:q} \
            --dtype {params.dtype:q} \
            --device {params.device:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """


rule online_multidraft:
    """Let drafts learn one topic each, and decode with all of them at once; against routing and one shared draft."""
    input:
        answers=lambda wildcards: [
            f"results/{wildcards.run}/answers/{topic}.{split}/answers.jsonl"
            for topic in cell_setting("topics")(wildcards)
            for split in ("train", "eval")
        ],
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
        experiment=stage("online_multidraft"),
    conda:
        "../../envs/cpu.yaml"
    threads: needs("online_multidraft").threads
    resources:
        **resources_of("online_multidraft"),
    params:
        flags=cell_flags,
        answers=f"results/{RUN.name}/answers",
        target=subpath(input.target, parent=True),
        draft=subpath(input.draft, parent=True),
        out=subpath(output.rows, parent=True),
        code=code("multidraft.online_multidraft"),
    message:
        "Learn topics, decode with all drafts: {wildcards.experiment} {wildcards.cell}"
    shell:
        r"""
        draftlab mdss online {params.flags:q} \
            --target {params.target:q} \
            --draft {params.draft:q} \
            --answers {params.answers:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """
