"""Examples in docstrings as code on the site, and their arguments as lists."""

import re

import griffe


class Doctests(griffe.Extension):
    """Fence every example of a docstring; Markdown begins a list after an empty line."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            fenced = re.sub(r"^>>> (?:.+\n?)+", r"```pycon\n\g<0>\n```", obj.docstring.value, flags=re.M)
            obj.docstring.value = re.sub(r"(\*\*Arguments:\*\*)\n", r"\1\n\n", fenced)
