"""Committed effects become I/O: messages to sessions, lines for the feed, alarms for the log.

Runs only after the commit that justifies the effects, in their order. What a worker asks about and memory has let go
(a late result, an attempt that it still runs) is looked up in the rows here, and answered by them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from dray.core.lifecycle.holding.groups import members
from dray.core.lifecycle.holding.rollouts import spec_of
from dray.core.lifecycle.state.effects import (
    Ack,
    Alarm,
    Assign,
    CallsDone,
    Cancel,
    CloseSession,
    FeedCalls,
    GetReady,
    Go,
    LookUp,
    Note,
    NoWork,
    Refuse,
    Resume,
    SolveWanted,
    StopIfOver,
)
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.tasks.gangs import waits_for_go
from dray.core.model.ids import task_id
from dray.core.model.records.records import Attempt, Job, Phase
from dray.core.model.specs.health import member_health
from dray.core.model.specs.spec import FOREVER_NS, told_spec, unpack_spec, with_variant
from dray.hub.calls.assignments import LaneFeed
from dray.hub.calls.results import AckCalls, Recorded
from dray.hub.documents.public_feed import Feed
from dray.hub.engine.turns import Leaving
from dray.hub.rows import Rows
from dray.hub.workers.session import Session
from dray.hub.workers.sessions import Sessions
from dray.wire.messages.codec import message

logger = logging.getLogger("dray.hub")
Publish = Callable[[int, list["Recorded | CallsDone"]], None]
# The protocol's list of reasons is closed, and an agent that does not know one leaves its task running: what a worker
# must do about a requeue is what it does about any user's cancel.
_PEER_REASONS = {"requeued": "user", "idle": "user"}


def _raise(effect: str, error: BaseException) -> None:
    raise error


class Runner:
    """Knows the sessions and the feed; decides nothing."""

    def __init__(
        self,
        rows: Rows,
        sessions: Sessions,
        feed: Feed,
        notice: Callable[[Note], None],
        heartbeat_s: float,
        lanes: LaneFeed,
        publish: Publish | None = None,
        failed: Callable[[str, BaseException], None] | None = None,
        use_token: Callable[[Job], str] = lambda job: "",
    ) -> None:
        self._use_token = use_token
        # Hears which batch is to be solved.
        self.solve: Callable[[int], None] = lambda number: None
        self._failed = failed or _raise
        self._seq = 0
        self._state, self._rows, self._sessions, self._feed = rows.state, rows, sessions, feed
        self._notice, self._heartbeat_s = notice, heartbeat_s
        self._lanes = lanes
        self._publish = publish or (lambda seq, ended: None)
        self._ended: list[Recorded | CallsDone] = []
        self._acks: dict[str, list[int]] = {}
        self._specs: dict[tuple[str, int, int, bool], dict[str, Any]] = {}
        self._peers: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self._send: dict[type[Any], Callable[[Any], None]] = {
            Assign: self._assign,
            FeedCalls: lambda effect: self._lanes.feed(effect.uid, effect.indices),
            AckCalls: lambda effect: self._acks.setdefault(effect.worker, []).append(effect.seq),
            Recorded: self._ended.append,
            CallsDone: self._ended.append,
            Resume: self._resume,
            Go: self._go,
            GetReady: self._get_ready,
            NoWork: self._no_work,
            Cancel: self._cancel,
            Ack: self._ack,
            Refuse: self._refuse,
            LookUp: self._look_up,
            StopIfOver: self._stop_if_over,
            CloseSession: self._close,
            SolveWanted: lambda effect: self.solve(effect.number),
            Alarm: self._alarm,
        }

    def run(self, effects: list[Leaving], seq: int, clock: Clock) -> None:
        """Carry out one turn's effects; frames go out at the end, what the whole turn has for a peer together."""
        self._sessions.departures.hold()
        try:
            notes = self._carry_out(effects, seq)
        finally:
            for flush in self._sessions.departures.release():
                try:
                    flush()
                except Exception as error:  # noqa: BLE001 - as below
                    self._failed("frame", error)
        self._specs.clear()
        self._peers.clear()
        self._feed.publish(seq, clock.at_ms, notes)

    def _carry_out(self, effects: list[Leaving], seq: int) -> list[Note]:
        notes = []
        self._seq = seq
        for effect in effects:
            try:
                if isinstance(effect, Note):
                    notes.append(effect)
                    self._notice(effect)
                else:
                    self._send[type(effect)](effect)
            except Exception as error:  # noqa: BLE001 - what is committed must reach all the others
                self._failed(type(effect).__name__, error)
        self._send_calls()
        # Also with nothing to tell: the job that ended in this turn may have had its last result before.
        ended = self._ended.copy()
        self._ended.clear()
        self._publish(seq, ended)
        return notes

    def _send_calls(self) -> None:
        for worker, seqs in self._acks.items():
            if session := self._session(worker):
                session.push(message("calls_ack", {"seq": seqs}))
        self._acks.clear()
        for session, envelope in self._lanes.messages(self._session):
            session.push(envelope)

    def _session(self, worker: str) -> Session | None:
        """The session that the state names: a newer socket under this id is nobody until its register was folded in."""
        presence = self._state.presence.get(worker)
        return self._sessions.open.get(presence.session) if presence is not None else None

    def _assign(self, effect: Assign) -> None:
        session, attempt = self._session(effect.worker), self._state.attempts.get(effect.uid)
        if attempt is not None and attempt.lane:
            self._lanes.resend(effect.uid)
            return
        if session is None or attempt is None or attempt.phase is not Phase.ASSIGNED:
            return
        job = self._state.jobs[attempt.job_id]
        rank, size = attempt.index % job.group_size, job.group_size
        key = (job.id, attempt.revision, attempt.variant, job.service and rank > 0)
        document = self._specs.get(key)
        if document is None:
            packed = spec_of(self._state, job, attempt.revision)
            spec = with_variant(unpack_spec(packed), attempt.variant)
            if job.service:
                spec = msgspec.structs.replace(spec, health_check=member_health(spec.health_check, rank))
            document = self._specs[key] = told_spec(spec) | {"user_id": job.user}
        told: dict[str, Any] = {"id": self._state.spell(attempt)}
        if "indices" in (document.get("array") or ()):
            array = unpack_spec(job.spec).array
            assert array is not None, job.id
            told["array"] = array.told(attempt.index)
        payload: dict[str, Any] = {
            "spec": document | told,
            "remaining_time": attempt.limit_ms * 1_000_000 if attempt.limit_ms else FOREVER_NS,
            "attempt": {"no": attempt.no, "uid": attempt.uid, "fence": attempt.fence},
            "devices": list(attempt.devices),
        }
        if document.get("overlap") == "fenced":
            payload["lease_s"] = attempt.lost_after_ms / 1000
        if job.gang:
            payload["gang"] = {"generation": attempt.generation, "rank": rank, "size": size}
        if job.uses:
            payload["token"] = self._use_token(job)
        if attempt.behind:
            payload |= {"behind": attempt.behind, "behind_s": self._state.rules.behind_ms / 1000}
        session.push(message("job_assign", payload))

    def _go(self, effect: Go) -> None:
        session, attempt = self._session(effect.worker), self._state.attempts.get(effect.uid)
        if session is None or attempt is None or not waits_for_go(attempt):
            return
        job = self._state.jobs[attempt.job_id]
        group = (job.id, attempt.index // job.group_size)
        peers = self._peers.get(group)
        if peers is None:
            found = members(self._state, job, attempt.index)
            peers = self._peers[group] = [self._peer(rank, member) for rank, member in enumerate(found)]
        payload = {
            "task_id": self._state.spell(attempt),
            "generation": attempt.generation,
            "attempt": attempt.uid,
            "peers": peers,
        }
        session.push(message("job_go", payload))

    def _peer(self, rank: int, member: Attempt) -> dict[str, Any]:
        # One whose place was removed has ended: the gang starts anew, and nobody calls on it.
        known = self._state.workers.get(member.worker)
        address = member.address or (known.address if known is not None else "")
        return {"rank": rank, "address": address, "ports": list(member.ports)}

    def _get_ready(self, effect: GetReady) -> None:
        if session := self._session(effect.worker):
            payload = {"task_id": effect.job_id, **effect.needs._asdict(), "user": effect.user}
            session.push(message("prewarm_hint", payload | ({"over": True} if effect.over else {})))

    def _resume(self, effect: Resume) -> None:
        session, attempt = self._session(effect.worker), self._state.attempts.get(effect.uid)
        if session is not None and attempt is not None and attempt.phase.live:
            # A lane has no task: its word goes under the job's own id, as its accept and its end do.
            task = attempt.job_id if attempt.lane else self._state.spell(attempt)
            session.push(message("job_resume", {"task_id": task, "attempt": attempt.uid}))

    def _no_work(self, effect: NoWork) -> None:
        if session := self._session(effect.worker):
            session.push(message("no_work"))

    def _cancel(self, effect: Cancel) -> None:
        if session := self._session(effect.worker):
            payload = {
                "task_id": effect.task_id,
                "attempt": effect.uid,
                "reason": _PEER_REASONS.get(effect.reason, effect.reason),
                "grace_s": effect.grace_s,
            }
            session.push(message("job_cancel", payload))

    def _ack(self, effect: Ack) -> None:
        session = self._session(effect.worker)
        if session is None:
            return
        payload: dict[str, Any] = {"re": effect.re, "epoch": self._state.counters.epoch, "turn": self._seq}
        if effect.results:
            payload["results"] = dict(effect.results)
        if effect.beat:
            payload["beat"] = effect.beat
        if session.leader:
            payload["leader"] = session.leader
        if effect.re == "register":
            row = self._state.workers[effect.worker]
            session.registered(row.incarnation, row.registered_at_ms)
            payload |= {
                "session": str(session.number),
                "heartbeat_s": self._heartbeat_s,
                "keep": list(effect.keep),
                "stop": list(effect.stop),
            }
            if session.notes:
                payload["notes"] = session.notes
        if wanted := self._find_wanted(effect):
            payload["log_offsets"] = wanted
        session.push(message("ack", payload))

    def _find_wanted(self, effect: Ack) -> dict[str, dict[str, int]]:
        """Superseded results whose attempts are on record: what those printed is taken all the same, from its start."""
        wanted: dict[str, dict[str, int]] = {}
        for uid in (uid for uid, verdict in effect.results.items() if verdict == "superseded"):
            known = self._rows.attempt(uid)
            if known is not None and known.worker == effect.worker:
                wanted[uid] = {}
        return wanted

    def _refuse(self, effect: Refuse) -> None:
        if session := self._session(effect.worker):
            session.push(message("error", error=effect.error))

    def _look_up(self, effect: LookUp) -> None:
        """A result for an attempt that memory let go: the rows know it, or nobody does."""
        index = max(effect.task_index, 0)
        if effect.uid:
            known = self._rows.attempt(effect.uid)
            if known is not None and (known.worker, known.job_id, known.index) != (
                effect.worker,
                effect.job_id,
                index,
            ):
                known = None
        else:
            known = self._rows.newest_attempt(effect.worker, effect.job_id, index)
        if known is None or known.phase.live:
            name = task_id(effect.job_id, effect.task_index)
            if effect.uid and known is None:
                self._ack(Ack(effect.worker, "job_result", {effect.uid: "superseded"}))
            else:
                self._refuse(Refuse(effect.worker, f"job_result: this worker has no attempt of task {name}"))
            return
        stale = known.phase in (Phase.LOST, Phase.REVOKED)
        self._ack(Ack(effect.worker, "job_result", {known.uid: "superseded" if stale else "duplicate"}))

    def _stop_if_over(self, effect: StopIfOver) -> None:
        known = self._rows.attempt(effect.uid)
        if known is None or known.worker != effect.worker or known.phase.live:
            return
        job = self._rows.job(known.job_id)
        index = job.spelled(known.index) if job is not None else -1
        self._cancel(Cancel(effect.worker, task_id(known.job_id, index), effect.uid, "superseded", 0))

    def _close(self, effect: CloseSession) -> None:
        if session := self._sessions.open.get(effect.session):
            logger.warning("closing a session", extra={"worker": effect.worker, "reason": effect.reason})
            session.close(effect.code, effect.reason)

    def _alarm(self, effect: Alarm) -> None:
        logger.error("alarm: %s", effect.text)
