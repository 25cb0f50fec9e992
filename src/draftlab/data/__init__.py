"""Datasets: from the hub, from raw files or generated, cleaned into prompts, arranged into streams.

``sources`` reads raw rows, ``formats`` tells what a file is, ``cleaners`` turns one row into a prompt or a reason,
``splits`` makes train and eval sets, ``generators`` draws rows in the real schemas, ``streams`` orders prompts, ``check``
looks at a user's own file.
"""

from draftlab.data.registry import table_markdown

__all__ = ["table_markdown"]
