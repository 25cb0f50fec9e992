"""The one exception for problems that the user can fix."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


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


@contextlib.contextmanager
def naming(file: Path | str) -> Iterator[None]:
    """Let a ``UserError`` that names no file name this one: mathematics does not know whose numbers it gets."""
    try:
        yield
    except UserError as error:
        if error.file is not None:
            raise
        raise UserError(error.what, file=file, remedy=error.remedy) from None


def fault_in(function: object, what: str, remedy: str) -> UserError:
    """An error for what is wrong with a function that the user wrote, with its place."""
    code = getattr(function, "__code__", None)
    file, line = (code.co_filename, code.co_firstlineno) if code else (None, None)
    return UserError(what, file=file, line=line, remedy=remedy)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def called(what: str, function: Callable[..., T], *arguments: object) -> T:
    """Call a function that the user may have written; an error in it becomes a ``UserError``, with the line of the function's own file."""
    try:
        return function(*arguments)
    except (UserError, MemoryError):
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported here
            raise
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        own = [frame for frame in frames if frame.filename == frames[0].filename]
        file, line = (own[-1].filename, own[-1].lineno) if own else (None, None)
        what = f"{what} raised {type(error).__name__}: {first_line(error)}"
        raise UserError(what, file=file, line=line, remedy="repair the function") from error
