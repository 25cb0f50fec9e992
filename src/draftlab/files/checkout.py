"""The folder with the workflow's files: the checkout, or a folder inside the package, where ``make wheel`` puts them."""

from pathlib import Path

_INSIDE = Path(__file__).parents[1] / "checkout"
ROOT = _INSIDE if _INSIDE.is_dir() else Path(__file__).parents[3]
WORKFLOW = ROOT / "workflow"
