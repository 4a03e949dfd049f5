"""The command line as a whole: help, version, completion, and what it loads before a verb runs."""

import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import longshort
from longshort.cli import VERBS, app, one_line_errors
from longshort.train import TrainingStopped
from longshort.train.sweeps.processes import RunFailed


def run(*arguments):
    return CliRunner().invoke(app, arguments, prog_name="longshort")


def python(*arguments, **environment):
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


@pytest.mark.parametrize("module", ["longshort", "longshort.cli"])
def test_the_module_runs_as_the_script_does(module):
    done = python("-m", module, "--version")
    assert (done.returncode, done.stdout) == (0, f"{longshort.__version__}\n"), done.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_verbs_and_succeeds(arguments):
    shown = run(*arguments)
    assert shown.exit_code == 0
    assert shown.output.startswith("Usage:")
    listed = [line.split()[0] for line in shown.output.partition("Commands:\n")[2].splitlines()]
    assert listed == list(VERBS)


def test_each_verb_is_told_of_in_a_sentence_that_fits_its_line():
    assert "..." not in run("--help").output.partition("Commands:")[2]


def test_help_loads_neither_torch_nor_rich():
    code = "import sys; from longshort.cli import app; app(['--help'], standalone_mode=False); print(*sys.modules)"
    loaded = python("-c", code).stdout.splitlines()[-1].split()
    assert {"typer", "longshort.cli.train"} <= set(loaded)
    assert {"torch", "rich", "numpy", "yaml", "longshort.train"}.isdisjoint(loaded)


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_each_verb_shows_an_example(verb):
    shown = run(verb, "--help")
    assert shown.exit_code == 0
    assert f"Example: longshort {verb}" in shown.output


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version_option_prints_the_version(option):
    assert run(option).output.strip() == longshort.__version__


def test_an_unknown_verb_fails_and_names_the_nearest():
    shown = run("trian")
    assert shown.exit_code == 2
    assert shown.stderr == "error: No such command 'trian'. Did you mean 'train'? (see longshort --help)\n"


@pytest.mark.parametrize(
    ("arguments", "words", "verb"),
    [
        (["--nope"], "--nope", "longshort"),
        (["train"], "Missing argument", "longshort train"),
        (["demo", "--steps", "0"], "'--steps': ", "longshort demo"),
        (["report", "x", "--oui"], "--oui", "longshort report"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_names_the_help(arguments, words, verb):
    shown = run(*arguments)
    (line,) = shown.stderr.splitlines()
    assert shown.exit_code == 2 and line.startswith("error: ") and words in line
    assert line.endswith(f" (see {verb} --help)")


@pytest.mark.parametrize(("verb", "module"), [("reproduce", "experiments"), ("bench", "benchmarks")])
@pytest.mark.parametrize("rest", [[], ["--help"], ["explosion", "--data", "data/books", "run.steps=3"]])
def test_a_verb_that_moved_says_where_it_is(verb, module, rest):
    shown = run(verb, *rest)
    assert shown.exit_code == 1
    assert shown.stderr == f"error: `longshort {verb}` is now `python -m {module}`, in a checkout of the repository\n"


def test_shell_completion_is_shown_and_knows_verbs_and_options():
    script = python("-m", "longshort", _LONGSHORT_COMPLETE="source_bash").stdout
    assert "complete -o default -F _longshort_completion longshort" in script
    words = {"COMP_WORDS": "longshort ge", "COMP_CWORD": "1", "_LONGSHORT_COMPLETE": "complete_bash"}
    assert python("-m", "longshort", **words).stdout.split() == ["generate"]
    words |= {"COMP_WORDS": "longshort generate --top", "COMP_CWORD": "2"}
    assert python("-m", "longshort", **words).stdout.split() == ["--top-k", "--top-p"]
    assert "--show-completion" in run("--help").output


@pytest.mark.parametrize("error", [ValueError("bad"), FileNotFoundError("gone"), RunFailed("x"), TrainingStopped("y")])
def test_a_users_mistake_is_one_line(error, capsys):
    with pytest.raises(typer.Exit) as ended, one_line_errors():
        raise error
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == f"error: {error}\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "there/file"), "there/file: No space left on device"),
        (ValueError("two\n  lines"), "two lines"),
        (ValueError("x" * 5000), "x" * 1000 + " ..."),
        (MemoryError("9 GiB"), "memory is full: 9 GiB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory\nat"), "memory is full: DefaultCPUAllocator: can't"),
    ],
)
def test_whatever_a_message_holds_it_is_one_line_and_not_endless(error, line, capsys):
    with pytest.raises(typer.Exit), one_line_errors():
        raise error
    said = capsys.readouterr().err
    assert said.startswith(f"error: {line}") and said.count("\n") == 1


def test_a_reader_that_leaves_ends_a_verb_quietly():
    code = """
import typer
from longshort.cli import one_line_errors
@one_line_errors()
def endless():
    while True:
        typer.echo("text")
typer.run(endless)
"""
    shown = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    shown.stdout.read(10)
    shown.stdout.close()
    assert shown.stderr.read() == b""
    shown.stderr.close()
    assert shown.wait() == 141


@pytest.mark.parametrize("error", [RuntimeError("kernel"), TypeError("bug")])
def test_a_bug_keeps_its_traceback(error):
    with pytest.raises(type(error)), one_line_errors():
        raise error


def test_a_verb_that_ends_with_a_code_of_its_own_keeps_it():
    with pytest.raises(typer.Exit) as ended, one_line_errors():
        raise typer.Exit(130)
    assert ended.value.exit_code == 130
