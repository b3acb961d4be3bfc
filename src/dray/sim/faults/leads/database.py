"""A database that several hubs share: one store with the leader's row in it, the ways to it, and what befalls it.

Every statement is done at one moment, as the server's locks make it; its answer may be lost, or wait for a standby of
the server's own. While that one lags, what was written can be seen and is not durable: a failover loses it, and nobody
was told of it. A failover to a server that lags without anybody waiting for it loses what was answered, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from dray.hub.store.base import Projection, Turn
from dray.hub.store.leading import Found, Seen, Timings
from dray.hub.store.memory import MemoryFile, MemoryStore
from dray.sim.faults.world.process import Process
from dray.sim.faults.world.world import World

REFUSED_MS = 50


class SharedFile(MemoryFile):
    """What is in the database, the row of the leader included."""

    def __init__(self) -> None:
        super().__init__()
        self.beat, self.holder, self.place = 0, "", -1
        self.row_now_ms = 0
        # When that row last changed.
        self.beaten_ms = 0


def copy_file(file: MemoryFile) -> MemoryFile:
    """Copy a store: tables one level deep, since a row is replaced and never changed."""
    copied = type(file)()
    for name, value in vars(file).items():
        setattr(copied, name, value.copy() if isinstance(value, dict | list) else value)
    copied.tasks = {job_id: dict(tasks) for job_id, tasks in file.tasks.items()}
    copied.call_args = {job_id: chunks.copy() for job_id, chunks in file.call_args.items()}
    copied.call_results = {job_id: list(chunks) for job_id, chunks in file.call_results.items()}
    copied.blob_refs = {job_id: refs.copy() for job_id, refs in file.blob_refs.items()}
    copied.numbers_by_job = {job_id: dict(numbers) for job_id, numbers in file.numbers_by_job.items()}
    return copied


class Database:
    """The server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.file = SharedFile()
        self.down = self.slow = False
        # Which server this is: connections to the one before are broken.
        self.server = 0
        self.rng = random.Random(f"database {world.seed}")  # a simulation's chance, no secret
        self._durable: SharedFile | None = None
        self._waiting: list[Callable[[], None]] = []

    @property
    def lags(self) -> bool:
        """Whether its standby does: nothing that is written is answered."""
        return self._durable is not None

    @property
    def durable(self) -> SharedFile:
        """What a failover leaves."""
        return self._durable or self.file

    def lag(self) -> None:
        """The standby that commits wait for stops following."""
        if self._durable is None:
            copied = copy_file(self.file)
            assert isinstance(copied, SharedFile)
            self._durable = copied

    def catch_up(self) -> None:
        """It follows again: what waited is durable now."""
        self._durable = None
        waiting, self._waiting = self._waiting, []
        for tell in waiting:
            tell()

    def when_durable(self, tell: Callable[[], None]) -> None:
        """Have something told once all that was written so far is durable; never, where it is lost."""
        if self._durable is None:
            tell()
        else:
            self._waiting.append(tell)

    def fail_over(self) -> None:
        """The standby is promoted: what it has not got is gone, and was never answered."""
        if self._durable is not None:
            self.put_in_place(self._durable)

    def put_in_place(self, file: MemoryFile) -> None:
        """Another server, with what that one has."""
        copied = copy_file(file)
        assert isinstance(copied, SharedFile)
        self.file, self._durable = copied, None
        self.server += 1
        self._waiting.clear()


class Link:
    """One hub's way to the database: a question is answered once, or given up."""

    def __init__(self, process: Process, database: Database, timings: Timings) -> None:
        self.process, self.database = process, database
        self._answer_ms = round(timings.answer_s * 1000)
        self.cut = self.mute = False
        # Which server the connections go to; that they broke is found out by the first question.
        self._server = database.server

    @property
    def sound(self) -> bool:
        """Whether a question would be answered now."""
        return not (self.cut or self.mute or self.database.down)

    def ask(
        self,
        work: Callable[[], Any],
        answered: Callable[[Any], None],
        unanswered: Callable[[], None],
        writes: bool = True,
    ) -> None:
        """Send a statement."""
        rng, world = self.database.rng, self.process.world
        delay_ms = rng.randint(50, 900) if self.database.slow else rng.randint(0, 2)
        asked = _Asked(self, answered, unanswered)
        self.process.at(self._answer_ms, asked.give_up)
        world.at(delay_ms, self._arrive, asked, work, writes, delay_ms, self._server)
        self._server = self.database.server

    def _arrive(
        self, asked: _Asked, work: Callable[[], Any], writes: bool, back_ms: int, server: int
    ) -> None:
        database, world = self.database, self.process.world
        if self.cut or database.down or database.server != server:
            self.process.at(database.rng.randint(0, REFUSED_MS), asked.give_up)
            return
        result = work()

        def reply() -> None:
            world.at(back_ms, asked.hear, result, server)

        if writes:
            database.when_durable(reply)
        else:
            reply()


class _Asked:
    """A statement that is under way."""

    def __init__(self, link: Link, answered: Callable[[Any], None], unanswered: Callable[[], None]) -> None:
        self._link, self._answered, self._unanswered = link, answered, unanswered
        self._over = False

    def hear(self, result: Any, server: int) -> None:
        link = self._link
        if link.sound and link.database.server == server:
            link.process.run(self._end, self._answered, result)

    def give_up(self) -> None:
        self._end(self._unanswered)

    def _end(self, tell: Callable[..., None], *result: Any) -> None:
        if not self._over:
            self._over = True
            tell(*result)


class SharedStore(MemoryStore):
    """A hub's view of the database. What is written here has the conditions of the statements in PostgreSQL."""

    def __init__(self, database: Database, holder: str, place: int) -> None:
        super().__init__(database.file)
        self._database, self.holder, self.place = database, holder, place
        # The newest turn that was given out, which the database may have lost.
        self.last_seq = 0
        # For how long the row had not changed when it was taken.
        self.quiet_ms = 0

    @property
    def file(self) -> SharedFile:  # another server may be behind it by now
        return self._database.file

    @file.setter
    def file(self, file: MemoryFile) -> None:
        """It is the database's."""

    def begin_epoch(self) -> int:
        """It was taken before."""
        return self.epoch

    # --- the leader's row -------------------------------------------------------------------------------------------

    def look(self) -> Seen:
        """Read the row."""
        file = self.file
        return Seen(file.epoch, file.beat, file.holder, str(file.place), file.row_now_ms)

    def take(self, seen: Seen, at_least: int) -> int:
        """Take the row as it was seen; 0 where it is not like that any more."""
        file = self.file
        if (file.epoch, file.beat) != seen.mark:
            return 0
        file.epoch = max(file.epoch + 1, at_least)
        file.beat, file.holder, file.place = 0, self.holder, self.place
        now_ms = self._database.world.now_ms
        self.quiet_ms, file.beaten_ms = now_ms - file.beaten_ms, now_ms
        return file.epoch

    def renew(self, epoch: int, now_ms: int) -> bool:
        """Beat once."""
        file = self.file
        if (file.epoch, file.holder) != (epoch, self.holder):
            return False
        file.beat += 1
        file.row_now_ms = max(file.row_now_ms, now_ms)
        file.now_ms = max(file.now_ms, now_ms)
        file.beaten_ms = self._database.world.now_ms
        return True

    def resign(self, epoch: int) -> bool:
        """Let go of the row."""
        file = self.file
        if (file.epoch, file.holder) != (epoch, self.holder):
            return False
        file.holder, file.beat = "", file.beat + 1
        return True

    def pass_epoch(self, epoch: int, wanted: int) -> bool:
        """Raise one's own epoch, or find that it was done."""
        file = self.file
        if file.epoch not in (epoch, wanted) or file.holder != self.holder:
            return False
        file.epoch = wanted
        return True

    # --- under a share of it ----------------------------------------------------------------------------------------

    def try_commit(self, turn: Turn) -> bool:
        """Keep a turn, if this hub leads."""
        if (self.file.epoch, self.file.holder) != (self.epoch, self.holder):
            return False
        self.commit(turn)
        return True

    def look_for(self, seq: int) -> Found:
        """The epoch of a turn, if it is there, and how far the store is."""
        entry = self.file.log.get(seq)
        epoch = entry.epoch if entry is not None else None
        return Found(epoch, self.position().seq, self.file.applied_seq)

    def try_project(self, projection: Projection, written_seq: int) -> bool:
        """Keep rows, if this hub leads, the log has their turn, and the rows are there that were written before."""
        ours = (self.file.epoch, self.file.holder) == (self.epoch, self.holder)
        if not ours or projection.applied_seq > self.position().seq or self.file.applied_seq < written_seq:
            return False
        self.project(projection)
        return True
