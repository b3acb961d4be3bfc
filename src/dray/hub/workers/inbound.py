"""What a worker's message means, decided inside the turn against the state as it then stands.

Messages become facts where they change something durable, and signals or plain answers where they do not: a
heartbeat that says nothing new costs no commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dray.core.lifecycle.happenings.idling import find_steps
from dray.core.lifecycle.happenings.saves import is_news
from dray.core.lifecycle.happenings.workers import stop_over
from dray.core.lifecycle.holding.attempts import adoptable
from dray.core.lifecycle.holding.lanes import missing
from dray.core.lifecycle.state.effects import Ack, Effect, LookUp, Refuse, Resume
from dray.core.lifecycle.state.events import (
    Activity,
    AttemptAccepted,
    AttemptEnded,
    AttemptSaved,
    AttemptStarted,
    AttemptYielded,
    CreditSet,
    Event,
    Heard,
    Outcome,
    Progressed,
    ResendDue,
    ResumeAsked,
    SessionOpened,
    SlotsSeen,
    UsesSeen,
    WorkerChanged,
    WorkerForgotten,
    WorkerRegistered,
    WorkerReturned,
)
from dray.core.lifecycle.state.pass_events import WarmSeen
from dray.core.lifecycle.state.service_events import HealthChanged
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.tasks.health import is_news as is_news_of_health
from dray.core.lifecycle.tasks.results import find
from dray.core.model.ids import split_task_id
from dray.core.model.records.records import LANE, Attempt
from dray.core.model.records.worker import CardUse, Use
from dray.core.model.verdicts import LAST_CHARS
from dray.hub.calls.results import record
from dray.hub.engine.turns import Leaving
from dray.hub.rows import RowKey, Rows, attempt_row, newest_row
from dray.hub.store.base import Chunk, Position
from dray.wire.messages.worker import (
    MAX_NOTE,
    CallsResult,
    Heartbeat,
    JobAccepted,
    JobLog,
    JobProgress,
    JobResult,
    JobResume,
    JobStarted,
    JobYield,
    MetricsRequest,
    ReadyForWork,
    Register,
    ServiceHealth,
    Usage,
    WorkerListRequest,
    WorkerMessage,
    WorkerShowRequest,
    read_cards,
)


def is_let_in(state: State, worker: str, session: int) -> bool:
    """Whether a session is the one under which a worker is known now."""
    presence = state.presence.get(worker)
    return presence is not None and presence.session == session


def answer_beat(state: State, worker: str, session: int, beat: int) -> Iterator[Event | Leaving]:
    """Take a heartbeat for the sign of life that it is, before whatever its worker said ahead of it.

    Safe to overtake that: any message is a sign of life from when it came, and the answer says no more than that it was
    heard. What it tells of slots and of what runs (`interpret` with `answered`) keeps its place: read before a result
    that was sent earlier, it would miss what that result ended.
    """
    if is_let_in(state, worker, session):
        yield Heard(worker)
        if state.workers[worker].silent:
            yield WorkerReturned(worker)
        yield Ack(worker, "heartbeat", beat=beat)


def interpret(
    state: State, worker: str, session: int, body: WorkerMessage, raw: bytes = b"", answered: bool = False
) -> Iterator[Event | Leaving | Chunk]:
    """Yield what follows from one message of a registered session, step by step: each step sees the one before
    folded in. `raw` is a frame of results as it came, where it may be stored so. `answered`: of a heartbeat.
    """
    if not is_let_in(state, worker, session):
        return
    yield Heard(worker)
    if state.workers[worker].silent:
        yield WorkerReturned(worker)
    if answered and type(body) is Heartbeat:
        yield from _said_by_beat(state, worker, body)
        return
    if type(body) is CallsResult:
        yield from record(state, worker, body, raw)
        return
    yield from _STEPS[type(body)](state, worker, body)


def is_outdated(state: State, epoch: int, body: Register) -> bool:
    """Whether this worker knows a hub that this one's store does not: the store is older than what once ran here.

    An equal epoch counts too unless this very hub has heard the worker: a store restored from a backup counts on from
    the backup's epoch, and would draw the uids of its lost future once more.
    """
    known = state.presence.get(body.id)
    heard = known is not None and known.seen_at_ms > 0
    return body.max_epoch_seen > epoch or (body.max_epoch_seen == epoch and not heard)


def forgettable(state: State) -> list[str]:
    """Workers that are away, hold nothing and were told nothing that must last: those that came last, first.

    So whoever floods a hub with ids displaces his own.
    """
    away = [
        worker
        for worker in state.workers.values()
        if not state.presence[worker.id].session
        and not (state.held.get(worker.id) or worker.draining or worker.given or worker.quarantined)
    ]
    return [worker.id for worker in sorted(away, key=lambda worker: worker.registered_at_ms)][::-1]


def is_forgotten(began: Position, body: Register) -> bool:
    """Whether this worker was told of a turn, by an earlier hub, that is not in what this one began with."""
    return body.max_epoch_seen < began.epoch and body.max_turn_seen > began.seq


def register_rows(body: Register) -> tuple[RowKey, ...]:
    """The rows that a register may want: of all that it says is active."""
    wants = []
    for item in body.active_tasks or ():
        job_id, index = split_task_id(item.task_id) or (item.task_id, -1)
        uid = item.attempt or ""
        wants.append(attempt_row(uid) if uid else newest_row(body.id, job_id, max(index, 0)))
    return tuple(wants)


def register(
    rows: Rows, session: int, body: Register, owner: str, most: int = 1 << 30
) -> Iterator[Event | Effect]:
    """Let a session in under its id, then record what it said of itself. `owner` is the token it came with.

    Of more than `most` workers some of those that are gone are forgotten; one that comes back is new.
    """
    state = rows.state
    if body.id not in state.workers and len(state.workers) >= most:
        for worker_id in forgettable(state)[: 1 + most // 100]:
            yield WorkerForgotten(worker_id)
    known = state.presence.get(body.id)
    again = known is not None and known.session == session and body.id in state.workers
    yield SessionOpened(body.id, session, body.incarnation or "")
    if state.presence[body.id].session != session:
        return
    yield WorkerRegistered(
        worker=body.id,
        session=session,
        capability=body.capabilities.read(),
        devices=read_cards(body.devices or []),
        labels=body.labels or {},
        slots=body.slots,
        features=tuple(body.features or ()),
        base=not body.features,
        address=body.address or "",
        incarnation=body.incarnation or "",
        journal_id=body.journal_id or "",
        boot_id=body.boot_id or "",
        active=tuple(
            _activity(rows, body.id, item.task_id, item.attempt or "", item.state)
            for item in body.active_tasks or ()
        ),
        finished=tuple(outcome_of(result) for result in body.finished_unacked or ()),
        again=again,
        resources=body.resources or {},
        owner=owner,
        ports=-1 if body.ports is None else body.ports,
        ends_at_ms=body.ends_at * 1000,
        version=body.version or "",
    )


def _activity(rows: Rows, worker: str, task: str, uid: str, said: str) -> Activity:
    job_id, index = split_task_id(task) or (task, -1)
    over, state = False, rows.state
    found = find(state, worker, job_id, index, uid)
    if found is not None:
        uid, over = found.uid, not found.phase.live and not adoptable(state, found)
    else:
        known = rows.attempt(uid) if uid else rows.newest_attempt(worker, job_id, max(index, 0))
        named = (max(index, 0), LANE) if index < 0 else (index,)
        if known is not None and (
            (known.worker, known.job_id) != (worker, job_id) or known.index not in named
        ):
            # A uid drawn again by a hub that was restored from a backup: this worker's work is not ours to judge.
            known = None
        over = known is not None and not known.phase.live
        uid = known.uid if known is not None else uid
    return Activity(job_id, index, uid, over, running=said != "accepted")


def outcome_of(result: JobResult) -> Outcome:
    """Read a result as the core's own value."""
    job_id, index = split_task_id(result.task_id) or (result.task_id, -1)
    usage = result.usage or Usage()
    # The first of them without their names: a call with more than 15 names takes three times as long.
    return Outcome(
        job_id,
        index,
        result.attempt or "",
        "succeeded" if result.state == "completed" else result.state,
        exit_code=result.exit_code,
        signal=result.signal or 0,
        exit_class=result.exit_class or "",
        error=(result.error or "")[:4096],
        wall_s=usage.wall_s,
        cpu_s=usage.cpu_s,
        max_rss_bytes=int(usage.max_rss_bytes),
        value=result.value or b"",
        digest=result.digest or "",
        last=(result.last_lines or "")[-LAST_CHARS:],
        gpu_s=usage.gpu_s,
        gpu_seen_s=usage.gpu_seen_s,
        max_gpu_bytes=int(usage.max_gpu_bytes),
    )


def use_of(usage: Usage) -> Use:
    """Read what an attempt uses as the core's own value."""
    cards = tuple(
        CardUse(card.index, card.share, int(card.memory_bytes), card.idle_s) for card in usage.cards or ()
    )
    seen = (usage.gpu_s, usage.gpu_seen_s, int(usage.max_gpu_bytes))
    return Use(usage.cpu_s, int(usage.max_rss_bytes), *seen, cards)


def _heartbeat(state: State, worker: str, body: Heartbeat) -> Iterator[Event | Effect]:
    yield from _said_by_beat(state, worker, body)
    yield Ack(worker, "heartbeat", beat=body.beat)


def _said_by_beat(state: State, worker: str, body: Heartbeat) -> Iterator[Event | Effect]:
    known = state.workers[worker]
    devices = known.devices if body.devices is None else read_cards(body.devices)
    capability = known.capability if body.capability is None else body.capability.read()
    if body.capability is not None and (capability != known.capability or devices != known.devices):
        yield WorkerChanged(worker, capability, devices)
    yield SlotsSeen(worker, body.slots)
    if body.usage is not None and body.usage.attempts:
        yield UsesSeen(worker, {uid: use_of(usage) for uid, usage in body.usage.attempts.items()})
        if state.policy.idle.acts:
            for uid in body.usage.attempts:
                yield from find_steps(state, worker, uid)
    if body.warm is not None:
        yield WarmSeen(worker, tuple(body.warm))
    if body.active is not None:
        for uid in missing(state, worker, body.active):
            yield ResendDue(uid)
        yield from stop_over(state, worker, body.active, body.beat)


def _ready(state: State, worker: str, body: ReadyForWork) -> Iterator[Event | Effect]:
    yield CreditSet(worker, body.credits, body.slots, (body.not_ready or "")[:MAX_NOTE])


def _accepted(state: State, worker: str, body: JobAccepted) -> Iterator[Event | Effect]:
    job_id, index = split_task_id(body.task_id) or (body.task_id, -1)
    yield AttemptAccepted(
        worker, job_id, index, body.attempt or "", body.address or "", tuple(body.ports or ())
    )


def _started(state: State, worker: str, body: JobStarted) -> Iterator[Event | Effect]:
    job_id, index = split_task_id(body.task_id) or (body.task_id, -1)
    yield AttemptStarted(worker, job_id, index, body.attempt or "", body.pid)


def _result(state: State, worker: str, body: JobResult) -> Iterator[Event | Effect]:
    outcome = outcome_of(body)
    if find(state, worker, outcome.job_id, outcome.index, outcome.uid) is None:
        yield LookUp(worker, outcome.job_id, outcome.index, outcome.uid)
    else:
        yield AttemptEnded(worker, outcome)


def _progress(state: State, worker: str, body: JobProgress) -> Iterator[Event | Effect]:
    """A word about an attempt that is not this worker's, or one too many, is left unread: nobody waits for it."""
    job_id, index = split_task_id(body.task_id) or (body.task_id, -1)
    attempt = find(state, worker, job_id, index, body.attempt or "")
    if attempt is None:
        return
    note = None if body.note is None else body.note[:MAX_NOTE]
    yield Progressed(worker, attempt.uid, body.step, body.fraction, note)
    if body.saved_step is None or state.presence[worker].flooding or not is_news(attempt, body.saved_step):
        return
    age_ms = round(1000 * (body.saved_age_s or 0))
    yield AttemptSaved(worker, job_id, index, attempt.uid, body.saved_step, age_ms)


def _health(state: State, worker: str, body: ServiceHealth) -> Iterator[Event | Effect]:
    """What is said of a replica is a fact only where it changes something; of any other task it is heard and let be."""
    job_id, index = split_task_id(body.task_id) or (body.task_id, -1)
    attempt = find(state, worker, job_id, index, body.attempt or "")
    if attempt is None:
        yield Refuse(worker, f"service_health: this worker has no attempt of task {body.task_id}")
        return
    yield Ack(worker, "service_health")
    live = body.live is not False
    if attempt.phase.live and is_news_of_health(state, attempt, body.healthy, live):
        note = (body.message or "")[:MAX_NOTE]
        yield HealthChanged(worker, job_id, index, attempt.uid, body.healthy, live, note)


def _yielded(state: State, worker: str, body: JobYield) -> Iterator[Event | Effect]:
    """A word about an attempt that is over is left unread: whatever it held has been given back."""
    attempt = _own(state, worker, body.attempt)
    if attempt is not None and not attempt.yielded:
        yield AttemptYielded(worker, attempt.uid)


def _resumes(state: State, worker: str, body: JobResume) -> Iterator[Event | Effect]:
    attempt = _own(state, worker, body.attempt)
    if attempt is None:
        return
    if attempt.yielded:
        yield ResumeAsked(worker, attempt.uid)
    else:
        # It has its place: the word that said so was lost.
        yield Resume(worker, attempt.uid)


def _own(state: State, worker: str, uid: str) -> Attempt | None:
    attempt = state.attempts.get(uid)
    return attempt if attempt is not None and attempt.worker == worker and attempt.phase.live else None


def _nothing(state: State, worker: str, body: object) -> Iterator[Event | Effect]:
    yield from ()


_STEPS: dict[type[Any], Callable[[State, str, Any], Iterator[Event | Effect]]] = {
    Heartbeat: _heartbeat,
    ReadyForWork: _ready,
    JobAccepted: _accepted,
    JobStarted: _started,
    JobResult: _result,
    ServiceHealth: _health,
    JobProgress: _progress,
    JobYield: _yielded,
    JobResume: _resumes,
    JobLog: _nothing,
    MetricsRequest: _nothing,
    WorkerListRequest: _nothing,
    WorkerShowRequest: _nothing,
}
