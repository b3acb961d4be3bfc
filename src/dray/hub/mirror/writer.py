"""The mirror's own loop: takes what the hub hands in, keeps the shadow, and has each server brought on by its task.

Who writes is decided by a lock with a lifetime: of two hubs the one of the later epoch, and within an epoch the one
that stands by, so that the leader has less to do. A writer that cannot reach the lock goes on: the fence inside each
script makes two of them harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Iterator

from dray.core.model.records.records import Job
from dray.hub.mirror.connection import Address
from dray.hub.mirror.groups import Group
from dray.hub.mirror.keys import find_slot, name_job, name_lock
from dray.hub.mirror.node import AGAIN_S, Away, Common, Fence, Full, Moved, Node, Refused, Unfit
from dray.hub.mirror.ports import Inbox, Notes, Rows, Source
from dray.hub.mirror.routing import Map, Place, learn
from dray.hub.mirror.scripts import LOCK, UNLOCK
from dray.hub.mirror.shadow import Shadow
from dray.hub.mirror.stories import Stories

LOCK_MS, LOCK_EVERY_S, LOCK_WAIT_S = 5_000, 1.5, 10.0
LEARN_S, TICK_S = 30.0, 0.5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
PORTION = 2_000
_log = logging.getLogger("dray.hub.mirror")


class Writer:
    """Runs on the mirror's thread alone; others read `state`, `words`, `lag_s` and `rebuilds`."""

    def __init__(
        self,
        address: Address,
        source: Source,
        inbox: Inbox,
        *,
        prefix: str,
        documents_s: float,
        nonce: str,
        rank: int,
        words: str,
    ) -> None:
        self._address, self._source, self._inbox = address, source, inbox
        self._rank, self._who, self._nonce = rank, words, nonce
        self._prefix = prefix
        self._shadow = Shadow(prefix)
        self._common = Common(self._shadow, prefix, nonce, documents_s)
        self._stories = Stories(self._shadow, self._common, source)
        self._map: Map | None = None
        self._nodes: dict[Place, Node] = {}
        self._tasks: dict[Place, asyncio.Task[None]] = {}
        self._bell, self._relearn = asyncio.Event(), asyncio.Event()
        self._began_s = self._locked_s = time.monotonic()
        self._loaded, self._mine, self._fenced = False, False, False
        self._trouble = self._other = ""
        self._reading = False

    # --- for others to see ------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """How it stands, in one word: the worst of all servers."""
        if self._fenced or self._other:
            return "another"
        states = [node.state for node in list(self._nodes.values())] or ["away"]
        for state in ("unsafe", "full", "refused", "away"):
            if state in states:
                return state
        return "writes" if self._loaded and self._mine else "loading"

    @property
    def words(self) -> str:
        """What is to be known beside that."""
        if self._fenced:
            return "a hub of a later epoch writes"
        if self._other:
            return f"{self._other} writes"
        told = [node.words for node in list(self._nodes.values()) if node.words]
        return "; ".join(told or filter(None, (self._trouble,)))

    @property
    def lag_s(self) -> float:
        """For how long something has waited to be written; nothing waits where another writes."""
        now_s = time.monotonic()
        if self._fenced or self._other:
            return 0.0
        if not self._loaded:
            return now_s - self._began_s
        return max((group.lag_s(now_s) for group in self._shadow.groups), default=0.0)

    @property
    def rebuilds(self) -> int:
        """How often a queue, or the site, was made anew."""
        return self._common.rebuilds

    @property
    def seq(self) -> int:
        """The last turn that was taken in."""
        return self._shadow.seq

    @property
    def is_settled(self) -> bool:
        """Whether all is written, documents too."""
        documents = any(node.documents for node in list(self._nodes.values()))
        due = any(group.whole or group.is_due for group in self._shadow.groups)
        return self.state == "writes" and not (
            due or documents or self._common.lost_something or self._reading
        )

    # --- taking in --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Go on until cancelled."""
        self._shadow.epoch = self._source.epoch
        sides = [asyncio.create_task(work) for work in (self._steer(), self._keep_documents())]
        try:
            await self._take_all()
        finally:
            await _end([*sides, *self._tasks.values()])

    def ring(self) -> None:
        """Something was handed in."""
        self._bell.set()

    async def _take_all(self) -> None:
        loading = asyncio.create_task(self._load())
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._bell.wait(), TICK_S)
                self._bell.clear()
                items, overflowed = self._inbox.drain()
                if overflowed:
                    _log.warning("mirror: too much came in at once: all rows are read anew")
                    await _end([loading])
                    self._stories.missed()
                    loading = asyncio.create_task(self._load())
                for some in _slices(items, 20):
                    self._take(some)
                    await asyncio.sleep(0)
                await self._stories.go_on()
                for node in self._nodes.values():
                    node.bell.set()
        finally:
            await _end([loading])

    def _take(self, items: list[Rows | Notes]) -> None:
        ended: list[str] = []
        for item in items:
            if isinstance(item, Notes):
                self._stories.add(item)
                continue
            if item.epoch != self._shadow.epoch:
                self._shadow.epoch = item.epoch
                self._doubt_all()
            self._shadow.fold(item.jobs, item.attempts, item.workers, item.gone_workers, item.at_s)
            self._shadow.seq = max(self._shadow.seq, item.seq)
            for job in item.jobs:
                self._note_job(job, item.seq, newest=True)
            ended += [job.id for job in item.jobs if job.state.final]
            ended += [attempt.job_id for attempt in item.attempts if not attempt.phase.live]
        self._stories.tell()
        self._shadow.release(ended)

    def _note_job(self, job: Job, seq: int, newest: bool) -> None:
        if self._common.documents_s and (node := self._node_of(job.id)) is not None:
            node.note_job(job, seq, newest)

    def _node_of(self, job_id: str) -> Node | None:
        if self._map is None:
            return None
        if self._map.single:
            place: Place | None = next(iter(self._map.places))
        else:
            place = self._map.find(find_slot(name_job(self._prefix, job_id)))
        return self._nodes.get(place) if place is not None else None

    def _doubt_all(self) -> None:
        now_s = time.monotonic()
        for group in self._shadow.groups:
            group.doubt(now_s)

    async def _load(self) -> None:
        """Read all rows; what comes in meanwhile is newer and wins."""
        self._loaded, self._began_s = False, time.monotonic()
        self._common.generation += 1
        await self._read_rows()
        self._shadow.end_load()
        self._doubt_all()
        self._trouble, self._loaded = "", True
        self._common.lost_something = True
        for node in self._nodes.values():
            node.bell.set()

    async def _read_rows(self) -> None:
        while True:
            self._shadow.begin_load()
            try:
                found = await asyncio.to_thread(self._source.live_rows)
                while portion := await asyncio.to_thread(list, itertools.islice(found.rows, PORTION)):
                    self._shadow.load(portion, time.monotonic())
            except Exception as error:  # noqa: BLE001 - the store may be away, or end: nothing here may end the mirror
                self._trouble = f"the rows cannot be read: {error}"
                _log.warning("mirror: %s", self._trouble)
                await asyncio.sleep(1.0)
            else:
                self._shadow.seq = max(self._shadow.seq, found.applied_seq)
                return

    async def _keep_documents(self) -> None:
        """Write the documents of all live jobs where some may be missing; slowly, and only what is not newer there."""
        while True:
            await asyncio.sleep(TICK_S)
            common = self._common
            calm = self._loaded and self._mine and not any(group.whole for group in self._shadow.groups)
            if not (common.documents_s and common.lost_something and calm):
                continue
            common.lost_something, self._reading = False, True
            try:
                found = await asyncio.to_thread(self._source.live_rows)
                while portion := await asyncio.to_thread(list, itertools.islice(found.rows, PORTION)):
                    for row in portion:
                        if type(row) is Job:
                            self._note_job(row, found.applied_seq, newest=False)
                    await self._let_write()
            except Exception as error:  # noqa: BLE001 - as above
                common.lost_something = True
                _log.warning("mirror: documents cannot be read: %s", error)
            finally:
                self._reading = False

    async def _let_write(self) -> None:
        for node in list(self._nodes.values()):
            if node.documents and node.is_open:
                node.emptied.clear()
                node.bell.set()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(node.emptied.wait(), AGAIN_S)
            if node.documents and not node.is_open:
                node.documents.clear()
                self._common.lost_something = True

    # --- servers ----------------------------------------------------------------------------------------------------

    async def _steer(self) -> None:
        """Find the servers, and find them again when one of them says that it is not the one."""
        pause_s = FIRST_PAUSE_S
        while True:
            self._relearn.clear()
            try:
                found = await learn(self._address, list(self._nodes))
            except Away as error:
                self._trouble = str(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            pause_s, self._trouble = FIRST_PAUSE_S, ""
            await self._adopt(found)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._relearn.wait(), LEARN_S)
            await asyncio.sleep(FIRST_PAUSE_S)

    async def _adopt(self, found: Map) -> None:
        before, self._map = self._map, found
        if before is not None:
            for group in self._shadow.groups:
                if before.find(group.slot) != found.find(group.slot):
                    group.doubt(time.monotonic())
                    self._common.lost_something = True
        for place in found.places - self._nodes.keys():
            node = self._nodes[place] = Node(self._address, place, self._common)
            self._tasks[place] = asyncio.create_task(self._serve(node))
        gone = [place for place in self._nodes if place not in found.places]
        for place in gone:
            del self._nodes[place]
            await _end([self._tasks.pop(place)])

    async def _serve(self, node: Node) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await node.open()
                await node.compare(self._mine_of(node), time.monotonic())
                pause_s = FIRST_PAUSE_S
                while True:
                    await self._cycle(node)
            except (Away, Moved) as error:
                node.set_state("away", str(error))
                self._relearn.set()
            except Unfit as error:
                node.set_state("unsafe", str(error))
                pause_s = AGAIN_S
            except Full as error:
                node.set_state("full", str(error))
                with contextlib.suppress(Away):
                    await node.trim(self._mine_of(node))
                pause_s = AGAIN_S
            except Refused as error:
                node.set_state("refused", str(error))
                pause_s = LONGEST_PAUSE_S
            except Exception as error:  # noqa: BLE001 - nothing may end the mirror but its hub
                _log.exception("mirror: writing to %s failed", node.place)
                node.set_state("refused", f"{type(error).__name__}: {error}")
                pause_s = AGAIN_S
            finally:
                await node.close()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _mine_of(self, node: Node) -> list[Group]:
        found = self._map
        return [
            group
            for group in self._shadow.groups
            if found is not None and found.find(group.slot) == node.place
        ]

    async def _cycle(self, node: Node) -> None:
        """One round: who writes, is it as it was written, make anew, bring on, documents; then wait for more."""
        node.bell.clear()
        if self._map is not None and self._map.find(self._shadow.site.slot) == node.place:
            await self._lock(node)
        elif not self._mine and not self._other and time.monotonic() - self._began_s > LOCK_WAIT_S:
            # The server that has the lock is away: the fence is enough.
            self._mine = True
        if self._mine and self._loaded:
            mine = self._mine_of(node)
            if node.is_to_check:
                await node.compare(mine, time.monotonic())
            try:
                await node.rebuild(mine)
                await node.flush(mine)
                await node.write_documents(self._map is not None and self._map.single)
            except Fence:
                self._fenced, self._mine = True, False
                _log.warning("mirror: a hub of a later epoch has written: this one does not any more")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(node.bell.wait(), TICK_S)

    # --- who writes -------------------------------------------------------------------------------------------------

    async def _lock(self, node: Node) -> None:
        now_s = time.monotonic()
        if self._mine and now_s - self._locked_s < LOCK_EVERY_S:
            return
        words = (self._shadow.epoch, self._rank, self._nonce, self._who, LOCK_MS)
        held = await node.ask(*LOCK.call((name_lock(self._prefix),), words))
        self._locked_s = now_s
        if held:
            self._mine = False
            self._other = held.decode(errors="replace").partition(" ")[2].partition(" ")[2].partition(" ")[2]
            self._other = self._other or "another hub"
            return
        if not self._mine and not self._fenced:
            await self._stories.recall(await node.ask("HGET", self._shadow.site.names.stats, "events_seq"))
            if self._loaded and self._other:
                self._doubt_all()
            self._mine = True
        self._other = ""

    async def let_go(self) -> None:
        """Write what is left, then let another write, before the end; short, whatever the servers do."""
        found = self._map
        place = found.find(self._shadow.site.slot) if found is not None else None
        node = self._nodes.get(place) if place is not None else None
        if node is None or not self._mine:
            return
        await _end([self._tasks.pop(node.place)])
        with contextlib.suppress(Away, Moved, Full, Refused, Fence):
            await node.open()
            if self._loaded:
                await node.flush(self._mine_of(node))
                await node.write_documents(found is not None and found.single)
            await node.ask(*UNLOCK.call((name_lock(self._prefix),), (self._nonce,)))
            await node.close()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _slices(items: list[Rows | Notes], size: int) -> Iterator[list[Rows | Notes]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
