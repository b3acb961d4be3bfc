"""The record of what is to be told and how that ended: a file of its own beside the store.

Not part of the store, so that whatever is wrong with it (a full disk, a torn file) never stops a turn. Owns the thread
that writes. Rows that wait are bounded by whoever adds them; those that ended go by number and age. `upto` is the last
turn whose notes have been looked through: a hub that died goes on from there with the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from dray.errors import StoreError

Answer = TypeVar("Answer")
FILE_NAME = "notifications.sqlite"
KEPT_ROWS = 10_000
KEPT_MS = 30 * 86_400_000
STATES = ("waiting", "sent", "failed", "dropped")
VERSION = 1
_TABLES = (
    """CREATE TABLE told (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        event TEXT NOT NULL,
        job_id TEXT NOT NULL,
        user TEXT NOT NULL,
        way TEXT NOT NULL,
        target TEXT NOT NULL,
        named_by_job INTEGER NOT NULL,
        state TEXT NOT NULL,
        tries INTEGER NOT NULL,
        made_at_ms INTEGER NOT NULL,
        due_ms INTEGER NOT NULL,
        ended_at_ms INTEGER NOT NULL,
        detail TEXT NOT NULL,
        body BLOB NOT NULL
    )""",
    "CREATE INDEX told_waiting ON told (number) WHERE state = 'waiting'",
    "CREATE INDEX told_of_job ON told (job_id)",
    "CREATE TABLE progress (upto INTEGER NOT NULL)",
)


class Told(NamedTuple):
    """One thing to tell one receiver. `target` is a receiver's name, or what the job itself named."""

    id: str
    event: str
    job_id: str
    user: str
    way: str
    target: str
    named_by_job: bool
    state: str
    tries: int
    made_at_ms: int
    due_ms: int
    ended_at_ms: int
    detail: str
    body: bytes

    @property
    def lane(self) -> str:
        """What goes out one after the other: to one receiver, or of one user to whom their jobs name."""
        return f"{self.user}\0{self.target}" if self.named_by_job else self.target

    @property
    def owner(self) -> str:
        """Who is charged for what waits: a receiver of the policy, or the user who named one."""
        return f"\0{self.user}" if self.named_by_job else self.target


_COLUMNS = ", ".join(Told._fields)
_ADD = f"INSERT OR IGNORE INTO told ({_COLUMNS}) VALUES ({', '.join('?' * len(Told._fields))})"  # noqa: S608 - own names
_LIST = f"SELECT number, {_COLUMNS} FROM told"  # noqa: S608 - as above


class Wanted(NamedTuple):
    """Which of them a list wants; None is any user. `before` pages downwards."""

    user: str | None = None
    job_id: str = ""
    states: tuple[str, ...] = ()
    before: int = 0
    limit: int = 100


class Outbox:
    """One hub's record. What is asked of it is done on a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(1, "dray-notifications")
        self._base: sqlite3.Connection | None = None
        # Whoever copies a home finds no file in it that is gone the next moment; what cannot be opened now is later.
        with contextlib.suppress(StoreError, sqlite3.Error, OSError):
            self._base = _open(path)

    async def add(self, rows: Sequence[Told], upto: int) -> list[Told]:
        """Record what is to be told, and how far the log has been looked through; gives those that are new."""

        def work(base: sqlite3.Connection) -> list[Told]:
            new = [row for row in rows if base.execute(_ADD, row).rowcount == 1]
            base.execute("UPDATE progress SET upto = max(upto, ?)", (upto,))
            return new

        return await self._run(work)

    async def note(self, row: Told) -> None:
        """Record how a try went."""

        def work(base: sqlite3.Connection) -> None:
            base.execute(
                "UPDATE told SET state = ?, tries = ?, due_ms = ?, ended_at_ms = ?, detail = ? WHERE id = ?",
                (row.state, row.tries, row.due_ms, row.ended_at_ms, row.detail, row.id),
            )

        await self._run(work)

    async def load(self, upto: int) -> tuple[list[Told], int]:
        """Give what waits, and how far the log was looked through: `upto` where nobody ever did, or beyond it."""

        def work(base: sqlite3.Connection) -> tuple[list[Told], int]:
            known = base.execute("SELECT upto FROM progress").fetchone()
            if known is None:
                base.execute("INSERT INTO progress (upto) VALUES (?)", (upto,))
            elif known[0] > upto:
                # A store that was put back: what it counts from here on is not what was counted before.
                base.execute("UPDATE progress SET upto = ?", (upto,))
            rows = base.execute(f"{_LIST} WHERE state = 'waiting' ORDER BY number").fetchall()
            return [_read(row)[1] for row in rows], upto if known is None else min(known[0], upto)

        return await self._run(work)

    async def list(self, wanted: Wanted) -> list[tuple[int, Told]]:
        """Newest first, each with the number that the next page begins before."""
        tests: list[tuple[str, object]] = []
        if wanted.user is not None:
            tests.append(("user = ?", wanted.user))
        if wanted.job_id:
            tests.append(("job_id = ?", wanted.job_id))
        if wanted.before:
            tests.append(("number < ?", wanted.before))
        if wanted.states:
            marks = ", ".join("?" * len(wanted.states))
            tests.append((f"state IN ({marks})", wanted.states))
        where = f" WHERE {' AND '.join(test for test, _ in tests)}" if tests else ""
        given = [one for _, value in tests for one in (value if isinstance(value, tuple) else (value,))]

        def work(base: sqlite3.Connection) -> list[tuple[int, Told]]:
            found = base.execute(f"{_LIST}{where} ORDER BY number DESC LIMIT ?", (*given, wanted.limit))
            return [_read(row) for row in found]

        return await self._run(work)

    async def sweep(self, at_ms: int) -> None:
        """Let go of what ended long ago, and of more than is kept."""

        def work(base: sqlite3.Connection) -> None:
            base.execute("DELETE FROM told WHERE state <> 'waiting' AND made_at_ms < ?", (at_ms - KEPT_MS,))
            base.execute(
                "DELETE FROM told WHERE state <> 'waiting' AND number <= (SELECT max(number) FROM told) - ?",
                (KEPT_ROWS,),
            )

        await self._run(work)

    async def close(self) -> None:
        """Finish what was asked, and close the file."""
        if self._base is not None:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._base.close)
        self._pool.shutdown(wait=False)

    async def _run(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._work, work)

    def _work(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        try:
            if self._base is None:
                self._base = _open(self._path)
            with self._base:
                return work(self._base)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{self._path} cannot be used: {error}") from error


def _open(path: Path) -> sqlite3.Connection:
    with contextlib.suppress(FileExistsError):
        path.touch(0o600, exist_ok=False)
    base = sqlite3.connect(path, check_same_thread=False)
    try:
        base.execute("PRAGMA journal_mode = WAL")
        version = base.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise StoreError(f"{path} was written by a newer dray: move it away, or upgrade")
        if not version:
            with base:
                for statement in _TABLES:
                    base.execute(statement)
                base.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        base.close()
        raise
    return base


def _read(row: tuple[object, ...]) -> tuple[int, Told]:
    number, *rest = row
    told = Told(*rest)  # type: ignore[arg-type]  # columns in the order of the fields
    return int(number), told._replace(named_by_job=bool(told.named_by_job))  # type: ignore[call-overload]  # a number
