"""The examples of docstrings run, and every function of the modules that people import from has one, and says what it takes and returns."""

import doctest
import functools
import importlib
import inspect
import re

import pytest

ALL = ["draftlab.core.losses", "draftlab.core.stats", "draftlab.core.theory"]
SOME = {
    "draftlab.core.verify.bound": {"optimum_iid", "optimum_by_lp"},
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


@pytest.mark.parametrize("name", [*ALL, *SOME])
def test_the_examples_run(name):
    module = importlib.import_module(name)
    found = {test.name.removeprefix(f"{name}."): test for test in doctest.DocTestFinder().find(module)}
    functions = inspect.getmembers(module, lambda it: inspect.isfunction(it) and it.__module__ == name)
    wanted = SOME.get(name) or {own for own, _ in functions if not own.startswith("_")}
    assert wanted
    assert [own for own in sorted(wanted) if not found[own].examples] == []
    for own in sorted(wanted):
        function = functools.reduce(getattr, own.split("."), module)
        listed, _, returned = inspect.getdoc(function).partition("**Returns:**")
        said = " ".join(line.partition(": ")[0] for line in listed.splitlines() if line.startswith("- `"))
        assert re.findall(r"`(\w+)`", said) == [
            name for name in inspect.signature(function).parameters if name != "self"
        ], own
        assert returned
    assert doctest.testmod(module).failed == 0
