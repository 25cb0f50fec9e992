"""The names of verifiers that an experiment may use, read from the registries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from draftlab.files.registries import names

if TYPE_CHECKING:
    Verifier = str
    Scheme = str
    LiveScheme = str
else:
    VERIFIERS = names("core.verify", "VERIFIERS")
    WITH_TAIL = (f"{name}+block" for name in VERIFIERS if name != "block")
    Verifier = Literal[VERIFIERS]
    Scheme = Literal[VERIFIERS + names("stages.acceptance", "PATHS")]
    LiveScheme = Literal["plain", *VERIFIERS, *WITH_TAIL]
