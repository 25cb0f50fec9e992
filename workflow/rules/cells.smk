"""Cells: one rule for each stage, one job for each combination of an experiment's axes.

Required: what the stage reads (`reads` in src/draftlab/stages/<stage>.py): models, recorded answers, requests, another experiment's table
Steps: conformance - cell - token_view
Outputs: results/{run}/cells/{experiment}/{cell}/{cell.json,rows.csv,run.json}; from offline and online also draft/, the draft that
the cell keeps, and routing.json if it routes requests; results/{run}/tokens.json;
results/{run}/drafts/{experiment}.{cell}.gguf on request

`draftlab run cell.json` repeats a cell. Time measurements have the machine to themselves.
"""

for STAGE in STAGES.values():

    rule:
        name:
            STAGE.name
        input:
            lambda wildcards: RUN.reads(wildcards.experiment, wildcards.cell),
        output:
            cell="results/{run}/cells/{experiment}/{cell}/cell.json",
            rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
            record="results/{run}/cells/{experiment}/{cell}/run.json",
        log:
            "results/{run}/logs/{experiment}/{cell}.log",
        wildcard_constraints:
            experiment="|".join(RUN.of_stage(STAGE.name)) or "no_such_experiment",
        priority: urgency(STAGE)
        conda:
            f"../../envs/{'gpu' if STAGE.needs_gpu_build and RUN.settings.asked(STAGE.name).gpu else 'cpu'}.yaml"
        threads: all_cores() if STAGE.exclusive else threads_of(STAGE.name)
        resources:
            **resources_of(STAGE.name),
            **({"exclusive": 1} if STAGE.exclusive else {}),
        params:
            **(
                {"sizes": seals.content_digest(plan.WORKFLOW / "models.csv")}
                if RUN.settings.by_architecture
                else {}
            ),
            **named_contents(),
            launch=launch_of(STAGE),
            cell=lambda wildcards: json.dumps(
                RUN.cell_file(wildcards.experiment, wildcards.cell), indent=1
            ),
            gpus=on_gpus,
            threads=1 if STAGE.exclusive else threads_of(STAGE.name),
            classifier=(
                plan.content_of_model(DATA.classifier)
                if "hub" in DATA.router.values()
                else ""
            ),
            code=code(f"stages.{STAGE.name}"),
        message:
            f"{STAGE.summary}: {{wildcards.experiment}} {{wildcards.cell}}"
        shell:
            r"""
            printf '%s\n' {params.cell:q} >{output.cell:q}
            # Snakemake sets these to all cores of a measurement; torch prefers MKL's to OpenMP's.
            export OMP_NUM_THREADS={params.threads:q} MKL_NUM_THREADS={params.threads:q} OPENBLAS_NUM_THREADS={params.threads:q}
            {params.gpus:q} {params.launch:q} run {output.cell:q} >{log:q} 2>&1
            """


rule conformance:
    """Test that a verifier of the user's own is lossless, before a cell uses it, unless it says that it is not."""
    output:
        result="results/{run}/verifiers/{verifier}.txt",
    log:
        "results/{run}/logs/conformance/{verifier}.log",
    wildcard_constraints:
        verifier=r"[\w.-]+",
    conda:
        "../../envs/cpu.yaml"
    threads: threads_of("conformance")
    resources:
        **resources_of("conformance"),
    params:
        verifier=lambda wildcards: RUN.own_verifiers[wildcards.verifier],
        own=lambda wildcards: own_code(RUN.own_verifiers[wildcards.verifier]),
        code=code("conformance.command"),
    message:
        "Test that {wildcards.verifier} is lossless"
    shell:
        r"""
        draftlab verify-lossless --verifier {params.verifier:q} --if-claimed 2>{log:q} >{output.result:q} \
            || {{ cat {output.result:q} {log:q} >&2; exit 1; }}
        """


rule token_view:
    """Show the accepted and rejected tokens of one request, with the draft before and after distillation."""
    input:
        unpack(shown_drafts),
    output:
        view="results/{run}/tokens.json",
    log:
        "results/{run}/logs/token_view.log",
    conda:
        "../../envs/cpu.yaml"
    threads: threads_of("token_view")
    resources:
        **resources_of("token_view"),
    params:
        before=subpath(input.before, parent=True),
        cell=subpath(input.after, parent=True),
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
            --after {params.cell:q}/draft \
            --answers {params.answers:q} \
            --dataset {params.dataset:q} \
            --draft-len {params.draft_len:q} \
            --out {output.view:q} \
            >{log:q} 2>&1
        """


rule export_draft:
    """Export the draft of a cell as a GGUF file for llama.cpp; the cell's folder draft/ has it in the Hugging Face layout."""
    input:
        rows="results/{run}/cells/{experiment}/{cell}/rows.csv",
    output:
        gguf="results/{run}/drafts/{experiment}.{cell}.gguf",
    log:
        "results/{run}/logs/drafts/{experiment}.{cell}.log",
    conda:
        "../../envs/cpu.yaml"
    threads: threads_of("export_draft")
    resources:
        **resources_of("export_draft"),
    params:
        cell=subpath(input.rows, parent=True),
        original=lambda wildcards: (
            f"results/{wildcards.run}/{RUN.pair_of(wildcards.experiment, wildcards.cell)}/models/target/model.gguf"
        ),
        # T5's tokenizer has no counterpart that can be exported.
        text=lambda wildcards: (
            "--vocabulary"
            if RUN.settings.pairs[
                RUN.pair_of(wildcards.experiment, wildcards.cell)
            ].target.family
            == "llama"
            else "--no-vocabulary"
        ),
        code=code("models.gguf"),
    message:
        "Export the draft of {wildcards.experiment} {wildcards.cell}"
    shell:
        r"""
        # A target that was a GGUF file has a vocabulary that its tokenizer.json does not hold.
        # It is a word of "$@", because the bash of macOS (3.2) refuses an empty array.
        if [ -e {params.original:q} ]; then set -- --vocabulary-of {params.original:q}; fi
        draftlab gguf export --model {params.cell:q}/draft {params.text:q} "$@" --out {output.gguf:q} >{log:q} 2>&1
        """


rule export_drafts:
    """Export every draft that the run's experiments keep."""
    input:
        [
            f"results/{RUN.name}/drafts/{name}.{cell}.gguf"
            for name in RUN.experiments
            for cell, variants in RUN.cells(name).items()
            if getattr(variants[0].settings, "save", "")
        ],
    localrule: True
