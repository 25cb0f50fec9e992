"""Examples in docstrings run. Every public function that people import has one, and lists its arguments and what it returns."""

import doctest
import functools
import importlib
import inspect
import re
from pathlib import Path

import pytest

import draftlab

ALL = ["draftlab.core.losses", "draftlab.core.stats", "draftlab.core.theory"]
SOME = {
    "draftlab.core.sampling": {"draft_tokens", "to_probs"},
    "draftlab.core.verify.optimum": {"optimum_iid", "optimum_by_lp"},
    "draftlab.core.verify.joint": {"joint_distribution"},
    "draftlab.core.verify.k_seq": {"discount"},
    "draftlab.core.verify.path": {"PathVerifier.distribution"},
    "draftlab.core.verify.single": {"accept_probs", "reject_residual"},
    "draftlab.core.verify.token": {
        "TokenVerifier.distribution",
        "TokenVerifier.sample",
        "TokenVerifier.acceptance",
    },
    "draftlab.engine.replay": {"agreement", "walk"},
}
SOURCE = Path(draftlab.__file__).parents[1]
WITH_EXAMPLES = [file for file in SOURCE.rglob("*.py") if ">>> " in file.read_text(encoding="utf-8")]


@pytest.mark.parametrize(
    "name", sorted(".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in WITH_EXAMPLES)
)
def test_the_examples_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_examples_of_the_guide_run():
    found = doctest.testfile(str(SOURCE.parent / "docs" / "api.md"), module_relative=False, encoding="utf-8")
    assert found.attempted > 15
    assert found.failed == 0


@pytest.mark.parametrize("name", [*ALL, *SOME])
def test_functions_that_people_import_have_an_example(name):
    module = importlib.import_module(name)
    examples = {test.name.removeprefix(f"{name}."): test.examples for test in doctest.DocTestFinder().find(module)}
    members = inspect.getmembers(module, lambda it: inspect.isfunction(it) and it.__module__ == name)
    functions = sorted(SOME.get(name) or {member for member, _ in members if not member.startswith("_")})
    assert functions
    assert [path for path in functions if not examples[path]] == []
    for path in functions:
        function = functools.reduce(getattr, path.split("."), module)
        arguments, _, returned = inspect.getdoc(function).partition("**Returns:**")
        listed = " ".join(line.partition(": ")[0] for line in arguments.splitlines() if line.startswith("- `"))
        parameters = [name for name in inspect.signature(function).parameters if name != "self"]
        assert re.findall(r"`(\w+)`", listed) == parameters, path
        assert returned
