"""``python -m draftlab``."""

from draftlab.cli import command

command()
