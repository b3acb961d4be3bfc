"""Errors under `-o json`: the API's own document on stderr, nothing on stdout, whatever the command."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from dray.cli.main import cli, main

# Commands that answer without a hub: nothing is wrong for them where none can be reached.
OFFLINE = {
    "completion",
    "config check",
    "doctor",
    "down",
    "hub",
    # What they are about is the host's alone.
    "hub install",
    "hub uninstall",
    "man",
    # Speaks a protocol of its own on stdin and stdout, where it says so for each question.
    "mcp",
    "sim",
    "store copy",
    "up",
    "version",
    "worker detect",
    "worker install",
    "worker start",
    "worker status",
    "worker uninstall",
}
# What else a command must be given before it asks.
MORE = {
    "worker label": ["w", "k=v"],
    "map": ["true", ":::", "item"],
    "set": ["job", "priority=1"],
    "whatif": ["--drain", "w"],
    "template add": ["template.yaml"],
    "service scale": ["web", "2"],
    "service share": ["web", "ben"],
    "workload add": ["w", "jobs.yaml"],
    "workload scale": ["w", "2"],
    "workload set": ["w", "--width", "2"],
    "workload spread": ["w", "pack"],
}


def leaves(command: click.Command, words: tuple[str, ...] = ()) -> dict[str, click.Command]:
    """Every command that there is, by the words that lead to it."""
    if not isinstance(command, click.Group):
        return {" ".join(words): command}
    context = click.Context(command)
    found: dict[str, click.Command] = {}
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        found |= leaves(child, (*words, name))
    return found


COMMANDS = leaves(cli)


def read_error(captured: pytest.CaptureFixture[str]) -> dict[str, object]:
    said = captured.readouterr()
    assert said.out == ""
    document = json.loads(said.err.splitlines()[-1])
    assert set(document) == {"error"}
    assert set(document["error"]) == {"code", "message", "problems"}
    found: dict[str, object] = document["error"]
    return found


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "completion"])
def test_a_command_line_that_cannot_be_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--no-such-flag", "-o", "json"]) == 2
    error = read_error(capsys)
    assert error["code"] == "usage"
    assert "--no-such-flag" in str(error["message"])


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in OFFLINE])
def test_a_hub_that_cannot_be_asked(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text("queues: {}\n")
    Path("jobs.yaml").write_text("command: [x]\n")
    Path("template.yaml").write_text("name: t\nspec: {command: [x]}\n")
    words = []
    for param in COMMANDS[name].params:
        if isinstance(param, click.Argument):
            words += ["policy.yaml"] if "file" in str(param.name) or "path" in str(param.name) else ["true"]
        elif param.required:
            words += [param.opts[0], "read"]
    flags = ["--hub", "ftp://nowhere", "--home", str(tmp_path), "-o", "json"]
    separator = ["--"] if name in ("run", "submit", "map", "plan") else []
    assert main([*name.split(), *flags, *separator, *MORE.get(name, words)]) != 0
    error = read_error(capsys)
    assert error["code"] == "invalid_config", error
    assert "ftp://nowhere" in str(error["message"])
