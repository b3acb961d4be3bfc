"""Which store a hub has, opened; where it is on a server, waited for until this hub leads there.

A store in the home is its hub's as soon as the home is. On a server another hub may lead: this one stands by, answers
everybody with who does, and takes over when that one has resigned or its lease has run out.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dray.config import HubConfig
from dray.errors import StoreError
from dray.hub.assembly import Ground
from dray.hub.store.base import Store
from dray.hub.store.sqlite.opening import Check
from dray.hub.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from dray.hub.store.postgres.store import PgStore

LOOK_S = 0.2
ID_FILE = "hub.id"
STORE_FILE = "hub.sqlite"


class ToldToEnd(Exception):
    """A hub that stood by was told to end."""


async def open_store(config: HubConfig, ground: Ground, url: str, told: asyncio.Event, again: bool) -> Store:
    """Open the store of a hub, to be written to by it alone; `again` where this process has had it before."""
    if not config.store:
        # A file that this very process has written to until now need not be read through.
        check: Check = "never" if again else "unclean"
        return SqliteStore.open(config.home / STORE_FILE, reserve_bytes=config.reserve_bytes, check=check)
    home_id = ensure_id(config.home)
    store = await asyncio.to_thread(open_postgres, config, home_id)
    try:
        # The lock of the home says that no other process is this hub: what it held before, nobody holds now.
        await _stand_by(store, ground, url, told, "" if again else f"{home_id}.")
    except BaseException:
        store.close(clean=False)
        raise
    return store


def open_postgres(config: HubConfig, name: str = "") -> PgStore:
    """Connect to the database of a hub; its driver is an extra."""
    try:
        from dray.hub.store.postgres.address import Address
        from dray.hub.store.postgres.store import PgStore
    except ImportError as missing:
        raise StoreError(
            f"a store in PostgreSQL needs {missing.name}, which is not installed here: pip install 'dray[postgres]'"
        ) from missing
    return PgStore.open(Address(config.store), config.home, lease_s=config.store_lease_s, name=name)


async def _stand_by(store: PgStore, ground: Ground, url: str, told: asyncio.Event, at_once_from: str) -> None:
    leading: asyncio.Future[Any] = asyncio.wrap_future(store.lead_soon(url, at_once_from))
    ending: asyncio.Future[Any] = asyncio.ensure_future(told.wait())
    try:
        while not leading.done():
            await asyncio.wait({leading, ending}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                raise ToldToEnd
            if store.watched.words:
                ground.front.withdraw(store.watched.words)
        await leading
    finally:
        ending.cancel()
        leading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ending


def ensure_id(home: Path) -> str:
    """The name of a home among the hubs of one database, drawn where there is none."""
    path = home / ID_FILE
    with contextlib.suppress(OSError):
        if (found := path.read_text("ascii", "replace").strip()) and found.isalnum():
            return found[:16]
    drawn = secrets.token_hex(4)
    path.write_text(f"{drawn}\n")
    return drawn
