"""Figures and printed tables: one job for each table of a run, one job for all published tables.

Required: results/{run}/{experiment}.csv, or the published tables in paper_figures/{run}/data/
Outputs: results/{run}/figures/{experiment}.{pdf,png,md,tex,csv}, or paper_figures/{run}/{experiment}.{pdf,png,md,tex,csv}

No rule writes into paper_figures/{run}/data/, so `snakemake paper_figures` never trains.
"""

DRAWN = ("pdf", "png", "md", "tex", "csv")


rule figure:
    """Draw one experiment's figure, format its table, and print its finding."""
    input:
        table="results/{run}/{experiment}.csv",
    output:
        pdf="results/{run}/figures/{experiment}.pdf",
        png=report(
            "results/{run}/figures/{experiment}.png",
            caption="report/figure.rst",
            category="Figures",
            labels={"experiment": "{experiment}", "run": "{run}"},
        ),
        md="results/{run}/figures/{experiment}.md",
        tex="results/{run}/figures/{experiment}.tex",
        csv="results/{run}/figures/{experiment}.csv",
    log:
        "results/{run}/logs/figure/{experiment}.log",
    priority: 1
    conda:
        "../envs/cpu.yaml"
    threads: threads_of("figure")
    resources:
        **resources_of("figure"),
    params:
        scale=RUN.scale,
        experiment=lambda wildcards: RUN.called(wildcards.experiment),
        own=["--own-target"] if PAIRS["main"].target.model else [],
        experiment_file=lambda wildcards: printed_parts(wildcards.experiment),
        code=lambda wildcards: code(
            f"report.figures.{drawn_by(wildcards.experiment)}",
            "report.figures.batch",
            "report.findings",
        ),
    message:
        "Draw {wildcards.experiment}"
    shell:
        r"""
        draftlab figure {params.experiment:q} \
            --table {input.table:q} \
            --scale {params.scale:q} {params.own:q} \
            --out "$(dirname {output.pdf:q})"/{wildcards.experiment:q} \
            2>{log:q} | tee -a {log:q}
        """


PUBLISHED = sorted(
    path.name.removesuffix(".csv.gz")
    for path in Path("paper_figures", RUN.name, "data").glob("*.csv.gz")
)


rule paper_figures:
    """Draw the published figures and tables from the committed data; unchanged ones are not drawn again."""
    input:
        tables=[f"paper_figures/{RUN.name}/data/{name}.csv.gz" for name in PUBLISHED],
    output:
        drawn=update(f"results/{RUN.name}/paper_figures.json"),
        files=[
            update(f"paper_figures/{RUN.name}/{name}.{suffix}")
            for name in PUBLISHED
            for suffix in DRAWN
        ],
    log:
        f"results/{RUN.name}/logs/paper_figures.log",
    localrule: True
    conda:
        "../envs/cpu.yaml"
    threads: 8
    params:
        folder=lambda wildcards: f"paper_figures/{RUN.name}",
        scale=RUN.scale,
        experiment_files=lambda wildcards: digest_of(
            [printed_parts(name) for name in PUBLISHED if name in RUN.at_scale]
        ),
        code=code(
            *(f"report.figures.{drawn_by(name)}" for name in PUBLISHED),
            *{
                f"stages.{RUN.at_scale[name].stage}"
                for name in PUBLISHED
                if name in RUN.at_scale
            },
            "report.figures.batch",
            "report.findings",
        ),
    shell:
        r"""
        # Without this, each process would start as many BLAS threads as there are processes.
        OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 draftlab figures \
            --data {params.folder:q}/data \
            --scale {params.scale:q} \
            --out {params.folder:q} \
            --drawn {output.drawn:q} \
            --processes {threads:q} \
            >{log:q} 2>&1
        """
