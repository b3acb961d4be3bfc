"""The command line reference, written from the help texts of the commands themselves.

Knows the tree of commands and nothing of what they do. Rendered at a fixed width, so that the terminal of whoever
regenerates it leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from dray.cli.main import cli

WIDTH = 100
INTRODUCTION = """# The command line

Written by the commands themselves: this is what `dray COMMAND --help` prints.

Every command also takes `--hub`, `--token`, `--home`, `--fingerprint`, `--cafile` and `-o json`, before or after its
name. `DRAY_HUB`, `DRAY_TOKEN`, `DRAY_HOME`, `DRAY_FINGERPRINT` and `DRAY_CAFILE` stand for the first five. Exit codes
are on [a page of their own](exit-codes.md). Under `-o json` stdout holds documents alone; what goes wrong is the last
line of stderr, `{"error": {"code", "message", "problems": [{"where", "what"}]}}`, as the API spells it.
"""


def write_reference() -> str:
    """The whole page."""
    pages = [INTRODUCTION]
    for context in _walk(cli, "dray", None):
        level = "#" * min(2 + context.command_path.count(" "), 3)
        pages.append(f"{level} {context.command_path}\n\n```text\n{_help(context)}\n```\n")
    return "\n".join(pages)


def _walk(command: click.Command, name: str, parent: click.Context | None) -> Iterator[click.Context]:
    # The settings of the command itself hold the spellings of --help; only the width is ours.
    settings: dict[str, Any] = {
        **command.context_settings,
        "terminal_width": WIDTH,
        "max_content_width": WIDTH,
    }
    context = click.Context(command, parent=parent, info_name=name, **settings)
    yield context
    if isinstance(command, click.Group):
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            assert child is not None  # it stands in the list
            yield from _walk(child, child_name, context)


def _help(context: click.Context) -> str:
    text = context.command.get_help(context)
    return "\n".join(line.rstrip() for line in text.splitlines())
