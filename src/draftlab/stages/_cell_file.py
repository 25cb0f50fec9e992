"""A cell as one file, which travels from the plan to the job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftlab.core.settings import Settings
from draftlab.stages._stage import Stage, Variant


def cell_file(
    stage: Stage, experiment: str, cell: str, variants: Sequence[Variant], inputs: Settings
) -> dict[str, Any]:
    """What the file of a cell says."""
    return {
        "experiment": experiment,
        "cell": cell,
        "stage": stage.name,
        "variants": [
            {"labels": dict(own.labels), "settings": own.settings.model_dump(mode="json")} for own in variants
        ],
        "inputs": inputs.model_dump(mode="json"),
    }
