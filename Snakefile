"""Both papers as one workflow: `snakemake --cores all [--config scale=smoke|laptop|shapes|paper]`.

What a run is made of stands in workflow/scales/*.yaml and workflow/experiments/*.yaml; the rules are the same at every scale.
"""

import json
import os
import re
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

from draftlab import plan
from draftlab.data import dropped
from draftlab.errors import UserError
from draftlab.files import seals
from draftlab.stages import STAGES

min_version("9.0")


report: "workflow/report/workflow.rst"


# Used with `--sdm apptainer` alone: apptainer build envs/draftlab.sif envs/apptainer.def
# As seen from here, because Snakemake refuses white space, and a checkout may lie below some.
container: os.path.relpath(plan.WORKFLOW.parent / "envs" / "draftlab.sif")


try:
    RUN = plan.load_run(config, plan.WORKFLOW)
except UserError as error:
    raise WorkflowError(str(error)) from None

if workflow.is_main_process and not workflow.dryrun:
    seals.print_removed(RUN.folder)

DATA = RUN.settings.data
PAIRS = RUN.settings.pairs


wildcard_constraints:
    run=re.escape(RUN.name),
    pair="|".join(PAIRS),
    dataset=r"[A-Za-z0-9_]+",
    experiment=r"[a-z0-9_]+",
    cell=r"[A-Za-z0-9_.+-]+",
    split="train|eval",


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/cells.smk"
include: "workflow/rules/collect.smk"
include: "workflow/figures.smk"


onstart:
    # With a limit of jobs a second, each job so far wakes the scheduler every second until the end (Snakemake 9.27). A cluster needs the limit.
    if workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None


onsuccess:
    print(*dropped.lines(RUN.folder), sep="\n")
    if RUN.config.dataset and (RUN.folder / "report.html").exists():
        shell("draftlab summary --results {RUN.folder:q} --answer")


rule all:
    default_target: True
    input:
        f"results/{RUN.name}/report.html",
        f"results/{RUN.name}/tensorboard" if RUN.config.tracker else [],
