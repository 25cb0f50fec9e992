"""Both papers as one workflow: `snakemake --cores all [--config scale=NAME]`.

workflow/scales/*.yaml defines the sizes of a run, workflow/experiments/*.yaml its experiments. The rules are the same at every scale.
"""

import json
import os
import random
import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snakemake.settings.types import DeploymentMethod
from snakemake.utils import min_version

from draftlab.errors import UserError

try:
    from draftlab import forks, plan
    from draftlab.data import dropped
    from draftlab.files import seals
    from draftlab.plan import needs, times
    from draftlab.stages import STAGES
except UserError as error:  # a stage that Python cannot import
    raise WorkflowError(str(error)) from None

min_version("9.0")


report: "workflow/report/workflow.rst"


# Only for `--sdm apptainer`; make it with: apptainer build envs/draftlab.sif envs/apptainer.def
# Snakemake refuses an image with a space in its path, even where it uses none. A relative path may have none.
IMAGE = os.path.relpath(plan.WORKFLOW.parent / "envs" / "draftlab.sif")
IN_CONTAINER = (
    DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method
)


container: IMAGE if IN_CONTAINER or " " not in IMAGE else None


if set("{}") & set(str(plan.WORKFLOW)):
    raise WorkflowError(
        f"braces are wildcards in a workflow: {plan.WORKFLOW} (rename the folder)"
    )

# The published figures need neither data nor models nor GPUs: only the committed tables.
MEASURES = workflow.is_main_process and "paper_figures" not in sys.argv

try:
    if workflow.is_main_process:
        plan.check_names(sys.argv)
    RUN = plan.load_run(config, plan.WORKFLOW)
    if MEASURES:
        plan.check_data(RUN)
except UserError as error:
    raise WorkflowError(str(error)) from None

# Snakemake gives a job no more GPUs than the run has: it would fail when it starts, perhaps after hours of other jobs.
GPUS = workflow.global_resources.get("gpu")
LIMIT = GPUS and GPUS.value  # none: as many as are asked for
WANTED = max((asked.gpu for asked in RUN.settings.needs.values()), default=0)
if MEASURES and LIMIT is not None and WANTED > max(LIMIT, 1):
    raise WorkflowError(
        f"a job asks for {WANTED} GPUs, but --resources gives the run {LIMIT}"
        f" (say how many there are: --resources gpu={WANTED} exclusive=1)"
    )

# While another process holds the lock on this run's files, what looks damaged may be what it is writing.
LOCKED = "--nolock" not in sys.argv and plan.is_locked(RUN.folder)
if workflow.is_main_process and not plan.only_looks(sys.argv) and not LOCKED:
    seals.remove_and_report_damaged(RUN.folder)

# For the commands of profiles.
os.environ.update(DRAFTLAB_CHECKOUT=str(plan.WORKFLOW.parent))

LOGS = RUN.folder / "logs"
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
    # With a limit of jobs per second, every job so far wakes the scheduler each second until the run ends
    # (Snakemake 9.27). Only clusters need the limit.
    if workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None
        jobs = {job.jobid: timed_job(job) for job in workflow.dag.needrun_jobs()}
        LOGS.mkdir(parents=True, exist_ok=True)
        logger.addHandler(
            times.TimeLeft(jobs, workflow.cores, LOGS / times.FILE, TIMES)
        )
        isolated = (
            workflow.deployment_settings.deployment_method
            or RUN.settings.compute.device != "cpu"
        )
        if sys.platform == "linux" and len(jobs) >= forks.WORTH and not isolated:
            shell.prefix(
                "set -euo pipefail; "
                + forks.begin(LOGS / "starts.tsv")
                .replace("{", "{{")
                .replace("}", "}}")
            )


onsuccess:
    print(*dropped.lines(RUN.folder), sep="\n")
    # A report that this call did not bring up to date may be of other prompts.
    if RUN.config.dataset and any(
        job.rule.name == "report" for job in workflow.dag.jobs
    ):
        shell("draftlab summary --results {RUN.folder:q} --answer")


rule all:
    default_target: True
    input:
        f"results/{RUN.name}/report.html",
        f"results/{RUN.name}/tensorboard" if RUN.config.tracker else [],
