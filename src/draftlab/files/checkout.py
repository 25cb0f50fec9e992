"""Where the workflow's files lie: in the checkout, or inside the installed package (``make wheel`` puts them there)."""

from pathlib import Path

_INSIDE = Path(__file__).parents[1] / "checkout"
ROOT = _INSIDE if _INSIDE.is_dir() else Path(__file__).parents[3]
WORKFLOW = ROOT / "workflow"
