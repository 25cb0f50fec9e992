"""Cells -> one tidy table per experiment -> claims, report.

Required: results/{run}/cells/{experiment}/{cell}/{rows.csv,run.json}
Outputs: results/{run}/{experiment}.csv, results/{run}/cells/{experiment}.txt, results/{run}/claims.csv, results/{run}/report.html; results/{run}/tensorboard on request
"""

TEMPLATES = Path(plan.__file__).parents[1] / "report" / "templates"


rule collect:
    """Join the cells of one experiment into its table, and list them: folders of cells that it no longer has may remain."""
    input:
        rows=lambda wildcards: [
            f"results/{wildcards.run}/cells/{wildcards.experiment}/{cell}/rows.csv"
            for cell in RUN.cells(wildcards.experiment)
        ],
    output:
        table="results/{run}/{experiment}.csv",
        cells="results/{run}/cells/{experiment}.txt",
    log:
        "results/{run}/logs/collect/{experiment}.log",
    wildcard_constraints:
        experiment="|".join(RUN.at_scale),
    priority: 1
    conda:
        "../../envs/cpu.yaml"
    threads: threads_of("collect")
    resources:
        **resources_of("collect"),
    params:
        cells=lambda wildcards: list(RUN.cells(wildcards.experiment)),
        code=code("files.tables"),
    message:
        "Join the cells of {wildcards.experiment}"
    shell:
        r"""
        draftlab collect --rows {input.rows:q} --out {output.table:q} >{log:q} 2>&1
        printf '%s\n' {params.cells:q} >{output.cells:q}
        """


rule claims:
    """Put every published number beside ours, with a verdict."""
    input:
        tables=every(f"results/{RUN.name}/{{experiment}}.csv"),
        published=sorted(
            str(path) for path in (plan.WORKFLOW / "published").glob("[!.]*")
        ),
    output:
        claims=report(
            "results/{run}/claims.csv",
            caption="../report/claims.rst",
            category="Ledger",
            labels={"run": "{run}"},
        ),
        related="results/{run}/claims_related.csv",
    log:
        "results/{run}/logs/claims.log",
    conda:
        "../../envs/cpu.yaml"
    threads: threads_of("claims")
    resources:
        **resources_of("claims"),
    params:
        scale=RUN.scale,
        experiments=[RUN.called(name) for name in RUN.experiments],
        own=["--own-models"] if RUN.has_own_models else [],
        measures=digest_of(
            [
                (one.view, dict(one.stage_kind.measures))
                for one in RUN.experiments.values()
            ]
        ),
        code=code("report.ledger"),
    message:
        "Put every published number beside ours"
    shell:
        r"""
        draftlab claims --tables "$(dirname {output.claims:q})" --scale {params.scale:q} {params.own:q} \
            --experiments {params.experiments:q} --out {output.claims:q} >{log:q} 2>&1
        """


rule report:
    """Write the report page with every figure, table and verdict."""
    input:
        tables=every(f"results/{RUN.name}/{{experiment}}.csv"),
        figures=every(f"results/{RUN.name}/figures/{{experiment}}.png"),
        claims="results/{run}/claims.csv",
        records=lambda wildcards: [
            f"results/{wildcards.run}/cells/{name}/{cell}/run.json"
            for name in RUN.experiments
            for cell in RUN.cells(name)
        ],
        tokens=(
            f"results/{RUN.name}/tokens.json"
            if "osd_offline" in RUN.experiments and RUN.config.show_tokens
            else []
        ),
    output:
        report=report(
            "results/{run}/report.html",
            caption="../report/page.rst",
            category="Page",
            labels={"run": "{run}"},
        ),
    log:
        "results/{run}/logs/report.log",
    conda:
        "../../envs/cpu.yaml"
    threads: threads_of("report")
    resources:
        **resources_of("report"),
    params:
        scale=RUN.scale,
        config=RUN.given,
        experiments=[RUN.called(name) for name in RUN.experiments],
        texts=digest_of(
            [
                (one.paper, one.artefact, one.title, one.question)
                for one in RUN.experiments.values()
            ]
        ),
        templates=[
            seals.content_digest(folder)
            for folder in (TEMPLATES, TEMPLATES / "vendor")
        ],
        code=code("report.page", "report.summary"),
    message:
        "Write the report"
    shell:
        r"""
        draftlab report --results "$(dirname {output.report:q})" --scale {params.scale:q} --out {output.report:q} \
            --config {params.config:q} --experiments {params.experiments:q} >{log:q} 2>&1
        """


rule tracker:
    """Write the curves along every stream as TensorBoard events (`--config tracker=tensorboard`)."""
    input:
        tables=every(f"results/{RUN.name}/{{experiment}}.csv"),
    output:
        events=directory("results/{run}/tensorboard"),
    log:
        "results/{run}/logs/tracker.log",
    conda:
        "../../envs/cpu.yaml"
    threads: threads_of("tracker")
    resources:
        **resources_of("tracker"),
    params:
        experiments=[RUN.called(name) for name in RUN.experiments],
        code=code("report.tensorboard"),
    message:
        "Write the curves as TensorBoard events"
    shell:
        r"""
        draftlab tensorboard --results "$(dirname {output.events:q})" --experiments {params.experiments:q} \
            --out {output.events:q} >{log:q} 2>&1
        """


rule publish:
    """Copy a finished run's tables to paper_figures/, from which the committed figures are drawn; the ledger covers all tables there. No output, so it runs whenever it is asked for."""
    input:
        tables=every(f"results/{RUN.name}/{{experiment}}.csv"),
        claims=[f"results/{RUN.name}/claims{part}.csv" for part in ("", "_related")],
    log:
        f"results/{RUN.name}/logs/publish.log",
    localrule: True
    conda:
        "../../envs/cpu.yaml"
    params:
        results=RUN.folder,
        folder=f"paper_figures/{RUN.name}/data",
        names=lambda wildcards, input: [Path(table).stem for table in input.tables],
        scale=RUN.scale,
        own=["--own-models"] if RUN.has_own_models else [],
        others=lambda wildcards: " ".join(sorted(set(PUBLISHED) - set(RUN.experiments))),
    shell:
        r"""
        exec >{log:q} 2>&1
        draftlab publish --results {params.results:q} --tables {params.names:q} --out {params.folder:q}
        if [ -z {params.others:q} ]; then
            cp {input.claims:q} {params.folder:q}
        else # the ledger of this run would drop the verdicts that rest on tables published before
            draftlab claims --tables {params.folder:q} --scale {params.scale:q} {params.own:q} --out {params.folder:q}/claims.csv
        fi
        """
