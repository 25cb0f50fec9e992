"""What a run is made of: scales, experiments, their cells. Free of torch: the Snakefile imports it."""

from draftlab.files.checkout import WORKFLOW
from draftlab.files.digests import code_digest
from draftlab.plan.command_line import flags, is_locked, only_looks
from draftlab.plan.config import RunConfig, check_names, content_of_model, context_of_drafts
from draftlab.plan.experiment import Experiment, Finding, Layout, load_experiment
from draftlab.plan.figure import DESIGNED, Figure, module_of
from draftlab.plan.preflight import check_data
from draftlab.plan.run import Run, load_run, made_with
from draftlab.plan.scale import Scale

__all__ = [
    "DESIGNED",
    "WORKFLOW",
    "Experiment",
    "Figure",
    "Finding",
    "Layout",
    "Run",
    "RunConfig",
    "Scale",
    "check_data",
    "check_names",
    "code_digest",
    "content_of_model",
    "context_of_drafts",
    "flags",
    "is_locked",
    "load_experiment",
    "load_run",
    "made_with",
    "module_of",
    "only_looks",
]
