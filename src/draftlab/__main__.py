"""``python -m draftlab``."""

from draftlab.cli import main

main()
