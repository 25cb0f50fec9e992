"""The one exception for problems that the user can fix."""

from __future__ import annotations

import functools
from pathlib import Path


def printable(text: str) -> str:
    """``text`` on one line for a terminal or a log: control and format characters and lone surrogates escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


class UserError(Exception):
    """A problem that the user can fix; the command line prints it as one line and exits with 1.

    ``what`` is wrong, ``remedy`` is what to do; ``file`` and ``line`` are the place, if a file is to blame.
    """

    def __init__(self, what: str, *, remedy: str, file: Path | str | None = None, line: int | None = None) -> None:
        self.what, self.remedy, self.file, self.line = what, remedy, file, line
        where = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(printable(f"{where}{what} ({remedy})"))

    def __reduce__(self) -> tuple[functools.partial[UserError], tuple[()]]:
        """Pickle the error with all its parts, so that it can come from another process."""
        return functools.partial(UserError, self.what, remedy=self.remedy, file=self.file, line=self.line), ()


def fault_in(function: object, what: str, remedy: str) -> UserError:
    """An error for what is wrong with a function that the user wrote, with its place."""
    code = getattr(function, "__code__", None)
    file, line = (code.co_filename, code.co_firstlineno) if code else (None, None)
    return UserError(what, file=file, line=line, remedy=remedy)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
