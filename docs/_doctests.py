"""Examples in docstrings as code on the site."""

import re

import griffe


class Doctests(griffe.Extension):
    """Fence every example of a docstring."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"^>>> (?:.+\n?)+", r"```pycon\n\g<0>\n```", obj.docstring.value, flags=re.M)
