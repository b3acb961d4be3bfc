"""Hears what was committed, finds who is to be told, keeps a record, and tells them, one receiver apart from the other.

Off the turn: hearing a note costs a look at its kind, and of jobs that nobody is told of one look into their spec.
Nothing here waits for a receiver but that receiver's own line. Told at least once, under an id by which a receiver can
drop what it has heard before: what is not recorded when a hub dies is found again in the log, what was under way is
sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.notifications import SITE_EVENTS, Notifications, Receiver
from dray.core.model.records.records import Job
from dray.core.model.specs.notifying import read_url
from dray.errors import DrayError, NotReady
from dray.hub.access.caller import Caller
from dray.hub.answers.job_documents import JobDocuments
from dray.hub.answers.service import Document
from dray.hub.decisions.notifying import NOTES, Target, event_of, find_targets
from dray.hub.documents.records import moment
from dray.hub.engine.engine import Engine
from dray.hub.notifications.outbox import Outbox, Told, Wanted
from dray.hub.notifications.sending import Failed, read_secret, run_command, send_mail, send_webhook
from dray.hub.rows import Rows, job_row
from dray.hub.store.base import Store

# What waits in memory to be recorded, and then for one receiver, or one user's own; the rest is counted and dropped.
MOST_HEARD = 10_000
MOST_WAITING = 1_000
GIVE_UP_MS = 24 * 3_600_000
SWEEP_S = 60.0
AGAIN_S = 5.0
PAGE = 500
# At once: the policy's own receivers, and those that jobs name, which must not hold up the others.
SITE_SENDS, JOB_SENDS = 8, 8
_BODY = (
    "id name user queue state exit_class exit_code signal error labels tasks worker submitted_at started_at ended_at"
).split()
_decode_notes = msgspec.msgpack.Decoder(list[tuple[str, str, str, str, dict[str, Any]]]).decode
logger = logging.getLogger("dray.hub.notifications")


class _Heard(NamedTuple):
    """`targets` is None where the job has left memory: who is told of it is found out when it is written down."""

    seq: int
    note: Note
    event: str
    targets: Sequence[Target] | None


class _Side(NamedTuple):
    """Threads for what cannot be awaited (names, mail), and how much goes on at once."""

    pool: ThreadPoolExecutor
    room: asyncio.Semaphore


class Notifier:
    """One hub's. Made with its engine, run beside it, cancelled with it."""

    def __init__(
        self,
        home: Path,
        engine: Engine,
        store: Store,
        rows: Rows,
        documents: JobDocuments,
        retries_s: Sequence[float],
    ) -> None:
        self._home, self._engine, self._store, self._rows, self._documents = (
            home,
            engine,
            store,
            rows,
            documents,
        )
        self._retries_s = retries_s
        self._outbox = Outbox(home / "notifications.sqlite")
        self._heard: list[_Heard] = []
        self._lost = 0
        self._bell = asyncio.Event()
        self._lanes: dict[str, list[Told]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiting: Counter[str] = Counter()
        self._begun: OrderedDict[str, None] = OrderedDict()

    # --- hearing, on the loop, after the commit -----------------------------------------------------------------------

    def hear(self, note: Note) -> None:
        """Take a committed note in, where somebody is to be told of it."""
        if note.type not in NOTES:
            return
        job = self._engine.state.jobs.get(note.job_id)
        if note.job_id and job is None:
            # An alarm about a job may be over after its job.
            self._keep(_Heard(self._engine.seq, note, event_of(note), None))
        else:
            self._take(self._engine.seq, note, job)

    def _take(self, seq: int, note: Note, job: Job | None) -> None:
        if note.job_id and job is None:
            return
        event = event_of(note)
        targets = find_targets(self._engine.state.policy.notifications, event, job)
        if not targets or (event == "started" and not self._begins(note.job_id)):
            return
        self._keep(_Heard(seq, note, event, targets))

    def _keep(self, heard: _Heard) -> None:
        if len(self._heard) >= MOST_HEARD:
            self._lost += 1
            return
        self._heard.append(heard)
        self._bell.set()

    def _begins(self, job_id: str) -> bool:
        """Whether no other task of the job was seen to start."""
        if job_id in self._begun:
            return False
        self._begun[job_id] = None
        if len(self._begun) > MOST_HEARD:
            self._begun.popitem(last=False)
        return True

    # --- what runs beside the engine ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Go on where the last hub stopped, then record and tell, until cancelled."""
        self._sides = {
            named_by_job: _Side(ThreadPoolExecutor(4, "dray-notify"), asyncio.Semaphore(most))
            for named_by_job, most in ((False, SITE_SENDS), (True, JOB_SENDS))
        }
        sweeper = asyncio.create_task(self._sweep())
        try:
            await self._keep_trying(self._resume)
            while True:
                await self._bell.wait()
                self._bell.clear()
                await self._keep_trying(lambda: self._flush(self._engine.told))
        finally:
            sweeper.cancel()
            for task in self._tasks.values():
                task.cancel()
            for side in self._sides.values():
                side.pool.shutdown(wait=False, cancel_futures=True)
            await self._outbox.close()

    async def _keep_trying(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
                return
            except NotReady:
                # The hub stops: the log has what is not recorded.
                raise asyncio.CancelledError from None
            except DrayError as fault:
                logger.error("notifications cannot be recorded, trying again: %s", fault.message)
                await asyncio.sleep(AGAIN_S)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                if not self._heard:
                    await self._outbox.add([], self._engine.told)
                await self._outbox.sweep(self._engine.clock_ms())
            except DrayError as fault:
                logger.error("notifications could not be swept: %s", fault.message)

    async def _resume(self) -> None:
        """Look through the part of the log that no hub has looked through, then go on with what waits."""
        now = self._engine.told
        waiting, upto = await self._outbox.load(now)
        self._queue(row for row in waiting)
        while upto < now:
            entries = await asyncio.to_thread(self._store.tail, upto, PAGE)
            entries = [entry for entry in entries if entry.seq <= now]
            if not entries:
                break
            for entry in entries:
                notes = [Note(*fields) for fields in _decode_notes(entry.notes)] if entry.notes else []
                for note in notes:
                    if note.type in NOTES:
                        self._take(entry.seq, note, await self._find(note.job_id) if note.job_id else None)
            upto = entries[-1].seq
            while self._heard:
                await self._flush(upto)

    async def _find(self, job_id: str) -> Job | None:
        return await self._engine.ask(lambda state: self._rows.job(job_id), job_row(job_id))

    async def _flush(self, upto: int) -> None:
        """Record what was heard, and hand it to the lines of those who are told."""
        heard, lost = self._heard[:PAGE], self._lost
        at_ms = self._engine.clock_ms()
        rows = [row for one in heard for row in await self._write(one, at_ms)]
        kept, dropped = bound(rows, self._waiting, at_ms)
        more = len(self._heard) > len(heard)
        new = await self._outbox.add([*kept, *dropped], min(upto, heard[-1].seq - 1) if more else upto)
        del self._heard[: len(heard)]
        if lost:
            self._lost -= lost
            logger.error("%d notifications were dropped: more came at once than are kept", lost)
        self._queue(row for row in new if row.state == "waiting")
        if more:
            self._bell.set()

    async def _write(self, heard: _Heard, at_ms: int) -> list[Told]:
        """Spell one event for each of those who are told."""
        note, event, targets = heard.note, heard.event, heard.targets
        if targets is None:
            known = await self._find(note.job_id)
            told = self._engine.state.policy.notifications
            targets = find_targets(told, event, known) if known is not None else ()
        job: Document = {}
        if note.job_id:
            job = await self._engine.ask(
                lambda state: self._describe(state, note.job_id), job_row(note.job_id)
            )
        site = event in SITE_EVENTS
        about: Document = ({"job": job} if job else {}) | ({"alarm": dict(note.data)} if site else {})
        text = str(note.data.get("text", event)) if site else _say(event, job)
        rows = []
        for target in targets:
            place = 0 if event == "started" else heard.seq
            mark = hashlib.sha256(
                f"{target.way}\0{target.name}\0{dict(note.data).get('key', '')}".encode()
            ).hexdigest()
            told_id = f"{place}-{note.job_id or 'hub'}-{event}-{mark[:10]}"
            body = {"id": told_id, "event": event, "at": moment(at_ms), "text": text, **about}
            packed = msgspec.json.encode(body)
            user = str(job.get("user", ""))
            fields = (told_id, event, note.job_id, user, target.way, target.name, target.named_by_job)
            rows.append(Told(*fields, "waiting", 0, at_ms, at_ms, 0, "", packed))
        return rows

    def _describe(self, state: State, job_id: str) -> Document:
        job = self._rows.job(job_id)
        if job is None:
            return {"id": job_id}
        whole = self._documents.whole(state, job)
        return {name: whole[name] for name in _BODY if name in whole}

    # --- telling ------------------------------------------------------------------------------------------------------

    def _queue(self, rows: Iterable[Told]) -> None:
        for row in rows:
            self._waiting[row.owner] += 1
            self._lanes.setdefault(row.lane, []).append(row)
            if row.lane not in self._tasks:
                self._tasks[row.lane] = asyncio.create_task(self._serve(row.lane))

    async def _serve(self, lane: str) -> None:
        """Tell one receiver. Who does not answer is asked again later, after the others that wait: one that can never
        be told must not keep them back, and many must not be tried in a row where nobody listens.
        """
        waiting, failures = self._lanes[lane], 0
        while waiting:
            row = await self._try(waiting.pop(0), failures)
            try:
                await self._outbox.note(row)
            except DrayError as fault:
                logger.error("how a notification ended could not be recorded: %s", fault.message)
            if row.state == "waiting":
                failures += 1
                waiting.append(row)
                await asyncio.sleep(max(0, row.due_ms - self._engine.clock_ms()) / 1000)
            else:
                failures = 0 if row.state == "sent" else failures
                self._waiting[row.owner] -= 1
        del self._lanes[lane], self._tasks[lane]

    async def _try(self, row: Told, failures: int) -> Told:
        side = self._sides[row.named_by_job]
        state, final = "failed", False
        try:
            async with side.room:
                detail = await self._send(row, side.pool)
            state, final = "sent", True
        except Failed as fault:
            detail, final = str(fault), fault.final
        except Exception as fault:
            logger.exception("a notification could not be sent")
            detail = f"{type(fault).__name__}: {fault}"
        at_ms, tries = self._engine.clock_ms(), row.tries + 1
        if not final and at_ms - row.made_at_ms < GIVE_UP_MS:
            pause_s = self._retries_s[min(failures, len(self._retries_s) - 1)]
            return row._replace(tries=tries, due_ms=at_ms + round(pause_s * 1000), detail=detail)
        if state == "failed":
            logger.warning("notification %s to %s failed: %s", row.id, _shown(row), detail)
        return row._replace(state=state, tries=tries, ended_at_ms=at_ms, detail=detail)

    async def _send(self, row: Told, pool: ThreadPoolExecutor) -> str:
        told = self._engine.state.policy.notifications
        receiver = _named(told, row) if row.named_by_job else told.receivers.get(row.target)
        if receiver is None:
            raise Failed(f"the policy has no receiver {row.target!r} any more", final=True)
        if receiver.command:
            env = {"DRAY_NOTIFICATION": row.id, "DRAY_EVENT": row.event, "DRAY_JOB": row.job_id}
            return await run_command(receiver.command, env, row.body)
        if receiver.mail:
            return await self._mail(row, told, receiver, pool)
        url = read_url(receiver.webhook)
        assert url is not None  # the policy and the spec were checked
        secret = await self._secret(receiver.secret)
        headers = (("X-Dray-Id", row.id), ("X-Dray-Event", row.event))
        networks = told.jobs.networks if row.named_by_job else None
        return await send_webhook(url, headers, row.body, secret, pool, networks)

    async def _mail(
        self, row: Told, told: Notifications, receiver: Receiver, pool: ThreadPoolExecutor
    ) -> str:
        if not (told.smtp.host and told.smtp.sender):
            raise Failed("the policy has no mail server any more", final=True)
        document = msgspec.json.decode(row.body)
        about = document.get("alarm", {}) | document.get("job", {})
        details = "\n".join(f"{name}: {value}" for name, value in about.items() if value not in ("", None))
        password = await self._secret(told.smtp.secret if told.smtp.user else "")
        return await send_mail(told.smtp, receiver.mail, row.id, document["text"], details, password, pool)

    async def _secret(self, name: str) -> bytes:
        return await asyncio.to_thread(read_secret, self._home, name) if name else b""

    # --- what is asked ------------------------------------------------------------------------------------------------

    async def list(self, caller: Caller, wanted: Wanted) -> Document:
        """What was told, newest first: of one's own jobs, or for an admin all of it."""
        if not caller.may("admin"):
            wanted = wanted._replace(user=caller.user)
        found = await self._outbox.list(wanted._replace(limit=wanted.limit + 1))
        shown = found[: wanted.limit]
        more = str(shown[-1][0]) if len(found) > len(shown) else None
        return {"notifications": [_document(row) for _, row in shown], "next_cursor": more}


def bound(rows: Sequence[Told], waiting: Mapping[str, int], at_ms: int) -> tuple[list[Told], list[Told]]:
    """Those there is room for; of the others one row for each receiver, that says how many."""
    kept: list[Told] = []
    over: dict[str, list[Told]] = {}
    room = {row.owner: MOST_WAITING - waiting.get(row.owner, 0) for row in rows}
    for row in rows:
        if room[row.owner] > 0:
            room[row.owner] -= 1
            kept.append(row)
        else:
            over.setdefault(row.owner, []).append(row)
    dropped = [
        left[0]._replace(
            state="dropped", ended_at_ms=at_ms, detail=f"{len(left)} dropped: {MOST_WAITING} wait already"
        )
        for left in over.values()
    ]
    return kept, dropped


def _named(told: Notifications, row: Told) -> Receiver:
    """What a job itself named, as a receiver; by the rules for jobs as they are now."""
    if row.way == "mail":
        return Receiver(mail=(row.target,))
    if told.jobs.webhooks == "none" and not told.jobs.networks:
        raise Failed("jobs may name no addresses any more", final=True)
    return Receiver(webhook=row.target, secret=told.jobs.secret)


def _shown(row: Told) -> str:
    url = read_url(row.target) if row.named_by_job else None
    return url.shown if url is not None else row.target


def _say(event: str, job: Document) -> str:
    name = f"{job['name']} ({job['id']})" if job.get("name") else str(job["id"])
    text = f"job {name} of {job.get('user', '?')} {_VERBS.get(event, event)}"
    if event == "failed":
        why = job.get("error") or job.get("exit_class") or job.get("state", "")
        counts = job.get("tasks") or {}
        if counts.get("total", 1) > 1:
            bad = sum(counts[state] for state in ("failed", "worker_failed", "unschedulable"))
            why = f"{bad} of {counts['total']} tasks"
        text += f": {why}" if why else ""
    return text


_VERBS = {"done": "is done", "killed": "was killed", "preempted": "was preempted"}


def _document(row: Told) -> Document:
    return {
        "id": row.id,
        "event": row.event,
        "job_id": row.job_id,
        "user": row.user,
        "way": row.way,
        "to": _shown(row),
        "state": row.state,
        "tries": row.tries,
        "at": moment(row.made_at_ms),
        "next_try_at": moment(row.due_ms) if row.state == "waiting" and row.tries else None,
        "ended_at": moment(row.ended_at_ms),
        "detail": row.detail,
    }
