"""What is written to one server: its groups compared, made anew where in doubt, brought on; and documents of jobs.

One task per server, so that one which is stopped or gone holds up nobody else. Nothing is believed of a server that was
away, or for long: what it says of each group, and how much its keys hold, is compared with what was written.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from dray.core.model.records.records import Job
from dray.hub.mirror.connection import Address, Away, Command, Connection, Unfit
from dray.hub.mirror.documents import spell_as_of, spell_job
from dray.hub.mirror.groups import EVENTS, MOST_MEMBERS, Changes, Group, Known, Part
from dray.hub.mirror.keys import name_job
from dray.hub.mirror.routing import Place
from dray.hub.mirror.scripts import (
    APPLY,
    DIFFERS,
    DOCUMENTS,
    DONE,
    DRAFT_S,
    FENCED,
    FINISH,
    GAP,
    NEWER,
    Stamp,
    spell_members,
    spell_part,
)
from dray.hub.mirror.shadow import QUEUES, WORKERS, Shadow

CHECK_S = 5.0
AGAIN_S = 5.0
SLICE = 5_000
DOCUMENTS_AT_ONCE = 200
MOST_DOCUMENTS = 20_000
TRIMMED = 1_000
_log = logging.getLogger("dray.hub.mirror")
# Errors after which the server is to be dialled anew, or the cluster asked who has the slot.
_ELSEWHERE = ("MOVED", "ASK", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "MASTERDOWN", "CROSSSLOT")
_LATER = ("LOADING", "BUSY", "NOSCRIPT", "UNBLOCKED")


class Moved(Exception):
    """A server does not serve what it was asked for: the cluster is to be asked again."""


class Full(Exception):
    """A server has no memory left for it."""


class Refused(Exception):
    """A server does not take what it is sent, and says why."""


class Fence(Exception):
    """Another hub, of a later epoch, has written."""


class Common:
    """What all servers of one mirror share."""

    def __init__(self, shadow: Shadow, prefix: str, nonce: str, documents_s: float) -> None:
        self.shadow, self.prefix, self.nonce = shadow, prefix, nonce
        self.documents_s = round(documents_s)
        self.rebuilds = 0
        # Rises whenever all rows are read anew: what was made of the old ones is not to be finished.
        self.generation = 0
        # The turn up to which events were handed on.
        self.told_seq = 0
        self.lost_something = False


class Node:
    """One server and what is known of it. `mine` lists the groups that lie there."""

    def __init__(self, address: Address, place: Place, common: Common) -> None:
        self.place, self._address, self._common = place, address, common
        self.state, self.words = "away", ""
        self.bell, self.emptied = asyncio.Event(), asyncio.Event()
        self.documents: dict[str, tuple[Job, int]] = {}
        self._line: Connection | None = None
        self._checked_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether it answers and may be written to."""
        return self._line is not None and self.state == "writes"

    def set_state(self, state: str, words: str = "") -> None:
        """Note how it is, and tell the log where that is new."""
        if (state, words) != (self.state, self.words):
            level = logging.INFO if state == "writes" else logging.WARNING
            _log.log(level, "mirror: %s: %s %s", self.place, state, words)
        self.state, self.words = state, words

    async def open(self) -> None:
        """Dial."""
        line = Connection(self._address, *self.place)
        try:
            await line.open()
        except BaseException:
            await line.close()
            raise
        self._line = line

    async def close(self) -> None:
        """Hang up."""
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    async def ask(self, *command: Any) -> Any:
        """Ask one thing; errors are raised."""
        (answer,) = await self._send([command])
        return answer

    async def _send(self, commands: Sequence[Command]) -> list[Any]:
        assert self._line is not None, "opened before"
        answers = await self._line.send(commands)
        for answer in answers:
            if isinstance(answer, Exception):
                raise _judge(self.place, answer)
        return answers

    # --- is it what was written? ------------------------------------------------------------------------------------

    async def compare(self, groups: Iterable[Group], now_s: float) -> None:
        """Hold what the server says of each group, and how much its keys hold, against what was written."""
        assert self._line is not None, "opened before"
        words = await self._line.examine()
        self._checked_s = now_s
        known = [group for group in groups if not group.whole]
        commands: list[Command] = []
        for group in known:
            names, kinds = group.names, group.kinds
            commands.append(("HMGET", names.stats, "epoch", "seq"))
            commands += [(kinds[0].size, names.first), (kinds[1].size, names.second)]
        answers = await self._send(commands)
        for number, group in enumerate(known):
            (epoch, seq), *counts = answers[3 * number : 3 * number + 3]
            found = Known(int(epoch or -1), int(seq or -1), (counts[0], counts[1]))
            if found not in (group.written, group.sent) and not group.whole:
                _log.warning(
                    "mirror: %s holds %s, not %s: it is made anew", group.names.stats, found, group.written
                )
                group.doubt(now_s)
                self._common.lost_something = True
        self.set_state("writes", words)

    @property
    def is_to_check(self) -> bool:
        """Whether it has not been looked at for a while."""
        return time.monotonic() - self._checked_s > CHECK_S

    # --- bring on ---------------------------------------------------------------------------------------------------

    async def flush(self, groups: Iterable[Group]) -> None:
        """Write what has changed."""
        shadow, sent = self._common.shadow, []
        commands: list[Command] = []
        for group in groups:
            if group.whole or not group.is_due or group.written is None:
                continue
            stats, counts = self._stats(group)
            stamp = Stamp(shadow.epoch, group.written.seq, shadow.seq, stats, counts)
            parts = list(group.take_parts())
            for part in parts:
                names = group.names
                commands.append(APPLY.call(names, spell_part(group, part, stamp, EVENTS)))
            sent.append((group, parts, stamp))
            group.sent = Known(stamp.epoch, stamp.seq, counts)
        await self._deliver(sent, commands)

    async def _deliver(self, sent: list[tuple[Group, list[Part], Stamp]], commands: list[Command]) -> None:
        assert self._line is not None, "opened before"
        if not commands:
            return
        try:
            answers = await self._line.send(commands)
        except BaseException:
            for group, parts, _ in sent:
                group.put_back(parts, time.monotonic())
            raise
        trouble: Exception | None = None
        for group, parts, stamp in sent:
            mine, answers = answers[: len(parts)], answers[len(parts) :]
            trouble = self._settle(group, parts, stamp, mine) or trouble
        if trouble is not None:
            raise trouble

    def _settle(self, group: Group, parts: list[Part], stamp: Stamp, answers: list[Any]) -> Exception | None:
        now_s = time.monotonic()
        odd = next((answer for answer in answers if answer != DONE), None)
        if odd is None:
            group.settle(Known(stamp.epoch, stamp.seq, stamp.counts), stamp.stats)
            return None
        group.put_back(parts, now_s)
        if odd == FENCED:
            return Fence(str(self.place))
        if odd in (GAP, DIFFERS):
            _log.warning(
                "mirror: %s is not as it was written (%s): it is made anew", group.names.stats, odd.decode()
            )
            group.doubt(now_s)
            self._common.lost_something = True
        elif odd != NEWER:
            found = _judge(self.place, odd)
            if isinstance(found, Moved) or str(odd).startswith("WRONGTYPE"):
                group.doubt(now_s)
            return found
        return None

    def _stats(self, group: Group) -> tuple[dict[str, int | str], tuple[int, int]]:
        stats, counts = self._common.shadow.tell_stats(group)
        stats["at_ms"] = round(time.time() * 1000)
        if group.queue is None:
            stats["events_seq"] = self._common.told_seq
        return stats, counts

    # --- make anew --------------------------------------------------------------------------------------------------

    async def rebuild(self, mine: Iterable[Group]) -> None:
        """Make groups anew beside the old ones, then put them in their place; the others go on meanwhile."""
        every = list(mine)
        groups = [group for group in every if group.whole]
        if not groups:
            return
        common = self._common
        generation, shadow = common.generation, common.shadow
        if shadow.site in groups:
            await self._recall_queues()
        drafts = {group.queue: group.names.draft(common.nonce) for group in groups}
        for group in groups:
            group.begin_draft()
        await self._send([("UNLINK", *drafts[group.queue]) for group in groups])
        if shadow.site in groups:
            await self._draft(shadow.site, WORKERS, dict(shadow.workers))
            await self._draft(shadow.site, QUEUES, dict.fromkeys(shadow.lines, ""))
        queues = frozenset(group.queue for group in groups if group.queue is not None)
        job_ids = list(shadow.entries) if queues else []
        for first in range(0, len(job_ids), SLICE):
            found = shadow.collect(job_ids[first : first + SLICE], queues)
            commands: list[Command] = []
            for (queue, place), members in found.items():
                draft = drafts[queue][place]
                portions = range(0, len(members), 2 * MOST_MEMBERS)
                commands += [("ZADD", draft, *members[at : at + 2 * MOST_MEMBERS]) for at in portions]
                commands.append(("EXPIRE", draft, DRAFT_S))
            await self._send(commands)
            if common.generation != generation:
                return
            await self.flush(group for group in every if not group.whole)
        for group in groups:
            if common.generation == generation and group.drafting:
                await self._finish(group, drafts[group.queue])

    async def _recall_queues(self) -> None:
        """Queues that an earlier writer told of: those that are empty now are told to be."""
        names = await self.ask("SMEMBERS", self._common.shadow.site.names.second)
        for name in names:
            self._common.shadow.line(name.decode(errors="replace"))

    async def _draft(self, group: Group, place: int, changes: Changes) -> None:
        draft, kind = group.names.draft(self._common.nonce)[place], group.kinds[place]
        items = list(changes.items())
        commands: list[Command] = []
        for at in range(0, len(items), MOST_MEMBERS):
            some = dict(items[at : at + MOST_MEMBERS])
            if fresh := spell_members(kind.add, some):
                commands.append((kind.add, draft, *fresh))
            if gone := [member for member, value in some.items() if value is None]:
                commands.append((kind.remove, draft, *gone))
        if commands:
            await self._send([*commands, ("EXPIRE", draft, DRAFT_S)])

    async def _finish(self, group: Group, drafts: tuple[str, str]) -> None:
        while sum(map(len, group.changes)) > MOST_MEMBERS:
            for place, changes in enumerate(group.take_changes()):
                await self._draft(group, place, changes)
        shadow = self._common.shadow
        part = group.take_finish()
        stats, counts = self._stats(group)
        stamp = Stamp(shadow.epoch, 0, shadow.seq, stats, counts)
        group.told = {}
        call = FINISH.call((*group.names, *drafts), spell_part(group, part, stamp, EVENTS))
        try:
            answer = await self.ask(*call)
        except BaseException:
            group.put_back([part], time.monotonic())
            group.doubt(time.monotonic())
            raise
        if answer == DONE:
            self._common.rebuilds += 1
            group.settle(Known(stamp.epoch, stamp.seq, counts), stats)
            return
        group.put_back([part], time.monotonic())
        group.doubt(time.monotonic())
        if answer == FENCED:
            raise Fence(str(self.place))
        raise Refused(f"{group.names.stats} cannot be made anew: {answer.decode()}")

    # --- documents --------------------------------------------------------------------------------------------------

    def note_job(self, job: Job, seq: int, newest: bool) -> None:
        """A job has changed, or was read: its document is to be written."""
        if len(self.documents) >= MOST_DOCUMENTS:
            self.documents.clear()
            self._common.lost_something = True
        if newest or job.id not in self.documents:
            self.documents[job.id] = (job, seq)

    async def write_documents(self, single: bool) -> None:
        """Write documents; on one server many in a call, in a cluster each has a slot of its own."""
        if not self.documents:
            self.emptied.set()
            return
        taken, self.documents = self.documents, {}
        common, commands = self._common, []
        epoch, at_once = common.shadow.epoch, DOCUMENTS_AT_ONCE if single else 1
        items = list(taken.values())
        for at in range(0, len(items), at_once):
            some = items[at : at + at_once]
            keys = [name_job(common.prefix, job.id) for job, _ in some]
            bodies = [spell_job(job, spell_as_of(epoch, seq)) for job, seq in some]
            commands.append(DOCUMENTS.call(keys, (common.documents_s, *bodies)))
        try:
            await self._send(commands)
        except BaseException:
            self.documents = taken | self.documents
            raise
        self.emptied.set()

    async def trim(self, groups: Iterable[Group]) -> None:
        """Make room on a full server: of all that is there, old events are missed least."""
        assert self._line is not None, "opened before"
        await self._line.send([("XTRIM", group.names.events, "MAXLEN", "~", TRIMMED) for group in groups])


def _judge(place: Place, error: Any) -> Exception:
    """What an answer that is an error comes to."""
    words = str(error)
    kind = words.partition(" ")[0]
    name = type(error).__name__
    if kind == "OOM" or "OutOfMemory" in name or "command not allowed when used memory" in words:
        return Full(f"{place} has no memory left: raise maxmemory, or let something go")
    if kind in _ELSEWHERE or name in (
        "MovedError",
        "AskError",
        "ClusterDownError",
        "TryAgainError",
        "ReadOnlyError",
    ):
        return Moved(f"{place}: {words}")
    if kind in _LATER or name in ("BusyLoadingError", "NoScriptError"):
        return Away(f"{place}: {words}")
    return Refused(f"{place}: {words}")


__all__ = ["AGAIN_S", "Away", "Common", "Fence", "Full", "Moved", "Node", "Refused", "Unfit"]
