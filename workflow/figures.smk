"""The figure and table rule, used twice: on a run's own tables, and on the published ones.

Published tables lie in paper_figures/{run}/data/, where no rule writes: `snakemake paper_figures` can never train.
"""


rule figure:
    """Draw one experiment's figure and format its table."""
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
    conda:
        "../envs/cpu.yaml"
    params:
        scale=RUN.scale,
        code=lambda wildcards: code(f"figures.{wildcards.experiment}", "tables"),
    shell:
        r"""
        draftlab figure {wildcards.experiment:q} --and-table \
            --table {input.table:q} \
            --scale {params.scale:q} \
            --out "$(dirname {output.pdf:q})/{wildcards.experiment}" \
            >{log:q} 2>&1
        """


use rule figure as paper_figure with:
    input:
        table="paper_figures/{run}/data/{experiment}.csv",
    output:
        pdf="paper_figures/{run}/{experiment}.pdf",
        png="paper_figures/{run}/{experiment}.png",
        md="paper_figures/{run}/{experiment}.md",
        tex="paper_figures/{run}/{experiment}.tex",
        csv="paper_figures/{run}/{experiment}.csv",
    log:
        "results/{run}/logs/paper_figure/{experiment}.log",


PUBLISHED = sorted(
    path.stem
    for path in Path(workflow.basedir, "paper_figures", RUN.name, "data").glob("*.csv")
    if path.stem != "claims"
)


rule paper_figures:
    """Every published figure and table, from the committed data alone."""
    input:
        [f"paper_figures/{RUN.name}/{name}.pdf" for name in PUBLISHED],
