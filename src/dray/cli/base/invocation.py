"""What every command shares: the flags that lead to the hub, the form of the output, and the error that ends it all.

The connection flags may stand before or after the command's name; the one nearer to the end wins.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import click

from dray.errors import DrayError, Problem

if TYPE_CHECKING:
    from pathlib import Path

    from dray.cli.base.hub import Hub
    from dray.config import ClientConfig

CONNECTION_FLAGS = {
    "hub": ("URL", "Address of the hub, of several hubs repeated (DRAY_HUB; else the hub of the home)."),
    "token": ("TOKEN", "Token for the hub (DRAY_TOKEN; else the token file of the home)."),
    "home": ("DIR", "Where dray keeps its files (DRAY_HOME; else ~/.dray)."),
    "fingerprint": ("sha256:HEX", "Trust exactly this certificate of the hub (DRAY_FINGERPRINT)."),
    "cafile": ("FILE", "Certificates to trust instead of the system's (DRAY_CAFILE)."),
}


class Session:
    """One invocation: flags as given so far, and the hub once a command needs it."""

    def __init__(self) -> None:
        self.flags: dict[str, str] = {}
        self.output = "table"

    @property
    def json(self) -> bool:
        return self.output == "json"

    @cached_property
    def home(self) -> Path:
        from dray.config import find_home

        return find_home(self.flags.get("home"))

    @cached_property
    def config(self) -> ClientConfig:
        from dray.config import load_client
        from dray.settings_file import list_ignored

        for text in list_ignored(self.home):
            print(f"dray: {text}", file=sys.stderr)
        return load_client(self.home, {name: text for name, text in self.flags.items() if name != "home"})

    @cached_property
    def hub(self) -> Hub:
        from dray.cli.base.hub import Hub

        return Hub(self.config)

    def report(self, error: DrayError, exit_code: int | None = None) -> int:
        """Say what went wrong on stderr, as the form of the output asks, and give the exit code."""
        if self.json:
            print_error(error.code, error.message, error.problems)
        else:
            _tell(error)
        return int(getattr(error, "exit_code", 1)) if exit_code is None else exit_code

    def print_json(self, document: Any) -> None:
        """Print the API's own document; for people who pipe, indented only on a terminal."""
        indent = 2 if sys.stdout.isatty() else None
        print(json.dumps(document, indent=indent, ensure_ascii=False), flush=True)


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    session = context.ensure_object(Session)
    if value is None or value == ():
        return
    if option.name == "output":
        session.output = value
    elif option.name is not None:
        session.flags[option.name] = ",".join(value) if isinstance(value, tuple) else value


class _Form(click.Choice[str]):
    """The form of an answer. Who types a file here comes from tools where `-o` names one."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return (
            f"{super().get_invalid_choice_message(value, ctx)} It is the form of the answer; into a file goes what a "
            f"job printed with `dray logs ID > {value}`, and the answer of a command with `> {value}`."
        )


def connection_options(
    shown: Container[str] = CONNECTION_FLAGS, forms: Sequence[str] = ("table", "json")
) -> list[click.Option]:
    """The flags that every command takes; a command's help lists only those named in `shown`."""
    options = [
        click.Option(
            [f"--{name}"],
            metavar=metavar,
            help=text,
            multiple=name == "hub",
            hidden=name not in shown,
            expose_value=False,
            callback=_keep,
            is_eager=True,
        )
        for name, (metavar, text) in CONNECTION_FLAGS.items()
    ]
    output = click.Option(
        ["-o", "--output"],
        type=_Form(forms),
        help="Form of the output; json prints the API's own documents, also of errors (on stderr).",
        expose_value=False,
        callback=_keep,
        is_eager=True,
    )
    return [*options, output]


class HubCommand(click.Command):
    """A command that takes the connection flags, out of sight in its help."""

    shown: ClassVar[Container[str]] = ()
    forms: ClassVar[Sequence[str]] = ("table", "json")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(connection_options(self.shown, self.forms))


class DocumentCommand(HubCommand):
    """A command whose answer is a document that people keep in a file."""

    forms = ("table", "json", "yaml")


class AgentCommand(HubCommand):
    """The same with the connection flags in sight: for an agent they matter."""

    shown = CONNECTION_FLAGS


class HomeCommand(HubCommand):
    """A command about the daemons of one home."""

    shown = ("home",)


class LazyGroup(click.Group):
    """A group whose commands are imported when called; `table` maps a name to (module:function, short help).

    `elsewhere`: what other tools call a command that has another name here.
    """

    def __init__(
        self,
        *args: Any,
        table: dict[str, tuple[str, str]],
        elsewhere: Mapping[str, str] = MappingProxyType({}),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.table, self._elsewhere = table, elsewhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        import importlib

        module, _, function = entry[0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # The help texts stand in the table, so that `dray --help` does not import every command either.
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.table and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], list(self.table), n=1)
            if here := self._elsewhere.get(args[0]):
                ctx.fail(
                    f"{ctx.command_path} has no command {args[0]!r}: that is `{ctx.command_path} {here}` here"
                )
            hint = f"; did you mean {near[0]!r}?" if near else f": there is {', '.join(self.table)}"
            ctx.fail(f"{ctx.command_path} has no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)


class HubGroup(LazyGroup):
    """A group that is a command of its own, about the daemons of one home."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(connection_options(HomeCommand.shown))


def abandon_stdout() -> None:
    """Nobody reads the output any more: the interpreter must not stumble over what is left in it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(code: str, message: str, problems: Sequence[Problem] = ()) -> None:
    """The API's own document of an error, as the last line of stderr: stdout holds answers alone."""
    listed = [{"where": problem.where, "what": problem.what} for problem in problems]
    document = {"error": {"code": code, "message": message, "problems": listed}}
    print(json.dumps(document, ensure_ascii=False), file=sys.stderr, flush=True)


def asks_for_json(words: Sequence[str]) -> bool:
    """Whether a command line that could not be read asks for JSON."""
    flags = list(words[: words.index("--")] if "--" in words else words)
    pairs = zip(flags, [*flags[1:], ""], strict=True)
    return any(
        (name in ("-o", "--output") and value == "json") or name in ("-ojson", "--output=json")
        for name, value in pairs
    )


def _tell(error: DrayError) -> None:
    first, problems = error.message, error.problems
    if problems and problems[0].what in first:
        # The message quotes the first problem, and the list below has it too: keep what stands before it.
        before = first.partition(problems[0].what)[0].rstrip(": ")
        first = before.rpartition(": ")[0] or "this cannot be accepted"
    print(f"dray: {first} ({error.code})", file=sys.stderr)
    for problem in problems:
        print(f"  {problem.where}: {problem.what}" if problem.where else f"  {problem.what}", file=sys.stderr)


pass_session: Callable[[Callable[..., Any]], Callable[..., Any]] = click.make_pass_decorator(
    Session, ensure=True
)
