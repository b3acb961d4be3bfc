"""Manual pages, written from the help of the commands themselves: one for each, as `man` wants them.

Knows the tree of commands and nothing of what they do. The surprising rule: a page bears the version and no date, so
that the same program always writes the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from dray import __version__
from dray.cli.base.invocation import HubCommand

_SECTION = "man1"
_TICKS = re.compile(r"`([^`]+)`")


@click.command("man", cls=HubCommand)
@click.option("--to", "folder", metavar="DIR", help="Write the pages of all commands into DIR/man1.")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
def man(folder: str | None, words: tuple[str, ...]) -> None:
    """Write manual pages: that of one command to stdout, or all of them into a folder.

    \b
      dray man --to ~/.local/share/man     then `man dray-submit`
      dray man worker ls | man -l -        without installing anything
    """
    context = click.get_current_context()
    pages = {_page_name(found): found for found in _walk(context.find_root().command, "dray", None)}
    if folder is None:
        name = "-".join(("dray", *words))
        if name not in pages:
            raise click.UsageError(
                f"there is no command {' '.join(words)!r}: `dray --help` lists them", context
            )
        print(write_page(pages[name]), end="")
        return
    if words:
        raise click.UsageError("--to writes the pages of all commands: name none, or drop --to", context)
    section = Path(folder).expanduser() / _SECTION
    try:
        section.mkdir(parents=True, exist_ok=True)
        for name, found in pages.items():
            (section / f"{name}.1").write_text(write_page(found), encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{section} cannot be written: {error.strerror}", context) from None
    print(f"{len(pages)} pages in {section}")


def write_page(context: click.Context) -> str:
    """The page of one command in the language of `man`."""
    command, name = context.command, _page_name(context)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        # What follows the name is section, date, source and manual.
        f'.TH "{name.upper()}" 1 "" "dray {__version__}" "dray"',
        # Ragged on the right: what is to be typed must not be stretched.
        ".ad l",
        ".SH NAME",
        _plain(f"{name} - {_first_sentence(command)}"),
        ".SH SYNOPSIS",
        rf"\fB{_plain(context.command_path)}\fR {_plain(usage)}",
        ".SH DESCRIPTION",
        *_paragraphs(command.help or ""),
    ]
    options = [one for one in command.get_params(context) if isinstance(one, click.Option)]
    records = [record for option in options if (record := option.get_help_record(context))]
    lines += _listed("OPTIONS", records)
    children = _children(context)
    lines += _listed(
        "COMMANDS", [(child.info_name or "", _first_sentence(child.command)) for child in children]
    )
    near = [context.parent] if context.parent is not None else []
    related = [rf"\fB{_plain(_page_name(one))}\fR(1)" for one in [*near, *children]]
    if related:
        lines += [".SH SEE ALSO", ", ".join(related)]
    return "\n".join(lines) + "\n"


def _walk(command: click.Command, name: str, parent: click.Context | None) -> Iterator[click.Context]:
    context = click.Context(command, parent=parent, info_name=name, **command.context_settings)
    yield context
    for child in _children(context):
        yield from _walk(child.command, child.info_name or "", context)


def _children(context: click.Context) -> list[click.Context]:
    group = context.command
    if not isinstance(group, click.Group):
        return []
    found = ((name, group.get_command(context, name)) for name in group.list_commands(context))
    return [
        click.Context(command, parent=context, info_name=name)
        for name, command in found
        if command is not None
    ]


def _page_name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _first_sentence(command: click.Command) -> str:
    return " ".join((command.help or "").partition("\n\n")[0].split())


def _listed(title: str, records: list[tuple[str, str]]) -> list[str]:
    if not records:
        return []
    rows = ((".TP", rf"\fB{_plain(name)}\fR", _text(text)) for name, text in records)
    return [f".SH {title}", *(line for row in rows for line in row)]


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of a help text; those that click is told not to wrap stay as they are."""
    for paragraph in text.split("\n\n"):
        yield ".PP"
        if paragraph.startswith("\b\n"):
            yield from (".nf", *map(_plain, paragraph.splitlines()[1:]), ".fi")
        elif paragraph.strip():
            yield _text(" ".join(paragraph.split()))


def _text(text: str) -> str:
    """A line of prose; what stands between backticks is typed, and set so."""
    return _TICKS.sub(r"\\fB\1\\fR", _plain(" ".join(text.split())))


def _plain(text: str) -> str:
    """Text that `man` shows as it is: no letter of it is a request, a font or a hyphen to be prettified."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped[:1] in (".", "'") else escaped
