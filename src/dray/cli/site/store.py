"""The commands `store ...`: carrying a store from the home to a database, or back."""

from __future__ import annotations

import os
from pathlib import Path

import click

from dray.cli.base.invocation import HomeCommand, LazyGroup, Session, pass_session
from dray.errors import Conflict, InvalidInput, StoreError
from dray.presence import find_holder

_HERE = "dray.cli.site.store"
VARIABLE = "DRAY_STORE"


@click.group(
    "store", cls=LazyGroup, table={"copy": (f"{_HERE}:store_copy", "Copy a store to another kind of store.")}
)
def store() -> None:
    """Carry a store from a home to a database, or back."""


@click.command("copy", cls=HomeCommand)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option(
    "--files/--no-files",
    default=True,
    help="Whether output and large values come along.  [default: files]",
)
@pass_session
def store_copy(session: Session, source: str, target: str, files: bool) -> int:
    """Copy a store: from a file to an empty database, or from a database to a file that is not there yet.

    SRC and DST are a file (HOME/hub.sqlite) and an address (postgres://USER@HOST/NAME); the word DRAY_STORE stands for
    the address in that variable, password and all. No hub may run on either. Every table is read back and compared, and
    the copy begins an epoch later. Output, values of calls and the secret of the home (the folder of the file) come
    along, and are compared too; with --no-files they stay, as where all hubs mount a folder for them.
    """
    source, target = _read(source), _read(target)
    try:
        from dray.hub.files.copying import copy_all
        from dray.hub.store.copying import Copied
    except ImportError as missing:
        raise StoreError(f"{missing.name} is not installed here: pip install 'dray[postgres]'") from missing
    for place in (source, target):
        if "://" not in place and (holder := find_holder(Path(place).absolute().parent, "hub")) is not None:
            raise Conflict(f"a hub runs on {place} ({holder.words}): stop it first, `dray down` does")
    copied: list[Copied] = []

    def tell(table: Copied) -> None:
        copied.append(table)
        if not session.json:
            print(f"{table.table:<13}{table.rows:>9}  {table.digest[:16]}")

    position = copy_all(source, target, tell, files)
    if session.json:
        tables = [table._asdict() for table in copied]
        session.print_json({"tables": tables, "epoch": position.epoch, "seq": position.seq})
    else:
        print(f"the same at both ends; the copy begins at epoch {position.epoch}, after turn {position.seq}")
    return 0


def _read(text: str) -> str:
    if text == VARIABLE:
        if not os.environ.get(VARIABLE):
            raise InvalidInput(f"{VARIABLE} is not set: set it to the address of the database")
        return os.environ[VARIABLE]
    if "://" in text:
        from dray.hub.store.postgres.address import Address

        if Address(text).has_password:
            raise InvalidInput(
                f"a password in a command is seen by every user of the machine: set {VARIABLE} to the whole address "
                f"and write {VARIABLE} here, or leave the password to the file that PGPASSFILE names"
            )
        return text
    return str(Path(text).expanduser())
