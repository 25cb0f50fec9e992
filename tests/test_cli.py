"""The command line: every flag says what it is for, and a group of verbs is listed by its name."""

import re
import sys

import pytest
import tyro

from draftlab import cli, docstrings
from draftlab.core.verify import VERIFIERS
from draftlab.files.packages import PACKAGES
from draftlab.serving.engines import EMITTERS
from draftlab.serving.profiles import shipped


def flags_of(verb):
    """The help of every flag and positional argument of a verb, without what tyro adds: whether it is required, and its default."""
    parser = tyro.extras.get_parser(cli.function_of(verb))
    for action in parser._actions:
        help = re.sub(r"\s*\((required|default: .*)\)$", "", action.help or "", flags=re.DOTALL)
        yield action.dest, help.removeprefix(action.dest).strip()


@pytest.mark.filterwarnings("ignore:get_parser:DeprecationWarning")
@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_flag_has_a_help(verb):
    flags = dict(flags_of(verb))
    assert "help" in flags
    assert [name for name, help in flags.items() if not help] == []
    shown = f"{cli.function_of(verb).__doc__} {' '.join(flags.values())}"
    assert "`" not in shown
    assert "**" not in shown


@pytest.mark.filterwarnings("ignore:get_parser:DeprecationWarning")
@pytest.mark.parametrize(
    ("verb", "flag", "names"),
    [
        ("verify-lossless", "verifier", VERIFIERS),
        ("emit", "engine", EMITTERS),
        ("package", "name", PACKAGES),
        ("load", "settings.profile", shipped()),
    ],
)
def test_names_that_a_flag_takes_are_in_its_help(verb, flag, names):
    listed = re.findall(r"[\w.-]*\w", dict(flags_of(verb))[flag])
    assert names
    assert [name for name in names if name not in listed] == []


def test_the_arguments_that_a_docstring_lists_are_those_of_the_verb():
    listed = 0
    for verb in cli.VERBS:
        function = cli.function_of(verb)
        arguments = re.findall(r"^    (\w+): ", function.__doc__.partition("\n\nArgs:\n")[2], re.MULTILINE)
        names = list(function.__annotations__)
        assert arguments == [name for name in names if name in arguments], verb
        listed += len(arguments)
    assert listed
    assert docstrings.split("One.") == ("One.", {})


@pytest.mark.parametrize(("group", "others"), [("data", "verdict"), ("bench", "check"), ("", "")])
def test_verbs_are_listed_without_their_details(group, others, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["draftlab", *group.split(), "--help"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().out
    assert ended.value.code == 0
    verbs = [verb.removeprefix(f"{group} ") for verb in cli.VERBS if verb.startswith(group)]
    assert verbs
    assert all(re.search(rf"[{{,]{verb}[,}}]", said) for verb in verbs)
    assert not others or others not in said
    assert "Arguments" not in said
