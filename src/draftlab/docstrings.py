"""The list of arguments or fields in a docstring, which is the help of a verb's flags."""

from __future__ import annotations

import inspect
import re

LISTS = re.compile(r"\s*^\*\*(?:Arguments|Fields):\*\*\n", re.M)
ITEM = re.compile(r"^- `(\w+)`: (.+(?:\n  .+)*)", re.M)


def split(docstring: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into the text before its list, and the list: a text for each name.

    >>> split("Add.\\n\\n**Arguments:**\\n- `one`: a number;\\n  any will do\\n- `two`: another")
    ('Add.', {'one': 'a number; any will do', 'two': 'another'})
    """
    text, *lists = LISTS.split(inspect.cleandoc(docstring))
    items = ITEM.findall("\n".join(lists))
    return text, {name: " ".join(line.strip() for line in item.splitlines()) for name, item in items}
