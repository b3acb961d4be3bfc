"""One connection to the database: opened when it is needed, opened again when it broke, one statement at a time.

Every statement is its own transaction, so that no lock is ever held while the server waits for this hub. One that is
not answered in time costs the connection: what the server makes of it is found out by whoever asked. The next one is
asked when the server is done with it, so that no statement takes effect after a later one. An answer that came because
the server gave up waiting for standbys of its own is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, NamedTuple

import asyncpg

from dray.hub.store.leading import Timings
from dray.hub.store.postgres.address import Address
from dray.hub.store.postgres.errors import (
    OLDEST,
    Refused,
    Unanswered,
    explain_refusal,
    is_broken,
    tell_absent,
    tell_old,
    tell_pooler,
    tell_read_only,
    translate,
)

_CHECK = (
    "SELECT pg_backend_pid(), pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool"
)

_LEFT = "SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND application_name = $2"
# What a server that gives up waiting for its standbys says so with: a warning, beside an answer like any other.
_GAVE_UP = "SyncRepWaitForLSN"
# How long a statement that nobody waits for may go on before it is ended.
LEFT_LEASES, LEFT_POLL_S = 5, 0.02


class Target(NamedTuple):
    """Which database, under which name the server lists the connections, and how patient."""

    address: Address
    name: str
    timings: Timings


class Connection:
    """Asks one statement after another."""

    def __init__(self, target: Target) -> None:
        self._target = target
        # Who may still be at work on a statement that nobody waits for any more.
        self._left_pid = 0
        self._lock = asyncio.Lock()
        self._open: asyncpg.Connection[asyncpg.Record] | None = None
        self._warning = ""

    @property
    def is_open(self) -> bool:
        """Whether the next statement goes where the last one went."""
        return self._open is not None and not self._open.is_closed()

    async def ask(self, asked: str, query: str, *values: Any, timeout_s: float = 0.0) -> list[asyncpg.Record]:
        """Run one statement; raises `Unanswered` where its outcome is not known."""
        async with self._lock:
            return await self._ask(asked, query, values, timeout_s or self._target.timings.answer_s)

    async def _ask(
        self, asked: str, query: str, values: tuple[Any, ...], timeout_s: float
    ) -> list[asyncpg.Record]:
        connection = self._open
        if connection is None or connection.is_closed():
            connection = self._open = await self._open_again()
        try:
            self._warning = ""
            async with asyncio.timeout(timeout_s):
                rows = list(await connection.fetch(query, *values))
            if self._warning:
                raise Unanswered(f"cannot {asked}: the database {self._target.address} says: {self._warning}")
            return rows
        except Unanswered:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) or is_broken(error):
                self._left_pid = connection.get_server_pid()
                self.drop()
            if isinstance(error, Exception) and not isinstance(error, ValueError | TypeError | OverflowError):
                raise translate(error, self._target.address, asked) from error
            raise

    async def _open_again(self) -> asyncpg.Connection[asyncpg.Record]:
        """Connect, after whatever the last connection was given has come to its end: it must not take effect later."""
        try:
            connection = await open_connection(self._target)
        except Refused as fault:
            # This hub was let in before: a password that is being changed, a server that is being moved.
            raise Unanswered(fault.message) from fault
        try:
            if self._left_pid:
                await self._wait_for_the_last(connection)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, Exception):
                raise translate(error, self._target.address, "ask again") from error
            raise
        self._left_pid = 0
        connection.add_log_listener(self._listen)
        return connection

    def _listen(self, connection: Any, said: Any) -> None:
        # Called before whoever waits for the answer goes on: the driver hears of it first.
        if said.server_source_function == _GAVE_UP:
            self._warning = str(said.message)

    async def _wait_for_the_last(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        until = time.monotonic() + LEFT_LEASES * self._target.timings.lease_s
        async with asyncio.timeout(2 * LEFT_LEASES * self._target.timings.lease_s):
            while await connection.fetch(_LEFT, self._left_pid, self._target.name):
                if time.monotonic() > until:
                    await connection.fetch("SELECT pg_terminate_backend($1)", self._left_pid)
                await asyncio.sleep(LEFT_POLL_S)

    def drop(self) -> None:
        """Let go without a word to the server."""
        if self._open is not None:
            self._open.terminate()
            self._open = None

    async def close(self) -> None:
        """Say goodbye, briefly."""
        connection, self._open = self._open, None
        if connection is not None:
            try:
                async with asyncio.timeout(1):
                    await connection.close()
            except (Exception, asyncio.CancelledError):  # noqa: BLE001 - the server will find out by itself
                connection.terminate()


async def open_connection(target: Target) -> asyncpg.Connection[asyncpg.Record]:
    """Connect, with the settings that safety rests on; refusals that no patience helps against are told apart."""
    keepalive = max(1, round(target.timings.renew_s))
    settings = {
        "application_name": target.name,
        # Rows too: those that a server lost in a crash, under a hub that goes on, would never be written again.
        "synchronous_commit": "on",
        "idle_in_transaction_session_timeout": str(round(target.timings.answer_s * 1000)),
        "tcp_user_timeout": str(round(target.timings.lease_s * 1000)),
        "tcp_keepalives_idle": str(2 * keepalive),
        "tcp_keepalives_interval": str(keepalive),
        "tcp_keepalives_count": "2",
        "jit": "off",
    }
    try:
        connection = await asyncpg.connect(
            target.address.url, timeout=max(5.0, target.timings.answer_s), server_settings=settings
        )
    except Exception as error:
        refusal = explain_refusal(error, target.address)
        raise refusal or tell_absent(error, target.address) from error
    return connection


async def check_server(target: Target) -> None:
    """Refuse a server that a hub cannot lead from: too old, read-only, or behind a pooler."""
    connection = await open_connection(target)
    try:
        version = connection.get_server_version()
        if version.major < OLDEST:
            raise tell_old((version.major, version.minor), target.address)
        pid, read_only = await connection.fetchrow(_CHECK)
        if pid != connection.get_server_pid():
            # A pooler gives its clients numbers of its own.
            raise tell_pooler(target.address)
        if read_only:
            raise tell_read_only(target.address)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise translate(error, target.address, "look at the server") from error
    finally:
        with contextlib.suppress(Exception):
            await connection.close(timeout=1)
