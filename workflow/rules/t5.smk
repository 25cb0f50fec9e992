"""The encoder-decoder half of OSD: a T5 target, its drafts, and the target's recorded answers, by the rules of models.smk.

Required: results/{run}/data/{dataset}/{prompts,eval}.jsonl
Outputs: results/{run}/t5/models/{tokenizer,target,draft}/, results/{run}/t5/answers/{dataset}.{split}/; the rules offline,
online and tokens take them for every cell with `pair: t5`.
"""

T5 = RUN.settings.t5
T5_DRAFTS = {"draft": T5.draft} | T5.drafts
T5_PROMPTS = [
    f"results/{RUN.name}/data/{dataset}/prompts.jsonl" for dataset in T5.datasets
]


use rule tokenizer as t5_tokenizer with:
    input:
        prompts=T5_PROMPTS,
    output:
        tokenizer="results/{run}/t5/models/tokenizer/tokenizer.json",
    log:
        "results/{run}/logs/t5/tokenizer.log",
    params:
        recipe=plan.flags(T5.target),
    message:
        "Make the tokenizer of the T5 models"


use rule target as t5_target with:
    input:
        prompts=T5_PROMPTS,
        tokenizer="results/{run}/t5/models/tokenizer/tokenizer.json",
    output:
        model="results/{run}/t5/models/target/config.json",
    log:
        "results/{run}/logs/t5/target.log",
    benchmark:
        "results/{run}/benchmarks/t5/target.tsv"
    params:
        recipe=plan.flags(T5.target, template=RUN.answers("t5").template),
    message:
        "Make the T5 target"


use rule draft as t5_draft with:
    input:
        prompts=[],
        tokenizer="results/{run}/t5/models/tokenizer/tokenizer.json",
    output:
        model="results/{run}/t5/models/{draft}/config.json",
    log:
        "results/{run}/logs/t5/{draft}.log",
    benchmark:
        "results/{run}/benchmarks/t5/{draft}.tsv"
    wildcard_constraints:
        draft="|".join(T5_DRAFTS),
    params:
        recipe=lambda wildcards: plan.flags(
            T5_DRAFTS[wildcards.draft], template=RUN.answers("t5").template
        ),
    message:
        "Make the T5 draft {wildcards.draft}"


use rule answer as t5_answer with:
    input:
        prompts=split_prompts,
        target="results/{run}/t5/models/target/config.json",
    output:
        answers="results/{run}/t5/answers/{dataset}.{split}{temperature}/answers.jsonl",
    log:
        "results/{run}/logs/t5/answers/{dataset}.{split}{temperature}.log",
    benchmark:
        "results/{run}/benchmarks/t5/answers/{dataset}.{split}{temperature}.tsv"
    params:
        settings=plan.flags(RUN.answers("t5")),
    message:
        "Record the T5 target's answers to {wildcards.dataset} ({wildcards.split})"
