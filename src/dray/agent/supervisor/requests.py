"""What the agent may ask of the supervisor, one method per operation.

Decodes and checks; the server records and acts. A bad message is answered with an error that says what was wrong, and
costs nobody else anything.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from dray.agent.supervisor.attempts.attempt import LATE
from dray.agent.supervisor.attempts.spec import (
    MOST_REASON,
    TaskSpec,
    ports_of,
    read_env,
    read_seconds,
    read_uid,
)
from dray.agent.supervisor.records.ledger import Entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from dray.agent.supervisor.attempts.attempt import Stop
    from dray.agent.supervisor.connection import Connection
    from dray.agent.supervisor.records.journal import Record
    from dray.agent.supervisor.server import Server

RECORDS_PER_TASK_BYTES = 1024
REFUSED_KEPT = 1000


def describe_stop(stop: Stop) -> Record:
    """Why an attempt was asked to end, and how long it has until KILL."""
    return {"reason": stop.reason, "grace_s": round(max(0.0, stop.kill_at - time.monotonic()), 3)}


class Requests:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._line_bytes = 0
        self._refused: dict[str, tuple[str, bool, bool]] = {}
        self._handlers = {
            "run": self._run,
            "prepare": self._prepare,
            "go": self._go,
            "cancel": self._cancel,
            "acked": self._acked,
            "renew": self._renew,
            "epoch": self._epoch,
            "heed": self._heed,
            "hasten": self._hasten,
            "leave": self._leave,
            "stop": self._stop,
        }

    def receive(self, connection: Connection, line: bytes) -> None:
        try:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError(f"a message is an object, not {type(message).__name__}")
            op = message.get("op")
            if op == "hello":
                # What the state tells is not told twice; what happens from here on follows it.
                self._server.take_over(connection)
                self._server.outbox.drop_progress()
                connection.state = self.describe_state()
                return
            if connection.on_line is not None:
                connection.on_line(message)
                return
            if op in ("exec", "attach"):
                self._server.execs.begin(connection, message)
                return
            if op == "ping":
                # Not by the turn's events: those are held back while the journal cannot be written.
                connection.send({"ev": "pong", "refusal": self._server.refusal(RECORDS_PER_TASK_BYTES)})
                return
            if not connection.greeted and connection.state is None:
                raise ValueError("say hello first: the answer tells what already runs")
            handler = self._handlers.get(op) if isinstance(op, str) else None
            if handler is None:
                raise ValueError(f"unknown op {op!r}: known are hello, ping, {', '.join(self._handlers)}")
            self._line_bytes = len(line)
            handler(message)
        except (ValueError, RecursionError) as error:
            connection.send({"ev": "error", "error": str(error)[:500]})

    def describe_state(self) -> Record:
        server = self._server
        return {
            "ev": "state",
            "journal_id": server.journal.journal_id,
            "boot_id": server.boot_id,
            "pid": os.getpid(),
            "max_epoch": server.ledger.max_epoch,
            "attempts": [self._describe(entry) for entry in server.ledger.entries.values()],
        }

    def _describe(self, entry: Entry) -> Record:
        started = entry.started
        item: Record = {
            "uid": entry.uid,
            "task_id": entry.task_id,
            "phase": entry.phase,
            "pid": started["pid"] if started is not None else None,
            "started_at": started["first_at"] if started is not None else None,
            "meta": entry.meta,
        }
        attempt = self._server.runner.attempts.get(entry.uid)
        item["out"] = attempt.out() if attempt is not None else {"stdout": 0, "stderr": 0}
        if attempt is not None and attempt.stop is not None:
            item["stop"] = describe_stop(attempt.stop)
        if entry.exit is not None:
            item.update(entry.exit)
        return item

    def _run(self, message: Record) -> None:
        self._take(message, self._server.take_on)

    def _prepare(self, message: Record) -> None:
        self._take(message, self._server.prepared.hold)

    def _go(self, message: Record) -> None:
        uid = read_uid(message)
        if not self._server.prepared.start(uid, read_env(message)) and not self._answer_known(uid):
            raise ValueError(f"attempt {uid} is not known here: nothing to start")

    def _take(self, message: Record, take_on: Callable[[TaskSpec], None]) -> None:
        tasks = message.get("tasks")
        if not isinstance(tasks, list):
            raise ValueError(f"{message['op']} needs a list of tasks")
        # What is recorded of a task is what was said of it, at most, and how it went.
        refusal = self._server.refusal(self._line_bytes + RECORDS_PER_TASK_BYTES * len(tasks))
        for raw in tasks:
            try:
                if not isinstance(raw, dict):
                    raise ValueError(f"a task is an object, not {type(raw).__name__}")
                uid = read_uid(raw)
                if self._answer_known(uid):
                    continue
                if uid in self._refused:
                    # Two agents may ask for one attempt, the earlier one's request come late: its refusal is heard, and
                    # believed, by both.
                    self._refuse(raw, *self._refused[uid])
                    continue
                spec = TaskSpec(raw)
                if refusal or spec.is_late():
                    self._refuse(raw, refusal or LATE, host=True)
                    continue
                if holder := self._find_holder(spec):
                    self._refuse(raw, holder, host=False, elsewhere=True)
                    continue
                take_on(spec)
            except ValueError as error:
                self._refuse(raw, str(error), host=False)

    def _find_holder(self, spec: TaskSpec) -> str:
        """Who holds a port of a task that comes: an attempt that its agent has given up may have started after all."""
        if not spec.ports:
            return ""
        for entry in self._server.ledger.entries.values():
            if entry.exit is None and (shared := {*spec.ports} & {*ports_of(entry.meta)}):
                return f"port {min(shared)} is still held by task {entry.task_id} (attempt {entry.uid})"
        return ""

    def _refuse(self, raw: object, error: str, host: bool, elsewhere: bool = False) -> None:
        """`host`: nothing could be started here now, whatever it is; `elsewhere`: not this one, through no fault of
        its own.
        """
        uid = raw.get("uid") if isinstance(raw, dict) else None
        if isinstance(uid, str):
            self._refused[uid] = (error, host, elsewhere)
            if len(self._refused) > REFUSED_KEPT:
                del self._refused[next(iter(self._refused))]
        self._server.outbox.others.append(
            {"ev": "refused", "uid": uid, "error": error, "host": host, "elsewhere": elsewhere}
        )

    def _answer_known(self, uid: str) -> bool:
        """A uid that is known already is never started twice: its present phase is told again."""
        if self._server.prepared.tell(uid):
            return True
        ledger, outbox = self._server.ledger, self._server.outbox
        phase = ledger.phase_of(uid)
        if phase == "accepted" and uid not in self._server.runner.followers:
            outbox.accepted.append(uid)
        elif phase == "running":
            started = ledger.entries[uid].started or {}
            outbox.started.append({"uid": uid, "pid": started["pid"], "started_at": started["first_at"]})
        elif phase == "exited":
            outbox.exited.append({"uid": uid, **(ledger.exit_of(uid) or {})})
        return phase is not None

    def _cancel(self, message: Record) -> None:
        uid = read_uid(message)
        reason = message.get("reason", "user")
        if not isinstance(reason, str) or not reason:
            raise ValueError(f"reason is {reason!r}: give a word")
        reason = reason[:MOST_REASON]
        grace_s = read_seconds(message, "grace_s")
        if self._server.prepared.cancel(uid, reason) or message.get("held"):
            return  # `held`: what has been let go is none of it
        attempt = self._server.runner.attempts.get(uid)
        if attempt is not None:
            self._server.runner.cancel(uid, reason, attempt.spec.grace_s if grace_s is None else grace_s)
        elif not self._answer_known(uid):
            self._server.outbox.others.append(
                {"ev": "error", "uid": uid, "error": f"attempt {uid} is not known here: nothing to cancel"}
            )

    def _acked(self, message: Record) -> None:
        uids = message.get("uids")
        if not isinstance(uids, list) or not all(isinstance(uid, str) for uid in uids):
            raise ValueError("acked needs a list of uids")
        self._server.acknowledge(uids)

    def _renew(self, message: Record) -> None:
        age_s = read_seconds(message, "age_s") or 0.0
        self._server.runner.renew_leases(age_s)
        self._server.prepared.renew_leases(age_s)

    def _heed(self, message: Record) -> None:
        self._server.runner.heed(read_uid(message))

    def _hasten(self, message: Record) -> None:
        self._server.runner.hasten(read_uid(message))

    def _epoch(self, message: Record) -> None:
        value = message.get("value")
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"epoch is {value!r}: give a whole number")
        if value > self._server.ledger.max_epoch:
            self._server.record({"k": "epoch", "value": value})
        self._server.outbox.others.append({"ev": "epoch", "value": max(value, self._server.ledger.max_epoch)})

    def _leave(self, message: Record) -> None:
        self._server.dismiss()

    def _stop(self, message: Record) -> None:
        self._server.stop()
