"""How services are: what their checks have said, when each is asked next, and what the hub is told. Pure.

Only what changes is told, and all of it after every register. The surprising rule: until a check has passed once it is
asked soon and often, and says nothing by failing before its start period is over: what starts slowly is not ill.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from dray.agent.decide.attempts import Running
from dray.agent.decide.effects import Effect, Supervise, Tell
from dray.core.model.specs.health import Checkup, checkups, port_names
from dray.core.model.specs.spec import HealthProbe

# While it has not passed yet: from here on ever more rarely, up to its interval.
FIRST_MS = 4
SLOWER = 1.2
MOST_AT_ONCE = 64
MAX_MESSAGE = 1000


class Question(NamedTuple):
    """A check to be made now, of one attempt. `first`: it has not passed before."""

    uid: str
    number: int
    check: HealthProbe
    port: int
    pid: int
    first: bool


class Asked(msgspec.Struct):
    """One check of one attempt as it stands."""

    checkup: Checkup
    port: int
    wait_ms: float = FIRST_MS
    failures: int = 0
    passed: bool = False
    running: bool = False


class Patient(msgspec.Struct):
    """One service. `told`: what the hub has heard last; None where nothing was said yet."""

    attempt: Running
    checks: list[Asked]
    began_ms: int = -1
    ready: bool = False
    live: bool = True
    message: str = ""
    told: tuple[bool, bool] | None = None


class Health:
    """All services of one agent that have checks. `fresh`: some have come that nobody was asked about."""

    def __init__(self) -> None:
        self.patients: dict[str, Patient] = {}
        self.fresh = False
        self._due: list[tuple[int, str, int]] = []
        self._running = 0

    def begin(self, attempt: Running) -> None:
        """An attempt runs: watch it, if it is to be checked."""
        if attempt.health is None or attempt.uid in self.patients:
            return
        names = port_names(attempt.named, attempt.health)
        ports = dict(zip(names, attempt.ports, strict=False))
        first = attempt.ports[0] if attempt.ports else 0
        checks = [Asked(one, ports.get(one.check.port, first)) for one in checkups(attempt.health)]
        self.patients[attempt.uid] = Patient(attempt, checks)
        for number in range(len(checks)):
            heapq.heappush(self._due, (0, attempt.uid, number))
        self.fresh = self.fresh or bool(checks)

    def attached(self, running: Mapping[str, Running]) -> None:
        """Attempts were read anew from the supervisor: go on with those that run."""
        for uid in [uid for uid in self.patients if uid not in running or running[uid].phase != "running"]:
            self.end(uid)
        for attempt in running.values():
            if attempt.uid in self.patients:
                self.patients[attempt.uid].attempt = attempt
            elif attempt.phase == "running":
                self.begin(attempt)

    def end(self, uid: str) -> None:
        """An attempt is over: nobody is asked about it any more."""
        patient = self.patients.pop(uid, None)
        if patient is not None:
            self._running -= sum(asked.running for asked in patient.checks)

    def due(self, now_ms: int) -> list[Question]:
        """What is to be asked now; no more at once than a machine can bear."""
        self.fresh = False
        questions: list[Question] = []
        while self._due and self._due[0][0] <= now_ms and self._running < MOST_AT_ONCE:
            _, uid, number = heapq.heappop(self._due)
            patient = self.patients.get(uid)
            if patient is None or number >= len(patient.checks) or patient.checks[number].running:
                continue
            if patient.began_ms < 0:
                patient.began_ms = now_ms
            asked = patient.checks[number]
            asked.running = True
            self._running += 1
            check, pid = asked.checkup.check, patient.attempt.pid
            questions.append(Question(uid, number, check, asked.port, pid, not asked.passed))
        return questions

    def wait_ms(self, now_ms: int) -> int | None:
        """How long nobody need be asked; None where nobody is to be at all."""
        if not self._due or self._running >= MOST_AT_ONCE:
            return None
        return max(0, self._due[0][0] - now_ms)

    def answered(self, question: Question, fault: str, now_ms: int) -> list[Effect]:
        """A check has passed, or failed with words; what there is to tell."""
        patient = self.patients.get(question.uid)
        if patient is None or question.number >= len(patient.checks):
            return []
        asked = patient.checks[question.number]
        if not asked.running or asked.checkup.check is not question.check:
            return []
        asked.running = False
        self._running -= 1
        self._judge(patient, asked, fault, now_ms)
        heapq.heappush(self._due, (now_ms + self._pause_ms(asked, question), question.uid, question.number))
        return self._tell(patient)

    def _judge(self, patient: Patient, asked: Asked, fault: str, now_ms: int) -> None:
        checkup = asked.checkup
        if not fault:
            asked.failures, asked.passed = 0, True
            if checkup.unready_after:
                patient.ready, patient.message = True, ""
            return
        asked.failures += 1
        if not asked.passed and now_ms - patient.began_ms < 1000 * checkup.check.start_period_s:
            return
        if checkup.unready_after and asked.failures >= checkup.unready_after:
            patient.ready, patient.message = False, fault[:MAX_MESSAGE]
            patient.told = patient.told or (True, True)
        if checkup.dead_after and asked.failures >= checkup.dead_after:
            patient.live, patient.ready, patient.message = False, False, fault[:MAX_MESSAGE]

    def _pause_ms(self, asked: Asked, question: Question) -> int:
        interval_ms = 1000 * asked.checkup.check.interval_s
        if not asked.passed:
            pause_ms, asked.wait_ms = min(asked.wait_ms, interval_ms), asked.wait_ms * SLOWER
            return max(1, round(pause_ms))
        if not question.first:
            return round(interval_ms)
        # Spread over the interval from here on: what started together would be asked together for ever.
        return round(interval_ms * (0.5 + zlib.crc32(question.uid.encode()) % 1000 / 1000))

    def _tell(self, patient: Patient) -> list[Effect]:
        now = (patient.ready, patient.live)
        if now == (patient.told or (False, True)):
            return []
        patient.told = now
        return [self._word(patient)]

    def _word(self, patient: Patient) -> Tell:
        attempt = patient.attempt
        payload: dict[str, Any] = {"task_id": attempt.task_id, "attempt": attempt.uid}
        payload |= {"healthy": patient.ready, "live": patient.live, "message": patient.message}
        return Tell("service_health", payload)

    def repeat(self) -> list[Effect]:
        """A new session: the hub may have heard none of it."""
        return [
            self._word(patient)
            for patient in self.patients.values()
            if patient.told is not None and patient.attempt.known
        ]

    def stolen(self, uid: str) -> list[Effect]:
        """Somebody else answers on its port: it is ended, as lost by this machine, and the next try gets another."""
        self.end(uid)
        return [Supervise({"op": "cancel", "uid": uid, "reason": "port"})]
