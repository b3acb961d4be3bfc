"""Manual pages: every command has one, `man` finds nothing wrong with it, and it says what the help says."""

from __future__ import annotations

import os
import shutil
import subprocess

import click
import pytest

from dray.cli.main import cli, main


def list_commands(group, path=("dray",)):
    context = click.Context(group, info_name=path[-1])
    yield path
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from list_commands(command, (*path, name))
        else:
            yield (*path, name)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("man")
    assert main(["man", "--to", str(folder)]) == 0
    return {path.stem: path for path in (folder / "man1").iterdir()}


def test_every_command_has_a_page(pages):
    assert set(pages) == {"-".join(path) for path in list_commands(cli)}
    assert {"dray", "dray-submit", "dray-worker-ls", "dray-man"} <= set(pages)


def render(*arguments):
    done = subprocess.run(
        ["man", "--warnings=w", *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "MANWIDTH": "100", "MANPAGER": "cat"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.skipif(shutil.which("man") is None, reason="this machine has no man")
def test_man_shows_what_the_help_says_and_has_nothing_to_complain_of(pages):
    shown = render("-l", *(pages[name] for name in sorted(pages)))
    assert shown.count("SYNOPSIS") == len(pages)
    submit = render("-l", pages["dray-submit"])
    for part in (
        "dray-submit - Submit a command, the jobs of a file, or a script with #SBATCH lines",
        "dray submit [OPTIONS] FILE.yaml | SCRIPT [ARGS]... | -- COMMAND [ARGS]...",
        "      dray submit -G 1 -t 2h -- python train.py --lr 3e-4",
        "-G, --gpus [TYPE:]N",
        "GPUs of the whole job; must divide by --nodes.",
    ):
        assert part in submit, submit
    assert "dray-worker(1)" in render("-l", pages["dray-worker-ls"])


def test_one_page_goes_to_stdout_and_a_wrong_name_is_told(pages, capfd):
    assert main(["man", "worker", "ls"]) == 0
    assert capfd.readouterr().out == pages["dray-worker-ls"].read_text()
    assert main(["man", "sumbit"]) == 2
    assert "there is no command 'sumbit'" in capfd.readouterr().err
    assert main(["man", "--to", __file__]) == 2
    assert "cannot be written" in capfd.readouterr().err


def test_letters_that_mean_something_to_man_are_shown_as_they_are(tmp_path):
    from dray.cli.base.man_pages import write_page

    command = click.Command("odd", help=".ds x y\n\n\b\n'quoted \\fBbold\n.sp 9\n")
    page = tmp_path / "odd.1"
    page.write_text(write_page(click.Context(command, info_name="odd")))
    if shutil.which("man") is not None:
        shown = render("-l", page)
        assert ".ds x y" in shown
        assert "'quoted \\fBbold" in shown
        assert ".sp 9" in shown
