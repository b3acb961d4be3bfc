"""A worker or a hub as a service of its host: a unit of systemd, or an agent of launchd, behind one small interface.

The file says what is run and nothing secret: a token that is given goes into the home, as it does when an agent starts.
The surprising rule: whoever stops the service stops the agent alone (`KillMode=process`): tasks have a supervisor of
their own and go on, and the next agent takes them up.
"""

from __future__ import annotations

import os
import plistlib
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import click

from dray.cli.base.invocation import HubCommand, Session, pass_session
from dray.errors import InvalidInput

WORKER, HUB = "worker", "hub"
ABOUT = {WORKER: "dray worker", HUB: "dray hub"}


class Wanted(NamedTuple):
    """What is to be run: the part, its home and the words after `dray`."""

    part: str
    home: Path
    words: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        """As this very installation runs it, whatever the path is then."""
        return [sys.executable, "-P", "-m", "dray.cli.main", *self.words]


class Keeper(Protocol):
    """Whoever starts services on this host."""

    def path(self, part: str) -> Path: ...
    def text(self, wanted: Wanted) -> bytes: ...
    def starts(self, part: str) -> list[list[str]]: ...
    def stops(self, part: str) -> list[list[str]]: ...
    def asks(self, part: str) -> list[str]: ...


class Systemd:
    """Units of the host where root asks, else of the user, who may have them run while logged out (`linger`)."""

    def __init__(self, system: bool) -> None:
        self._system = system

    def path(self, part: str) -> Path:
        if self._system:
            return Path("/etc/systemd/system") / self._name(part)
        config = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
        return Path(config) / "systemd" / "user" / self._name(part)

    def text(self, wanted: Wanted) -> bytes:
        target = "multi-user.target" if self._system else "default.target"
        stop = "process" if wanted.part == WORKER else "mixed"
        lines = [
            "[Unit]",
            f"Description={ABOUT[wanted.part]}",
            "Wants=network-online.target",
            "After=network-online.target",
            "",
            "[Service]",
            f"ExecStart={' '.join(quote(word) for word in wanted.command)}",
            f"Environment={quote(f'DRAY_HOME={wanted.home}', variables=False)}",
            f"KillMode={stop}",
            "Restart=always",
            "RestartSec=5",
            "LimitNOFILE=65536",
            "",
            "[Install]",
            f"WantedBy={target}",
            "",
        ]
        return "\n".join(lines).encode()

    def starts(self, part: str) -> list[list[str]]:
        return [self._ask("daemon-reload"), self._ask("enable", "--now", self._name(part))]

    def stops(self, part: str) -> list[list[str]]:
        return [self._ask("disable", "--now", self._name(part))]

    def asks(self, part: str) -> list[str]:
        return self._ask("is-active", self._name(part))

    def _ask(self, *words: str) -> list[str]:
        return ["systemctl", *([] if self._system else ["--user"]), *words]

    def _name(self, part: str) -> str:
        return f"dray-{part}.service"


class Launchd:
    """Agents of the user, or daemons of the host where root asks."""

    def __init__(self, system: bool) -> None:
        self._system = system

    def path(self, part: str) -> Path:
        folder = Path("/Library/LaunchDaemons") if self._system else Path.home() / "Library" / "LaunchAgents"
        return folder / f"dray.{part}.plist"

    def text(self, wanted: Wanted) -> bytes:
        log = str(wanted.home / f"{wanted.part}.service.log")
        return plistlib.dumps(
            {
                "Label": f"dray.{wanted.part}",
                "ProgramArguments": wanted.command,
                "EnvironmentVariables": {"DRAY_HOME": str(wanted.home)},
                "RunAtLoad": True,
                "KeepAlive": True,
                "AbandonProcessGroup": True,
                "StandardOutPath": log,
                "StandardErrorPath": log,
            }
        )

    def starts(self, part: str) -> list[list[str]]:
        return [["launchctl", "load", "-w", str(self.path(part))]]

    def stops(self, part: str) -> list[list[str]]:
        return [["launchctl", "unload", "-w", str(self.path(part))]]

    def asks(self, part: str) -> list[str]:
        return ["launchctl", "list", f"dray.{part}"]


def quote(word: str, variables: bool = True) -> str:
    """A word as systemd reads it: nothing in it stands for anything else. Variables are put in in commands alone."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    text = text.replace("$", "$$") if variables else text
    return f'"{text}"' if re.search(r"[^\w@+=:,./%$-]", text) or not text else text


def keeper_of_host(system: bool) -> Keeper:
    """Whoever starts services here."""
    return Launchd(system) if sys.platform == "darwin" else Systemd(system)


def _is_root() -> bool:
    return os.geteuid() == 0


def part_token(words: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The words without a token, and the token."""
    kept, token, rest = [], "", list(words)
    while rest:
        word = rest.pop(0)
        if word == "--token" and rest:
            token = rest.pop(0)
        elif word.startswith("--token="):
            token = word.partition("=")[2]
        else:
            kept.append(word)
    return tuple(kept), token


def keep_token(home: Path, words: Sequence[str]) -> tuple[str, ...]:
    """Leave a token that is given in the worker's home, and out of the words."""
    kept, token = part_token(words)
    if token:
        folder = home / "worker"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(folder / "token", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(f"{token}\n")
    return kept


def _install(session: Session, part: str, words: tuple[str, ...], show: bool, start: bool) -> int:
    home = session.home.absolute()
    first = ("worker", "start") if part == WORKER else ("hub",)
    if words[: len(first)] == first or words[:1] == ("dray",):
        raise InvalidInput(f"give the flags of `dray {' '.join(first)}` alone, after `--`")
    keeper = keeper_of_host(_is_root())
    if show:
        shown, _ = part_token(words)
        sys.stdout.write(keeper.text(Wanted(part, home, (*first, *shown))).decode())
        return 0
    wanted = Wanted(part, home, (*first, *keep_token(home, words)))
    path = keeper.path(part)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(keeper.text(wanted))
    _tell(session, path, installed=True, words=f"wrote {path}")
    return _run(keeper.starts(part)) if start else 0


def _uninstall(session: Session, part: str) -> int:
    keeper = keeper_of_host(_is_root())
    path = keeper.path(part)
    if not path.exists():
        print(f"{path} is not there: nothing was installed", file=sys.stderr)
        return 0
    code = _run(keeper.stops(part))
    path.unlink()
    after = "" if part == HUB else "; what runs goes on, and the next agent takes it up"
    _tell(session, path, installed=False, words=f"removed {path}{after}")
    return code


def _tell(session: Session, path: Path, installed: bool, words: str) -> None:
    if session.json:
        session.print_json({"installed": installed, "file": str(path)})
    else:
        print(words)


def _run(commands: list[list[str]]) -> int:
    for words in commands:
        try:
            done = subprocess.run(words, check=False)
        except OSError as fault:
            raise InvalidInput(
                f"{words[0]} cannot be run here: {fault.strerror}; start the service by hand"
            ) from None
        if done.returncode:
            print(f"`{' '.join(words)}` ended with {done.returncode}", file=sys.stderr)
            return 1
    return 0


def _options(function: Any) -> Any:
    function = click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- FLAG...]")(function)
    function = click.option("--no-start", is_flag=True, help="Only write the file.")(function)
    return click.option("--print", "show", is_flag=True, help="Print the file, and change nothing.")(function)


@click.command("install", cls=HubCommand)
@_options
@pass_session
def worker_install(session: Session, words: tuple[str, ...], no_start: bool, show: bool) -> int:
    """Make an agent a service of this host, which starts with it: a unit of systemd, or launchd's.

    What follows `--` are flags of `dray worker start`, such as those of a join line. Stopping the service stops the
    agent alone; tasks go on. For root it is the host's, for others their own.
    """
    return _install(session, WORKER, words, show, not no_start)


@click.command("uninstall", cls=HubCommand)
@pass_session
def worker_uninstall(session: Session) -> int:
    """Stop the service of this host's agent and remove it; tasks go on."""
    return _uninstall(session, WORKER)


@click.command("status", cls=HubCommand)
@pass_session
def worker_status(session: Session) -> int:
    """Say whether an agent is a service of this host, and whether it runs."""
    keeper = keeper_of_host(_is_root())
    path, said = keeper.path(WORKER), ""
    if path.exists():
        try:
            said = subprocess.run(
                keeper.asks(WORKER), capture_output=True, text=True, check=False
            ).stdout.strip()
        except OSError as fault:
            said = f"unknown ({fault.strerror})"
    document = {"installed": path.exists(), "file": str(path), "state": said.splitlines()[0] if said else ""}
    if session.json:
        session.print_json(document)
    else:
        print(f"{path}: {document['state'] or 'not installed'}")
    return 0 if path.exists() else 1


@click.command("install", cls=HubCommand)
@_options
@pass_session
def hub_install(session: Session, words: tuple[str, ...], no_start: bool, show: bool) -> int:
    """Make a hub a service of this host, which starts with it; what follows `--` are flags of `dray hub`."""
    return _install(session, HUB, words, show, not no_start)


@click.command("uninstall", cls=HubCommand)
@pass_session
def hub_uninstall(session: Session) -> int:
    """Stop the service of this host's hub and remove it; its home stays."""
    return _uninstall(session, HUB)
