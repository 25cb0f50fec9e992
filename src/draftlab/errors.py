"""The one exception for problems that the user can fix."""

from __future__ import annotations

from pathlib import Path


class UserError(Exception):
    """A problem that the user can fix; the command line prints it as one line and exits with 1.

    ``what`` says what is wrong, ``remedy`` what to do; ``file`` and ``line`` say where, when a file is to blame.
    """

    def __init__(self, what: str, *, remedy: str, file: Path | str | None = None, line: int | None = None) -> None:
        self.what, self.remedy, self.file, self.line = what, remedy, file, line
        where = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(f"{where}{what} ({remedy})")
