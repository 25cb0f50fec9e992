"""Runs Snakemake without importing it for each call: ``python -I snakemake_forks.py`` imports it once, and forks for every call.

It reads a call as a line of JSON: the folder, environment, arguments, and the file for the output. The line that it prints is the exit code.
Nothing of draftlab is imported before a fork, because each call uses the package of its own folder.
"""

import gc
import importlib
import json
import os
import signal
import sys

FOUND_LATE = [
    "jaxtyping",
    "jinja2",
    "numpy",
    "pandas",
    "platformdirs",
    "pyarrow",
    "pydantic",
    "safetensors",
    "snakemake.executors.dryrun",
    "snakemake.executors.local",
    "snakemake.executors.touch",
    "tokenizers",
    "tyro",
]
"""What a call imports while it runs."""


def serve() -> list[str]:
    """Fork for each call, and return the arguments in the fork."""
    from snakemake.cli import parse_args

    parse_args(["--cores", "1"])  # finds the plugins
    for name in FOUND_LATE:
        importlib.import_module(name)
    gc.freeze()
    calls, answers = sys.stdin, sys.stdout
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches every process; only the forks react
    for line in calls:
        call = json.loads(line)
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for stream in (1, 2):
                os.dup2(os.open(call["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
            os.chdir(call["folder"])
            os.environ.clear()
            os.environ.update(call["environment"])
            sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
            return list(call["arguments"])
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        answers.flush()
    sys.exit()


if __name__ == "__main__":
    arguments = serve()
    sys.argv = ["snakemake", *arguments]
    from snakemake.cli import main

    main()
