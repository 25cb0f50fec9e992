"""The one console command: a verb per Snakemake rule, and the verbs that people type.

Verbs import what they need when they run: a rule that draws a figure never waits for torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import tyro

from draftlab.errors import UserError

VERBS: dict[str, Callable[..., None]] = {}


def main() -> None:
    """Run one verb; a ``UserError`` becomes one line on stderr and exit code 1."""
    try:
        tyro.extras.subcommand_cli_from_dict(VERBS, prog="draftlab", description=__doc__)
    except UserError as error:
        sys.exit(f"draftlab: error: {error}")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        # A full disk, a folder that cannot be written: the system's own words name the file and the reason.
        sys.exit(
            f"draftlab: error: {error.strerror or error}: {error.filename} (free space or fix permissions, run again)"
        )
    except KeyboardInterrupt:
        sys.exit("draftlab: interrupted; finished files are whole, run again to resume")


if __name__ == "__main__":
    main()
