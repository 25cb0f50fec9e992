"""Train drafts, measure speculative decoding, and reproduce the papers. Snakemake rules and people use the same commands."""

from __future__ import annotations

import ast
import importlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import tyro
from pydantic import ValidationError

from draftlab import docstrings
from draftlab.errors import UserError, printable
from draftlab.files.validated import settings_error

try:
    from draftlab.stages import STAGES
    from draftlab.stages._stage import NoInputs, Stage, Variant
except UserError as error:  # a stage that Python cannot import
    sys.exit(f"draftlab: error: {error}")

HERE = os.path.dirname(__file__)
"""The folder of the package, where a user's verifiers, rules and losses stand too."""

TableFolder = Annotated[Path, tyro.conf.arg(help="folder for the table, rows.csv, and its record, run.json")]


def _verb_of(stage: Stage) -> Callable[..., None]:
    """The verb of a stage: its settings and inputs are flags, and ``--out`` is the folder for the table."""

    def verb(settings: Any, inputs: Any, *, out: TableFolder) -> None:
        from draftlab.stages import _cell

        _cell.run(stage, [Variant({}, settings)], inputs, out)

    def without_inputs(settings: Any, *, out: TableFolder) -> None:
        verb(settings, NoInputs(), out=out)

    function = without_inputs if stage.inputs is NoInputs else verb
    as_flags = tyro.conf.arg(name="")
    function.__annotations__["settings"] = Annotated[stage.settings, as_flags]
    if function is verb:
        function.__annotations__["inputs"] = Annotated[stage.inputs, as_flags]
    function.__doc__ = f"{stage.summary}."
    return function


VERBS: dict[str, str | Callable[..., None]] = {
    # For daily use.
    "verdict": "report.verdict_command:verdict_of",
    "load": "serving.load:load",
    "profile": "serving.measure:profile",
    "emit": "serving.emit:emit",
    "monitor": "serving.monitor:monitor",
    "data check": "data.check:check_file",
    "plan": "plan.outlook:show",
    "summary": "report.summary:print_summary",
    "provenance": "report.provenance:show",
    "compare": "report.compare:compare",
    "tensorboard": "report.tensorboard:write",
    "verify-lossless": "conformance.command:verify_lossless",
    "bench verify": "stages.verifier_cost:bench",
    "latency check": "latency.self_check:report",
    "gguf export": "models.gguf:export",
    "gguf import": "models.gguf_import:write_folder",
    "gguf inflate": "latency.inflate:inflate",
    "widen": "models.trimmed:widen",
    "transplant": "models.transplant:transplant",
    "new-head": "train.new_head:new_head",
    # The steps of the workflow.
    "data fetch": "data.sources:fetch",
    "data make": "data.splits:make_from",
    "data classify": "data.classify:classify_file",
    "package": "files.packages:package",
    "pretrain tokenizer": "train.pretrain:make_tokenizer",
    "pretrain target": "train.pretrain:make_target",
    "pretrain draft": "train.pretrain:make_draft",
    "answer": "engine.answering:answer_file",
    "record-pairs": "engine.recorded_pairs:record_file",
    "run": "stages._cell:run_file",
    "collect": "files.tables:join_tables",
    "token-view": "train.tokens:write_view",
    "figure": "report.figures.batch:draw_one",
    "figures": "report.figures.batch:draw_changed",
    "claims": "report.ledger:write",
    "report": "report.page:write",
    "publish": "report.provenance:publish",
    "readme": "report.readme:update",
    # Each measurement by itself.
    **{name.replace("_", "-"): _verb_of(stage) for name, stage in STAGES.items()},
}
"""A verb is a function: its parameters are the flags, and its docstring is the help. One given as text is imported when it runs."""


def function_of(verb: str) -> Callable[..., Any]:
    """The function of a verb, whose docstring now lists its arguments in the form that tyro reads for the help of flags."""
    function: Any = VERBS[verb]
    if isinstance(function, str):
        module, _, name = function.partition(":")
        function = getattr(importlib.import_module(f"draftlab.{module}"), name)
    text, flags = docstrings.split(function.__doc__)
    if flags:
        function.__doc__ = "\n".join(
            [text, "", "Args:", *(f"    {name}: {meaning}" for name, meaning in flags.items())]
        )
    return function  # type: ignore[no-any-return]


def _listed(verb: str | Callable[..., None]) -> Callable[..., None]:
    """A stand-in for a verb in the list of verbs, with the first paragraph of its docstring, read from the source to avoid importing torch."""
    if callable(verb):
        docstring = verb.__doc__
    else:
        module, _, name = verb.partition(":")
        file = Path(__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
        nodes = ast.parse(file.read_text(encoding="utf-8")).body
        docstring = next(
            ast.get_docstring(node) for node in nodes if isinstance(node, ast.FunctionDef) and node.name == name
        )

    def stub() -> None: ...

    stub.__doc__ = (docstring or "").partition("\n\n")[0]
    return stub


def _list_verbs(args: list[str]) -> None:
    """Print the verbs, of one group (``draftlab data``) or all; if ``args`` name none of them, say so."""
    group = next((f"{name} " for name in args[:1] if any(verb.startswith(f"{name} ") for verb in VERBS)), "")
    verbs = {name.removeprefix(group): _listed(verb) for name, verb in VERBS.items() if name.startswith(group)}
    prog = f"draftlab {group}".strip()
    about = f"{prog} VERB --help says more about a verb."
    if not group:
        about = f"{__doc__}\n\nVerbs for daily use come first, then the steps of the workflow, then each measurement by itself. {about}"
    tyro.extras.subcommand_cli_from_dict(verbs, prog=prog, description=about, args=args[bool(group) :])


def main() -> None:
    """Run one verb."""
    from draftlab.files.scratch import end_in_order

    end_in_order()
    show_every_character()
    args = sys.argv[1:]
    verb = next((name for name in (" ".join(args[:2]), *args[:1]) if name in VERBS), None)

    def call() -> None:
        if verb is not None:
            tyro.cli(function_of(verb), prog=f"draftlab {verb}", args=args[len(verb.split()) :])
        else:
            _list_verbs(args)

    exit_on_error(call)


def show_every_character() -> None:
    """Print the number of a character that the terminal lacks, in place of ending with an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")


def command() -> NoReturn:
    """Run one verb, and end the process with its exit code."""
    from draftlab.files.scratch import run_and_end

    run_and_end(main)


def exit_on_error(call: Callable[[], object]) -> None:
    """Call a function; on any error, print one line to stderr and exit with code 1."""
    try:
        call()
        print(end="", flush=True)
    except (UserError, ValidationError) as error:
        reason = settings_error(error) if isinstance(error, ValidationError) else error
        sys.exit(f"draftlab: error: {reason}")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno is None:  # raised by a library, not by the system
            sys.exit(f"draftlab: error: {printable(str(error))}")
        if isinstance(error, IsADirectoryError):
            sys.exit(f"draftlab: error: {printable(str(error.filename))}: a folder, not a file (name a file in it)")
        if isinstance(error, FileExistsError):
            sys.exit(f"draftlab: error: {printable(str(error.filename))}: a file, not a folder (name a folder)")
        if isinstance(error, NotADirectoryError):
            sys.exit(f"draftlab: error: {printable(str(error.filename))}: its folder is a file (name a folder)")
        if isinstance(error, FileNotFoundError) and error.filename:
            sys.exit(f"draftlab: error: {printable(str(error.filename))}: no such file or folder (check the path)")
        # For a full disk or a read-only folder, the system's message already names the file and the reason.
        what = printable(f"{error.strerror}: {error.filename or 'standard output'}")
        sys.exit(f"draftlab: error: {what} (free space or fix permissions, run again)")
    except ModuleNotFoundError as error:
        if (error.name or "draftlab").partition(".")[0] == "draftlab":
            sys.exit(_unexpected(error))
        sys.exit(f"draftlab: error: this needs {error.name} (install draftlab[models])")
    except KeyboardInterrupt:
        sys.exit("draftlab: interrupted; finished files are kept, run again to resume")
    except Exception as error:
        sys.exit(_full_memory(error) or _unexpected(error))


def _full_memory(error: Exception) -> str:
    """One line about a memory that is full, of the GPU or of the machine; '' for any other error."""
    whole = printable(str(error).strip() or type(error).__name__)
    fewer = "lower batch_tokens, batch, micro_batch or sample_batch: docs/paper.md, A smaller GPU"
    if "out of memory" in whole or "CUBLAS_STATUS_ALLOC_FAILED" in whole:  # of a GPU
        return f"draftlab: error: {'. '.join(whole.split('. ')[:3])} ({fewer}; finished parts are kept)"
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in whole:
        more = "request more (mem_mb below needs in the scale)"
        return f"draftlab: error: the machine's memory is full: {whole} ({fewer}; or {more})"
    return ""


def _unexpected(error: Exception) -> str:
    """Write the traceback of a bug to a file, without access tokens, and return one line about it, which names the line of the package that raised."""
    import tempfile
    import traceback

    from draftlab.files.hub import without_token

    text = without_token("".join(traceback.format_exception(error)))
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(HERE)]
    where = f"{lines[-1].filename}:{lines[-1].lineno}: " if lines else ""
    what = printable(f"{where}{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")
    try:
        # All nodes of a cluster see results/.
        folder = "results" if os.path.isdir("results") else None
        handle, name = tempfile.mkstemp(prefix="draftlab-error-", suffix=".log", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{sys.argv}\n{text}")
    except OSError:
        print(text, file=sys.stderr)
        name = "the lines above"
    remedy = f"a bug in draftlab, unless you wrote that line: please report it with {name}"
    return f"draftlab: unexpected error: {without_token(what)} ({remedy})"


if __name__ == "__main__":
    command()
