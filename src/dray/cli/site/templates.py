"""The commands `template ...`: which templates there are, what they make, and adding or removing them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from dray.cli.asks.flags import read_flags
from dray.cli.base.invocation import DocumentCommand, HubCommand, LazyGroup, Session, pass_session
from dray.cli.base.render import Column, clean, draw_pairs, draw_table, has_colour, local_time, terminal_width

_HERE = "dray.cli.site.templates"
STDIN = "-"
_COLUMNS = (
    Column("TEMPLATE"),
    Column("KIND"),
    Column("VERSION", right=True),
    Column("BY", drop=2, dull="-"),
    Column("ADDED", drop=3, dull="-"),
    Column("ABOUT", least=12, drop=1, cosy=40),
)
_PARAMS = (
    Column("PARAMETER"),
    Column("DEFAULT"),
    Column("ALLOWED", least=12, cosy=40),
    Column("HELP", least=12, drop=1, cosy=40),
)
_VERSIONS = (Column("VERSION", right=True), Column("ADDED"), Column("BY"), Column("DIGEST"))


@click.group(
    "template",
    cls=LazyGroup,
    table={
        "ls": (f"{_HERE}:template_ls", "List templates."),
        "show": (f"{_HERE}:template_show", "Show a template and its parameters."),
        "render": (f"{_HERE}:template_render", "Print the job that a template makes; nothing is submitted."),
        "history": (f"{_HERE}:template_history", "List the versions of a template."),
        "add": (f"{_HERE}:template_add", "Add a template, or one more version of it (needs admin)."),
        "rm": (f"{_HERE}:template_rm", "Remove a template (needs admin)."),
    },
)
def template() -> None:
    """List, show, render, add and remove templates."""


def _path(name: str, rest: str = "") -> str:
    return f"/templates/{quote(name, safe='')}{rest}"


def _split(text: str) -> tuple[str, int | None]:
    name, mark, version = text.partition("@")
    if mark and not (version.isascii() and version.isdigit()):
        raise click.UsageError(f"{text!r} is not NAME or NAME@VERSION, with a version such as 3")
    return name, int(version) if mark else None


@click.command("ls", cls=HubCommand)
@pass_session
def template_ls(session: Session) -> None:
    """List templates. Version 0 comes with dray; one that an admin adds under its name goes before it."""
    answer = session.hub.get("/templates")
    if session.json:
        session.print_json(answer)
        return
    rows = [
        [
            one["name"],
            one["kind"],
            "built in" if one["built_in"] else str(one["version"]),
            clean(one["user"]) or "-",
            local_time(one["at"]) or "-",
            clean(one["about"]).partition(". ")[0],
        ]
        for one in answer["templates"]
    ]
    print(draw_table(_COLUMNS, rows, terminal_width(), has_colour()))


@click.command("show", cls=DocumentCommand)
@click.argument("name", metavar="NAME[@VERSION]")
@pass_session
def template_show(session: Session, name: str) -> None:
    """Show a template and its parameters. -o yaml prints it as a file that `dray template add` takes."""
    bare, version = _split(name)
    found = session.hub.get(_path(bare), {"version": version})
    if session.output == "yaml":
        print(_yaml(found["document"]))
        return
    if session.json:
        session.print_json(found)
        return
    document = found["document"]
    number = "built in" if found["built_in"] else str(found["version"])
    by = f" by {clean(found['user'])}, {local_time(found['at'])}" if found["user"] else ""
    pairs = [
        ("template", f"{found['name']} ({found['kind']})"),
        ("version", f"{number}{by}"),
        ("digest", found["digest"]),
        ("about", clean(found["about"])),
        ("open", ", ".join(document.get("open") or [])),
        ("program", "may be chosen by parameters" if document.get("allow_program") else ""),
    ]
    print(draw_pairs(pair for pair in pairs if pair[1]))
    if found["params"]:
        rows = [
            [one["name"], _default(one), clean(one["allowed"]), clean(one["help"])] for one in found["params"]
        ]
        print()
        print(draw_table(_PARAMS, rows, terminal_width(), has_colour()))
    print()
    print(_yaml({"spec": document["spec"]}))


def _default(parameter: Mapping[str, Any]) -> str:
    if parameter["required"]:
        return "(required)"
    value = parameter["default"]
    return str(value).lower() if isinstance(value, bool) else clean(str(value)) or "(empty)"


@click.command("render", cls=DocumentCommand)
@click.argument("name", metavar="NAME[@VERSION]")
@click.option("-p", "--param", "params", multiple=True, metavar="NAME=VALUE", help="Value for a parameter.")
@pass_session
def template_render(session: Session, name: str, params: tuple[str, ...]) -> None:
    """Print the job that a template and these values make, as a job file; nothing is submitted."""
    given, problems = read_flags({"params": params})
    if problems:
        raise click.UsageError(problems[0].what)
    bare, version = _split(name)
    body = {"params": given.get("params", {}), "version": version}
    answer = session.hub.call("POST", _path(bare, "/render"), body=body)
    if session.json:
        session.print_json(answer)
        return
    noted = ("template", "params", "rendered")
    print(_yaml({key: value for key, value in answer["spec"].items() if key not in noted}))


@click.command("history", cls=HubCommand)
@click.argument("name")
@pass_session
def template_history(session: Session, name: str) -> None:
    """List the versions of a template, newest first, also of one that was removed."""
    answer = session.hub.get(_path(name, "/history"))
    if session.json:
        session.print_json(answer)
        return
    rows = [
        [
            str(one["version"]) if one["version"] else "built in",
            local_time(one["at"]) or "-",
            clean(one["user"]) or "-",
            one["digest"][:19],
        ]
        for one in answer["versions"]
    ]
    print(draw_table(_VERSIONS, rows, terminal_width(), has_colour()))
    if answer["removed_at"]:
        print(f"removed {local_time(answer['removed_at'])} by {clean(answer['removed_by'])}", file=sys.stderr)


@click.command("add", cls=HubCommand)
@click.argument("file", metavar="FILE|-")
@pass_session
def template_add(session: Session, file: str) -> None:
    """Add the template of a file (`-` for stdin), or one more version of it, and print its NAME@VERSION.

    Its spec has the keys of a job file, and ${name} where a parameter's value goes. Needs an admin token: a template
    runs with the rights of whoever uses it.
    """
    from dray.cli.asks.template_file import load_template, read_template_file

    document = load_template(sys.stdin.read(), "stdin") if file == STDIN else read_template_file(Path(file))
    answer = session.hub.call("POST", "/templates", body=document)
    if session.json:
        session.print_json(answer)
        return
    print(f"{answer['name']}@{answer['version']}")
    if not answer["created"]:
        print("dray: this is the newest version already: nothing was added", file=sys.stderr)


@click.command("rm", cls=HubCommand)
@click.argument("name")
@pass_session
def template_rm(session: Session, name: str) -> None:
    """Remove a template whole. Jobs that were made by it go on; its history stays, and its versions count on."""
    answer = session.hub.call("DELETE", _path(name))
    if session.json:
        session.print_json(answer)
        return
    print(f"{answer['name']}: {answer['note']}")


def _yaml(document: Any) -> str:
    import yaml

    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True).rstrip()
